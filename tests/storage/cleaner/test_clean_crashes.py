"""Compaction loses nothing, whatever happens while it runs: a kill between any two calls to the disk, a loss of
power, appends, truncation, retention, restarts.

A seeded workload writes keys to a log and compacts it slice by slice, beside a model that knows all that was
appended. After each crash, and at the end, the log is compared with it:

- of every key the latest record is there as it was written, or it was a tombstone and nothing of the key is there;
- whatever is there was appended, at that offset with that time, and what was not committed is all there;
- the log's end, leader epochs and producers are those of a log that was never compacted.
"""

from __future__ import annotations

import os
import random
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.storage.conftest import ProducerFields
from tests.storage.crashing import CrashWorkload, run_until_killed
from tidelog.model.errors import Refusal
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log.log import Log

RETENTION_MS = 5_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=900,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=0,
)
SEEDS = range(int(os.environ.get("TIDELOG_CRASH_SEEDS", "15")))
"""Set the variable for a longer search."""
KEYS = [b"key %d" % n for n in range(12)]


@dataclass(frozen=True)
class Written:
    """A record as it was appended."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes | None


@dataclass
class Model:
    """All that was appended and not cut off. ``pending``: of an append that is under way."""

    records: list[Written] = field(default_factory=list)
    pending: list[Written] = field(default_factory=list)
    batch_ends: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    start: int = 0
    floor: int = 0
    """Records before it must survive a power failure."""
    cutting_to: int | None = None

    @property
    def end(self) -> int:
        return self.batch_ends[-1] if self.batch_ends else self.start

    def cut(self, end: int) -> None:
        self.records = [each for each in self.records if each.offset < end]
        self.batch_ends = [each for each in self.batch_ends if each <= end]
        self.epochs = [each for each in self.epochs if each[1] < end]
        self.high_watermark = min(self.high_watermark, end)
        self.floor = min(self.floor, end)


class Workload(CrashWorkload[Model]):
    """Random operations on one log of one process after the other."""

    def __init__(self, seed: int, config: TopicConfig = CONFIG, *, ordered: bool = True) -> None:
        super().__init__(seed, config, Model(), names_in_order=ordered)
        self.epoch = 0
        self.limits = CleaningLimits(dedupe_bytes=24 * self.rng.choice((4, 9, 200)), io_bytes=400)
        self.passes = 0
        self.reader = 0

    def step(self) -> None:
        actions = (
            self.lead,
            self.commit,
            self.clean,
            self.flush,
            self.truncate,
            self.purge,
            self.wait,
            self.checkpoint,
            self.read_on,
        )
        self.rng.choices(actions, (25, 8, 30, 3, 2, 1, 2, 2, 12))[0]()

    def lead(self) -> None:
        log, model, rng = self.log, self.model, self.rng
        if rng.random() < 0.08:
            self.epoch += 1
        self.epoch = max(self.epoch, log.latest_epoch)
        builder = BatchBuilder(rng.choice((Compression.NONE, Compression.NONE, Compression.GZIP, Compression.ZSTD)))
        made: list[Written] = []
        for number in range(rng.randint(1, 6)):
            key = rng.choice(KEYS)
            value = None if rng.random() < 0.2 else rng.randbytes(rng.randint(0, 40))
            made.append(Written(log.log_end_offset + number, self.clock.ms + rng.randint(-50, 50), key, value))
            builder.append(made[-1].timestamp, key, value, [("h", b"x")] if rng.random() < 0.3 else ())
        producer: ProducerFields = {}
        if rng.random() < 0.5:
            identity = rng.choice((7, 8))
            known = log.producers.get(identity)
            sequence = 0 if known is None else known.last_sequence + 1
            producer = {"producer_id": identity, "producer_epoch": 0, "base_sequence": sequence}
        model.pending = made
        result = log.append_as_leader(split_batches(bytes(builder.build(**producer))), self.epoch, self.clock.ms)
        assert not isinstance(result, Refusal), result
        self.appended()

    def appended(self) -> None:
        model = self.model
        if not model.epochs or self.epoch > model.epochs[-1][0]:
            model.epochs.append((self.epoch, model.pending[0].offset))
        model.records += model.pending
        model.batch_ends.append(model.pending[-1].offset + 1)
        model.pending = []

    def commit(self) -> None:
        ends = [end for end in self.model.batch_ends if end >= self.model.high_watermark]
        if ends:
            self.model.high_watermark = self.rng.choice(ends)

    def clean(self) -> None:
        """Begin a pass, or go on with it for some slices."""
        if self.begin_pass():
            self.go_on(self.rng.choice((1, 3, 100)))

    def pass_limits(self) -> CleaningLimits:
        return self.limits

    def go_on(self, slices: int) -> None:
        cleaning = self.under_way
        assert cleaning is not None
        for _ in range(slices):
            try:
                cleaning.step()
            except FileNotFoundError as gone:  # retention was faster
                self.cleaner.failed(self.log, cleaning, gone)
                self.under_way = None
                return
            self.swaps += cleaning.ready is not None
            if not self.cleaner.advance(self.log, cleaning):
                self.passes += cleaning.done
                self.under_way = None
                return

    def truncate(self) -> None:
        """As a follower does: never below the high watermark, at the end of a batch."""
        model = self.model
        targets = [end for end in model.batch_ends if end >= model.high_watermark]
        if not targets:
            return
        target = self.rng.choice(targets)
        model.cutting_to = target
        end = self.log.truncate_to(target)
        model.cutting_to = None
        assert end == target
        model.cut(target)
        model.epochs = self.log.epoch_entries

    def purge(self) -> None:
        """Delete records, and their segments."""
        model, log = self.model, self.log
        if self.rng.random() < 0.3 and model.high_watermark > log.log_start_offset:
            log.advance_log_start(self.rng.randint(log.log_start_offset, model.high_watermark))
            log.apply_retention(self.clock.ms, model.high_watermark)
            self.drop_before_start()

    def drop_before_start(self) -> None:
        model = self.model
        model.start = self.log.log_start_offset
        model.epochs = self.log.epoch_entries

    def wait(self) -> None:
        self.clock.ms += self.rng.choice((10, 1_000, RETENTION_MS + 1))

    def read_on(self) -> None:
        """A reader goes on from where it was, however the log has changed there meanwhile."""
        log = self.log
        if not log.log_start_offset <= self.reader < log.log_end_offset:
            self.reader = log.log_start_offset
        read = log.read(self.reader, 300, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal), read
        appended = {each.offset: each for each in self.model.records}
        batches = split_batches(bytes(read.records))
        for each in records_in(batches, self.reader):
            assert appended.get(each.offset) == each, "something else than was appended"
        expected = next((each for each in batches if each.last_offset >= self.reader), None)
        assert expected is batches[0] if batches else read.next_offset == log.log_end_offset
        self.reader = read.next_offset

    # --- Judging ---------------------------------------------------------------------------------

    def crash(self, *, power: bool) -> None:
        self.reopen(power=power)
        log, model = self.log, self.model
        if model.pending and log.log_end_offset > model.pending[0].offset:
            self.appended()
        model.pending = []
        self.check_end(power=power)
        model.cut(log.log_end_offset)
        model.start = log.log_start_offset
        self.check()

    def check(self) -> None:
        check(self.log, self.model)
        files = self.manager.files
        assert isinstance(files, MemoryFiles)
        for base, following in pairwise(self.log.segment_offsets):
            content = split_batches(bytes(files.content(f"{self.log.directory}/{base:020d}.log")))
            assert not content or content[-1].next_offset <= following, "segments overlap"


def contents(log: Log) -> list[Batch]:
    """All batches from the log's start on, read with small reads."""
    found: list[Batch] = []
    offset: int = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 500, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal), read
        assert read.next_offset > offset, "a reader does not get on"
        found += split_batches(bytes(read.records))
        offset = read.next_offset
    return found


