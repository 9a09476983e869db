"""The quorum's write-ahead log on disk: term, vote, entries, commit index.

The file is a sequence of *records*, each written by one system call and made durable before the next
one is begun::

    u32 magic | u32 length of body | u32 CRC-32C of (u64 position in the file, body) | body

A body is one or more *changes*: an entry added, a cut from an index on, a term and vote, a commit
index; the first record of a file is its identity. One record holds everything that became durable
together, because a power cut may keep the second page of an unfinished write and lose the first: with
a record for each change that would look like damage in the middle.

Recovery: a record that does not check is the torn tail of an unfinished write if nothing valid
follows, and is cut off; otherwise the file is damaged and is refused, naming the offset. Since the
position is part of the checksum, no payload can look like a record. Once the tail has been still for
a while a *seal* (a record with the commit index, not synced, overwritten by the next one) is put
behind it, so that damage to what was written last is told from a torn write too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from crc32c import crc32c

from tidelog.metadata_quorum.quorum_files import QuorumFile, QuorumFiles, read_all, write_all
from tidelog.metadata_quorum.quorum_types import (
    QuorumConfigurationError,
    QuorumDamaged,
    QuorumFailure,
    QuorumIdentity,
)
from tidelog.model.ids import NodeId

JOURNAL_NAME: Final = "journal"
FORMAT_VERSION: Final = 1
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_REWRITE_RECORD_BYTES: Final = 1024 * 1024

_MAGIC: Final = 0x544C514A
_HEAD: Final = struct.Struct("<III")
_POSITION: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<BQQI")
_INDEX: Final = struct.Struct("<BQ")
_VOTE: Final = struct.Struct("<BQq")
_IDENTITY: Final = struct.Struct("<BHqHH")
_IS_IDENTITY, _IS_ENTRY, _IS_CUT, _IS_VOTE, _IS_COMMIT = 1, 2, 3, 4, 5

JournalEntry = tuple[bytes, int, int]
"""Command, index, term: the shape that the Raft engine keeps entries in."""


class RaftJournal:
    """The journal of one voter, also in memory; the Raft engine uses it through pysyncobj's interface.

    Changes are collected by the mutating methods and become durable together in :meth:`sync`. After an
    ``OSError`` the journal is *broken*: every later :meth:`sync` raises, since nothing is known of what
    the disk holds. Entries run without gap from ``self[0]``, whose index is 1 or that of a snapshot.
    """

    def __init__(self, files: QuorumFiles, directory: str, identity: QuorumIdentity) -> None:
        """Open the journal, or make a new one where there is none.

        Raises :class:`QuorumDamaged`, :class:`QuorumConfigurationError` for the journal of another
        cluster, node or set of voters, and ``OSError``.
        """
        self._files = files
        self._directory = directory
        self.path = f"{directory}/{JOURNAL_NAME}"
        self._identity = identity
        self._entries: list[JournalEntry] = []
        self._term = 0
        self._vote: NodeId | None = None
        self._commit_index = 1
        self._changes = bytearray()
        self._must_sync = False
        self._sealed = False
        self._broken = ""
        self._end = 0
        self.entry_bytes = 0
        self.syncs = 0
        if files.exists(self.path):
            self._file: QuorumFile = files.open(self.path)
            try:
                self._recover(read_all(self._file))
            except BaseException:
                self._file.close()
                raise
        else:
            self._file = self._rewritten([])

    # --- what is in it -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, position: int) -> JournalEntry:
        return self._entries[position]

    @property
    def first_index(self) -> int:
        return self._entries[0][1]

    @property
    def last_index(self) -> int:
        return self._entries[-1][1]

    @property
    def last_term(self) -> int:
        return self._entries[-1][2]

    @property
    def bytes_on_disk(self) -> int:
        """Size of the file without what is not synced."""
        return self._end

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at an index; ``None`` where the journal has none."""
        position = index - self._entries[0][1]
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    def entries_from(self, index: int, count_max: int, bytes_max: int) -> list[JournalEntry]:
        """Return entries from ``index`` on until a bound is reached; at least one if there is any."""
        position = index - self._entries[0][1]
        if position < 0:
            return []
        found: list[JournalEntry] = []
        size = 0
        for at in range(position, min(len(self._entries), position + count_max)):
            entry = self._entries[at]
            size += len(entry[0])
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    # --- pysyncobj's interface -------------------------------------------------------------------

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry. Raises :class:`QuorumFailure` for a gap."""
        if self._entries and index != self._entries[-1][1] + 1:
            raise QuorumFailure(f"{self.path}: expected entry {self._entries[-1][1] + 1}, found {index}")
        self._entries.append((command, index, term))
        self.entry_bytes += len(command)
        self._changed(_ENTRY.pack(_IS_ENTRY, index, term, len(command)) + command)

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802  # pysyncobj's name
        """Remove the entries from a position on (a position, not an index)."""
        if position < len(self._entries):
            index = self._entries[position][1]
            self._remove_from(index)
            self._changed(_INDEX.pack(_IS_CUT, index))

    def setCurrentTerm(self, term: int, vote: NodeId | None) -> None:  # noqa: N802
        """Remember the term and whom this voter voted for in it."""
        self._term, self._vote = term, vote
        self._changed(self._vote_change())

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> NodeId | None:  # noqa: N802
        return self._vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Remember the commit index. It never falls and is written with the next change, or by :meth:`seal`."""
        if index > self._commit_index:
            self._commit_index = index
            self._sealed = False

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return min(self._commit_index, self._entries[-1][1]) if self._entries else 1

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """The engine seals by a clock of its own: pysyncobj's ticks only where something else is due."""

    # --- durability ------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every change so far durable; does nothing where there is none.

        Raises ``OSError`` the first time and :class:`QuorumFailure` ever after.
        """
        if not self._must_sync:
            return
        if self._broken:
            raise QuorumFailure(f"{self.path}: unusable after {self._broken}")
        self._changes += _INDEX.pack(_IS_COMMIT, self._commit_index)
        record = _record(bytes(self._changes), self._end)
        try:
            write_all(self._file, record, self._end)
            self._file.fdatasync()
        except BaseException as error:
            self._broken = repr(error)
            raise
        self._end += len(record)
        self._changes.clear()
        self._must_sync = False
        self._sealed = False
        self.syncs += 1

    def seal(self) -> None:
        """Mark the tail as complete, without waiting for the disk."""
        if self._sealed or self._must_sync or self._broken:
            return
        try:
            write_all(self._file, _record(_INDEX.pack(_IS_COMMIT, self._commit_index), self._end), self._end)
        except BaseException as error:
            self._broken = repr(error)
            raise
        self._sealed = True

    @property
    def sealed(self) -> bool:
        return self._sealed

    def reset(self, entries: Sequence[JournalEntry]) -> None:
        """Replace all entries, atomically on disk; term, vote and commit index stay.

        For compaction and for an installed snapshot, whose rename is made durable first.
        """
        if self._broken:
            raise QuorumFailure(f"{self.path}: unusable after {self._broken}")
        try:
            self._files.fsync_dir(self._directory)
            replaced, self._file = self._file, self._rewritten(entries)
            replaced.close()
        except BaseException as error:
            self._broken = repr(error)
            raise

    def close(self, *, clean: bool) -> None:
        """Close the file; when ``clean``, sync and seal it first."""
        if clean and not self._broken:
            self.sync()
            self.seal()
        self._file.close()

    # --- inside ----------------------------------------------------------------------------------

    def _changed(self, change: bytes) -> None:
        self._changes += change
        self._must_sync = True
        if len(self._changes) >= RECORD_BYTES_MAX // 4:
            self.sync()

    def _remove_from(self, index: int) -> None:
        while self._entries and self._entries[-1][1] >= index:
            self.entry_bytes -= len(self._entries.pop()[0])

    def _vote_change(self) -> bytes:
        return _VOTE.pack(_IS_VOTE, self._term, -1 if self._vote is None else self._vote)

    def _rewritten(self, entries: Sequence[JournalEntry]) -> QuorumFile:
        """Write a new file beside the old one, put it in its place, return it open."""
        temporary = self.path + ".new"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        file = self._files.open(temporary, create=True, exclusive=True)
        self._entries = list(entries)
        self.entry_bytes = sum(len(entry[0]) for entry in self._entries)
        end = 0

        def put(body: bytes) -> None:
            nonlocal end
            record = _record(body, end)
            write_all(file, record, end)
            end += len(record)

        put(_identity_body(self._identity))
        changes = bytearray(self._vote_change())
        for command, index, term in self._entries:
            changes += _ENTRY.pack(_IS_ENTRY, index, term, len(command)) + command
            if len(changes) >= _REWRITE_RECORD_BYTES:
                put(bytes(changes))
                changes.clear()
        changes += _INDEX.pack(_IS_COMMIT, self._commit_index)
        put(bytes(changes))
        file.fdatasync()
        self._files.rename(temporary, self.path)
        self._files.fsync_dir(self._directory)
        self._end = end
        self._changes.clear()
        self._must_sync = False
        self._sealed = False
        return file

    def _recover(self, data: bytes) -> None:
        before_last = last = end = 0
        while (body := _body_at(data, end)) is not None:
            self._replay(body, end)
            before_last, last, end = last, end, end + _HEAD.size + len(body)
        if end == 0:
            raise QuorumDamaged(
                f"{self.path}: expected a quorum journal, found {len(data)} bytes that do not begin one"
            )
        if end < len(data):
            later = _next_record(data, end + 1)
            if later is not None:
                raise QuorumDamaged(
                    f"{self.path}: damaged at offset {end}: expected a valid record there, "
                    f"found one only at offset {later}. Restore the file, or remove this voter's "
                    "directory only if the other voters are whole"
                )
            self._file.truncate(end)
        # A kill may have left in the page cache what was never durable, and so may a sync that failed; after that
        # no later sync would write it (Linux marks the pages clean). It is the last record, or it and its seal.
        write_all(self._file, data[before_last:end], before_last)
        self._file.fdatasync()
        self._end = end

    def _replay(self, body: bytes, position: int) -> None:
        at = 0
        try:
            while at < len(body):
                at = _CHANGES[body[at]](self, body, at)
        except (KeyError, struct.error) as error:
            raise QuorumDamaged(f"{self.path}: record at offset {position} cannot be read: {error!r}") from None

    def _replay_identity(self, body: bytes, at: int) -> int:
        _, version, node_id, voter_count, name_size = _IDENTITY.unpack_from(body, at)
        at += _IDENTITY.size
        if version != FORMAT_VERSION:
            raise QuorumConfigurationError(f"{self.path}: expected format {FORMAT_VERSION}, found {version}")
        voters = tuple(NodeId(voter) for voter in struct.unpack_from(f"<{voter_count}q", body, at))
        at += 8 * voter_count
        cluster_id = body[at : at + name_size].decode()
        mine = self._identity
        for what, expected, found in (
            ("cluster", mine.cluster_id, cluster_id),
            ("node", mine.node_id, node_id),
            ("voters", mine.voters, voters),
        ):
            if expected != found:
                raise QuorumConfigurationError(
                    f"{self.path}: belongs to another {what}: expected {expected}, found {found}. "
                    "Voters are fixed when a quorum is first started"
                    if what == "voters"
                    else f"{self.path}: belongs to another {what}: expected {expected}, found {found}"
                )
        return at + int(name_size)

    def _replay_entry(self, body: bytes, at: int) -> int:
        _, index, term, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        if self._entries and index != self._entries[-1][1] + 1:
            raise QuorumDamaged(f"{self.path}: expected entry {self._entries[-1][1] + 1}, found {index}")
        self._entries.append((body[at : at + size], index, term))
        self.entry_bytes += size
        return at + int(size)

    def _replay_cut(self, body: bytes, at: int) -> int:
        self._remove_from(int(_INDEX.unpack_from(body, at)[1]))
        return at + _INDEX.size

    def _replay_vote(self, body: bytes, at: int) -> int:
        _, self._term, vote = _VOTE.unpack_from(body, at)
        self._vote = None if vote < 0 else NodeId(vote)
        return at + _VOTE.size

    def _replay_commit(self, body: bytes, at: int) -> int:
        self._commit_index = max(self._commit_index, _INDEX.unpack_from(body, at)[1])
        return at + _INDEX.size


class _Replay(Protocol):
    def __call__(self, journal: RaftJournal, body: bytes, at: int, /) -> int: ...


_CHANGES: Final[dict[int, Callable[[RaftJournal, bytes, int], int]]] = {
    _IS_IDENTITY: RaftJournal._replay_identity,
    _IS_ENTRY: RaftJournal._replay_entry,
    _IS_CUT: RaftJournal._replay_cut,
    _IS_VOTE: RaftJournal._replay_vote,
    _IS_COMMIT: RaftJournal._replay_commit,
}


def _identity_body(identity: QuorumIdentity) -> bytes:
    name = identity.cluster_id.encode()
    count = len(identity.voters)
    head = _IDENTITY.pack(_IS_IDENTITY, FORMAT_VERSION, identity.node_id, count, len(name))
    return head + struct.pack(f"<{count}q", *identity.voters) + name


def _record(body: bytes, position: int) -> bytes:
    return _HEAD.pack(_MAGIC, len(body), crc32c(body, crc32c(_POSITION.pack(position)))) + body


def _body_at(data: bytes, position: int) -> bytes | None:
    """Return the body of the record that begins there; ``None`` where none does."""
    start = position + _HEAD.size
    if start > len(data):
        return None
    magic, size, crc = _HEAD.unpack_from(data, position)
    if magic != _MAGIC or not 0 < size <= RECORD_BYTES_MAX or start + size > len(data):
        return None
    body = data[start : start + size]
    return body if crc32c(body, crc32c(_POSITION.pack(position))) == crc else None


def _next_record(data: bytes, position: int) -> int | None:
    """Return where the next valid record begins at or after a position."""
    magic = struct.pack("<I", _MAGIC)
    while (position := data.find(magic, position)) >= 0:
        if _body_at(data, position) is not None:
            return position
        position += 1
    return None
