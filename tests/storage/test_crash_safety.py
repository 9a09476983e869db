"""A log survives a kill between any two calls to the disk, a loss of power, failing calls and spoiled tails.

A seeded workload runs over a disk in memory (:mod:`tidelog.storage.disk.memory_files`) beside a model that
knows which batches each log must hold. After each crash the logs are opened again and compared with it:

- after a kill every batch whose append had returned is there, after a loss of power every one before the
  recovery point;
- nothing is there that was not appended, and nothing that was cut off before;
- epochs, producers, reads by offset and by time agree with the batches that are there.
"""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tidelog.model.buffer import Buffer
from tidelog.model.errors import Refusal
from tidelog.model.ids import BrokerEpoch, NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, patch_batch, set_producer_state, split_batches
from tidelog.proto.records.encoder import encode_values
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.memory_files import Disk, Faults, Killed, MemoryFile, MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.loading import apply_batch
from tidelog.storage.producers.state import ProducerStates

from .conftest import ManualClock
from .crashing import checkpoint, run_until_killed

DIRECTORIES = ("/a", "/b")
CONFIG = TopicConfig(
    segment_bytes=2_000, index_interval_bytes=200, retention_ms=-1, retention_bytes=6_000, file_delete_delay_ms=0
)
NOW = 1_000_000
SEEDS = range(int(os.environ.get("TIDELOG_CRASH_SEEDS", "20")))
"""Set the variable for a longer search."""


@dataclass
class Partition:
    """The required content of a log. ``pending``: batches of an append that is under way."""

    topic: str
    topic_id: TopicId
    batches: list[bytes] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)
    start: int = 0
    floor: int = 0
    """Records before it must survive a power failure."""
    cutting_to: int | None = None
    """A truncation to here is under way."""
    sequences: dict[int, int] = field(default_factory=dict)
    exists: bool = False
    deleted_id: TopicId | None = None
    """Its topic is being deleted to make way for another."""

    def begin_anew(self) -> None:
        self.batches, self.pending, self.sequences = [], [], {}
        self.start = self.floor = 0
        self.exists, self.deleted_id = True, None

    @property
    def end(self) -> int:
        return parse(self.batches[-1]).next_offset if self.batches else self.start


def parse(raw: bytes) -> Batch:
    return split_batches(raw)[0]


