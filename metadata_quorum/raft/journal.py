"""The quorum's write-ahead log on disk: term, vote, entries, commit index.

The file is a sequence of *records* (:mod:`tidelog.metadata_quorum.raft.journal_records`), each written by one system
call and made durable before the next. A body is one or more *changes*: an added entry, a truncation from an index on, a
term and vote, a commit index, the voters before the first entry; a file's first record is its identity. One record
holds everything that becomes durable together, because a power cut may keep the second page of an unfinished write and
lose the first: with one record per change that would look like damage in the middle.

Recovery: a record that fails its checksum is the torn tail of an unfinished write if nothing valid follows, and is
truncated; otherwise the file is damaged and is refused, naming the offset. Since the checksum covers the position, no
payload can look like a record. Once the tail has been idle for a while, a *seal* (a record with the commit index, not
synced, overwritten by the next one) follows it, so that damage to the last write can be told from a torn write too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.metadata_quorum.raft.files import QuorumFile, QuorumFiles, read_all, write_all
from tidelog.metadata_quorum.raft.journal_records import HEAD_BYTES, RECORD_BYTES_MAX, body_at, next_record, record
from tidelog.metadata_quorum.raft.types import (
    QuorumConfigurationError,
    QuorumDamaged,
    QuorumFailure,
    QuorumIdentity,
)
from tidelog.model.ids import UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.model.voter_set import Voter, VoterSet, directory_of_seat

JOURNAL_NAME: Final = "journal"
FORMAT_VERSION: Final = 2
UNBOUND_FORMAT: Final = 1
"""The format of release 0.1, which knew voters only by node id. It stays until :meth:`RaftJournal.bind`."""
VOTERS_COMMAND: Final = b"\x02"
"""First byte of an entry's command that holds a :class:`VoterSet` (pysyncobj's number for a change of members)."""
_REWRITE_RECORD_BYTES: Final = 1024 * 1024

_ENTRY: Final = struct.Struct("<BQQI")
_INDEX: Final = struct.Struct("<BQ")
_UNBOUND_VOTE: Final = struct.Struct("<BQq")
_VOTE: Final = struct.Struct("<BQq16s")
_VOTERS: Final = struct.Struct("<BQI")
_IDENTITY: Final = struct.Struct("<BHqHH")
_DIRECTORY: Final = struct.Struct("<16sB")
_IS_IDENTITY, _IS_ENTRY, _IS_CUT, _IS_UNBOUND_VOTE, _IS_COMMIT, _IS_VOTE, _IS_VOTERS = 1, 2, 3, 4, 5, 6, 7
_MAY_JOIN: Final = 1
"""Flag of a directory."""

JournalEntry = tuple[bytes, int, int]
"""Command, index, term: the form in which the Raft engine keeps entries."""


class RaftJournal:
    """One voter's journal, also kept in memory; the Raft engine uses it through pysyncobj's interface.

    Mutating methods collect changes, which become durable together in :meth:`sync`. After an ``OSError`` the journal is
    *broken*: every later :meth:`sync` raises, since the disk's content is unknown. Entries have no gaps, starting at
    ``self[0]`` with index 1 or a snapshot's index.

    ``directory_id``: drawn when the journal was created (:mod:`tidelog.model.voter_set`). ``may_join``: it was
    formatted to follow a quorum that already has voters. ``is_old``: it was created by release 0.1, which can still
    read it.
    """

    def __init__(self, files: QuorumFiles, directory: str, identity: QuorumIdentity) -> None:
        """Open the journal, or create one if there is none.

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
        self.vote_directory = UNASSIGNED_DIRECTORY
        """The directory of the candidate that got this term's vote."""
        self.directory_id = identity.new_directory_id
        self.may_join = identity.may_join
        self.is_old = False
        self._voters: list[tuple[int, VoterSet]] = []
        """Sets of voters, each with the index from which it is in force; the first may be the founding set (index 0) or
        that of the truncated part."""
        self._commit_index = 1
        self._changes = bytearray()
        self._must_sync = False
        self._sealed = False
        self._broken = ""
        self._end = 0
        self.entry_bytes = 0
        self.syncs = 0
        self._candidate_directory = UNASSIGNED_DIRECTORY
        self._said_may_join = identity.may_join
        if files.exists(self.path):
            self._file: QuorumFile = files.open(self.path)
            try:
                self._recover(read_all(self._file))
                if not self.is_old and self.may_join != self._said_may_join:
                    self._replace_file(self._entries)
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
        """Size of the file without unsynced data."""
        return self._end

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at an index; ``None`` if the journal has none."""
        position = index - self._entries[0][1]
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    def entries_from(self, index: int, count_max: int, bytes_max: int) -> list[JournalEntry]:
        """Return entries from ``index`` on until a limit is reached; at least one if there is any."""
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

    # --- voters --------------------------------------------------------------------------------

    @property
    def me(self) -> Voter:
        """This node with its directory."""
        return Voter(self._identity.node_id, self.directory_id)

    @property
    def voters(self) -> VoterSet | None:
        """The set in force, which need not be committed; ``None`` before any is known here."""
        return self._voters[-1][1] if self._voters else None

    @property
    def voters_index(self) -> int:
        """The index of the entry that set :attr:`voters`; 0 if none did: it is the founding set."""
        return self._voters[-1][0] if self._voters else 0

    def bind(self) -> None:
        """Continue in today's format, which release 0.1 cannot read. Unsynced changes become durable as well."""
        if self.is_old:
            self.is_old = False
            self._rewrite(self._entries)

    def voters_at(self, index: int) -> tuple[int, VoterSet] | None:
        """Return the set in force at an index, and its first index."""
        return next((found for found in reversed(self._voters) if found[0] <= index), None)

    def found(self, voters: VoterSet) -> None:
        """Start with a set of voters that no entry set. Raises :class:`QuorumFailure` if there is a set already."""
        if self._voters:
            raise QuorumFailure(f"{self.path}: expected no voters to be known, found {self.voters}")
        self._voters.append((0, voters))
        self._changed(self._voters_change())

    def _learn_voters(self, command: bytes, index: int) -> None:
        if command[:1] == VOTERS_COMMAND and not (self._voters and self._voters[-1][0] >= index):
            try:
                self._voters.append((index, VoterSet.decode(command[1:])))
            except ValueError as error:
                raise QuorumDamaged(f"{self.path}: entry {index} cannot be read: {error}") from None

    # --- pysyncobj's interface -------------------------------------------------------------------

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry. Raises :class:`QuorumFailure` for a gap."""
        if self._entries and index != self._entries[-1][1] + 1:
            raise QuorumFailure(f"{self.path}: expected entry {self._entries[-1][1] + 1}, found {index}")
        self._entries.append((command, index, term))
        self.entry_bytes += len(command)
        self._learn_voters(command, index)
        self._changed(_ENTRY.pack(_IS_ENTRY, index, term, len(command)) + command)

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802  # pysyncobj's name
        """Remove the entries from a position on (a position, not an index)."""
        if position < len(self._entries):
            index = self._entries[position][1]
            self._remove_from(index)
            self._changed(_INDEX.pack(_IS_CUT, index))

    def setCurrentTerm(self, term: int, vote: NodeId | None) -> None:  # noqa: N802
        """Store the term and this voter's vote in it; :meth:`vote_on` sets the candidate's directory."""
        self._term, self._vote = term, vote
        self.vote_directory = self._candidate_directory if vote is not None else UNASSIGNED_DIRECTORY
        self._changed(self._vote_change())

    def vote_on(self, directory_id: DirectoryId) -> None:
        """Set the directory of the next candidate that gets a vote."""
        self._candidate_directory = directory_id

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> NodeId | None:  # noqa: N802
        return self._vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Store the commit index. It never falls and is written with the next change, or by :meth:`seal`."""
        if index > self._commit_index:
            self._commit_index = index
            self._sealed = False

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return min(self._commit_index, self._entries[-1][1]) if self._entries else 1

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: the engine seals by its own clock, because pysyncobj ticks only if something else is due."""

    # --- durability ------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every change so far durable; does nothing if there is none.

        Raises ``OSError`` the first time and :class:`QuorumFailure` from then on.
        """
        if not self._must_sync:
            return
        if self._broken:
            raise QuorumFailure(f"{self.path}: unusable after {self._broken}")
        self._changes += _INDEX.pack(_IS_COMMIT, self._commit_index)
        framed = record(bytes(self._changes), self._end)
        try:
            write_all(self._file, framed, self._end)
            self._file.fdatasync()
        except BaseException as error:
            self._broken = repr(error)
            raise
        self._end += len(framed)
        self._changes.clear()
        self._must_sync = False
        self._sealed = False
        self.syncs += 1

    def seal(self) -> None:
        """Mark the tail as complete, without waiting for the disk."""
        if self._sealed or self._must_sync or self._broken:
            return
        try:
            write_all(self._file, record(_INDEX.pack(_IS_COMMIT, self._commit_index), self._end), self._end)
        except BaseException as error:
            self._broken = repr(error)
            raise
        self._sealed = True

    @property
    def sealed(self) -> bool:
        return self._sealed

    def reset(self, entries: Sequence[JournalEntry], voters: VoterSet | None = None) -> None:
        """Replace all entries, atomically on disk; term, vote and commit index stay.

        ``voters``: the set in force at a snapshot's first entry; by default the journal's own.

        Used by compaction and by an installed snapshot; the snapshot's rename becomes durable first.
        """
        if self._broken:
            raise QuorumFailure(f"{self.path}: unusable after {self._broken}")
        first = entries[0][1]
        known = self.voters_at(first) if voters is None else (first, voters)
        self._voters = [] if known is None else [known]
        for command, index, _ in entries[1:]:
            self._learn_voters(command, index)
        if self._voters and self._voters[0][0] > 0:
            self.is_old = False  # the old format has no place for them
        self._rewrite(entries)

    def _rewrite(self, entries: Sequence[JournalEntry]) -> None:
        if self._broken:
            raise QuorumFailure(f"{self.path}: unusable after {self._broken}")
        try:
            self._replace_file(entries)
        except BaseException as error:
            self._broken = repr(error)
            raise

    def close(self, *, clean: bool) -> None:
        """Close the file; if ``clean``, sync and seal it first."""
        if clean and not self._broken:
            self.sync()
            self.seal()
        self._file.close()

    # --- inside ----------------------------------------------------------------------------------

    def _replace_file(self, entries: Sequence[JournalEntry]) -> None:
        self._files.fsync_dir(self._directory)
        replaced, self._file = self._file, self._rewritten(entries)
        replaced.close()

    def _changed(self, change: bytes) -> None:
        self._changes += change
        self._must_sync = True
        if len(self._changes) >= RECORD_BYTES_MAX // 4:
            self.sync()

    def _remove_from(self, index: int) -> None:
        while self._entries and self._entries[-1][1] >= index:
            self.entry_bytes -= len(self._entries.pop()[0])
        while self._voters and self._voters[-1][0] >= max(index, 1):
            self._voters.pop()

    def _vote_change(self) -> bytes:
        vote = -1 if self._vote is None else self._vote
        if self.is_old:
            return _UNBOUND_VOTE.pack(_IS_UNBOUND_VOTE, self._term, vote)
        return _VOTE.pack(_IS_VOTE, self._term, vote, self.vote_directory)

    def _voters_change(self) -> bytes:
        """Return the set on which those in the entries build; an old journal's is in its identity."""
        if not self._voters or self.is_old:
            return b""
        index, voters = self._voters[0]
        encoded = voters.encode()
        return _VOTERS.pack(_IS_VOTERS, index, len(encoded)) + encoded

    def _rewritten(self, entries: Sequence[JournalEntry]) -> QuorumFile:
        """Write a new file next to the old one, rename it over that, and return it open."""
        temporary = self.path + ".new"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        file = self._files.open(temporary, create=True, exclusive=True)
        self._entries = list(entries)
        self.entry_bytes = sum(len(entry[0]) for entry in self._entries)
        end = 0

        def put(body: bytes) -> None:
            nonlocal end
            framed = record(body, end)
            write_all(file, framed, end)
            end += len(framed)

        put(self._identity_body())
        changes = bytearray(self._vote_change())
        if self._voters and (not self._entries or self._voters[0][0] <= self._entries[0][1]):
            changes += self._voters_change()
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
        while (body := body_at(data, end)) is not None:
            self._replay(body, end)
            before_last, last, end = last, end, end + HEAD_BYTES + len(body)
        if end == 0:
            raise QuorumDamaged(
                f"{self.path}: expected a quorum journal, found {len(data)} bytes that do not begin one"
            )
        if end < len(data):
            later = next_record(data, end + 1)
            if later is not None:
                raise QuorumDamaged(
                    f"{self.path}: damaged at offset {end}: expected a valid record there, "
                    f"found one only at offset {later}. Restore the file, or, where a majority of the other voters is "
                    f"whole, empty {self._directory} and start the node with --format"
                )
            self._file.truncate(end)
        # A kill, or a failed sync, may have left data in the page cache that was never durable; no later sync would
        # write it (Linux marks the pages clean). It is the last record, or it and its seal.
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
        version, theirs, at = _identity_at(self.path, body, at)
        mine = self._identity
        for what, expected, found in (
            ("cluster", mine.cluster_id, theirs.cluster_id),
            ("node", mine.node_id, theirs.node_id),
            ("voters", mine.voters, theirs.voters),
        ):
            if expected != found:
                raise QuorumConfigurationError(
                    f"{self.path}: belongs to another {what}: expected {expected}, found {found}. "
                    "The ids of the voters are fixed when a quorum is first started"
                    if what == "voters"
                    else f"{self.path}: belongs to another {what}: expected {expected}, found {found}"
                )
        if version == UNBOUND_FORMAT:
            self.is_old = True
            seats = [Voter(node_id, directory_of_seat(mine.cluster_id, node_id)) for node_id in mine.voters]
            self.directory_id = dict(seats)[mine.node_id]
            self._voters = [(0, VoterSet(tuple(seats)))]
            return at
        directory_id, flags = _DIRECTORY.unpack_from(body, at)
        self.directory_id = DirectoryId(directory_id)
        self._said_may_join = bool(flags & _MAY_JOIN)
        self.may_join |= self._said_may_join
        return at + _DIRECTORY.size

    def _identity_body(self) -> bytes:
        identity = self._identity
        name = identity.cluster_id.encode()
        count = len(identity.voters)
        version = UNBOUND_FORMAT if self.is_old else FORMAT_VERSION
        head = _IDENTITY.pack(_IS_IDENTITY, version, identity.node_id, count, len(name))
        voters = struct.pack(f"<{count}q", *identity.voters)
        directory = b"" if self.is_old else _DIRECTORY.pack(self.directory_id, _MAY_JOIN * self.may_join)
        return head + voters + name + directory

    def _replay_entry(self, body: bytes, at: int) -> int:
        _, index, term, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        if self._entries and index != self._entries[-1][1] + 1:
            raise QuorumDamaged(f"{self.path}: expected entry {self._entries[-1][1] + 1}, found {index}")
        self._entries.append((body[at : at + size], index, term))
        self._learn_voters(body[at : at + size], index)
        self.entry_bytes += size
        return at + int(size)

    def _replay_cut(self, body: bytes, at: int) -> int:
        self._remove_from(int(_INDEX.unpack_from(body, at)[1]))
        return at + _INDEX.size

    def _replay_vote(self, body: bytes, at: int) -> int:
        _, self._term, vote, directory = _VOTE.unpack_from(body, at)
        self._vote = None if vote < 0 else NodeId(vote)
        self.vote_directory = DirectoryId(directory)
        return at + _VOTE.size

    def _replay_unbound_vote(self, body: bytes, at: int) -> int:
        _, self._term, vote = _UNBOUND_VOTE.unpack_from(body, at)
        self._vote = None if vote < 0 else NodeId(vote)
        self.vote_directory = (
            UNASSIGNED_DIRECTORY if self._vote is None else directory_of_seat(self._identity.cluster_id, self._vote)
        )
        return at + _UNBOUND_VOTE.size

    def _replay_voters(self, body: bytes, at: int) -> int:
        _, index, size = _VOTERS.unpack_from(body, at)
        at += _VOTERS.size
        try:
            self._voters = [(index, VoterSet.decode(body[at : at + size]))]
        except ValueError as error:
            raise QuorumDamaged(f"{self.path}: the voters cannot be read: {error}") from None
        return at + int(size)

    def _replay_commit(self, body: bytes, at: int) -> int:
        self._commit_index = max(self._commit_index, _INDEX.unpack_from(body, at)[1])
        return at + _INDEX.size


