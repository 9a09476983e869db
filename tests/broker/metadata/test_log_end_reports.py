"""A broker's reports about its logs while their partitions have no leader, and how long it sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.log_end_reports import REPEAT_PAUSE_S_MAX, LogEndReports
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    ControllerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from tidelog.proto.calls.controller_api import LogEnd, ReportLogEndsRequest, ReportLogEndsResponse
from tidelog.proto.logs.metadata_records import PartitionRecord, TopicRecord
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.partition_state import PartitionState

TOPIC = TopicId(b"t" * 16)
KEY = TopicIdPartition(TOPIC, 0)
ASKED = PartitionRecord(
    topic_id=TOPIC,
    partition=0,
    replicas=(NodeId(1), NodeId(2), NodeId(3)),
    isr=(),
    eligible_leader_replicas=(),
    last_known_elr=(NodeId(1), NodeId(2)),
    removing_replicas=(),
    adding_replicas=(),
    leader=NodeId(-1),
    leader_epoch=LeaderEpoch(7),
    partition_epoch=PartitionEpoch(9),
    leader_recovery=False,
    directories=(UNASSIGNED_DIRECTORY,) * 3,
)
END = LogEnd(TOPIC, 0, LeaderEpoch(7), LeaderEpoch(5), Offset(42))


@dataclass
class Broker:
    """A reporter whose controller answers with ``answers``, then with NONE."""

    records: list[PartitionRecord] = field(default_factory=lambda: [ASKED])
    leader_epoch: int = 7
    offline: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(2, 0), (5, 30)])
    answers: list[Any] = field(default_factory=list)
    sent: list[ReportLogEndsRequest] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.reports = LogEndReports(
            NodeId(1),
            cast(ControllerChannel, self),
            lambda: BrokerEpoch(3),
            lambda: apply_records(
                MetadataImage(), (*self.records, TopicRecord("t", TOPIC)), Offset(1), ControllerEpoch(1)
            )[0],
            lambda key: cast(Partition, self.replica()),
        )

    def replica(self) -> Any:
        log = SimpleNamespace(epoch_entries=self.epochs, log_end_offset=Offset(42))
        return SimpleNamespace(offline=self.offline, leader_epoch=self.leader_epoch, log=log)

    def applied(self) -> None:
        """The replicas take over what the metadata says."""
        self.reports.applied([cast(PartitionState, SimpleNamespace(key=KEY, leader=r.leader)) for r in self.records])

    async def call(self, request: ReportLogEndsRequest, *, timeout_s: float) -> ReportLogEndsResponse:
        self.sent.append(request)
        self.heard.set()
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        return ReportLogEndsResponse(answer)

    async def next(self) -> ReportLogEndsRequest:
        async with asyncio.timeout(3 * REPEAT_PAUSE_S_MAX):
            await self.heard.wait()
        self.heard.clear()
        return self.sent[-1]

    async def says_nothing(self) -> None:
        self.heard.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await self.heard.wait()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker()
    running = asyncio.ensure_future(made.reports.run())
    await asyncio.sleep(0)
    yield made
    assert not running.done(), "the reporter lives as long as its node"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_reports_where_it_is_asked_and_again_until_there_is_a_leader(broker: Broker) -> None:
    broker.applied()
    assert await broker.next() == ReportLogEndsRequest(NodeId(1), BrokerEpoch(3), (END,))
    assert (await broker.next()).ends == (END,), "another controller may have taken over"
    broker.records = [replace(ASKED, leader=NodeId(2), leader_epoch=LeaderEpoch(8))]
    broker.applied()
    await broker.says_nothing()


@pytest.mark.parametrize(
    "answer",
    [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.REQUEST_TIMED_OUT, ControllerUnavailable("none", unknown=True)],
)
async def test_it_bears_a_controller_that_refuses_or_is_away(broker: Broker, answer: ErrorCode | Exception) -> None:
    broker.answers = [answer, answer]
    broker.applied()
    for _ in range(3):
        assert (await broker.next()).ends == (END,)


@pytest.mark.parametrize(
    "record",
    [
        replace(ASKED, eligible_leader_replicas=(NodeId(3),)),
        replace(ASKED, last_known_elr=(NodeId(2),)),
        replace(ASKED, last_known_elr=()),
        replace(ASKED, leader=NodeId(1), isr=(NodeId(1),)),
    ],
)
async def test_it_says_nothing_where_nobody_asks(broker: Broker, record: PartitionRecord) -> None:
    broker.records = [record]
    broker.applied()
    await broker.says_nothing()
    broker.records = [ASKED]
    broker.applied()
    assert (await broker.next()).ends == (END,)


async def test_it_does_not_report_a_log_that_may_still_grow(broker: Broker) -> None:
    """The image is ahead of the replica, which follows or leads yet."""
    broker.leader_epoch = 6
    broker.applied()
    await broker.says_nothing()
    broker.leader_epoch = 7
    broker.applied()
    assert (await broker.next()).ends == (END,)


@pytest.mark.parametrize(
    ("epochs", "reach"),
    [
        ([], (-1, 42)),
        ([(7, 42)], (7, 42)),
        # Epochs that nobody has had yet: a bit has flipped.
        ([(2, 0), (5, 30), (8, 40)], (5, 40)),
        ([(2, 0), (1 << 22, 30), (1 << 23, 40)], (2, 30)),
        ([(1 << 22, 3)], (-1, 3)),
    ],
)
async def test_epochs_that_cannot_be_count_for_nothing(
    broker: Broker, epochs: list[tuple[int, int]], reach: tuple[int, int]
) -> None:
    broker.epochs = epochs
    broker.applied()
    (found,) = (await broker.next()).ends
    assert (found.last_epoch, found.end_offset) == reach


async def test_it_does_not_report_a_failed_disk_or_a_deleted_topic(broker: Broker) -> None:
    broker.offline = True
    broker.applied()
    await broker.says_nothing()
    broker.offline = False
    broker.applied()
    await broker.next()
    broker.records = []
    await broker.says_nothing()