class Workload:
    """Random operations on the logs of one process after the other, and what should come of them."""

    def __init__(self, seed: int, config: TopicConfig = CONFIG) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.disk = Disk()
        files = MemoryFiles(self.disk)
        for path in DIRECTORIES:
            format_directory(files, path, "cluster", NodeId(1), self.rng)
        self.partitions = [Partition(f"topic{n}", TopicId(bytes([n]) * 16)) for n in range(2)]
        self.epoch = 0
        self.timestamp = NOW
        self.stopping = False

    def boot(self, faults: Faults) -> None:
        self.faults = faults
        self.files = MemoryFiles(self.disk, faults)
        self.manager = LogManager(
            self.files,
            ManualClock(),
            random.Random(self.rng.random()),
            DIRECTORIES,
            cluster_id="cluster",
            node_id=NodeId(1),
            defaults=self.config,
            open_files_max=8,
        )
        self.manager.start()
        ids = self.manager.directory_ids
        self.logs = []
        for number, partition in enumerate(self.partitions):
            found = self.manager.get(partition.topic_id, 0)
            if partition.deleted_id is not None:
                old = self.manager.get(partition.deleted_id, 0)
                if old is not None:
                    self.manager.delete(old)
                partition.begin_anew()
            elif found is None and partition.exists:
                assert not partition.floor, "a log with synced records is gone"
            directory = ids[number % len(ids)]
            log = self.manager.get_or_create(partition.topic, partition.topic_id, 0, self.config, directory)
            self.logs.append(log)
            partition.exists = True

    def step(self) -> None:
        """One operation, mostly on one log."""
        if self.rng.random() < 0.01:
            self.stop_and_start()
            return
        number = self.rng.randrange(len(self.logs))
        log, partition = self.logs[number], self.partitions[number]
        action = self.rng.choices(
            (
                self.lead,
                self.follow,
                self.flush,
                self.truncate,
                self.purge,
                self.retain,
                self.checkpoint,
                self.begin,
                self.begin_anew,
                self.restore,
            ),
            (40, 15, 6, 5, 3, 3, 4, 6, 1, 8),
        )[0]
        action(log, partition)

    def lead(self, log: Log, partition: Partition) -> None:
        if self.rng.random() < 0.1:
            self.epoch += 1
        self.epoch = max(self.epoch, log.latest_epoch)
        raws = [self.new_batch(partition) for _ in range(self.rng.choice((1, 1, 1, 2, 5)))]
        partition.pending = self.placed(raws, partition.end, self.epoch)
        result = log.append_as_leader([parse(bytes(raw)) for raw in raws], self.epoch, NOW)
        assert not isinstance(result, Refusal), result
        assert result.base_offset == partition.end
        self.appended(log, partition)

    def follow(self, log: Log, partition: Partition) -> None:
        self.epoch = max(self.epoch, log.latest_epoch)
        raws = [self.new_batch(partition) for _ in range(self.rng.choice((1, 3, 12)))]
        partition.pending = self.placed(raws, partition.end, self.epoch)
        result = log.append_as_follower(b"".join(partition.pending), NOW)
        assert not isinstance(result, Refusal), result
        self.appended(log, partition)

    def restore(self, log: Log, partition: Partition) -> None:
        """Records that another thread writes, with something else between their append and the end of the write."""
        self.epoch = max(self.epoch, log.latest_epoch)
        raws = [self.new_batch(partition) for _ in range(self.rng.choice((1, 3, 12)))]
        partition.pending = self.placed(raws, partition.end, self.epoch)
        result = log.append_as_follower(b"".join(partition.pending), NOW, once=True)
        assert not isinstance(result, Refusal), result
        job = log.writing
        assert job is not None
        assert partition.end <= job.start == log.acknowledgeable_offset < log.log_end_offset
        meanwhile = self.rng.choice(("nothing", "read", "flush", "another log", "truncate", "roll", "stop"))
        if meanwhile == "read":
            contents(log)
        elif meanwhile == "flush":
            flush = log.begin_flush()
            if flush is not None:
                flush.run()
                log.finish_flush(flush)
            partition.floor = log.recovery_point
        elif meanwhile == "another log":
            other = 1 - self.partitions.index(partition)
            self.rng.choice((self.lead, self.checkpoint))(self.logs[other], self.partitions[other])
        elif meanwhile == "truncate":
            log.truncate_to(partition.end)
            partition.pending = []
            self.forget_sequences(log, partition)
        elif meanwhile == "roll":
            log.roll(NOW)
        job.run()
        log.finish_write(job)
        self.appended(log, partition)
        if meanwhile == "stop":
            self.stop_and_start()

    def flush(self, log: Log, partition: Partition) -> None:
        log.flush()
        assert log.recovery_point == log.log_end_offset
        partition.floor = log.recovery_point

    def begin(self, log: Log, partition: Partition) -> None:
        """A flush with something else between its begin and its end."""
        job = log.begin_flush()
        if job is None:
            return
        end = log.log_end_offset
        run_first = self.rng.random() < 0.5
        if run_first:
            job.run()
        self.rng.choice((self.lead, self.truncate))(log, partition)
        if not run_first:
            job.run()
        log.finish_flush(job)
        assert log.recovery_point <= end
        partition.floor = log.recovery_point

    def truncate(self, log: Log, partition: Partition) -> None:
        if not partition.batches:
            return
        target = self.rng.randint(max(log.log_start_offset, partition.end - 40), partition.end)
        kept = [raw for raw in partition.batches if parse(raw).last_offset < target]
        if len(kept) < len(partition.batches):
            partition.cutting_to = min(target, parse(partition.batches[len(kept)]).base_offset)
        end = log.truncate_to(target)
        partition.cutting_to = None
        partition.batches = kept
        partition.floor = min(partition.floor, end)
        assert end == log.log_end_offset
        assert log.recovery_point <= end
        if kept:
            assert end == partition.end
        partition.start = log.log_start_offset
        self.forget_sequences(log, partition)

    def purge(self, log: Log, partition: Partition) -> None:
        if partition.batches:
            offset = self.rng.randint(log.log_start_offset, partition.end)
            log.advance_log_start(offset)

    def retain(self, log: Log, partition: Partition) -> None:
        log.apply_retention(NOW, partition.end)

    def checkpoint(self, log: Log, partition: Partition) -> None:
        checkpoint(self.manager)

    def stop_and_start(self) -> None:
        """After a clean stop everything is durable, and the next start needs no search."""
        self.stopping = True
        self.manager.write_clean_shutdown(BrokerEpoch(5))
        self.stopping = False
        for partition in self.partitions:
            partition.floor = partition.end
        self.manager.close()
        self.disk.end_process()
        self.boot(self.faults)
        assert self.manager.recovered_logs == 0
        for log, partition in zip(self.logs, self.partitions, strict=True):
            assert (log.log_start_offset, log.log_end_offset) == (
                max(partition.start, log.log_start_offset),
                partition.end,
            )
            assert log.recovery_point == log.log_end_offset

    def begin_anew(self, log: Log, partition: Partition) -> None:
        """The topic is deleted, another of its name is made."""
        partition.deleted_id, partition.topic_id = partition.topic_id, TopicId(self.rng.randbytes(16))
        partition.exists, partition.floor = False, 0
        self.manager.delete(log)
        directory = self.rng.choice(self.manager.directory_ids)
        made = self.manager.get_or_create(partition.topic, partition.topic_id, 0, self.config, directory)
        self.logs[self.logs.index(log)] = made
        partition.begin_anew()

    def appended(self, log: Log, partition: Partition) -> None:
        partition.batches += partition.pending
        partition.pending = []
        assert log.log_end_offset == partition.end

    def new_batch(self, partition: Partition) -> bytearray:
        count = self.rng.randint(1, 6)
        self.timestamp += self.rng.choice((-5, 0, 1, 10))
        raw = bytearray(
            encode_values([self.rng.randbytes(self.rng.randint(0, 60)) for _ in range(count)], self.timestamp)
        )
        producer = self.rng.choice((-1, 7, 8))
        if producer >= 0:
            sequence = partition.sequences.get(producer, 0)
            set_producer_state(raw, producer_id=producer, producer_epoch=0, base_sequence=sequence)
            partition.sequences[producer] = sequence + count
        return raw

    def placed(self, raws: list[bytearray], offset: int, epoch: int) -> list[bytes]:
        found = []
        for raw in raws:
            copy = bytearray(raw)
            patch_batch(copy, 0, base_offset=offset, leader_epoch=epoch)
            found.append(bytes(copy))
            offset = parse(found[-1]).next_offset
        return found

    def forget_sequences(self, log: Log, partition: Partition) -> None:
        """Have producers go on after what the log knows of them."""
        partition.sequences = {producer.producer_id: producer.last_sequence + 1 for producer in log.producers.all()}

    # --- After a crash ---------------------------------------------------------------------------

    def check(self, *, power_lost: bool, spoiled: bool = False) -> None:
        """Compare what is there with the model, then take it over."""
        for log, partition in zip(self.logs, self.partitions, strict=True):
            found = contents(log)
            known = partition.batches + partition.pending
            skipped = next((n for n, raw in enumerate(known) if found and raw == found[0]), len(known))
            assert found == known[skipped : skipped + len(found)], "something else than was appended"
            if found:
                assert parse(found[0]).base_offset <= log.log_start_offset <= log.log_end_offset
                assert parse(found[-1]).next_offset == log.log_end_offset
            else:
                assert log.log_start_offset == log.log_end_offset
            least = partition.floor if power_lost or spoiled else partition.end
            if partition.cutting_to is not None:
                least = min(least, partition.cutting_to)
            assert log.log_end_offset >= least, f"lost: expected {least}, ends at {log.log_end_offset}"
            check_epochs(log, found)
            check_producers(log, found)
            check_reads(log, found, self.rng)
            partition.batches, partition.pending, partition.cutting_to = found, [], None
            partition.start = log.log_start_offset
            partition.floor = max(log.recovery_point, min(partition.floor, log.log_end_offset))
            self.forget_sequences(log, partition)


