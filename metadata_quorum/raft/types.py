"""The types of the quorum's interface: its timing, its errors, its identity and its listener."""

from __future__ import annotations

from typing import Final, Protocol

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import ControllerEpoch, DirectoryId, NodeId, Offset

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest payload that :meth:`Quorum.propose` accepts."""
FIRST_OFFSET: Final = Offset(2)
"""The first offset that is ever committed: the Raft engine starts every log with an empty entry at 1."""


@dataclass(frozen=True, slots=True)
class QuorumTiming:
    """When the quorum acts on its own, in seconds.

    The defaults suit controllers within a few milliseconds of each other. Silence shorter than
    ``election_min_s`` never deposes a leader that the others still hear.
    """

    heartbeat_s: float = 0.2
    election_min_s: float = 0.65
    election_max_s: float = 1.1
    """A follower that has heard no leader for a random time between the two asks for pre-votes."""
    majority_lost_s: float = 0.48
    """A leader steps down if no majority has answered it for this long."""
    probe_spacing_s: float = 0.03
    """After a broken connection the surviving voters probe in turn, this far apart."""
    probe_retry_s: float = 0.1
    """Pause after a probe or an election without a winner; doubles up to ``election_max_s``."""
    notice_s: float = 0.001
    """After a commit a leader waits this long for entries that can carry it; then it sends it alone."""
    reconnect_min_s: float = 0.02
    reconnect_max_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s * 3 < self.election_min_s < self.election_max_s:
            raise ValueError(
                "expected 3 x heartbeat_s < election_min_s < election_max_s, "
                f"found {self.heartbeat_s}, {self.election_min_s}, {self.election_max_s}"
            )
        if not self.heartbeat_s < self.majority_lost_s <= self.election_min_s:
            raise ValueError(
                "expected heartbeat_s < majority_lost_s <= election_min_s, "
                f"found {self.heartbeat_s}, {self.majority_lost_s}, {self.election_min_s}"
            )


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """Limits on concurrent work, in bytes unless a name says otherwise."""

    batch_bytes: int = 1024 * 1024
    """Entries of one append message: as many as fit, at least one."""
    window_bytes: int = 4 * 1024 * 1024
    """A peer with this much unacknowledged gets only one batch per heartbeat."""
    retained_entries: int = 10_000
    retained_bytes: int = 4 * 1024 * 1024
    """Entries kept before a snapshot, so that a node slightly behind need not load it."""
    snapshot_part_bytes: int = 256 * 1024
    snapshot_parts_under_way: int = 4


@dataclass(frozen=True, slots=True)
class QuorumIdentity:
    """The identity that a voter's files and streams must agree on."""

    cluster_id: str
    node_id: NodeId
    voters: tuple[NodeId, ...]
    """The ids of all voters, including this one, in rising order."""
    new_directory_id: DirectoryId
    """The id for a directory that is created now."""
    may_join: bool = False
    """Whether a directory without a vote may follow and be admitted; stored in it."""

    def __post_init__(self) -> None:
        if list(self.voters) != sorted(set(self.voters)) or self.node_id not in self.voters:
            raise ValueError(f"expected rising voters with node {self.node_id} among them, found {self.voters}")


class QuorumConfigurationError(Exception):
    """Files or settings do not match; the text says what was expected, what was found, and where."""


class QuorumDamaged(Exception):
    """A file of the quorum is untrustworthy; the text names the file and the offset. Nothing was changed."""


class QuorumFailure(Exception):
    """The node must stop: continuing could lose or contradict committed entries."""


class NotLeading(Exception):
    """The proposal was not and never will be committed: this node does not lead under that epoch."""


class OutcomeUnknown(Exception):
    """Leadership or the node ended before the proposal was settled: it may or may not be committed."""


class QuorumBusy(Exception):
    """The limit of pending proposals is reached; nothing was proposed."""


class QuorumListener(Protocol):
    """The calls to the quorum's user, in order, on the event loop. An exception from it stops the node."""

    def on_load(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        """Drop all state; the snapshot is everything up to and including ``offset``."""

    def on_commit(self, offset: Offset, epoch: ControllerEpoch, payload: bytes) -> None:
        """Handle the next committed entry. ``b""``: a leader's first entry, a barrier, or a void command."""

    def on_leading(self, epoch: ControllerEpoch) -> None:
        """Note that this node leads, and has delivered every entry of earlier epochs."""

    def on_resigned(self, epoch: ControllerEpoch) -> None:
        """Note that this node no longer leads under the epoch that ``on_leading`` named."""

    def on_leader_change(self, leader: NodeId | None, epoch: ControllerEpoch) -> None:
        """Note the leader as far as this node knows; ``None`` while there is none."""
