"""Repairs damage in this node's logs from intact replicas.

It works regardless of leadership: a damaged replica asks the others, in-sync ones first, for the offsets that it lacks,
checks what they send against CRC, epoch and offset, and replaces the segment with a repaired copy
(:mod:`tidelog.storage.log.mend`). Nothing is truncated and no leadership moves. Until the repair, reads of the damaged
range are refused, and nobody repairs from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tidelog.broker.logs.io_pace import IoPace
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_OFFSET, BrokerEpoch, NodeId, Offset, TopicIdPartition
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.transport.frames import (
    ANY_REPLICA,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.proto.transport.network import BadFrame, CallTimeout, Connection, ConnectionLost, StreamKind
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.partition.partition import Partition
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.mend import Mend
from tidelog.storage.segments.examination import DamagedRange
from tidelog.storage.segments.segment import Segment

LOOK_S: Final = 0.5
RETRY_S_MAX: Final = 60.0
"""Maximum pause before unrepaired damage is tried again; the first pause is :data:`LOOK_S`."""
ASK_S: Final = 10.0
"""Timeout of a request to another replica."""
PIECE_BYTES: Final = 2**20
"""Bytes per request to another replica."""

log = logging.getLogger(__name__)


class _Retry:
    """When to retry a log."""

    __slots__ = ("at_s", "pause_s")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.pause_s = LOOK_S


class LogMending:
    """The task. ``settings``: the configuration in force; ``damaged``: the damaged logs with their damage; ``mended``
    is called for each log that has none left.

    Copies are written at ``log.scrub.io.max.bytes.per.second`` at most, on average.
    """

    def __init__(
        self,
        settings: Callable[[], NodeConfig],
        damaged: Callable[[], Mapping[Log, Sequence[DamagedRange]]],
        partition_of: Callable[[TopicIdPartition], Partition | None],
        connect: Callable[[NodeId], Connection | None],
        clock: Clock,
        run_blocking: RunBlocking,
        mended: Callable[[Log], None],
    ) -> None:
        self._node_id = settings().node_id
        self._damaged = damaged
        self._partition_of = partition_of
        self._connect = connect
        self._clock = clock
        self._run_blocking = run_blocking
        self._mended = mended
        self._pace = IoPace(lambda: settings().log_scrub_io_max_bytes_per_second)
        self._retries: dict[Log, _Retry] = {}
        self.ranges_mended = 0

    async def run(self) -> None:
        """Work until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            damaged = self._damaged()
            self._retries = {each: self._retries.get(each) or _Retry() for each in damaged}
            for each, retry in tuple(self._retries.items()):
                if now() < retry.at_s:
                    continue
                await self.mend(each)
                retry.at_s = now() + retry.pause_s
                retry.pause_s = min(2 * retry.pause_s, RETRY_S_MAX)
            await asyncio.sleep(LOOK_S)

    async def mend(self, damaged: Log) -> None:
        """Try to repair all of a log's damage; unrepaired parts stay as they are."""
        partition = self._partition_of(TopicIdPartition(damaged.topic_id, damaged.partition))
        if partition is None or partition.log is not damaged:
            return
        asking = _Asking(partition, self._node_id, self._connect)
        try:
            for segment in tuple(dict.fromkeys(segment for segment, _ in damaged.damage)):
                await self._mend_segment(damaged, segment, asking)
        except LogDirFailed:
            return
        if damaged.closed:
            return
        found = bool(damaged.damage)
        damaged.mendable = not found or asking.left_open
        if not found:
            log.info("%s: repaired all damage", damaged.name)
            self._mended(damaged)

    async def _mend_segment(self, damaged: Log, segment: Segment, asking: _Asking) -> None:
        if not asking.sources:
            return
        if damaged.is_active(segment):
            damaged.roll(self._clock.now_ms())
        mend = damaged.begin_mending(segment)
        if mend is None:
            asking.left_open = True
            return
        if not [known for known in mend.damage if await asking.has_some(mend, known)]:
            return
        finished = False
        try:
            replaced = await self._make(mend, asking)
            finished = damaged.swap_mended(mend)
            if finished:
                self.ranges_mended += replaced
        except CorruptBatch as error:
            asking.left_open = True
            damaged.suspect(mend.due)
            log.warning("%s: not repaired yet, there is more damage: %s", damaged.name, error)
        except OSError as error:
            asking.left_open = True
            log.warning("%s: not repaired yet: %s", damaged.name, error)
        finally:
            if finished:
                mend.close()
            elif not damaged.closed:
                mend.drop()

    async def _make(self, mend: Mend, asking: _Asking) -> int:
        """Write the copy. Returns how many ranges are intact in it."""
        write = partial(self._write, mend)
        replaced = 0
        for known in mend.damage:
            await self._copy_up_to(mend, known.position)
            if await asking.fill(mend, known, write):
                mend.pass_over(known)
                replaced += 1
            else:
                await write(partial(mend.leave, known))
        await self._copy_up_to(mend, mend.segment.size)
        await self._run_blocking(mend.finish)
        return replaced

    async def _copy_up_to(self, mend: Mend, position: int) -> None:
        done: list[bool] = []
        while not (done and done[-1]):
            await self._write(mend, lambda: done.append(mend.copy_up_to(position)))

    async def _write(self, mend: Mend, work: Callable[[], None]) -> None:
        before = mend.size
        await self._run_blocking(work)
        await self._pace.keep(mend.size - before)