_CHANGES: Final[dict[int, Callable[[RaftJournal, bytes, int], int]]] = {
    _IS_IDENTITY: RaftJournal._replay_identity,
    _IS_ENTRY: RaftJournal._replay_entry,
    _IS_CUT: RaftJournal._replay_cut,
    _IS_UNBOUND_VOTE: RaftJournal._replay_unbound_vote,
    _IS_VOTE: RaftJournal._replay_vote,
    _IS_VOTERS: RaftJournal._replay_voters,
    _IS_COMMIT: RaftJournal._replay_commit,
}


def identity_of(files: QuorumFiles, directory: str) -> QuorumIdentity:
    """Return the identity of a directory's journal.

    Raises :class:`QuorumConfigurationError` if there is none, :class:`QuorumDamaged` and ``OSError``.
    """
    path = f"{directory}/{JOURNAL_NAME}"
    if not files.exists(path):
        raise QuorumConfigurationError(f"{path}: expected the metadata log of a controller, found none")
    file = files.open(path)
    try:
        body = body_at(read_all(file), 0)
    finally:
        file.close()
    if body is None or body[0] != _IS_IDENTITY:
        raise QuorumDamaged(f"{path}: damaged at offset 0: expected whose journal it is, found something else")
    return _identity_at(path, body, 0)[1]


def _identity_at(path: str, body: bytes, at: int) -> tuple[int, QuorumIdentity, int]:
    """Return the format, the journal's identity, and where the rest of the record begins."""
    _, version, node_id, voter_count, name_size = _IDENTITY.unpack_from(body, at)
    at += _IDENTITY.size
    if version not in (FORMAT_VERSION, UNBOUND_FORMAT):
        raise QuorumConfigurationError(f"{path}: expected format {FORMAT_VERSION}, found {version}")
    voters = tuple(NodeId(voter) for voter in struct.unpack_from(f"<{voter_count}q", body, at))
    at += 8 * voter_count
    cluster_id = body[at : at + name_size].decode()
    return version, QuorumIdentity(cluster_id, NodeId(node_id), voters, UNASSIGNED_DIRECTORY), at + name_size
