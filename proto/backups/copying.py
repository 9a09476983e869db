"""One partition's file in a backup: what has been copied, and which transactions are open at its end.

A transaction that is open at the end of the file was undecided at the time of the cut. It gets an abort marker there,
so that a reader of the file finds every transaction decided, and with the same outcome as in all other files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import Offset, TopicPartition
from tidelog.proto.backups.manifest import BackupError, Damaged, PartitionPart
from tidelog.proto.backups.place import Place, key_of
from tidelog.proto.records.batches import SIGNED_FROM, Batch, CorruptBatch, patch_batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.spans import gap_batch

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes to request from, or send to, a leader at a time; a larger batch comes whole."""


class OpenTransactions:
    """Tracks transactions without a marker so far. Batches must come in log order. Pure."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """Epochs by producer id."""
        self.producer_id_max = -1

    def take(self, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        self.producer_id_max = max(self.producer_id_max, batch.producer_id)
        if batch.is_control:
            self.open.pop(batch.producer_id, None)
        elif batch.is_transactional:
            self.open[batch.producer_id] = batch.producer_epoch


def closing(open_transactions: OpenTransactions, position: int, end: int, timestamp: int) -> list[bytearray]:
    """Return what to write after a file's last batch: an empty batch from ``position`` up to ``end``, where the log has
    no more records, and a marker for each open transaction. Pure."""
    found: list[bytearray] = []
    if position < end:
        found.append(gap_batch(position, end, timestamp))
    for number, (producer_id, epoch) in enumerate(sorted(open_transactions.open.items())):
        marker = encode_control_batch(
            ControlKind.ABORT, timestamp=timestamp, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0
        )
        patch_batch(marker, 0, base_offset=end + number, leader_epoch=0)
        found.append(marker)
    return found


class PartitionFile:
    """A file to which copied batches are appended. Raises the errors of its place."""

    def __init__(self, at: TopicPartition, place: Place) -> None:
        self.at = at
        self._place = place
        self._key = key_of(*at)
        self.begin(0)

    def begin(self, start: int) -> None:
        """Discard what was copied: the file starts at this offset."""
        self.start = self.position = start
        self.last_epoch = -1
        """The leader epoch of the last batch."""
        self.size = 0
        self.transactions = OpenTransactions()
        self._digest = hashlib.sha256()
        self._headers = hashlib.sha256()
        self._batches = 0
        self._place.begin(self._key)

    def append(self, batches: Iterable[Batch]) -> int:
        """Write the batches after the current position. Returns how many bytes that is."""
        fresh: list[Batch] = []
        for batch in batches:
            if batch.last_offset < self.position:
                continue
            if not batch.crc_ok():
                raise BackupError(f"{self.at}: expected records that match their CRC, found damage at {batch!r}")
            if not fresh and batch.base_offset < self.position and self.size:
                raise BackupError(f"{self.at}: expected a batch from offset {self.position} on, found {batch!r}")
            fresh.append(batch)
            self.transactions.take(batch)
            self.position = batch.next_offset
            self.last_epoch = batch.leader_epoch
        return self._write([batch.view for batch in fresh])

    def finish(self, end: int, timestamp: int) -> PartitionPart:
        """Close the file at ``end``, make it durable, and read it back."""
        if self.position > end:
            raise BackupError(f"{self.at}: expected a batch to end at offset {end}, found one up to {self.position}")
        position = self.position if self.size else max(end - 1, 0)  # so that an empty log keeps its end
        last = closing(self.transactions, position, end, timestamp)
        self._write([memoryview(batch) for batch in last])
        self._place.finish(self._key)
        found = examine(self._place, self._key)
        hashes = (self._digest.hexdigest(), self._headers.hexdigest())
        if (found.size, found.batches, found.sha256, found.headers_sha256) != (self.size, self._batches, *hashes):
            raise BackupError(f"{self._place}/{self._key}: expected what was written, {self.size} bytes, found {found}")
        return PartitionPart(self.at.partition, self.start, found.end, found.batches, found.size, *hashes)

    def drop(self) -> None:
        """Discard the file, because the topic is gone."""
        self._place.remove(self._key)

    def _write(self, batches: list[memoryview]) -> int:
        self._place.append(self._key, batches)
        for batch in batches:
            self._digest.update(batch)
            self._headers.update(batch[:SIGNED_FROM])
        written = sum(map(len, batches))
        self.size += written
        self._batches += len(batches)
        return written


class Piece(NamedTuple):
    """Whole batches of a file; they end before offset ``end``."""

    batches: memoryview
    end: Offset


@dataclass(frozen=True, slots=True)
class Examined:
    """What a partition's file contains. ``end`` is 0 if it is empty; ``sha256`` is "" if only the headers were
    hashed."""

    end: int
    batches: int
    size: int
    sha256: str
    headers_sha256: str
    undecided: int


class Examination:
    """Reads a file once, from its first byte to its last, and checks every batch on the way.

    A batch's CRC covers all but its first bytes, so all CRCs and a hash of these bytes cover the file. A hash of
    everything takes as long as all else that a restore does with a byte before it is sent.
    """

    def __init__(self, place: Place, key: str, *, only_headers: bool = False) -> None:
        """``only_headers``: hash no more than that."""
        self._place = place
        self._key = key
        self.where = f"{place}/{key}"
        self._digest = None if only_headers else hashlib.sha256()
        self._headers = hashlib.sha256()
        self._transactions = OpenTransactions()
        self._end = Offset(0)
        self._batches = 0
        self.size = 0
        """Bytes of whole batches so far."""

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        """Yield the file in pieces of whole batches, about as many as the place reads at a time, from the batch after
        offset ``start`` on; earlier batches are checked as well. Raises :class:`Damaged` if the file is not a sequence
        of batches in order with matching CRCs, :class:`BackupError` if ``start`` lies within a batch, and
        :class:`OSError`."""
        reading = self._place.read(self._key)
        read: Buffer = next(reading, b"")
        rest = memoryview(b"")
        while len(read):
            data = memoryview(read)
            batches = self._split(data, allow_partial_tail=True)
            whole = sum(batch.size for batch in batches)
            if self._digest is not None:
                self._digest.update(data[:whole])
            self.size += whole
            passed = 0
            for batch in batches:
                if not batch.crc_ok() or batch.base_offset < self._end or batch.last_offset_delta < 0:
                    raise self._fault(f"expected batches in order that match their CRCs, found {batch!r}")
                self._headers.update(batch.view[:SIGNED_FROM])
                self._transactions.take(batch)
                self._end = batch.next_offset
                if batch.base_offset < start:
                    if batch.next_offset > start:
                        raise BackupError(f"{self.where}: expected a batch to begin at offset {start}, found {batch!r}")
                    passed += batch.size
            self._batches += len(batches)
            if passed < whole:
                yield Piece(data[passed:whole], self._end)
            rest = data[whole:]
            try:
                read = reading.send(len(rest))
            except StopIteration:
                break
        self._split(rest)

    def found(self) -> Examined:
        """Return what was in the file, once all pieces were taken."""
        undecided = len(self._transactions.open)
        digest = "" if self._digest is None else self._digest.hexdigest()
        return Examined(self._end, self._batches, self.size, digest, self._headers.hexdigest(), undecided)

    def _split(self, data: memoryview, *, allow_partial_tail: bool = False) -> list[Batch]:
        try:
            return split_batches(data, allow_partial_tail=allow_partial_tail)
        except CorruptBatch as error:
            raise self._fault(str(error)) from None

    def _fault(self, text: str) -> Damaged:
        return Damaged(f"{self.where}: {text}")


def examine(place: Place, key: str) -> Examined:
    """Read a file and check every batch. Raises :class:`Damaged`, :class:`OSError`."""
    examination = Examination(place, key)
    for _ in examination.pieces():
        pass
    return examination.found()
