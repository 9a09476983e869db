"""The quorum's snapshot file: writing it, sending it in parts, receiving and installing it.

File: ``magic | u32 CRC-32C of the rest | u64 index | u64 term | u16 length of cluster id | cluster id |
u16 length of voters | voters | state``. Without voters it is the file of release 0.1, with another magic.
It is replaced atomically (temporary file, sync, rename, sync of the directory), never in a forked child.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidelog.metadata_quorum.raft.base import EMPTY_COMMAND
from tidelog.metadata_quorum.raft.files import QuorumFile, QuorumFiles, read_all, write_all
from tidelog.metadata_quorum.raft.journal import JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumDamaged, QuorumFailure, QuorumLimits
from tidelog.model.classes.frozen import dataclass
from tidelog.model.hashes.crc32c import crc32c
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import VoterSet
from tidelog.proto.transport.raft_messages import SnapshotPart, SnapshotResult

SNAPSHOT_NAME: Final = "snapshot"
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024

_MAGIC: Final = b"TLQSNAP2"
_UNBOUND_MAGIC: Final = b"TLQSNAP1"
_CRC: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<QQH")
_VOTERS_SIZE: Final = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``state`` is everything up to and including the entry at ``index``, which has ``term``."""

    index: int
    term: int
    state: bytes
    voters: VoterSet | None = None
    """The set in force at the entry; ``None`` in a file that release 0.1 can read."""


class SnapshotId(NamedTuple):
    """Distinguishes snapshot files, even of the same last entry, so that parts of two never mix."""

    last_index: int
    last_term: int
    crc: int
    size: int


class SnapshotStore:
    """One voter's snapshot file."""

    def __init__(self, files: QuorumFiles, directory: str, cluster_id: str) -> None:
        self._files = files
        self._directory = directory
        self._cluster_id = cluster_id
        self.path = f"{directory}/{SNAPSHOT_NAME}"
        self._incoming_path = self.path + ".incoming"

    def load(self) -> Snapshot | None:
        """Return the snapshot, or ``None`` if there is none.

        Raises :class:`QuorumDamaged`, and :class:`QuorumConfigurationError` for another cluster's.
        """
        if not self._files.exists(self.path):
            return None
        return self._parse(self._read(self.path), self.path)

    def read_raw(self) -> bytes:
        """Return the file as it is, to be sent in parts."""
        return self._read(self.path)

    def write(self, snapshot: Snapshot) -> None:
        """Replace the snapshot. The rename becomes durable before this returns."""
        name = self._cluster_id.encode()
        magic, rest = _UNBOUND_MAGIC, _HEAD.pack(snapshot.index, snapshot.term, len(name)) + name
        if snapshot.voters is not None:
            voters = snapshot.voters.encode()
            magic, rest = _MAGIC, rest + _VOTERS_SIZE.pack(len(voters)) + voters
        crc = crc32c(snapshot.state, crc32c(rest))
        temporary = self.path + ".new"
        file = self._fresh(temporary)
        try:
            head = magic + _CRC.pack(crc) + rest
            write_all(file, head, 0)
            write_all(file, snapshot.state, len(head))
            file.fdatasync()
        finally:
            file.close()
        self._files.rename(temporary, self.path)
        self._files.fsync_dir(self._directory)

    def begin_incoming(self) -> QuorumFile:
        """Open an empty file for the parts of an incoming snapshot."""
        return self._fresh(self._incoming_path)

    def check_incoming(self) -> Snapshot:
        """Read the received snapshot. Raises :class:`QuorumDamaged` or :class:`QuorumConfigurationError`."""
        return self._parse(self._read(self._incoming_path), self._incoming_path)

    def install_incoming(self) -> None:
        """Replace the snapshot by the received (and synced) one."""
        self._files.rename(self._incoming_path, self.path)
        self._files.fsync_dir(self._directory)

    def _fresh(self, path: str) -> QuorumFile:
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.open(path, create=True, exclusive=True)

    def _read(self, path: str) -> bytes:
        return _read(self._files, path)

    def _parse(self, data: bytes, path: str) -> Snapshot:
        cluster_id, found = _parse(data, path)
        if cluster_id != self._cluster_id:
            raise QuorumConfigurationError(
                f"{path}: belongs to another cluster: expected {self._cluster_id}, found {cluster_id}"
            )
        return found