def contents(log: Log) -> list[bytes]:
    """All batches from the log's start on, read with small reads."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 700, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal), read
        assert read.next_offset > offset
        found += [bytes(batch.view) for batch in split_batches(read.records)]
        offset = read.next_offset
    return found


def check_epochs(log: Log, found: list[bytes]) -> None:
    for raw in found:
        batch = parse(raw)
        assert log.epoch_at(max(batch.base_offset, log.log_start_offset)) == batch.leader_epoch
    assert all(start < log.log_end_offset or not found for _, start in log.epoch_entries)


def check_producers(log: Log, found: list[bytes]) -> None:
    """Each producer's last run must be that of the last of its batches that are there."""
    expected = ProducerStates()
    for raw in found:
        batch = parse(raw)
        if batch.has_producer_id:
            apply_batch(expected, batch, batch.base_offset, NOW)
    for producer in log.producers.all():
        here = expected.get(producer.producer_id)
        assert producer.runs
        assert producer.runs[-1].last_offset < log.log_end_offset
        if here is None:
            assert producer.runs[-1].last_offset < log.log_start_offset
        else:
            assert producer.last_sequence == here.last_sequence
            assert producer.runs[-1].last_offset == here.runs[-1].last_offset
    for producer in expected.all():
        assert log.producers.get(producer.producer_id) is not None