class _Asking:
    """Queries a partition's other replicas, in-sync ones first. ``left_open``: some have not answered, or there is
    another reason to retry."""

    def __init__(self, partition: Partition, node_id: NodeId, connect: Callable[[NodeId], Connection | None]) -> None:
        state = partition.state
        self.sources = [node for node in dict.fromkeys((*state.isr, *state.replicas)) if node != node_id]
        self.left_open = False
        self._name = partition.log.name
        self._key = state.key
        self._connect = connect

    async def has_some(self, mend: Mend, known: DamagedRange) -> bool:
        """Return whether a replica has the beginning of a range."""
        for source in self.sources:
            found = await self._ask(source, known.first_offset, known)
            if found is not None and mend.would_take(known, found):
                return True
        return False

    async def fill(self, mend: Mend, known: DamagedRange, write: RunBlocking) -> bool:
        """Fill a range from the replicas as far as possible. Returns whether all of it was filled."""
        for source in self.sources:
            while (found := await self._ask(source, mend.due, known)) is not None:
                due = mend.due
                await write(partial(mend.take, known, found))
                if mend.due >= known.next_offset:
                    log.info(
                        "%s: repaired from node %d: offsets %d..%d of %s",
                        self._name,
                        source,
                        known.first_offset,
                        known.next_offset - 1,
                        mend.segment.log.path,
                    )
                    return True
                if mend.due == due:
                    break  # it does not have the expected batch
        return False

    async def _ask(self, source: NodeId, offset: int, known: DamagedRange) -> list[Batch] | None:
        """Return a replica's batches from an offset on; None if it has no answer, empty if it has nothing more in the
        range."""
        answer = await self._fetch(source, offset)
        if answer is None or answer.error not in _SETTLED:
            self.left_open = True
            return None
        if answer.error is not ErrorCode.NONE:
            return None
        try:
            batches = split_batches(b"".join(answer.records))
        except CorruptBatch:
            return None
        if not batches and answer.high_watermark < known.next_offset:
            self.left_open = True  # it has not caught up that far yet
            return None
        return batches

    async def _fetch(self, source: NodeId, offset: int) -> FetchedPartition | None:
        connection = self._connect(source)
        if connection is None:
            return None
        wanted = FetchPartition(
            self._key.topic_id,
            self._key.partition,
            NO_LEADER_EPOCH,
            Offset(offset),
            NO_LEADER_EPOCH,
            NO_OFFSET,
            PIECE_BYTES,
        )
        request = FetchRequest(ANY_REPLICA, BrokerEpoch(-1), 0, 0, PIECE_BYTES, False, [wanted])
        try:
            async with asyncio.timeout(ASK_S):
                stream = await connection.open(StreamKind.FETCH, timeout_s=ASK_S)
                try:
                    await stream.send(encode_fetch_request(1, request))
                    _, response = decode_fetch_response(await stream.receive())
                finally:
                    stream.close()
        except (ConnectionLost, CallTimeout, TimeoutError, BadFrame) as error:
            log.info("%s: node %d did not answer for offset %d: %s", self._name, source, offset, error)
            return None
        return next(iter(response.partitions), None)


_SETTLED: Final = frozenset({ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE})
"""Errors of a replica that will not change by themselves."""