def load_alone(files: QuorumFiles, path: str) -> tuple[str, Snapshot]:
    """Read a snapshot file without knowing its cluster; returns the cluster id too. Raises :class:`QuorumDamaged`."""
    return _parse(_read(files, path), path)


def _read(files: QuorumFiles, path: str) -> bytes:
    file = files.open(path)
    try:
        return read_all(file)
    finally:
        file.close()


def _parse(data: bytes, path: str) -> tuple[str, Snapshot]:
    start = len(_MAGIC) + _CRC.size
    if data[: len(_MAGIC)] not in (_MAGIC, _UNBOUND_MAGIC) or len(data) < start + _HEAD.size:
        raise QuorumDamaged(f"{path}: damaged at offset 0: expected a snapshot, found {data[:8]!r}")
    view = memoryview(data)
    expected = _CRC.unpack_from(data, len(_MAGIC))[0]
    found = crc32c(view[start:])
    if found != expected:
        raise QuorumDamaged(f"{path}: damaged after offset {start}: expected CRC {expected:08x}, found {found:08x}")
    index, term, name_size = _HEAD.unpack_from(data, start)
    at = start + _HEAD.size
    cluster_id = data[at : at + name_size].decode()
    at += name_size
    voters = None
    if data[: len(_MAGIC)] == _MAGIC:
        try:
            (size,) = _VOTERS_SIZE.unpack_from(data, at)
            at += _VOTERS_SIZE.size
            voters = VoterSet.decode(data[at : at + size]) if size else None
        except (struct.error, ValueError) as error:
            raise QuorumDamaged(f"{path}: the voters at offset {at} cannot be read: {error}") from None
        at += size
    return cluster_id, Snapshot(index, term, data[at:], voters)


def joined(store: SnapshotStore, journal: RaftJournal) -> Snapshot | None:
    """Return the snapshot, if there is one, and make the journal continue from it.

    Raises :class:`QuorumFailure` if the two do not fit together, and the errors of :meth:`SnapshotStore.load`.
    """
    snapshot = store.load()
    if snapshot is None:
        if journal.first_index != 1:
            raise QuorumFailure(
                f"{journal.path} begins at entry {journal.first_index}, and {store.path}, "
                "which holds what was before, is missing"
            )
        return None
    if journal.first_index > snapshot.index:
        raise QuorumFailure(
            f"{journal.path} begins at entry {journal.first_index}, {store.path} ends at "
            f"{snapshot.index}: what is between them is missing"
        )
    if journal.term_at(snapshot.index) != snapshot.term:
        # The crash came after installing the snapshot and before truncating the journal.
        journal.reset([anchor_of(snapshot)], snapshot.voters)
    return snapshot


def anchor_of(snapshot: Snapshot) -> JournalEntry:
    """Return the entry that represents everything in a snapshot; it is never sent and never applied."""
    return (EMPTY_COMMAND, snapshot.index, snapshot.term)


class OutgoingPart(NamedTuple):
    """Represents an outgoing snapshot in the Raft engine; ``last`` is never true: only the follower's answer advances
    the engine."""

    snapshot: SnapshotId
    offset: int
    last: bool
    data: bytes


@dataclass(slots=True)
class _Transfer:
    snapshot: SnapshotId
    data: bytes
    sent: int
    acknowledged: int


