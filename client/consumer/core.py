"""The common part of the asyncio and blocking consumers: taking records out of the buffer, and the parts' lifecycle.

The methods here never wait. One thread polls at a time; the loop's thread fills the buffer. One lock guards the shared
state, and nobody holds it while decoding records.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.metrics import ClientMetrics
from tidelog.client.config.consumer import ConsumerConfig, OffsetReset
from tidelog.client.config.interceptors import ConsumerInterceptor, interceptors_of, passed_through, tell
from tidelog.client.config.serializers import deserialize
from tidelog.client.consumer.uncommitted import Uncommitted
from tidelog.client.description import shown
from tidelog.client.errors import (
    ClientClosedError,
    CommitFailedError,
    CorruptRecordError,
    IllegalStateError,
    RecordDeserializationError,
    WakeupError,
    exception_for,
)
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.fetching.iteration import Iteration
from tidelog.client.fetching.positions import UNKNOWN, Assignment, PartitionState
from tidelog.client.fetching.turns import Level
from tidelog.client.group.consumer_group import ConsumerGroup
from tidelog.client.group.io_loop import IoLoop
from tidelog.client.group.polled_group import PolledGroup, Surroundings
from tidelog.client.group.server_assigned import ServerAssignedGroup
from tidelog.client.group_types import ConsumerGroupMetadata, ConsumerRebalanceListener, OffsetAndMetadata, Offsets
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Address, Network

log = logging.getLogger(__name__)

LOOKED_AT_MAX: Final = 10_000
"""Most records that a filter looks at in one go: then the poll sees to its group."""


class ConsumerCore:
    """Created on any thread; :meth:`start` and :meth:`close` run on the loop."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        config: ConsumerConfig,
        network: Network,
        clock: Clock,
        rng: random.Random,
        io_loop: IoLoop,
        on_data: Callable[[], None],
        on_wake: Callable[[], None],
    ) -> None:
        self.config: Final = config
        self.interceptors: Final = interceptors_of(config.interceptor_classes, ConsumerInterceptor, config)
        self.metrics: Final = ClientMetrics()
        self.lock: Final = threading.Lock()
        self.io_loop: Final = io_loop
        self.assignment: Final = Assignment(
            config.reset, config.priority_weights, from_committed=config.group_id is not None
        )
        self.cluster: Final = Cluster(
            bootstrap,
            config,
            network,
            clock,
            rng,
            self.metrics,
            allow_auto_topic_creation=config.allow_auto_create_topics,
        )
        self.group: Final = None if config.group_id is None else self._group(config.group_id, on_data, on_wake)
        self.fetcher: Final = Fetcher(config, self.assignment, self.lock, self.cluster, on_data, self._committed)
        self.closing = False
        """Whether to return no more records."""
        self.closed = False
        self.woken = False
        """Whether a wait must end with ``WakeupError``; if there is none now, the next one."""
        self.iteration: Iteration | None = None
        """For ``for record in consumer``: the records that it took from poll, and its progress."""
        self._last_poll: dict[PartitionState, tuple[int, int, int]] = {}
        """Where the last poll started: generation, position, its leader epoch."""
        self._uncommitted: Final = Uncommitted(self.assignment) if _may_transact(config) else None
        self._on_wake = on_wake
        self._on_data = on_data
        self._deserializes = config.key_deserializer is not None or config.value_deserializer is not None

    def _group(self, group_id: str, on_data: Callable[[], None], on_wake: Callable[[], None]) -> PolledGroup:
        around = Surroundings(
            self.config,
            group_id,
            self.cluster,
            self.assignment,
            self.lock,
            self.io_loop,
            on_data,
            self.settled,
            on_wake,
            self.told_committed,
        )
        return ServerAssignedGroup(around) if self.config.by_server else ConsumerGroup(around)

    def start(self) -> None:
        self.cluster.start()
        self.fetcher.start()
        if self.group is not None:
            self.group.start()

    async def close(self) -> None:
        self.closing = self.closed = True
        if self.group is not None:
            await self.group.stop()
        await self.fetcher.close()
        await self.cluster.close()

    def close_interceptors(self) -> None:
        """Close interceptors, last of all. Runs on the user's side."""
        tell(self.interceptors, lambda each: each.close())

    # --- assignment and positions -----------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.check()
        wanted = [TopicPartition(*p) for p in partitions]
        if self.group is not None:
            self.group.subscription.by_hand(bool(wanted))
            self.group.commits.before_reassigning()
        with self.lock:
            self.assignment.assign(wanted)

    def subscribe(
        self,
        topics: Iterable[str],
        pattern: str | re.Pattern[str] | None,
        listener: ConsumerRebalanceListener | None,
    ) -> None:
        self.check()
        group = self.require_group()
        with self.lock:
            if pattern is None:
                group.subscription.subscribe(topics, listener)
            elif topics:
                raise ValueError("expected topics or a pattern, found both")
            else:
                group.subscription.subscribe_pattern(pattern, listener)
        group.subscription_changed()

    def unsubscribe(self) -> None:
        if self.group is not None:
            with self.lock:
                self.group.subscription.unsubscribe()
            self.group.subscription_changed()
        self.assign_nothing()

    def assign_nothing(self) -> None:
        with self.lock:
            self.assignment.assign([])
        self._on_wake()

    def require_group(self) -> PolledGroup:
        """Return the group. Raises ``InvalidGroupIdError`` without one."""
        if self.group is None:
            raise exception_for(ErrorCode.INVALID_GROUP_ID, "subscribe() and commits need a group_id, found none")
        return self.group

    async def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetch committed offsets. Runs where IO runs."""
        group = self.require_group()
        return await group.committer.committed(partitions, self.config.request_timeout_ms)

    def seek(self, at: TopicPartition, offset: int, leader_epoch: int = UNKNOWN) -> None:
        self.check()
        if offset < 0:
            raise ValueError(f"offset: expected 0 or more, found {offset}")
        with self.lock:
            self.assignment.state(at).seek(offset, leader_epoch)
            if self._uncommitted is not None:
                self._uncommitted.sought(self.assignment.state(at))
        self._on_wake()

    def seek_by(self, partitions: Iterable[TopicPartition], kind: str) -> None:
        """Go to the start ("earliest") or the end ("latest"); looked up when next polled."""
        self.check()
        with self.lock:
            chosen = list(partitions) or list(self.assignment.partitions)
            for state in [self.assignment.state(at) for at in chosen]:
                state.ask_reset(OffsetReset(kind))
        self._on_wake()

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        self.check()
        with self.lock:
            for state in [self.assignment.state(at) for at in partitions]:
                state.paused = paused
        self._on_wake()

    def paused(self) -> set[TopicPartition]:
        with self.lock:
            return {at for at, state in self.assignment.partitions.items() if state.paused}

    def position(self, at: TopicPartition) -> int | None:
        """Return the next offset to return; ``None`` during the look-up. Raises the error of a failed partition."""
        self.check()
        with self.lock:
            state = self.assignment.state(at)
            if state.error is not None:
                raise state.error
            if state.position == UNKNOWN:
                return None
            return state.position if self.iteration is None else self.iteration.position_of(state, 1)[0]

    def lag(self, at: TopicPartition) -> int | None:
        self.check()
        with self.lock:
            return self.assignment.state(at).lag

    def metrics_now(self) -> dict[str, float]:
        found: dict[str, float] = dict(self.metrics.snapshot())
        if self.group is not None:
            found |= self.group.gauges()
        with self.lock:
            lags = {at: state.lag for at, state in self.assignment.partitions.items()}
        known = {f"{at}.records-lag": lag for at, lag in lags.items() if lag is not None}
        if known:
            found["records-lag-max"] = max(known.values())
        return found | known

    # --- polling --------------------------------------------------------------------------------------

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """Return up to ``count_max`` buffered records, possibly none. Raises a failed partition's error."""
        self.check()
        self._last_poll.clear()
        out: list[ConsumerRecord] = []
        passed = False
        looked_at = 0
        while len(out) < count_max and looked_at < LOOKED_AT_MAX:
            with self.lock:
                found = self._next(raises=not out)
                if found is None:
                    break
                state, level = found
                room = min(count_max - len(out), level.credit)
                if state not in self._last_poll:
                    self._begin_with(state)
                if state.leftover:
                    taken = state.leftover[: -room - 1 : -1]
                    del state.leftover[-room:]
                    if state.leftover:
                        state.position = state.leftover[-1].offset
                    else:
                        state.position = state.leftover_end
                        level.pass_turn(state)
                    level.credit -= len(taken)
                    out += taken
                    continue
                generation = state.generation
                batch = state.next_batch()
                level.pass_turn(state)
            if batch is None:
                passed = True
                continue
            start = batch.base_offset
            try:
                records = batch.records()
            except CorruptRecordError:
                with self.lock:
                    if state.generation == generation:
                        state.seek(start)
                self._on_wake()
                if out:
                    break  # return the good records first; the next poll comes back to this batch
                raise
            if self.config.header_filter is not None:
                looked_at += len(records)
                wants = self.config.header_filter.wants
                records = [record for record in records if wants(record.headers)]
                passed = True
            rest = records[room:]
            if rest:
                rest.reverse()
                del records[room:]
                with self.lock:
                    if state.generation != generation:
                        continue  # a look-up has moved the position in the meantime
                    state.leftover = rest
                    state.leftover_end = batch.next_offset
                    state.position = rest[-1].offset
            level.credit -= len(records)
            out += records
        if passed and not out:
            self._on_wake()  # the buffer is empty, though nothing was returned
            if looked_at >= LOOKED_AT_MAX:
                self._on_data()
        if out:
            self._on_wake()
            if self._deserializes:
                out = self._deserialized(out)
            self.metrics.records_consumed += len(out)
            out = passed_through(self.interceptors, out, lambda each, records: each.on_consume(records))
        return out

    def take_batches(self) -> list[ConsumerBatch]:
        """Return everything buffered, undecoded."""
        out = self._packed()
        self.metrics.records_consumed += sum(map(len, out))
        return out

    def take_values(self) -> list[bytes | None]:
        """Return the values of everything buffered. If a batch cannot be decoded, it and later ones are given back."""
        batches = self._packed()
        out: list[bytes | None] = []
        for index, batch in enumerate(batches):
            try:
                out += batch.values()
            except CorruptRecordError:
                self._give_back([(b.topic_partition, b.base_offset) for b in batches[index:]])
                if not out:
                    raise
                break
        self.metrics.records_consumed += len(out)
        return out

    def _packed(self) -> list[ConsumerBatch]:
        self.check()
        if self.config.header_filter is not None:
            raise IllegalStateError("a filter looks at each record: use poll() with header_filter, found another call")
        self._last_poll.clear()
        out: list[ConsumerBatch] = []
        passed = False
        with self.lock:
            while (found := self._next(raises=not out)) is not None:
                state, level = found
                if state.leftover:  # from an earlier poll(): fetch them again, undecoded
                    state.seek(state.position)
                    continue
                if state not in self._last_poll:
                    self._begin_with(state)
                while (batch := state.next_batch()) is not None:
                    out.append(batch)
                passed = True
                level.pass_turn(state)
        if passed and not out:
            self._on_wake()
        if out:
            self._on_wake()
        return out

    def _deserialized(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Apply the deserializers. If a record fails, the poll ends before it; if it is the first, raise."""
        of_key, of_value = self.config.key_deserializer, self.config.value_deserializer
        out: list[ConsumerRecord] = []
        for index, record in enumerate(records):
            try:
                key = deserialize(of_key, record, "key") if of_key else record.key
                value = deserialize(of_value, record, "value") if of_value else record.value
            except RecordDeserializationError:
                self._give_back((r.topic_partition, r.offset) for r in records[index:])
                if out:
                    return out
                raise
            out.append(record._replace(key=key, value=value))
        return out

    def _give_back(self, unread: Iterable[tuple[TopicPartition, int]]) -> None:
        """Note that records from these offsets on were not returned: the next poll fetches them again."""
        first: dict[TopicPartition, int] = {}
        for at, offset in unread:
            first.setdefault(at, offset)
        with self.lock:
            for at, offset in first.items():
                if at in self.assignment.partitions:
                    self.assignment.partitions[at].seek(offset)
        self._on_wake()

    def _begin_with(self, state: PartitionState) -> None:
        """Note that a poll is about to take from this partition. The lock is held."""
        self._last_poll[state] = (state.generation, state.position, state.position_epoch)
        if self._uncommitted is not None:
            self._uncommitted.begin_with(state)

    def _next(self, *, raises: bool) -> tuple[PartitionState, Level[PartitionState]] | None:
        """Return the next partition with data, and its level. The lock is held."""
        if raises:
            self.assignment.raise_error()
        return self.assignment.turns.next()

    # --- what is committed ------------------------------------------------------------------------

    def told_committed(self, offsets: Offsets) -> None:
        tell(self.interceptors, lambda each: each.on_commit(offsets))

    def handed_out(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions after everything that poll has returned; within an iteration, after the user's current
        record."""
        return self._positions(1)

    def settled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the same as :meth:`handed_out`, but an iteration's record counts only when the user requests the
        next."""
        return self._positions(0)

    def settled_before_last_poll(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the same as :meth:`settled`, without the last poll's records, which may not be processed yet."""
        found = self.settled()
        if self.iteration is None:
            with self.lock:
                for state, (generation, position, epoch) in self._last_poll.items():
                    if state.generation == generation and position != UNKNOWN:
                        found[state.at] = OffsetAndMetadata(position, epoch)
        return found

    def _positions(self, in_hand: int) -> dict[TopicPartition, OffsetAndMetadata]:
        iteration = self.iteration
        with self.lock:
            found = {
                at: (s.position, s.position_epoch) if iteration is None else iteration.position_of(s, in_hand)
                for at, s in self.assignment.partitions.items()
                if s.position != UNKNOWN
            }
        return {at: OffsetAndMetadata(*position) for at, position in found.items()}

    # --- transactions -------------------------------------------------------------------------------

    def consumed(self, member: ConsumerGroupMetadata) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a transaction commits as this ``member``: positions after everything returned since
        the last one.

        Raises ``CommitFailedError`` if a partition was given up since: others may have read the same records, so
        results from them must not be committed. Likewise if this consumer is no longer a member: once the group is
        empty, a coordinator accepts offsets without a generation, even if others were members in the meantime.
        """
        if member.generation_id < 0 and self.require_group().subscription.grouped:
            raise CommitFailedError(f"this consumer is not in group {member.group_id} now; abort, and poll again")
        handed_out = self.handed_out()
        uncommitted = self.require_uncommitted()
        with self.lock:
            given_up = uncommitted.given_up()
            starts = uncommitted.starts()
        if given_up:
            names = ", ".join(map(str, given_up))
            raise CommitFailedError(f"{names}: given up in a rebalance during the transaction; abort it")
        return {
            at: handed_out[at] for at, start in starts.items() if at in handed_out and handed_out[at].offset != start
        }

    def settled_with(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that a transaction has committed these offsets; the next one starts there."""
        with self.lock:
            self.require_uncommitted().settle(offsets, iterating=self.iteration is not None)

    def rewind(self) -> None:
        """Undo after an aborted transaction: records returned since the last one are delivered again, to the
        partitions' current owners."""
        self.iteration = None
        with self.lock:
            self.require_uncommitted().undo()
        self._on_wake()

    def require_uncommitted(self) -> Uncommitted:
        """Return the uncommitted records. Raises ``InvalidGroupIdError`` without a group, ``IllegalStateError`` with
        automatic commits."""
        self.require_group()
        if self._uncommitted is None:
            raise IllegalStateError(
                "a consumer of a transaction commits with it: expected enable_auto_commit=False, found True"
            )
        return self._uncommitted

    # --- iterating --------------------------------------------------------------------------------------

    def iterate(self, records: list[ConsumerRecord]) -> Iteration:
        """Start to return a poll's records one by one."""
        with self.lock:
            states = [self.assignment.partitions.get(at) for at in dict.fromkeys(r.topic_partition for r in records)]
        self.iteration = Iteration(records, [state for state in states if state is not None])
        return self.iteration

    def end_iteration(self) -> None:
        """End an iteration because the next poll starts; records that an abandoned iteration did not return are fetched
        again."""
        iteration, self.iteration = self.iteration, None
        if iteration is None:
            return
        with self.lock:
            for state in iteration.states:
                offset, epoch = iteration.position_of(state, 1)
                if offset != state.position:
                    state.seek(offset, epoch)
            if self._uncommitted is not None:
                self._uncommitted.iteration_ended()
        self._on_wake()

    def shown(self, name: str) -> str:
        """Return the ``repr`` of the client called ``name``."""
        group = f"group {self.config.group_id!r}" if self.config.group_id is not None else ""
        count = len(self.assignment.partitions)
        assigned = f"{count} partition{'' if count == 1 else 's'} assigned"
        return shown(name, self.cluster.servers, self.closed, group, assigned)

    def check(self) -> None:
        if self.closed:
            raise ClientClosedError("this consumer is closed")

    def check_woken(self) -> None:
        if self.woken:
            self.woken = False
            raise WakeupError("wakeup() was called")

    def check_assigned(self) -> None:
        self.check()
        if self.closing:
            raise ClientClosedError("this consumer is being closed")
        if not self.assignment.partitions and (self.group is None or not self.group.subscription.grouped):
            raise IllegalStateError("poll needs partitions: assign() some, or subscribe() to topics, first")
        if self.iteration is not None:
            self.end_iteration()


def _may_transact(config: ConsumerConfig) -> bool:
    return config.group_id is not None and not config.auto_commits
