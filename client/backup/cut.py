"""The cut: where each partition of a backup ends, and what its groups had committed by then.

No transaction straddles it. A hold keeps every coordinator from deciding (:mod:`tidelog.transactions.holding`), and
earlier decisions are complete. So while the hold lasts, each transaction is either complete in all of its partitions or
undecided in all of them. In that time, we read what groups have committed, then the high watermark of every partition.
So what a group has committed lies below the ends, and so does whatever its transactions wrote, and also a plain
consumer's offset, because it was committed before the ends were read.

A deposed leader that does not know it yet would report an older state. So everything is read between two reads of the
metadata, each at least as new as the question (a metadata change that the broker has to wait for), and only leaders in
the first are asked. If the second has the same leaders with the same epochs, nobody else led in between. If the hold
did not last until then, or a leader changed, the cut is discarded and tried again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import TidelogError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.hashes.java_hash import coordinator_partition
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerId, TopicPartition
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.proto.backups.manifest import BackupError, CommittedPart, LedgerPart
from tidelog.proto.calls.api import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    TopicMetadata,
)
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, HeldPartition, HoldTransactionsRequest
from tidelog.proto.calls.group_api import ListGroupsRequest, OffsetFetchGroup, OffsetFetchRequest
from tidelog.proto.calls.request import Request, Response

HOLD_MS: Final = 5_000
"""How long a hold lasts if we die."""
SETTLE_S: Final = 3.0
"""How long to hold decisions while markers are on their way; then release the hold, and try again."""
ATTEMPTS: Final = 10
PAUSE_S: Final = 1.0
"""Pause between attempts, so that transactions can proceed."""
CALL_MS: Final = 5_000
_LOOK_AGAIN_S: Final = 0.02
_GROUPS_PER_CALL: Final = 200

R = TypeVar("R", bound=Response)
Leaders = Mapping[TopicPartition, tuple[NodeId, LeaderEpoch]]


class NoCut(Exception):
    """This attempt failed; another one may succeed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """``topics``: clients' topics. ``held_ms``: how long no transaction could be decided."""

    topics: tuple[TopicMetadata, ...]
    ends: Mapping[TopicPartition, int]
    groups: Mapping[str, tuple[CommittedPart, ...]]
    ledgers: tuple[LedgerPart, ...]
    held_ms: int


async def take_cut(cluster: Cluster) -> Cut:
    """Take the cut. Raises :class:`BackupError` if no attempt succeeds, and authorization errors immediately."""
    reason: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        hold = Hold(cluster)
        began_ms = cluster.clock.monotonic_ms()
        try:
            found = await _cut(cluster, hold)
        except NoCut as failed:
            reason = failed
        except TidelogError as failed:
            if not failed.retriable:
                raise
            reason = failed
        else:
            await hold.end()
            held_ms = cluster.clock.monotonic_ms() - began_ms
            return Cut(found.topics, found.ends, found.groups, found.ledgers, held_ms)
        finally:
            await hold.end()
    raise BackupError(f"no cut was possible in {ATTEMPTS} attempts, the last one because: {reason}")


async def _cut(cluster: Cluster, hold: Hold) -> Cut:
    await cluster.refreshed()
    held = await hold.settled()
    before = await _newest(cluster)
    leaders = _leaders(before)
    expect_held(held, leaders)
    # A coordinator has taken up its role once it answers with that role's epoch.
    await _ends(cluster, [topic for topic in before if topic.name == GROUP_OFFSETS_TOPIC], leaders)
    groups = await _committed(cluster, leaders)
    topics = tuple(topic for topic in before if not topic.is_internal)
    ends = await _ends(cluster, topics, leaders)
    if _leaders(await _newest(cluster)) != leaders:
        raise NoCut("a partition's leader changed")
    again = await hold.ask(HOLD_MS)
    expect_held(again, leaders)
    if not all(one.unbroken and one.settled for one in again):
        raise NoCut("the hold ended before everything was read")
    ledgers = tuple(LedgerPart(one.sink, one.last_batch, one.last_job) for part in again for one in part.ledgers)
    return Cut(topics, ends, groups, tuple(sorted(ledgers, key=lambda one: one.sink)), 0)