def check_reads(log: Log, found: list[bytes], rng: random.Random) -> None:
    batches = [parse(raw) for raw in found]
    for batch in rng.sample(batches, min(len(batches), 5)):
        offset = rng.randint(max(batch.base_offset, log.log_start_offset), batch.last_offset)
        read = log.read(offset, 1, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal)
        assert bytes(read.records) == bytes(batch.view)
        timestamp = batch.max_timestamp + rng.choice((-1, 0, 1))
        first = next((each for each in batches if each.max_timestamp >= timestamp), None)
        answer = log.offset_for_timestamp(timestamp, offset_end=log.log_end_offset)
        if first is None:
            assert answer is None
        else:
            assert not isinstance(answer, Refusal)
            assert answer is not None
            assert answer.offset == max(first.base_offset, log.log_start_offset)


def crash(work: Workload, rng: random.Random, *, power: bool, spoil: bool = False) -> None:
    if power:
        work.disk.lose_power(rng)
    else:
        work.disk.end_process()
    if spoil:
        spoil_tails(work, rng)
    work.stopping = False
    work.boot(Faults())
    work.check(power_lost=power, spoiled=spoil)


def spoil_tails(work: Workload, rng: random.Random) -> None:
    """Flip a bit or cut off the end behind the recovery point, or break an index anywhere."""
    files = MemoryFiles(work.disk)
    for path in files.paths("/a") + files.paths("/b"):
        content = files.content(path)
        partition = next((each for each in work.partitions if f"/{each.topic}-0/" in path), None)
        if partition is None or not content or rng.random() < 0.5:
            continue
        if path.endswith(".log"):
            if work.stopping:
                continue  # it may all be synced already
            synced = sum(len(b.view) for b in split_whole(bytes(content)) if b.last_offset < partition.floor)
            if synced >= len(content):
                continue
            if rng.random() < 0.5:
                at = rng.randrange(synced, len(content))
                if not 12 <= batch_offset(bytes(content), at) < 16:  # the epoch is covered by no checksum
                    content[at] ^= 1 << rng.randrange(8)
            else:
                del content[rng.randrange(synced, len(content)) :]
        elif path.endswith((".index", ".timeindex")):
            if rng.random() < 0.3:
                files.unlink(path)
            elif rng.random() < 0.5:
                del content[rng.randrange(len(content)) :]
            else:
                at = rng.randrange(len(content))
                content[at:] = rng.randbytes(len(content) - at)


def split_whole(content: bytes) -> list[Batch]:
    return split_batches(content, allow_partial_tail=True)


def batch_offset(content: bytes, at: int) -> int:
    """Where in its batch the byte at ``at`` stands."""
    position = 0
    for batch in split_whole(content):
        if at < position + batch.size:
            break
        position += batch.size
    return at - position


