"""Reports to the controller about replicas' directories."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.broker.metadata.directory_assignments import DirectoryAssignments
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.controller_api import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from tidelog.replication.partition.partition_state import PartitionState

HERE = DirectoryId(b"h" * 16)
THERE = DirectoryId(b"e" * 16)
KEY = TopicIdPartition(TopicId(b"t" * 16), 0)


class Bench:
    """Assignments over a controller that takes them all, and logs that stand where ``places`` says."""

    def __init__(self) -> None:
        self.places: dict[TopicIdPartition, DirectoryId] = {}
        self.told: list[DirectoryId] = []
        self.live = {HERE}
        self.settled: list[TopicIdPartition] = []
        self.assignments = DirectoryAssignments(
            NodeId(1),
            self,  # type: ignore[arg-type]
            lambda: BrokerEpoch(7),
            self.places.get,
            lambda directory: directory not in self.live,
            self.settled.append,
        )

    async def call(self, request: AssignReplicasToDirsRequest, **_: object) -> AssignReplicasToDirsResponse:
        self.told += [found.directory_id for found in request.assignments]
        return AssignReplicasToDirsResponse(ErrorCode.NONE)

    def applied(self, known: DirectoryId = UNASSIGNED_DIRECTORY, isr: tuple[int, ...] = (1, 2)) -> None:
        self.assignments.applied([_state(known, isr)])

    async def sent(self) -> list[DirectoryId]:
        sending = asyncio.ensure_future(self.assignments.run())
        await asyncio.sleep(0.01)
        sending.cancel()
        return self.told


def _state(known: DirectoryId, isr: tuple[int, ...]) -> PartitionState:
    return PartitionState(
        "t",
        KEY.topic_id,
        KEY.partition,
        (NodeId(1), NodeId(2)),
        tuple(NodeId(node) for node in isr),
        NodeId(2),
        LeaderEpoch(0),
        PartitionEpoch(0),
        TopicConfig(),
        directory_id=known,
    )


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_replica_is_said_to_stand_where_its_log_is(bench: Bench) -> None:
    bench.places[KEY] = HERE
    bench.applied()
    assert await bench.sent() == [HERE]
    bench.applied(HERE)
    assert await bench.sent() == [HERE], "what the controller knows was told again"


async def test_what_waits_is_still_told_when_the_directory_has_failed(bench: Bench) -> None:
    """The controller was told of the failure by the directory's name, and does not know that the replica is there."""
    bench.places[KEY] = HERE
    bench.applied()
    del bench.places[KEY]
    bench.applied()
    assert await bench.sent() == [HERE]


async def test_a_replica_whose_log_could_not_be_made_is_lost(bench: Bench) -> None:
    bench.applied()
    assert await bench.sent() == [LOST_DIRECTORY]


async def test_a_replica_that_moved_is_told_at_once_and_settled_when_the_metadata_says_so(bench: Bench) -> None:
    bench.places[KEY] = THERE
    bench.assignments.moved(KEY, THERE)
    assert await bench.sent() == [THERE]
    bench.applied(HERE)
    assert bench.settled == []
    bench.applied(THERE)
    assert bench.settled == [KEY]


async def test_a_replica_that_moved_away_to_a_directory_that_failed_is_lost(bench: Bench) -> None:
    """The controller believes it in the directory that works."""
    bench.applied(HERE)
    assert await bench.sent() == [LOST_DIRECTORY]


@pytest.mark.parametrize(("known", "isr"), [(HERE, (1, 2)), (LOST_DIRECTORY, (2,)), (UNASSIGNED_DIRECTORY, (1,))])
async def test_a_replica_that_the_controller_does_not_count_on_is_not_called_lost(
    bench: Bench, known: DirectoryId, isr: tuple[int, ...]
) -> None:
    """Its directory was named; it is lost already; or nobody else has what it has."""
    bench.live.clear()
    bench.applied(known, isr)
    assert await bench.sent() == []
