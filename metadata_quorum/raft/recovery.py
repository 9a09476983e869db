"""The last resort after the loss of a majority of the voters' directories: one survivor continues alone.

It works on the directory of a stopped node. The survivor becomes the only voter and every other seat is vacant; the
others, with whatever directories, follow it and are admitted again. Its epoch rises by :data:`EPOCHS_SKIPPED`, so that
old voters that appear later lose against it. If one holds committed entries that the survivor lacks, it refuses to
overwrite them, and stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.metadata_quorum.raft.files import QuorumFiles
from tidelog.metadata_quorum.raft.journal import VOTERS_COMMAND, RaftJournal, identity_of
from tidelog.metadata_quorum.raft.snapshot import SnapshotStore, joined
from tidelog.metadata_quorum.raft.storage import lock_directory
from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumIdentity
from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import ControllerEpoch, Offset
from tidelog.model.voter_set import Voter, VoterSet

EPOCHS_SKIPPED: Final = 1000


@dataclass(frozen=True, slots=True)
class Survivor:
    """The part of the quorum's log that one directory holds."""

    cluster_id: str
    me: Voter
    voters: VoterSet | None
    """The voters, by this log. ``None``: it knows none."""
    epoch: ControllerEpoch
    last_offset: Offset
    last_epoch: ControllerEpoch
    committed_offset: Offset
    """The offset known here to be committed; more may have been."""


def look(files: QuorumFiles, directory: str) -> Survivor:
    """Return the log state in a stopped node's directory. Raises the errors of opening a quorum's directory.

    It is opened as at a start: a torn write is truncated, and the installation of a snapshot is finished.
    """
    with _opened(files, directory) as (identity, journal):
        return _survivor(identity, journal)


def recover(files: QuorumFiles, directory: str) -> Survivor:
    """Make a stopped node's directory the only voter. From then on, everything in its log counts as committed.

    Raises :class:`QuorumConfigurationError` if it was not a voter, and the errors of opening a quorum's directory.
    """
    with _opened(files, directory) as (identity, journal):
        voters = journal.voters
        if voters is None or journal.me not in voters:
            raise QuorumConfigurationError(
                f"{directory}: expected the directory of a voter, found {journal.me}; the voters are {voters}"
            )
        journal.bind()
        alone = VoterSet((journal.me,), tuple(seat for seat in identity.voters if seat != identity.node_id))
        epoch = journal.getCurrentTerm() + EPOCHS_SKIPPED
        journal.setCurrentTerm(epoch, None)
        journal.add(VOTERS_COMMAND + alone.encode(), journal.last_index + 1, epoch)
        journal.sync()
        return _survivor(identity, journal)


@contextmanager
def _opened(files: QuorumFiles, directory: str) -> Iterator[tuple[QuorumIdentity, RaftJournal]]:
    identity = identity_of(files, directory)
    lock = lock_directory(files, directory)
    try:
        journal = RaftJournal(files, directory, identity)
        try:
            if not journal:
                raise QuorumConfigurationError(
                    f"{journal.path}: expected the log of a controller that has run, found one without entries: its "
                    "node was killed at its first start. Nothing is in it to be shown or recovered"
                )
            joined(SnapshotStore(files, directory, identity.cluster_id), journal)
            yield identity, journal
        finally:
            journal.close(clean=False)
    finally:
        lock.release()


def _survivor(identity: QuorumIdentity, journal: RaftJournal) -> Survivor:
    return Survivor(
        identity.cluster_id,
        journal.me,
        journal.voters,
        ControllerEpoch(journal.getCurrentTerm()),
        Offset(journal.last_index),
        ControllerEpoch(journal.last_term),
        Offset(journal.getRaftCommitIndex()),
    )