def run_script(work: Workload, faults: Faults, steps: int) -> None:
    """Start, a fixed number of operations, a clean stop."""
    work.boot(faults)
    for _ in range(steps):
        work.step()
    work.manager.write_clean_shutdown(BrokerEpoch(5))
    work.manager.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_survives_crash_after_crash(seed: int, power: bool) -> None:
    rng = random.Random(seed)
    work = Workload(seed)
    for _ in range(8):
        faults = Faults(rng)
        faults.kill_at = rng.choice((20, 200, 1_000)) + rng.randrange(200)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        crash(work, rng, power=power)
        work.manager.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_spoiled_tails_and_indexes_cost_only_what_was_not_synced(seed: int) -> None:
    rng = random.Random(seed)
    work = Workload(seed)
    for _ in range(6):
        faults = Faults(rng)
        faults.kill_at = rng.choice((200, 1_000)) + rng.randrange(200)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        crash(work, rng, power=False, spoil=True)
        work.manager.close()


def count_steps(seed: int, operations: int) -> int:
    faults = Faults()
    run_script(Workload(seed), faults, operations)
    return faults.steps


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_kill_at_every_single_call(power: bool) -> None:
    operations = 40
    for step in range(1, count_steps(1, operations) + 1):
        rng = random.Random(step)
        work = Workload(1)
        faults = Faults(rng)
        faults.kill_at = step
        with pytest.raises(Killed):
            run_script(work, faults, operations)
        crash(work, rng, power=power)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_an_error_at_every_single_call_takes_one_directory_out_of_service(number: int) -> None:
    operations = 40
    for step in range(1, count_steps(2, operations) + 1):
        rng = random.Random(step)
        work = Workload(2)
        faults = Faults(rng)
        faults.fail_at = step
        faults.number = number
        failed: list[bytes] = []
        try:
            work.boot(faults)
            work.manager.on_directory_failure = failed.append
            for _ in range(operations):
                work.step()
            work.manager.write_clean_shutdown(BrokerEpoch(5))
        except LogDirFailed as failure:
            assert failure.cause.errno == number
            assert failure.directory in DIRECTORIES
            assert len(work.manager.directory_ids) == 1
            good = [log for log in work.manager.logs() if not log.directory.startswith(failure.directory)]
            bad = [log for log in getattr(work, "logs", []) if log.directory.startswith(failure.directory)]
            for log in good:
                partition = next(each for each in work.partitions if each.topic_id == log.topic_id)
                work.lead(log, partition)
                log.flush()
            for log in bad:
                with pytest.raises(LogDirFailed):
                    log.read(log.log_start_offset, 1, offset_end=log.log_end_offset)
        work.manager.close()
        crash(work, rng, power=False)


class LyingFiles(MemoryFiles):
    """A disk that says it has synced and has not."""

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> LyingFile:
        return LyingFile(super().open(path, create=create, exclusive=exclusive))


class LyingFile(MemoryFile):
    def __init__(self, file: MemoryFile) -> None:
        super().__init__(file._files, file._path, file._inode)

    def fdatasync(self) -> None:
        """Nothing."""


class ForgetfulFiles(MemoryFiles):
    """A disk that loses every hundredth write."""

    def __init__(self, disk: Disk, faults: Faults) -> None:
        super().__init__(disk, faults)
        self.writes = 0

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> ForgetfulFile:
        return ForgetfulFile(self, super().open(path, create=create, exclusive=exclusive))


class ForgetfulFile(LyingFile):
    def __init__(self, files: ForgetfulFiles, file: MemoryFile) -> None:
        super().__init__(file)
        self.forgetful = files

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self.forgetful.writes += 1
        if self.forgetful.writes % 100:
            return super().pwritev(buffers, offset)
        return sum(map(len, buffers))


@pytest.mark.parametrize(("files", "power"), [(LyingFiles, True), (ForgetfulFiles, False)])
def test_the_checks_notice_a_disk_that_does_not_keep_its_promises(
    files: type[MemoryFiles], power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = 0
    for seed in range(30):
        rng = random.Random(seed)
        work = Workload(seed)
        faults = Faults(rng)
        faults.kill_at = 1_500
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], "MemoryFiles", files)
            try:
                with pytest.raises(Killed):
                    run_until_killed(work, faults)
            except (AssertionError, LogDirFailed):
                noticed += 1
                continue
        try:
            crash(work, rng, power=power)
        except (AssertionError, LogDirFailed):
            noticed += 1
    assert noticed >= 2