def records_in(batches: list[Batch], start: int) -> list[Written]:
    return [
        Written(record.offset, record.timestamp, record.key or b"", record.value)
        for batch in batches
        for record in decode_records(batch)
        if record.offset >= start
    ]


def check(log: Log, model: Model) -> None:
    batches = contents(log)
    assert all(batch.crc_ok() for batch in batches)
    here = records_in(batches, log.log_start_offset)
    assert [each.offset for each in here] == sorted({each.offset for each in here})
    appended = {each.offset: each for each in model.records}
    for each in here:
        assert appended.get(each.offset) == each, "something else than was appended"
    there = {each.offset for each in here}
    latest = {each.key: each for each in model.records}
    for key, last in latest.items():
        if last.offset < log.log_start_offset:
            continue
        if last.value is not None:
            assert last.offset in there, f"the latest record of {key!r} is gone: {last}"
        elif last.offset not in there:
            assert not any(each.key == key for each in here), f"{key!r} was deleted and is back"
    for each in model.records:
        if each.offset >= max(model.high_watermark, log.log_start_offset):
            assert each.offset in there, "an uncommitted record is gone"
    for batch in batches:
        assert log.epoch_at(max(batch.base_offset, log.log_start_offset)) == batch.leader_epoch
    check_epochs(log, model, batches)


def check_epochs(log: Log, model: Model, batches: list[Batch]) -> None:
    """The epochs that a replica would learn from the batches alone are the log's own."""
    learned: list[tuple[int, int]] = []
    for batch in batches:
        if not learned or batch.leader_epoch > learned[-1][0]:
            learned.append((batch.leader_epoch, max(batch.base_offset, log.log_start_offset)))
    own = log.epoch_entries
    if log.log_start_offset and own:
        # Where the first one began lies before the start: the batch went with its segment, others may have since.
        first, own = own[0], own[1:]
        learned = [each for each in learned if each[0] > first[0]]
    assert learned == own