class Hold:
    """One hold on all brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._id = f"backup-{uuid.uuid4()}"
        self._asked: set[NodeId] = set()

    async def ask(self, hold_ms: int) -> tuple[HeldPartition, ...]:
        """Start or prolong the hold everywhere. Raises :class:`NoCut`, or the error of a broker."""
        nodes = sorted(self._cluster.cache.brokers)
        self._asked.update(nodes)
        request = HoldTransactionsRequest(self._id, hold_ms)
        answers = await asyncio.gather(*(_of(self._cluster, node, request) for node in nodes))
        return tuple(part for answer in answers for part in answer.partitions)

    async def settled(self) -> tuple[HeldPartition, ...]:
        """Hold until everything decided is complete. Raises :class:`NoCut`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while True:
            found = await self.ask(HOLD_MS)
            waiting = sorted(one.partition for one in found if not one.settled)
            if not waiting:
                return found
            if loop.time() >= deadline:
                raise NoCut(
                    f"transactions in partitions {waiting} of {TRANSACTION_STATE_TOPIC} wait for their markers; "
                    "`tidelog topics describe --unhealthy` shows partitions that cannot take any"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def end(self) -> None:
        """End the hold. If a broker is not reached, its hold ends by itself after :data:`HOLD_MS`."""
        request = HoldTransactionsRequest(self._id, 0)
        asked, self._asked = self._asked, set()
        calls = (self._cluster.call(request, timeout_ms=CALL_MS, node=node) for node in asked)
        await asyncio.gather(*calls, return_exceptions=True)


def expect_held(held: Collection[HeldPartition], leaders: Leaders) -> None:
    """Raise :class:`NoCut` unless every coordinator partition is held by its leader. Pure."""
    wanted = {at.partition: epoch for at, (_, epoch) in leaders.items() if at.topic == TRANSACTION_STATE_TOPIC}
    found = {(one.partition, one.leader_epoch) for one in held}
    missing = [number for number, epoch in wanted.items() if (number, epoch) not in found]
    if missing:
        raise NoCut(f"partitions {missing} of {TRANSACTION_STATE_TOPIC} are not led by the brokers that hold them")


async def _newest(cluster: Cluster) -> tuple[TopicMetadata, ...]:
    """Return a broker's metadata, at least as new as this question."""
    reason: Exception = NoCut("no broker is known")
    for node in sorted(cluster.cache.brokers):
        try:
            await _of(cluster, node, AdvanceProducerIdsRequest(ProducerId(-1)))
            return (await cluster.call(MetadataRequest(all_topics=True), timeout_ms=CALL_MS, node=node)).topics
        except TidelogError as error:
            if not error.retriable:
                raise
            reason = error
    raise reason


def _leaders(topics: Iterable[TopicMetadata]) -> Leaders:
    """Return the leaders. Raises :class:`NoCut` if a partition has none."""
    found = {}
    for topic in topics:
        for part in topic.partitions:
            if part.leader < 0:
                raise NoCut(f"{topic.name}-{part.partition} has no leader")
            found[TopicPartition(topic.name, part.partition)] = (part.leader, part.leader_epoch)
    return found


async def _committed(cluster: Cluster, leaders: Leaders) -> dict[str, tuple[CommittedPart, ...]]:
    """Return what each group has committed, from the leader of the partition that stores it."""
    by_partition = {at.partition: node for at, (node, _) in leaders.items() if at.topic == GROUP_OFFSETS_TOPIC}
    nodes = sorted(set(by_partition.values()))
    listed = await asyncio.gather(*(_of(cluster, node, ListGroupsRequest()) for node in nodes))
    wanted: dict[NodeId, list[str]] = {}
    for group in sorted({one.group_id for answer in listed for one in answer.groups}):
        wanted.setdefault(by_partition[coordinator_partition(group, len(by_partition))], []).append(group)
    found: dict[str, tuple[CommittedPart, ...]] = {}
    for node, groups in wanted.items():
        for at in range(0, len(groups), _GROUPS_PER_CALL):
            asked = tuple(OffsetFetchGroup(name, (), True) for name in groups[at : at + _GROUPS_PER_CALL])
            answer = await cluster.call(OffsetFetchRequest(asked), timeout_ms=CALL_MS, node=node)
            for one in answer.groups:
                if one.error is not ErrorCode.NONE:
                    raise exception_for(one.error, f"group {one.group_id}: {one.error_message or one.error.name}")
                parts = [
                    CommittedPart(each.topic, each.partition, each.offset, each.metadata)
                    for each in one.offsets
                    if each.error is ErrorCode.NONE and each.offset >= 0
                ]
                if parts:
                    found[one.group_id] = tuple(sorted(parts, key=lambda part: (part.topic, part.partition)))
    return found


async def _ends(cluster: Cluster, topics: Iterable[TopicMetadata], leaders: Leaders) -> dict[TopicPartition, int]:
    """Return the high watermarks, only from leaders with these epochs."""
    by_node: dict[NodeId, list[ListOffsetsPartition]] = {}
    for topic in topics:
        for part in topic.partitions:
            node, epoch = leaders[TopicPartition(topic.name, part.partition)]
            item = ListOffsetsPartition(topic.name, part.partition, LATEST_TIMESTAMP, epoch)
            by_node.setdefault(node, []).append(item)
    calls = (
        cluster.call(ListOffsetsRequest(tuple(items)), timeout_ms=CALL_MS, node=node) for node, items in by_node.items()
    )
    found: dict[TopicPartition, int] = {}
    for answer in await asyncio.gather(*calls):
        for one in answer.results:
            if one.error is not ErrorCode.NONE:
                where = f"{one.topic}-{one.partition}"
                raise exception_for(one.error, f"{where}: {one.error_message or one.error.name}")
            found[TopicPartition(one.topic, one.partition)] = Offset(one.offset)
    return found


async def _of(cluster: Cluster, node: int, request: Request[R]) -> R:
    """Ask one broker. Raises the error in its answer."""
    answer = await cluster.call(request, timeout_ms=CALL_MS, node=node)
    error = getattr(answer, "error", ErrorCode.NONE)
    if error is not ErrorCode.NONE:
        raise exception_for(error, f"node {node}: {getattr(answer, 'error_message', '') or error.name}")
    return answer
