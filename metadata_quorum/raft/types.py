"""The words of the quorum's seam: its timing, its errors, what it is and what it asks of its user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.model.ids import ControllerEpoch, DirectoryId, NodeId, Offset

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest payload that :meth:`Quorum.propose` takes."""
FIRST_OFFSET: Final = Offset(2)
"""The first offset that is ever committed: the Raft engine begins every log with an empty entry at 1."""


@dataclass(frozen=True, slots=True)
class QuorumTiming:
    """When the quorum acts by itself. Seconds.

    The defaults suit controllers within a few milliseconds of each other. Silence shorter than
    ``election_min_s`` never deposes a leader that the others still hear.
    """

    heartbeat_s: float = 0.2
    election_min_s: float = 0.65
    election_max_s: float = 1.1
    """A follower that heard no leader for a random time between the two probes for votes."""
    majority_lost_s: float = 0.48
    """A leader that no majority answered for so long steps down."""
    probe_spacing_s: float = 0.03
    """After a broken connection the surviving voters probe one after the other, so far apart."""
    probe_retry_s: float = 0.1
    """Waiting time after a probe or an election without winner; doubles up to ``election_max_s``."""
    notice_s: float = 0.001
    """After a commit a leader waits so long for entries that can carry it; then it tells it by itself."""
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
    """How much of anything there is at once. Bytes unless a name says otherwise."""

    batch_bytes: int = 1024 * 1024
    """Entries of one append message: as many as fit, at least one."""
    window_bytes: int = 4 * 1024 * 1024
    """A peer with this much unacknowledged gets one batch per heartbeat, no more."""
    retained_entries: int = 10_000
    retained_bytes: int = 4 * 1024 * 1024
    """Entries kept before a snapshot, so that a node that is slightly behind need not load it."""
    snapshot_part_bytes: int = 256 * 1024
    snapshot_parts_under_way: int = 4


@dataclass(frozen=True, slots=True)
class QuorumIdentity:
    """The identity that a voter's files and streams must agree on."""

    cluster_id: str
    node_id: NodeId
    voters: tuple[NodeId, ...]
    """The ids of all voters, this one among them, in rising order."""
    new_directory_id: DirectoryId
    """The directory's id if it is made now."""
    may_join: bool = False
    """Whether a directory that is no voter's may follow and be admitted; remembered in it."""

    def __post_init__(self) -> None:
        if list(self.voters) != sorted(set(self.voters)) or self.node_id not in self.voters:
            raise ValueError(f"expected rising voters with node {self.node_id} among them, found {self.voters}")


class QuorumConfigurationError(Exception):
    """Files or settings that do not belong together; says what was expected, what was found, where."""


class QuorumDamaged(Exception):
    """A file of the quorum that cannot be trusted; names the file and the offset. Nothing was changed."""


class QuorumFailure(Exception):
    """The node must stop: going on could lose or contradict what was committed."""


class NotLeading(Exception):
    """The proposal was not and never will be committed: this node does not lead under that epoch."""


class OutcomeUnknown(Exception):
    """Leadership or the node ended before the proposal was settled: it may or may not be committed."""


class QuorumBusy(Exception):
    """The bound of proposals under way is reached; nothing was proposed."""


class QuorumListener(Protocol):
    """The calls to the quorum's user, in order, on the event loop. An exception from it stops the node."""

    def on_load(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        """Forget all state; the snapshot is everything up to and with ``offset``."""

    def on_commit(self, offset: Offset, epoch: ControllerEpoch, payload: bytes) -> None:
        """The next committed entry. ``b""``: a leader's first entry, a barrier, or a command that was void."""

    def on_leading(self, epoch: ControllerEpoch) -> None:
        """This node leads, and every entry of earlier epochs has been heard."""

    def on_resigned(self, epoch: ControllerEpoch) -> None:
        """This node no longer leads under the epoch that ``on_leading`` named."""

    def on_leader_change(self, leader: NodeId | None, epoch: ControllerEpoch) -> None:
        """The leader as far as this node knows; ``None`` while there is none."""
