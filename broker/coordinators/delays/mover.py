"""The leader's side of one partition of a delay topic: reads on, and moves what is due.

The shell around :class:`~tidelog.broker.coordinators.delays.pending.Pending` and
:class:`~tidelog.broker.coordinators.delays.orders.Router`.
Whatever goes wrong, it takes the next identity, reads the mark, and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.broker.coordinators.delays.orders import (
    AGAIN,
    DEAD,
    Asked,
    Router,
    Sent,
    Target,
    asked_of,
    plain_due_ms,
    size_of,
)
from tidelog.broker.coordinators.delays.pending import ENTRIES_MAX, Mark, Pending, Step
from tidelog.broker.coordinators.delays.reading import DelayLog, NotRead
from tidelog.broker.coordinators.delays.surroundings import Counts
from tidelog.broker.coordinators.delays.transaction import Batch, Beginning, DelayTransactions, Refused, Unsettled
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicIdPartition, TopicPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.api import DeleteRecordsPartition, DeleteRecordsRequest
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import Record
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.partition.partition import Partition

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""How late a record may be found that was written for an earlier time than all others."""
IDLE_S: Final = 5.0
"""How late it is noticed that the clock was put forward, while nothing comes."""
RECORDS_MAX: Final = 2_000
BYTES_MAX: Final = 1024 * 1024
"""Most that one transaction moves, where no single record is larger."""
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
"""Before a transaction that failed is tried again; the pauses double."""
AWAY_MS: Final = 1_000
"""How long a partition that did not take records is taken for one that is away."""
TRIM_MS: Final = 10_000
"""How often what is done is deleted from the log."""
IDLE_OFFSETS: Final = 10_000
"""The mark moves on without deliveries once so many records need not be read again."""
SAID_MS: Final = 60_000
"""How often the same trouble is told in the log."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_LASTING: Final = _TOO_LARGE | {
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CORRUPT_MESSAGE,
}
"""Refusals of a record, which the same record meets again."""
_OF_TRANSACTIONS: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Those that say something about the mover's transaction, nothing about the partition."""


