"""A partition's replica on this node, with everything that waits for it.

The pure :class:`~tidelog.replication.partition.partition.Partition` decides; after any possible progress,
:meth:`Replica.settle` wakes exactly the waiters whose offset has been reached.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, Offset, TopicIdPartition
from tidelog.proto.transport.frames import ProducedPartition
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.topic_traffic import TopicTraffic
from tidelog.replication.partition.waiters import OffsetQueue, PendingAppend


class FollowerWatch(Protocol):
    """A follower's stream that fetches this partition. The methods only take note; the stream wakes later, once."""

    def log_moved(self) -> None:
        """Note that there are records past the follower's position, or that this node may no longer lead."""

    def marks_moved(self) -> None:
        """Note that the high watermark or the log's start moved; this may travel with the next answer."""


class ReachWatch(Protocol):
    """Waits for a partition's progress: a consumer's fetch, a deletion of records."""

    def reached(self, replica: Replica) -> None:
        """Note that the readable end, a follower's position, or the role of ``replica`` changed."""


class Verification(Protocol):
    """Batches that wait for their transaction's coordinator."""

    def role_left(self, error: ErrorCode) -> None:
        """Drop the batches, because this node stopped leading."""


class Replica:
    """A replica with its waiters. Only the event loop's thread writes it."""

    __slots__ = (
        "_changed_high_watermarks",
        "_high_watermark_seen",
        "committing",
        "consumers",
        "flushing",
        "follower_throttled",
        "followers",
        "key",
        "leader_throttled",
        "partition",
        "purges",
        "traffic",
        "verifying",
        "vouching",
    )

    def __init__(
        self, partition: Partition, changed_high_watermarks: dict[Replica, None], traffic: TopicTraffic
    ) -> None:
        self.partition = partition
        self.traffic = traffic
        self.key: TopicIdPartition = partition.state.key
        self.committing = OffsetQueue()
        """acks=all: wait for the high watermark."""
        self.vouching = OffsetQueue()
        """acks=1 with ``flush.messages``: wait for this disk."""
        self.consumers: dict[ReachWatch, None] = {}
        self.purges: dict[ReachWatch, None] = {}
        self.verifying: dict[int, Verification] = {}
        """By producer id."""
        self.followers: dict[NodeId, FollowerWatch] = {}
        self.flushing = False
        self.leader_throttled = False
        """Whether the leader's throttle applies to followers that are not in sync."""
        self.follower_throttled = False
        """Whether the follower's throttle applies to this replica while it is not in sync."""
        self._high_watermark_seen = partition.high_watermark
        self._changed_high_watermarks = changed_high_watermarks

    def log_moved(self) -> None:
        """Tell the followers' streams that records were appended here as leader."""
        for watch in self.followers.values():
            watch.log_moved()

    def settle(self) -> None:
        """Wake the waiters for every offset that has been reached."""
        partition = self.partition
        high_watermark = partition.high_watermark
        if high_watermark != self._high_watermark_seen:
            self._high_watermark_seen = high_watermark
            self._changed_high_watermarks[self] = None
            for watch in self.followers.values():
                watch.marks_moved()
            if self.consumers:
                self._wake(self.consumers)
        if self.committing.entries:
            for entry in self.committing.reached(high_watermark):
                entry.answer(self._committed(entry))
        if self.vouching.entries:
            for entry in self.vouching.reached(partition.vouched_end):
                entry.answer(entry.success)
        if self.purges:
            self._wake(self.purges)

    def log_start_moved(self) -> None:
        """Note that the log's start was moved here as leader: followers learn it with their next answer."""
        for watch in self.followers.values():
            watch.marks_moved()

    def left_role(self, error: ErrorCode) -> None:
        """Fail all waiters, because this node stopped leading: none may succeed any more.

        Their records may survive with the next leader or be truncated: the outcome is unknown, and a retry with the
        same sequence numbers settles it.
        """
        for queue in (self.committing, self.vouching):
            for entry in queue.drain():
                entry.answer(self.refused(error))
        for verification in tuple(self.verifying.values()):
            verification.role_left(error)
        self._wake(self.consumers)
        self._wake(self.purges)
        for watch in tuple(self.followers.values()):
            watch.log_moved()

    def wake_consumers(self) -> None:
        """Wake consumers for a change outside the partition."""
        self._wake(self.consumers)

    def refused(self, error: ErrorCode, message: str = "", records: tuple[int, ...] = ()) -> ProducedPartition:
        """Return the answer with ``error``; it names the leader if that helps (KIP-951)."""
        state = self.partition.state
        return ProducedPartition(
            self.key.topic_id,
            self.key.partition,
            error,
            current_leader=state.leader,
            current_leader_epoch=state.leader_epoch,
            error_message=message,
            refused_records=records,
        )

    def timed_out(self, entry: PendingAppend) -> ProducedPartition:
        return self.refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"appended at offset {entry.success.base_offset}, not replicated to the in-sync replicas in time",
        )

    def _committed(self, entry: PendingAppend) -> ProducedPartition:
        error = self.partition.commit_error()
        if error is ErrorCode.NONE:
            return entry.success
        return entry.success._replace(error=error, base_offset=Offset(-1))

    def _wake(self, watches: dict[ReachWatch, None]) -> None:
        for watch in tuple(watches):
            watch.reached(self)
