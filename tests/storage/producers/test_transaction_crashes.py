"""Transactions survive what their log survives: a kill or a loss of power between any two calls to the disk.

A seeded workload of several producers runs over a disk in memory beside a model that knows each transaction's
begin and end. After each crash, and now and then between, the log's last stable offset, its aborted transactions
and its producers are those of the model, as far as the log still reaches.

In the second part the log is compacted meanwhile. There a consumer with read_committed, which reads in small
pieces, must see every key's newest committed value, and never a record that was aborted or is undecided.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from tests.storage.crashing import CrashWorkload, run_until_killed
from tidelog.model.errors import Refusal
from tidelog.model.ids import BrokerEpoch, Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, decode_control, encode_control_batch
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.storage.cleaner.cleaning import CleaningLimits
from tidelog.storage.disk.memory_files import Faults, Killed
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import Origin

PRODUCERS = (7, 8, 9)
KEYS = [b"key %d" % n for n in range(6)]
SEEDS = range(int(os.environ.get("TIDELOG_CRASH_SEEDS", "13")))
"""Set the variable for a longer search."""
DELETES = TopicConfig(
    segment_bytes=1_500, index_interval_bytes=200, retention_ms=-1, retention_bytes=5_000, file_delete_delay_ms=0
)
COMPACTS = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=1_500,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10_000,
    file_delete_delay_ms=0,
)


@dataclass(frozen=True)
class Done:
    """A batch as it was appended. ``kind``: ``data``, ``plain``, ``abort`` or ``commit``."""

    first: int
    last: int
    kind: str
    producer: int = -1
    epoch: int = -1
    records: tuple[tuple[int, bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Transaction:
    producer: int
    first: int
    last: int | None
    aborted: bool
    stable: int


@dataclass
class Model:
    """``pending``: an append that is under way."""

    done: list[Done] = field(default_factory=list)
    pending: list[Done] = field(default_factory=list)
    floor: int = 0
    """Records before it must survive a power failure."""
    cutting_to: int | None = None
    high_watermark: int = 0
    loaded_at: int = 0
    """The end of the log when its producers were last loaded."""

    @property
    def end(self) -> int:
        return self.done[-1].last + 1 if self.done else 0

    def transactions(self) -> list[Transaction]:
        """All of them; those that are open at the end have no ``last``."""
        opened: dict[int, int] = {}
        found = []
        for each in self.done:
            if each.kind == "data":
                opened.setdefault(each.producer, each.first)
            elif each.kind != "plain" and each.producer in opened:
                first = opened.pop(each.producer)
                stable = min(opened.values(), default=each.last + 1)
                found.append(Transaction(each.producer, first, each.last, each.kind == "abort", stable))
        return found + [Transaction(producer, first, None, False, -1) for producer, first in opened.items()]

    def last_stable_offset(self, high_watermark: int, start: int) -> int:
        """By definition: the first offset of a transaction without a marker below the high watermark."""
        undecided = [each.first for each in self.transactions() if each.last is None or each.last >= high_watermark]
        return min(high_watermark, max(start, min(undecided, default=high_watermark)))

    def cut(self, end: int) -> None:
        self.done = [each for each in self.done if each.last < end]
        self.floor = min(self.floor, end)


class Workload(CrashWorkload[Model]):
    """Random operations on one log of one process after the other."""

    def __init__(self, seed: int, config: TopicConfig) -> None:
        super().__init__(seed, config, Model())

    def step(self) -> None:
        actions = (
            self.append,
            self.follow,
            self.flush,
            self.flush_around,
            self.truncate,
            self.purge,
            self.checkpoint,
            self.restart,
            self.clean,
            self.judge,
        )
        self.rng.choices(actions, (60, 10, 4, 4, 4, 2, 3, 1, 30 if self.config.compacts else 0, 4))[0]()

    # --- Operations ------------------------------------------------------------------------------

    def append(self) -> None:
        raw, done = self.make(self.log.log_end_offset)
        self.model.pending = [done]
        origin = Origin.COORDINATOR if done.kind in ("abort", "commit") else Origin.CLIENT
        result = self.log.append_as_leader(split_batches(bytes(raw)), 0, self.clock.ms, origin=origin)
        assert not isinstance(result, Refusal), result
        assert result.base_offset == done.first
        self.appended()

    def follow(self) -> None:
        """As a follower: several batches at once, whatever they are."""
        model, offset = self.model, self.log.log_end_offset
        data = b""
        for _ in range(self.rng.randint(1, 5)):
            raw, done = self.make(offset)
            patch_batch(raw, 0, base_offset=offset, leader_epoch=0)
            data += bytes(raw)
            model.pending.append(done)
            offset = Offset(done.last + 1)
        result = self.log.append_as_follower(data, self.clock.ms)
        assert not isinstance(result, Refusal), result
        self.appended()

    def appended(self) -> None:
        self.model.done += self.model.pending
        self.model.pending = []
        assert self.log.log_end_offset == self.model.end

    def make(self, offset: int) -> tuple[bytearray, Done]:
        """A batch that fits what is known of its producer."""
        rng = self.rng
        producer = rng.choice(PRODUCERS)
        epoch, sequence = self.producer_at_end(producer)
        kind = rng.choices(("plain", "data", "abort", "commit"), (2, 9, 3, 2))[0]
        if kind in ("abort", "commit"):
            raw = encode_control_batch(
                ControlKind.ABORT if kind == "abort" else ControlKind.COMMIT,
                timestamp=self.clock.ms,
                producer_id=producer,
                producer_epoch=epoch + 1,
                coordinator_epoch=0,
            )
            return raw, Done(offset, offset, kind, producer, epoch + 1)
        builder = BatchBuilder()
        records = []
        for number in range(rng.randint(1, 4)):
            key = rng.choice(KEYS)
            value = None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, 30))
            records.append((offset + number, key, value))
            builder.append(self.clock.ms, key, value)
        last = offset + len(records) - 1
        if kind == "plain":
            return builder.build(), Done(offset, last, kind, records=tuple(records))
        raw = builder.build(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
        return raw, Done(offset, last, kind, producer, epoch, tuple(records))

    def producer_at_end(self, producer: int) -> tuple[int, int]:
        """Its epoch and next sequence behind what was appended and what is about to be."""
        epoch = sequence = 0
        for each in (*self.model.done, *self.model.pending):
            if each.producer == producer:
                if each.epoch != epoch:
                    epoch, sequence = each.epoch, 0
                sequence += len(each.records)
        return epoch, sequence

    def flush_around(self) -> None:
        """A flush with something else between its begin and its end."""
        job = self.log.begin_flush()
        if job is None:
            return
        run_first = self.rng.random() < 0.5
        if run_first:
            job.run()
        self.rng.choice((self.append, self.append, self.truncate))()
        if not run_first:
            job.run()
        self.log.finish_flush(job)
        self.model.floor = self.log.recovery_point

    def truncate(self) -> None:
        """Into a transaction as well; a compacted log is cut off behind what is committed."""
        log, model = self.log, self.model
        lowest = max(log.log_start_offset, model.end - 30)
        if self.config.compacts:
            lowest = max(lowest, self.model.high_watermark)
        if lowest >= model.end:
            return
        target = self.rng.randint(lowest, model.end)
        reached = [each.first for each in model.done if each.last >= target]
        model.cutting_to = min([target, *reached[:1]])
        end = log.truncate_to(target)
        model.cut(end)
        model.cutting_to = None
        model.loaded_at = min(model.loaded_at, end)

    def purge(self) -> None:
        if self.config.compacts:
            return
        if self.rng.random() < 0.5:
            self.log.advance_log_start(self.rng.randint(self.log.log_start_offset, self.log.log_end_offset))
        self.log.apply_retention(self.clock.ms, self.model.end)

    def checkpoint(self) -> None:
        self.clock.ms += self.rng.choice((10, 1_000, 11_000))
        super().checkpoint()

    def restart(self) -> None:
        self.manager.write_clean_shutdown(BrokerEpoch(5))
        self.manager.close()
        self.disk.end_process()
        self.boot(self.faults)
        self.model.floor = self.model.loaded_at = self.model.end
        self.judge()

    def pass_limits(self) -> CleaningLimits:
        return CleaningLimits(dedupe_bytes=24 * self.rng.choice((4, 200)), io_bytes=400)

    def clean(self) -> None:
        if not self.begin_pass():
            return
        log, cleaner = self.log, self.cleaner
        cleaning = self.under_way
        assert cleaning is not None
        for _ in range(self.rng.choice((1, 3, 100))):
            swapping = cleaning.ready is not None
            if not cleaner.advance(log, cleaning):
                self.under_way = None
                return
            self.swaps += swapping
            try:
                cleaning.step()
            except OSError as error:
                cleaner.failed(log, cleaning, error)
                self.under_way = None
                return

    # --- Judging ---------------------------------------------------------------------------------

    def crash(self, *, power: bool) -> bool:
        """Returns whether the model still tells what the log must know."""
        self.reopen(power=power)
        log, model = self.log, self.model
        self.check_end(power=power)
        model.done += model.pending
        model.pending = []
        first = log.segment_offsets[0]
        if power and first and first not in log._chain.snapshots:
            # Its start had moved up to there, durably, and what producers had done by then is lost with the power.
            return False
        model.cut(log.log_end_offset)
        model.loaded_at = log.log_end_offset
        model.floor = max(log.recovery_point, min(model.floor, log.log_end_offset))
        model.high_watermark = model.end
        self.judge()
        return True

    def judge(self) -> None:
        log, model = self.log, self.model
        assert log.log_end_offset == model.end or log.log_start_offset == log.log_end_offset
        if self.config.compacts:
            # What is cleaned is never lost: what is committed is on other disks as well, and here on this one.
            self.flush()
        lowest = min(max(model.loaded_at, model.high_watermark), model.end)
        model.high_watermark = max(
            log.log_start_offset, self.rng.choice((model.end, self.rng.randint(lowest, model.end)))
        )
        expected = model.last_stable_offset(model.high_watermark, log.log_start_offset)
        assert log.last_stable_offset(Offset(model.high_watermark)) == expected
        if self.config.compacts:
            check_consumer(log, model, self.rng)
        else:
            check_aborted(log, model, self.rng)
            check_producers(log, model)


def decided_end(log: Log) -> int:
    """The last stable offset if all of the log were committed."""
    first = log.producers.first_open_offset
    return log.log_end_offset if first is None else max(first, log.log_start_offset)


def check_aborted(log: Log, model: Model, rng: random.Random) -> None:
    floor, stable = log.log_start_offset, decided_end(log)
    everything = [each for each in model.transactions() if each.aborted]
    ranges: list[tuple[int, int]] = [(floor, stable)]
    if floor < stable:
        start = rng.randint(floor, stable)
        ranges.append((start, rng.randint(start, stable)))
    for start, end in ranges:
        expected = sorted(
            (max(each.first, floor), each.producer, each.last, each.stable)
            for each in everything
            if each.last is not None and each.last >= start and each.first < end
        )
        found = [
            (max(each.first_offset, floor), each.producer_id, each.last_offset, each.last_stable_offset)
            for each in log.aborted_within(start, end)
        ]
        assert sorted(found) == expected
    entries = [each.last_offset for segment in log._chain.segments for each in segment.transactions.entries()]
    assert entries == sorted(set(entries))
    assert all(each < log.log_end_offset for each in entries), "of what was cut off"


def check_producers(log: Log, model: Model) -> None:
    opened = {each.producer: each.first for each in model.transactions() if each.last is None}
    for producer in log.producers.all():
        last = [each for each in model.done if each.producer == producer.producer_id]
        if last:
            assert producer.epoch == last[-1].epoch
            assert producer.transaction_offset == opened.pop(producer.producer_id, -1)
    assert all(first < log.log_start_offset for first in opened.values())


def check_consumer(log: Log, model: Model, rng: random.Random) -> None:
    """Read as a consumer with read_committed does, and compare with what was decided."""
    seen: dict[bytes, tuple[int, bytes | None]] = {}
    aborted_offsets: set[int] = set()
    everything = model.transactions()
    for each in model.done:
        if each.kind == "data":
            owner = next(
                one
                for one in everything
                if one.producer == each.producer
                and one.first <= each.first
                and (one.last is None or each.last < one.last)
            )
            if owner.aborted or owner.last is None:
                aborted_offsets.update(offset for offset, _, _ in each.records)
    offset, end = log.log_start_offset, decided_end(log)
    while offset < end:
        read = log.read(offset, rng.choice((1, 300, 2_000)), offset_end=end)
        assert not isinstance(read, Refusal), read
        for batch in visible(log, split_batches(bytes(read.records)), offset, read.next_offset):
            for record in decode_records(batch):
                if record.offset >= offset:
                    assert record.offset not in aborted_offsets, f"{record.offset} was not committed"
                    assert record.key is not None
                    seen[record.key] = (record.offset, record.value)
        if read.next_offset == offset:
            break  # what was there is gone, the next batch lies behind the end
        offset = read.next_offset
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for each in model.done:
        for place, key, value in each.records:
            if place not in aborted_offsets and place < end:
                newest[key] = (place, value)
    for key, (place, value) in newest.items():
        assert seen.get(key) == (place, value) or (value is None and key not in seen), f"{key!r}: {seen.get(key)}"


def visible(log: Log, batches: list[Batch], start: int, end: int) -> list[Batch]:
    """The batches that a consumer takes of an answer (the algorithm of Kafka's ``CompletedFetch``)."""
    ahead = log.aborted_within(start, end)
    aborted: set[int] = set()
    found = []
    for batch in batches:
        while ahead and ahead[0].first_offset <= batch.last_offset:
            aborted.add(ahead.pop(0).producer_id)
        if batch.is_control:
            if batch.record_count and decode_control(batch).kind is ControlKind.ABORT:
                aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborted):
            found.append(batch)
    return found


