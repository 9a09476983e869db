"""The index of aborted transactions: Kafka's bytes, and what becomes of it with its log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.conftest import MakeBatch, Store
from tidelog.model.errors import Refusal
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.storage.disk.files import SystemFiles, read_file
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.memory_files import MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import LogAppend, Origin
from tidelog.storage.segments.transaction_index import ENTRY, AbortedTransaction, TransactionIndex, pack_entry

NOW = 1_000_000
GOLDEN = Path(__file__).parents[2] / "golden" / "transactions.txt"
P, Q = 7, 8


def golden() -> Iterator[tuple[str, str]]:
    lines = GOLDEN.read_text().splitlines()
    yield from zip(lines[::2], lines[1::2], strict=True)


def marker(producer: int, epoch: int, *, abort: bool, coordinator_epoch: int = 0, at: int | None = None) -> Batch:
    raw = encode_control_batch(
        ControlKind.ABORT if abort else ControlKind.COMMIT,
        timestamp=NOW,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
    )
    if at is not None:
        patch_batch(raw, 0, base_offset=at, leader_epoch=0)
    return split_batches(raw)[0]


def put(log: Log, *batches: Batch) -> LogAppend:
    origin = Origin.COORDINATOR if batches[0].is_control else Origin.CLIENT
    outcome = log.append_as_leader(batches, 0, NOW, origin=origin)
    assert not isinstance(outcome, Refusal), outcome
    return outcome


def index_bytes(store: Store, log: Log, base: int = 0) -> bytes:
    path = f"{log.directory}/{base:020d}.txnindex"
    return read_file(store.files, path) if store.files.exists(path) else b""


def all_entries(log: Log) -> list[AbortedTransaction]:
    return log.aborted_within(log.log_start_offset, log.last_stable_offset(log.log_end_offset))


class TestBytes:
    @pytest.mark.parametrize(("case", "outcome"), list(golden()))
    def test_a_log_has_the_index_that_kafka_writes(
        self, store: Store, batch: MakeBatch, case: str, outcome: str
    ) -> None:
        content, undecided, ranges = outcome.split("\t")
        log = store.log()
        found = []
        for step in case.split(";"):
            kind, *numbers = step.split(" ")
            fields = [int(number) for number in numbers]
            if kind == "P":
                put(log, batch(fields[0]))
            elif kind == "D":
                put(log, batch(fields[3], producer=tuple(fields[:3]), transactional=True))
            else:
                put(log, marker(*fields, abort=kind == "A"))
            first = log.producers.first_open_offset
            found.append(-1 if first is None else first)
        assert " ".join(map(str, found)) == undecided
        assert index_bytes(store, log).hex() == content
        for each in ranges.split():
            limits, _, aborted = each.partition("=")
            start, end = (int(number) for number in limits.split("-"))
            ours = sorted(f"{entry.producer_id}:{entry.first_offset}" for entry in log.aborted_within(start, end))
            assert ours == sorted(aborted.split(",")) if aborted else not ours

    def test_the_golden_file_has_what_is_to_be_shown(self) -> None:
        cases = list(golden())
        assert len(cases) == 8
        assert sum(bool(outcome.split("\t")[0]) for _, outcome in cases) >= 6

    def test_an_entry(self) -> None:
        entry = pack_entry(AbortedTransaction(first_offset=5, producer_id=3, last_offset=9, last_stable_offset=6))
        assert ENTRY.unpack(entry) == (0, 3, 5, 9, 6)
        assert len(entry) == 34


class TestFile:
    def entries(self, count: int) -> list[AbortedTransaction]:
        return [AbortedTransaction(2 * n, n % 7, 2 * n + 1, 2 * n + 2) for n in range(count)]

    @pytest.mark.parametrize("count", [0, 1, 239, 240, 241, 1_000])
    def test_searches(self, tmp_path: Path, count: int) -> None:
        pool = HandlePool(SystemFiles())
        index = TransactionIndex(pool, str(tmp_path / "i"))
        entries = self.entries(count)
        for entry in entries:
            index.append(entry)
        again = TransactionIndex(pool, str(tmp_path / "i"))
        assert len(again) == count
        assert list(again.entries()) == entries
        for offset in (0, 1, 2, 477, 478, 479, 480, 481, 5_000):
            assert again.first_behind(offset) == sum(entry.last_offset < offset for entry in entries)
        assert list(TransactionIndex(pool, str(tmp_path / "i"), min(count, 3)).entries()) == entries[:3]
        pool.close()

    def test_a_torn_entry_and_what_is_none_are_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "i"
        good = b"".join(pack_entry(entry) for entry in self.entries(3))
        for tail in (b"\0" * 10, b"\0" * 34, b"\0\1" + b"\0" * 32, pack_entry(self.entries(3)[1])):
            path.write_bytes(good + tail)
            pool = HandlePool(SystemFiles())
            index = TransactionIndex(pool, str(path))
            index.cut(1_000)
            assert list(index.entries()) == self.entries(3)
            assert index.cut(3)
            assert list(index.entries()) == self.entries(1)
            assert not index.cut(3)
            assert len(path.read_bytes()) == 34
            pool.close()

    def test_no_file_without_an_aborted_transaction(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        put(log, batch(1, producer=(P, 0, 0), transactional=True))
        put(log, marker(P, 1, abort=False))
        put(log, marker(P, 1, abort=True))
        assert not [name for name in store.files.listdir(log.directory) if name.endswith(".txnindex")]


class TestWithItsLog:
    def aborted(self, log: Log, batch: MakeBatch, producer: int, epoch: int) -> int:
        """A transaction of one batch that is aborted; returns its first offset."""
        first = put(log, batch(2, producer=(producer, epoch, 0), transactional=True)).base_offset
        put(log, marker(producer, epoch + 1, abort=True))
        return first

    def test_a_transaction_over_several_segments(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=1_000_000)
        put(log, batch(1, producer=(P, 0, 0), transactional=True))
        for sequence in (1, 2):
            log.roll(NOW)
            put(log, batch(1, producer=(P, 0, sequence), transactional=True))
        log.roll(NOW)
        put(log, marker(P, 1, abort=True))
        assert [len(segment.transactions) for segment in log._chain.segments] == [0, 0, 0, 1]
        for start in range(3):
            assert [each[:2] for each in log.aborted_within(start, start + 1)] == [(0, P)]
        assert log.aborted_within(4, 4) == []

    def test_it_goes_and_ends_with_its_segments(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(file_delete_delay_ms=0, retention_ms=-1, retention_bytes=1)
        for epoch in range(3):
            self.aborted(log, batch, P, epoch)
            log.roll(NOW)
        assert len(all_entries(log)) == 3
        log.advance_log_start(4)
        assert [entry.first_offset for entry in all_entries(log)] == [3, 6]
        assert log.drop_expired() == 1
        assert [entry.first_offset for entry in all_entries(log)] == [3, 6]
        assert not store.files.exists(f"{log.directory}/{0:020d}.txnindex")
        log.truncate_to(5)
        assert all_entries(log) == []
        assert log.last_stable_offset(log.log_end_offset) == 4, "it began at 3, before the log does"
        put(log, marker(P, 2, abort=True))
        assert [each[:3] for each in all_entries(log)] == [(3, P, 5)]
        log.truncate_fully_and_start_at(100)
        assert all_entries(log) == []
        assert not [name for name in store.files.listdir(log.directory) if name.endswith(".txnindex")]

    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("power_lost", [True, False])
    def test_a_restart(self, store: Store, batch: MakeBatch, clean: bool, power_lost: bool) -> None:
        log = store.log()
        self.aborted(log, batch, P, 0)
        log.roll(NOW)
        put(log, batch(1, producer=(Q, 0, 0), transactional=True))
        log.flush()
        self.aborted(log, batch, P, 1)
        put(log, marker(Q, 1, abort=True))
        put(log, batch(1, producer=(P, 2, 0), transactional=True))
        before, stable = all_entries(log), log.last_stable_offset(log.log_end_offset)
        assert len(before) == 3
        assert stable == 8
        if not clean and power_lost:
            log.flush()
        store.restart(clean=clean, power_lost=power_lost)
        log = store.log()
        assert all_entries(log) == before
        assert log.last_stable_offset(log.log_end_offset) == stable

    def test_what_is_lost_behind_the_recovery_point_is_made_anew(self, store: Store, batch: MakeBatch) -> None:
        """The index, or its tail, did not reach the disk; the log did. The transaction began before that point, and a
        snapshot of producers lies behind it."""
        log = store.log()
        put(log, batch(1, producer=(Q, 0, 0), transactional=True))
        self.aborted(log, batch, P, 0)
        log.flush()
        put(log, batch(1, producer=(P, 1, 0), transactional=True))
        put(log, marker(P, 2, abort=True))
        log.roll(NOW)
        put(log, marker(Q, 1, abort=True))
        log.roll(NOW)
        before = all_entries(log)
        assert len(before) == 3
        directory, files = log.directory, store.files
        store.managers[-1].checkpoint({})
        store.managers[-1].close()
        store.disk.end_process()
        files = MemoryFiles(store.disk)
        files.unlink(f"{directory}/{6:020d}.txnindex")
        spoiled = files.open(f"{directory}/{0:020d}.txnindex")
        spoiled.truncate(34)
        spoiled.pwritev((b"\0" * 50,), 34)
        store.manager()
        log = store.log()
        assert store.managers[-1].recovered_logs == 1
        assert all_entries(log) == before

    def test_what_recovery_cut_off_never_comes_back(self, store: Store, batch: MakeBatch) -> None:
        """The index was cut at a recovery and is empty since, so no flush has a reason to sync it; the power is lost
        when its segment lies before the recovery point, where an index is believed."""
        log = store.log()
        put(log, batch(1))
        log.flush()
        store.managers[-1].checkpoint({})
        self.aborted(log, batch, P, 0)
        directory = log.directory
        store.managers[-1].close()
        store.disk.end_process()
        files = MemoryFiles(store.disk)
        for name in ("txnindex", "log"):
            # The index reached the disk, the records behind the recovery point did not.
            file = files.open(f"{directory}/{0:020d}.{name}")
            if name == "log":
                file.truncate(split_batches(file.pread(200, 0), allow_partial_tail=True)[0].size)
            file.fdatasync()
        files.fsync_dir(directory)
        store.manager()
        log = store.log()
        assert log.log_end_offset == 1
        put(log, batch(3))
        log.roll(NOW)
        log.flush()
        store.managers[-1].checkpoint({})
        assert all_entries(log) == []
        store.restart(power_lost=True)
        assert all_entries(store.log()) == []

    def test_part_of_an_entry_that_seems_to_be_one_is_told_by_the_log(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        self.aborted(log, batch, P, 0)
        put(log, batch(5))
        log.flush()
        store.managers[-1].checkpoint({})
        before = all_entries(log)
        index = log._chain.active.transactions
        index.append(AbortedTransaction(3, P, 6, 0))
        store.restart()
        assert all_entries(store.log()) == before
        assert len(before) == 1

    def test_a_snapshot_from_before_the_first_segment_is_not_believed(self, store: Store, batch: MakeBatch) -> None:
        """The log's start has moved up to a segment whose own snapshot did not reach the disk: what the one before has
        open ended in between, and would stay open for good."""
        log = store.log()
        put(log, batch(1, producer=(P, 0, 0), transactional=True))
        log.roll(NOW)
        put(log, marker(P, 1, abort=False))
        log.roll(NOW)
        put(log, batch(1))
        log.flush()
        log.advance_log_start(2)
        store.managers[-1].checkpoint({})
        directory = log.directory
        store.managers[-1].close()
        store.disk.end_process()
        MemoryFiles(store.disk).unlink(f"{directory}/{2:020d}.snapshot")
        store.manager()
        log = store.log()
        assert log.segment_offsets == [2]
        assert log.last_stable_offset(log.log_end_offset) == 3

    def test_a_follower_has_the_same_file(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        for epoch in range(3):
            self.aborted(log, batch, P, epoch)
        put(log, batch(1, producer=(Q, 0, 0), transactional=True))
        self.aborted(log, batch, P, 3)
        leader = index_bytes(store, log)
        read = log.read(0, 1 << 20, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal)
        data = bytes(read.records)
        producers = {producer.producer_id: producer for producer in log.producers.all()}
        log.truncate_fully_and_start_at(0)
        assert index_bytes(store, log) == b""
        rng = random.Random(3)
        batches = split_batches(data)
        while batches:
            count = rng.randint(1, 4)
            outcome = log.append_as_follower(b"".join(each.view for each in batches[:count]), NOW)
            assert not isinstance(outcome, Refusal)
            del batches[:count]
        assert index_bytes(store, log) == leader
        assert {producer.producer_id: producer for producer in log.producers.all()} == producers

    def test_an_open_transaction_outlives_expiry_and_snapshots(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        put(log, batch(1))
        put(log, batch(1, producer=(P, 0, 0), transactional=True))
        put(log, batch(1, producer=(Q, 0, 0)))
        assert log.producers.expire(NOW + 10**12, 1) == 1
        assert log.last_stable_offset(log.log_end_offset) == 1
        log.roll(NOW)
        log.flush()
        store.restart(power_lost=True)
        log = store.log()
        assert log.last_stable_offset(log.log_end_offset) == 1
        known = log.producers.get(P)
        assert known is not None
        assert known.transaction_offset == 1
