"""Reads a controller's directory for tools: the quorum, the metadata, and the entries that built it."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import decode_snapshot
from tidelog.metadata_quorum.raft.engine import payload_of
from tidelog.metadata_quorum.raft.files import QuorumFiles
from tidelog.metadata_quorum.raft.journal import RaftJournal, identity_of
from tidelog.metadata_quorum.raft.snapshot import SnapshotStore, joined, load_alone
from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import NO_NODE, ControllerEpoch, NodeId, Offset
from tidelog.model.voter_set import VoterSet
from tidelog.proto.logs.metadata_codec import decode_batch
from tidelog.proto.logs.metadata_records import MetadataRecord


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One entry of the metadata log: records that take effect together, or none for one of the quorum's own entries."""

    offset: Offset
    epoch: ControllerEpoch
    records: tuple[MetadataRecord, ...]


@dataclass(frozen=True, slots=True)
class MetadataDirectory:
    """``snapshot``: the metadata before the first of ``entries``, which may go beyond ``committed_offset``."""

    cluster_id: str
    node_id: NodeId
    voters: VoterSet | None
    epoch: ControllerEpoch
    committed_offset: Offset
    snapshot: MetadataImage
    entries: tuple[MetadataEntry, ...]

    def image(self, up_to: Offset) -> MetadataImage:
        """Return the metadata after every entry up to and including this offset."""
        image = self.snapshot
        for entry in self.entries:
            if entry.offset <= up_to:
                image = apply_records(image, entry.records, entry.offset, entry.epoch)[0]
        return image


def read_directory(files: QuorumFiles, directory: str) -> MetadataDirectory:
    """Read a controller's directory that no node is using, such as a copy: a torn write at its end is truncated.

    Raises the errors of opening a quorum's directory, and :class:`BadSnapshot` or :class:`BadMessage` for metadata of a
    later release.
    """
    identity = identity_of(files, directory)
    journal = RaftJournal(files, directory, identity)
    try:
        found = joined(SnapshotStore(files, directory, identity.cluster_id), journal) if journal else None
        return MetadataDirectory(
            identity.cluster_id,
            identity.node_id,
            journal.voters,
            ControllerEpoch(journal.getCurrentTerm()),
            Offset(journal.getRaftCommitIndex()),
            MetadataImage() if found is None else decode_snapshot(found.state),
            tuple(_entries(journal, 0 if found is None else found.index)),
        )
    finally:
        journal.close(clean=False)


def read_snapshot(files: QuorumFiles, path: str) -> MetadataDirectory:
    """Read a standalone snapshot file of any cluster: its metadata, and no log. Raises the same errors as
    :func:`read_directory`."""
    cluster_id, found = load_alone(files, path)
    return MetadataDirectory(
        cluster_id,
        NO_NODE,
        found.voters,
        ControllerEpoch(found.term),
        Offset(found.index),
        decode_snapshot(found.state),
        (),
    )


def _entries(journal: RaftJournal, after: int) -> Iterable[MetadataEntry]:
    for position in range(len(journal)):
        command, index, term = journal[position]
        if index > after:
            payload = payload_of(command, term)
            yield MetadataEntry(Offset(index), ControllerEpoch(term), decode_batch(payload) if payload else ())