def run(work: Workload, rng: random.Random, crashes: int, *, power: bool) -> None:
    for _ in range(crashes):
        faults = Faults(rng)
        faults.kill_at = rng.choice((20, 200, 1_000)) + rng.randrange(200)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        goes_on = work.crash(power=power)
        work.manager.close()
        if not goes_on:
            return


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_survive_crash_after_crash(seed: int, power: bool) -> None:
    run(Workload(seed, DELETES), random.Random(seed), 6, power=power)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
@pytest.mark.parametrize("seed", SEEDS)
def test_read_committed_of_a_log_that_is_compacted(seed: int, power: bool) -> None:
    run(Workload(seed, COMPACTS), random.Random(seed), 6, power=power)


def test_the_workloads_do_what_they_are_for() -> None:
    """Transactions of both ends, over several segments, and groups of segments that were swapped."""
    work = Workload(1, COMPACTS)
    work.boot(Faults())
    for _ in range(3_000):
        work.step()
    assert work.swaps > 20
    ended = work.model.transactions()
    assert sum(each.aborted for each in ended) > 50
    assert sum(not each.aborted for each in ended) > 50
    assert sum(len(segment.transactions) for segment in work.log._chain.segments) > 3
    work.manager.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_a_crash_at_every_single_call(power: bool) -> None:
    """One script, stopped at each of its calls to the disk in turn."""

    def script(work: Workload, faults: Faults) -> None:
        work.boot(faults)
        for _ in range(150):
            work.step()

    faults = Faults()
    whole = Workload(3, COMPACTS)
    script(whole, faults)
    whole.manager.close()
    calls = faults.steps
    assert calls > 200
    for number in range(0, calls, max(1, calls // 150)):
        work = Workload(3, COMPACTS)
        faults = Faults()
        faults.kill_at = number + 1
        with pytest.raises(Killed):
            script(work, faults)
        work.crash(power=power)
        work.manager.close()
