"""Opens a voter's directory: the lock, the journal and the matching snapshot."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.files import QuorumFiles, QuorumLock
from tidelog.metadata_quorum.raft.journal import JOURNAL_NAME, RaftJournal
from tidelog.metadata_quorum.raft.snapshot import SnapshotStore
from tidelog.metadata_quorum.raft.types import (
    QuorumConfigurationError,
    QuorumDamaged,
    QuorumIdentity,
    QuorumLimits,
    QuorumTiming,
)

LOCK_NAME: Final = "quorum.lock"


def lock_directory(files: QuorumFiles, directory: str) -> QuorumLock:
    """Create the directory if necessary and lock it for this process.

    Raises :class:`QuorumConfigurationError` if another process has it.
    """
    _make_durably(files, directory)
    try:
        return files.lock(f"{directory}/{LOCK_NAME}")
    except BlockingIOError:
        raise QuorumConfigurationError(
            f"{directory}: expected a quorum directory of our own, found it in use by another process"
        ) from None


def open_engine(
    files: QuorumFiles,
    directory: str,
    identity: QuorumIdentity,
    timing: QuorumTiming,
    limits: QuorumLimits,
    rng: random.Random,
    now: float,
    engine_class: Callable[..., RaftEngine] | None = None,
) -> RaftEngine:
    """Recover an engine from its directory, created if necessary.

    ``engine_class`` lets tests use one with a rule removed.

    Raises :class:`QuorumConfigurationError`, :class:`QuorumDamaged`, :class:`QuorumFailure`, ``OSError``.
    """
    _make_durably(files, directory)
    files.fsync_dir(directory)  # a kill may have come between a rename and its becoming durable
    snapshots = SnapshotStore(files, directory, identity.cluster_id)
    journal_path = f"{directory}/{JOURNAL_NAME}"
    if files.exists(snapshots.path) and not files.exists(journal_path):
        raise QuorumDamaged(
            f"{journal_path}: missing, though {snapshots.path} is there: without the votes that it "
            f"held this voter could vote twice. Restore it, or empty {directory} and start the node with --format"
        )
    journal = RaftJournal(files, directory, identity)
    try:
        return (engine_class or RaftEngine)(identity, journal, snapshots, timing, limits, rng, now)
    except BaseException:
        journal.close(clean=False)
        raise


def _make_durably(files: QuorumFiles, directory: str) -> None:
    """Create a directory so that its name, and those of parents created for it, survive a power cut.

    This goes level by level: a killed process left at most the lowest existing one unsynced.
    """
    missing: list[str] = []
    level = directory
    while level and not files.exists(level):
        missing.append(level)
        level = level.rpartition("/")[0]
    if level:
        files.fsync_dir(_above(level))
    for made in reversed(missing):
        files.makedirs(made)
        files.fsync_dir(_above(made))


def _above(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