@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_latest_of_each_key_survives_crash_after_crash(seed: int, how: str) -> None:
    rng = random.Random(seed)
    work = Workload(seed, ordered="any" not in how)
    for _ in range(6):
        faults = Faults(rng)
        faults.kill_at = rng.choice((60, 400, 1_500)) + rng.randrange(400)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        work.crash(power="power" in how)
        work.manager.close()
    faults = Faults()
    work.boot(faults)
    for _ in range(150):
        work.step()
    work.check()
    work.manager.close()
    assert work.swaps > 3


def prepared(seed: int) -> Workload:
    """A log that was cleaned once and has something to clean again, all of it committed and durable."""
    work = Workload(seed)
    work.limits = CleaningLimits(dedupe_bytes=24 * 100, io_bytes=300)
    work.boot(Faults())
    for appends in (40, 10):
        clean_wholly(work)
        for _ in range(appends):
            work.lead()
        work.model.high_watermark = work.log.log_end_offset
    work.flush()
    work.manager.checkpoint()
    return work


def clean_wholly(work: Workload) -> None:
    if work.begin_pass():
        while work.under_way is not None:
            work.go_on(100)


@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
def test_a_pass_can_end_at_every_single_call(how: str) -> None:
    """With it every step of the swap and of what recovery does about it."""
    begun = prepared(3)
    begun.disk.names_in_order = "any" not in how
    before = records_in(contents(begun.log), 0)
    begun.end()
    for step in range(1, 1_000):
        work = deepcopy(begun)
        faults = Faults(random.Random(step))
        work.boot(faults)
        faults.kill_at = faults.steps + step
        try:
            clean_wholly(work)
        except Killed:
            work.crash(power="power" in how)
            after = {each.offset for each in records_in(contents(work.log), 0)}
            assert after <= {each.offset for each in before}
            clean_wholly(work)
            work.check()
            work.manager.close()
            continue
        faults.kill_at = None
        assert step > 50, "the pass took next to no calls"
        assert len(records_in(contents(work.log), 0)) < len(before)
        work.check()
        return
    raise AssertionError("the pass took more calls than were tried")


def ready_to_swap(work: Workload, segments: int = 3) -> Cleaning:
    """A pass whose next group is made of so many segments or more."""
    assert work.begin_pass()
    cleaning = work.under_way
    assert cleaning is not None
    while cleaning.ready is None or len(cleaning.ready.segments) < segments:
        cleaning.step()
        if cleaning.ready is not None and len(cleaning.ready.segments) < segments:
            assert work.cleaner.advance(work.log, cleaning)
    return cleaning


@pytest.mark.parametrize("follows_another", [False, True])
def test_names_that_are_lost_in_any_order_in_a_swap(follows_another: bool) -> None:
    """Also where the swap of the pass before gave the same names, which are not durable yet."""
    begun = prepared(4)
    begun.disk.names_in_order = False
    begun.end()
    for step in range(1, 90):
        for seed in range(12):
            work = deepcopy(begun)
            faults = Faults(random.Random(seed))
            work.boot(faults)
            if follows_another:
                work.limits = CleaningLimits(dedupe_bytes=24 * 6, io_bytes=300)
                clean_wholly(work)  # as far as the map holds keys
                assert work.log._chain.names_changed
            cleaning = ready_to_swap(work, 2 if follows_another else 3)
            assert cleaning.ready is not None
            assert cleaning.ready.segments[0].base_offset == 0
            faults.kill_at = faults.steps + step
            work.rng = random.Random(seed)
            try:
                assert work.log.swap_in(cleaning)
            except Killed:
                work.crash(power=True)
                work.manager.close()
                continue
            work.crash(power=True)  # all done, and nothing synced since
            work.manager.close()
            if seed == 11:
                assert step > 10
                return
    raise AssertionError("the swap took more calls than were tried")


@pytest.mark.parametrize("renames", [3, 6], ids=["no name durable", "in the midst"])
@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
def test_recovery_of_a_swap_can_end_at_every_single_call(how: str, renames: int) -> None:
    """``renames``: after how many of them the swap was killed."""
    begun = prepared(4)
    begun.disk.names_in_order = "any order" not in how
    begun.end()
    faults = Faults(random.Random(1))
    begun.boot(faults)
    cleaning = ready_to_swap(begun)
    faults.kill_in = ("rename", renames)
    with pytest.raises(Killed):
        begun.log.swap_in(cleaning)
    begun.under_way = None
    begun.end()
    for step in range(1, 400):
        work = deepcopy(begun)
        again = Faults(random.Random(step))
        again.kill_at = step
        try:
            work.boot(again)
        except Killed:
            work.rng = random.Random(step)
            work.crash(power="power" in how)
            work.manager.close()
            continue
        again.kill_at = None
        assert step > 10
        work.check()
        work.manager.close()
        return
    raise AssertionError("the start took more calls than were tried")
