"""A client that commits in the name of others: strangers, former members, static members that were replaced.

The SDK does this only if it is late by chance. None of these commits may be acknowledged. The client also keeps asking
for the committed offsets, sooner than any member asks a new coordinator.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.chaos.simulated.watch.groups import FORGED, GroupWatch
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, Offset, TopicPartition
from tidelog.proto.calls.group_api import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.network import Address, CallTimeout, Connection, ConnectionLost

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

R = TypeVar("R", bound=Response)

NAME: Final = "prober"
TRY_S: Final = 1.5
FORGES: Final = 0.3
"""The share of forged commits; the other requests ask for offsets."""
_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a broker that does not know a new partition yet
    }
)
"""Errors that say nothing about the requester."""
_REFUSED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class GroupProber:
    """Sends a forged commit now and then, each once, and asks for committed offsets."""

    def __init__(self, sim: Simulation, watch: GroupWatch, group: str) -> None:
        self.refused = 0
        self._sim = sim
        self._watch = watch
        self._group = group
        self._rng = random.Random(sim.rng.random())
        self._stopping = False
        self._process = sim.cluster.client_process(NAME)
        self._network = sim.cluster.fabric.network(NAME, context=self._process.context)
        self._connections: dict[NodeId, Connection] = {}
        self._task = sim.cluster.run_in(self._process, self._run())

    async def finish(self) -> None:
        """Stop after the commit in progress."""
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        while not self._stopping:
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))
            node = self._watch.coordinator if self._sim.cluster.nodes else None
            if node is not None:
                await self._act(node)
        for connection in self._connections.values():
            await connection.close()

    async def _act(self, node: NodeId) -> None:
        forged = self._forged() if self._rng.random() < FORGES else None
        if forged is not None:
            await self._send(node, *forged)
        else:
            await self._ask(node, OffsetFetchRequest((OffsetFetchGroup(self._group, all_partitions=True),)))

    def _forged(self) -> tuple[int, str, str | None, ErrorCode, TopicPartition | None] | None:
        """Return a generation, member id and instance id that nobody may have now, and the matching error; and the
        partition if it matters."""
        rng, watch = self._rng, self._watch
        newest = watch.judge.newest_generation
        members = watch.members.get(newest)
        if not members:
            return None
        older = [generation for generation in watch.members if generation < newest]
        match rng.choice(("stranger", "older", "later", "replaced")):
            case "stranger":
                return newest, f"nobody-{rng.randrange(1 << 32):x}", None, ErrorCode.UNKNOWN_MEMBER_ID, None
            case "older" if older:
                generation = rng.choice(older)
                member_id = rng.choice(sorted(watch.members[generation]))
                return generation, member_id, watch.members[generation][member_id], ErrorCode.ILLEGAL_GENERATION, None
            case "later":
                member_id = rng.choice(sorted(members))
                return newest + 1_000, member_id, members[member_id], ErrorCode.ILLEGAL_GENERATION, None
            case "replaced" if replaced := watch.judge.replaced():
                member_id, instance_id = rng.choice(replaced)
                return newest, member_id, instance_id, ErrorCode.FENCED_INSTANCE_ID, None
        return None

    async def _send(
        self,
        node: NodeId,
        generation: int,
        member_id: str,
        instance_id: str | None,
        due: ErrorCode,
        at: TopicPartition | None = None,
    ) -> None:
        """Send a commit. ``at``: a partition whose commit must be refused; otherwise any partition."""
        if at is None:
            topic, partitions = self._rng.choice(sorted(self._sim.topics.items()))
            at = TopicPartition(topic, self._rng.randrange(partitions))
        item = OffsetCommitPartition(at.topic, at.partition, Offset(0), metadata=FORGED)
        request = OffsetCommitRequest(self._group, generation, member_id, instance_id, (item,))
        response = await self._ask(node, request)
        if response is None:
            return
        error = response.results[0].error
        if error in _ELSEWHERE:
            return
        self.refused += 1
        # The member may be gone, or its group rebalancing: that check comes first, and is just as good.
        if error not in (due, *_REFUSED):
            self._sim.world.violated(
                f"fenced: a commit for {at} by {member_id} ({instance_id}) in generation {generation}: expected "
                f"{due.name}, found {error.name}"
            )

    async def _ask(self, node: NodeId, request: Request[R]) -> R | None:
        """Ask once; ``None`` without an answer."""
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections[node] = self._network.connect(Address(f"node{node}", 9092))
        try:
            return await connection.call(request, timeout_s=TRY_S)
        except (ConnectionLost, CallTimeout):
            await self._connections.pop(node).close()
            return None