class SnapshotSender:
    """Sends the snapshot to followers in parts. Replaces the engine's ``Serializer``."""

    def __init__(self, store: SnapshotStore, limits: QuorumLimits) -> None:
        self._store = store
        self._part_bytes = limits.snapshot_part_bytes
        self._window_bytes = limits.snapshot_part_bytes * limits.snapshot_parts_under_way
        self._transfers: dict[NodeId, _Transfer] = {}

    def next_part(self, peer: NodeId) -> OutgoingPart | None:
        """Return the next part, or ``None`` while enough of them are in flight."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            transfer = self._transfers[peer] = self._begin()
        if transfer.sent - transfer.acknowledged >= self._window_bytes:
            return None
        if transfer.sent >= transfer.snapshot.size:
            return None
        offset = transfer.sent
        data = transfer.data[offset : offset + self._part_bytes]
        transfer.sent += len(data)
        return OutgoingPart(transfer.snapshot, offset, last=False, data=data)

    def question(self, peer: NodeId) -> OutgoingPart:
        """Return an empty part: the follower answers with its progress."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            transfer = self._transfers[peer] = self._begin()
        return OutgoingPart(transfer.snapshot, transfer.sent, last=False, data=b"")

    def on_result(self, peer: NodeId, result: SnapshotResult) -> bool:
        """Process a follower's answer; return whether there is more to send."""
        transfer = self._transfers.get(peer)
        if transfer is None or transfer.snapshot[:3] != (
            result.snapshot_index,
            result.snapshot_term,
            result.snapshot_crc,
        ):
            return False
        if result.offset > transfer.snapshot.size:
            return False
        transfer.acknowledged = result.offset
        transfer.sent = result.offset if result.gap else max(transfer.sent, result.offset)
        return transfer.sent < transfer.snapshot.size

    def end(self, peer: NodeId) -> None:
        self._transfers.pop(peer, None)

    def clear(self) -> None:
        self._transfers.clear()

    def _begin(self) -> _Transfer:
        data = self._store.read_raw()
        snapshot = _snapshot_id(data)
        for other in self._transfers.values():
            if other.snapshot == snapshot:
                data = other.data
        return _Transfer(snapshot, data, 0, 0)

    # --- the names under which the engine calls it ------------------------------------------------

    def getTransmissionData(self, node: object) -> OutgoingPart | None:  # noqa: N802
        return self.next_part(_peer_id(node))

    def cancelTransmisstion(self, node: object) -> None:  # noqa: N802
        """Do nothing: the engine calls this for a peer that it skips in this round; transfers continue."""


class SnapshotReceiver:
    """Collects the parts of one snapshot into a file."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._snapshot: SnapshotId | None = None
        self._file: QuorumFile | None = None
        self._received = 0

    def take(self, part: SnapshotPart) -> int:
        """Take one part if it is the next; return how many bytes of that snapshot are here.

        A part of another snapshot starts a new transfer if its offset is 0; otherwise it is refused (0 is returned).
        The caller recognises a gap by an offset beyond the returned one.
        """
        wanted = SnapshotId(part.snapshot_index, part.snapshot_term, part.snapshot_crc, part.snapshot_size)
        if wanted != self._snapshot:
            if part.offset != 0 or not 0 < part.snapshot_size <= SNAPSHOT_BYTES_MAX:
                return 0
            self.abandon()
            self._file = self._store.begin_incoming()
            self._snapshot = wanted
        assert self._file is not None
        fits = part.offset == self._received and part.offset + len(part.data) <= part.snapshot_size
        if fits and part.data:
            write_all(self._file, part.data, self._received)
            self._received += len(part.data)
        return self._received

    def complete(self) -> Snapshot | None:
        """Return the snapshot once it is complete and valid; else ``None``.

        A snapshot that fails its check is dropped, to be sent again.
        """
        if self._file is None or self._snapshot is None or self._received < self._snapshot.size:
            return None
        self._file.fdatasync()
        expected = self._snapshot
        self.abandon()
        try:
            snapshot = self._store.check_incoming()
        except QuorumDamaged:
            return None
        return snapshot if (snapshot.index, snapshot.term) == expected[:2] else None

    def abandon(self) -> None:
        """Stop receiving; the file stays until the next transfer replaces it."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._snapshot = None
        self._received = 0


def _snapshot_id(data: bytes) -> SnapshotId:
    crc = _CRC.unpack_from(data, len(_MAGIC))[0]
    index, term, _ = _HEAD.unpack_from(data, len(_MAGIC) + _CRC.size)
    return SnapshotId(index, term, crc, len(data))


def _peer_id(node: object) -> NodeId:
    found = getattr(node, "id", None)
    assert isinstance(found, int)
    return NodeId(found)