class Mover:
    """See the module; one for each leader epoch."""

    def __init__(
        self,
        key: TopicIdPartition,
        source: TopicPartition,
        leader_epoch: LeaderEpoch,
        replicas: ReplicaManager,
        transactions: DelayTransactions,
        find: Callable[[str], Target | None],
        clock: Clock,
        counts: Counts,
    ) -> None:
        self.key = key
        self.source = source
        self.leader_epoch = leader_epoch
        self._replicas = replicas
        self._transactions = transactions
        self._find = find
        self._clock = clock
        self._counts = counts
        self._entries_max = ENTRIES_MAX
        self._log = DelayLog(replicas, key, leader_epoch)
        self._pending: Pending | None = None
        self._rereading: asyncio.Task[Pending] | None = None
        self._records_max = RECORDS_MAX
        self._away: dict[TopicPartition, int] = {}
        """Partitions that did not take records, and until when they are passed over."""
        self._refused: dict[Offset, str] = {}
        """Records that their target does not take, and why."""
        self._narrowed = False
        """What failed is known better than before, so the next attempt need not wait."""
        self._trimmed_ms = 0
        self._told = "", 0

    @property
    def pending(self) -> int:
        """Records that are remembered."""
        return 0 if self._pending is None else len(self._pending)

    @property
    def overdue_ms(self) -> int:
        """For how long the first undelivered record has been due."""
        due_ms = None if self._pending is None else self._pending.next_due_ms
        return 0 if due_ms is None else max(0, self._clock.now_ms() - due_ms)

    async def run(self) -> None:
        """Move records for as long as this node leads under the epoch."""
        pause_s = PAUSE_FIRST_S
        try:
            while self._led() is not None:
                try:
                    await self._take_over()
                    while self._led() is not None:
                        await self._turn()
                        pause_s = PAUSE_FIRST_S
                except (Unsettled, NotRead, CorruptBatch) as error:
                    self._counts.failed += 1
                    if self._narrowed:
                        self._narrowed = False
                        continue
                    if not isinstance(error, Beginning):
                        self._say(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
        finally:
            self._stop_rereading()

    def _led(self) -> Partition | None:
        """The partition, if it is still this mover's."""
        partition = self._replicas.partition(self.key)
        leading = None if partition is None else partition.leading
        if partition is None or leading is None or leading.epoch != self.leader_epoch:
            return None
        return partition if partition.state.config.moves_delayed else None

    def _partition(self) -> Partition:
        partition = self._led()
        if partition is None:
            raise NotRead("no leader any more")
        return partition

    def _say(self, text: str) -> None:
        known, told_ms = self._told
        now_ms = self._clock.monotonic_ms()
        if self._led() is not None and (text != known or now_ms - told_ms >= SAID_MS):
            log.warning("delay topic %s: %s; trying again", self.source, text)
            self._told = text, now_ms

    # --- Taking over --------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Fence former leaders, read the mark, and then the log up to its last stable offset."""
        await self._transactions.take_over()
        mark = await self._transactions.mark()
        known = self._pending
        if known is not None and known.mark == mark:
            return
        self._stop_rereading()
        self._pending = None
        partition = self._partition()
        end = partition.log.log_end_offset
        error = await self._replicas.coordinating.committed(self.source, self.leader_epoch, end)
        if error is not ErrorCode.NONE:
            raise NotRead(error.name)
        if mark.position > end:
            # An unclean leader election has cut the log: what is written there from now on is not done.
            mark = Mark(mark.done_ms, mark.done_offset, end)
            await self._transactions.commit((), mark)
        self._pending = await self._read(mark, partition.last_stable_offset)

    async def _read(self, mark: Mark, end: Offset) -> Pending:
        """Read the log from its start up to ``end``."""
        pending = Pending(mark, self._partition().log.log_start_offset, self._entries_max)
        await self._scan(pending, end)
        return pending

    async def _scan(self, pending: Pending, end: Offset) -> None:
        while pending.scanned < end:
            records, next_offset = await self._log.scan(pending.scanned)
            taken: list[tuple[int, int]] = []
            cancelled: list[Offset] = []
            for record in records:
                due_ms = plain_due_ms(record)
                if due_ms is None:
                    asked = asked_of(record)
                    if asked.cancels is not None:
                        if asked.cancels < record.offset:
                            cancelled.append(asked.cancels)
                        continue
                    due_ms = asked.due_ms
                taken.append((record.offset, due_ms))
            pending.take(taken)
            for offset in cancelled:  # after the records that they may cancel
                pending.cancel(offset)
            if next_offset <= pending.scanned:
                raise NotRead(f"expected records from {pending.scanned} to {end}, found none")
            pending.scanned = next_offset
            await asyncio.sleep(0)

    # --- A turn -------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Read on, deliver what is due, and wait for the next."""
        pending = self._pending
        assert pending is not None
        # A cancel that is committed before the record is due counts: so look at the clock first, and then read on.
        now_ms = self._clock.now_ms()
        await self._scan(pending, self._partition().last_stable_offset)
        pending = await self._take_reread(pending)
        await self._trim(pending)
        step, sent = await self._next(pending, now_ms)
        self._counts.cancelled += pending.cancels
        pending.cancels = 0
        if step is not None:
            await self._deliver(pending, step, sent, now_ms)
        elif pending.scanned - pending.mark.position >= IDLE_OFFSETS:
            idle = pending.idle_step()
            if idle is not None:
                await self._transactions.commit((), idle.mark)
                pending.committed(idle)
        due_ms, now_ms = pending.next_due_ms, self._clock.now_ms()
        wait_s = IDLE_S if due_ms is None else (due_ms - now_ms) / 1_000
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, TICK_S))
            quiet = step is None and self._rereading is None and wait_s > 2 * TICK_S
            if quiet and self._partition().last_stable_offset <= pending.scanned:
                await self._log.grown(pending.scanned, min(wait_s - TICK_S, IDLE_S))
        elif step is None:  # the clock went back
            await asyncio.sleep(TICK_S)

    async def _next(self, pending: Pending, now_ms: int) -> tuple[Step | None, list[Sent]]:
        """Choose what to deliver, of at most :data:`BYTES_MAX`."""
        count_max = self._records_max
        away = {at: until for at, until in self._away.items() if until > now_ms}
        self._away = away
        config = self._partition().state.config
        while True:
            step = pending.choose(now_ms, count_max)
            if step is None:
                return None, []
            router = Router(self.source, config, lambda name: _without(self._find(name), away), now_ms)
            sent: list[Sent] = []
            size = 0
            try:
                for number, offset in enumerate(step.offsets):
                    record = await self._log.look_up(offset)
                    if record is None:
                        continue  # somebody has deleted it (DeleteRecords)
                    routed = self._routed(router, record, asked_of(record))
                    size += size_of(routed)
                    if size > BYTES_MAX and number:
                        count_max = number
                        break
                    sent.append(routed)
                else:
                    return step, sent
            except BaseException:
                pending.given_back(step)
                raise
            pending.given_back(step)

    def _routed(self, router: Router, record: Record, asked: Asked) -> Sent:
        routed = router.route(record, asked, self._refused.get(Offset(record.offset), ""))
        if isinstance(routed, str):
            raise Unsettled(f"offset {record.offset}: {routed}")
        return routed

    async def _deliver(self, pending: Pending, step: Step, sent: list[Sent], now_ms: int) -> None:
        counts = self._counts
        try:
            await self._transactions.commit(self._batches(sent), step.mark)
        except BaseException as error:
            pending.given_back(step)
            if isinstance(error, Refused):
                self._blame(error, step, now_ms)
            raise
        pending.committed(step)
        self._records_max = min(2 * self._records_max, RECORDS_MAX)
        counts.transactions += 1
        for offset in step.offsets:
            self._refused.pop(offset, None)
        for each in sent:
            if each.kind == DEAD:
                counts.dead += 1
            elif each.kind == AGAIN:
                counts.again += 1
            else:
                counts.delivered += 1
                counts.late_ms += max(0, now_ms - each.timestamp)

    def _batches(self, sent: list[Sent]) -> list[Batch]:
        """In order, in batches that their topics take."""
        made: list[Batch] = []
        building: dict[TopicPartition, BatchBuilder] = {}
        builders = {topic: self._builders(topic) for topic in {each.to.topic for each in sent}}
        for each in sent:
            builder = building.get(each.to)
            if builder is None:
                builder = building[each.to] = builders[each.to.topic]()
            if builder.append(each.timestamp, each.key, each.value, each.headers) < 0:
                made.append(Batch(each.to, builder.count, builder.build(is_transactional=True)))
                builder = building[each.to] = builders[each.to.topic]()
                builder.append(each.timestamp, each.key, each.value, each.headers)
        made += [Batch(to, builder.count, builder.build(is_transactional=True)) for to, builder in building.items()]
        return made

    def _builders(self, topic: str) -> Callable[[], BatchBuilder]:
        target = self._find(topic)
        bytes_max = TopicConfig().max_message_bytes if target is None else target.config.max_message_bytes
        return partial(BatchBuilder, bytes_max=bytes_max)

    def _blame(self, refused: Refused, step: Step, now_ms: int) -> None:
        """Find the record that a partition does not take, by moving fewer at a time; pass over partitions that are
        away. Nothing else can be done with what is to be put off."""
        for at, error in refused.errors.items():
            if error in _OF_TRANSACTIONS or at == self.source:
                continue
            if error not in _LASTING:
                self._away[at] = now_ms + AWAY_MS
            elif len(step.keys) == 1:
                self._narrowed = step.offsets[0] not in self._refused
                self._refused[step.offsets[0]] = f"{at} refused it: {error.name}"
            else:
                self._narrowed = True
                self._records_max = max(1, len(step.keys) // 2)

    # --- Space --------------------------------------------------------------------------------------

    async def _trim(self, pending: Pending) -> None:
        """Delete from the log what is done."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._trimmed_ms < TRIM_MS:
            return
        self._trimmed_ms = now_ms
        first = pending.first_live()
        if first > self._partition().log.log_start_offset:
            item = DeleteRecordsPartition(self.source.topic, self.source.partition, first)
            await self._replicas.delete_records(DeleteRecordsRequest((item,), timeout_ms=0))

    # --- Reading again ------------------------------------------------------------------------------

    async def _take_reread(self, pending: Pending) -> Pending:
        """Once few of the remembered records are left, read the log again from its start, beside the deliveries."""
        task = self._rereading
        if task is None:
            if pending.runs_dry:
                work = self._read(pending.mark, pending.scanned)
                self._rereading = asyncio.get_running_loop().create_task(work, name=f"rereading {self.source}")
            return pending
        if not task.done():
            return pending
        self._rereading = None
        fresh = task.result()
        fresh.moved(pending.mark)
        # A mark may never go back: what lies between would not be told from what is undone.
        await self._scan(fresh, pending.scanned)
        if fresh.scanned < pending.scanned:
            raise NotRead(f"expected records up to {pending.scanned}, found them up to {fresh.scanned}")
        self._pending = fresh
        # Cancelled records crowd out others until their cancels are read, too.
        self._entries_max = 2 * self._entries_max if fresh.runs_dry else ENTRIES_MAX
        return fresh

    def _stop_rereading(self) -> None:
        task, self._rereading = self._rereading, None
        if task is not None:
            task.cancel()


def _without(target: Target | None, away: dict[TopicPartition, int]) -> Target | None:
    """The target, of which some partitions are away."""
    if target is None or not away:
        return target
    missing = frozenset(at.partition for at in away if at.topic == target.name)
    return Target(target.name, target.partitions, target.config, target.away | missing)
