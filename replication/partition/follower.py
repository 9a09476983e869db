"""A follower's decisions about its log after its leader's answer: where to truncate, where to restart.

Pure. A follower never truncates its log on its own: only if the leader of the current epoch shows that the logs differ
(KIP-101, KIP-279), or that the follower's end is outside the leader's log.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.storage.log.log import Log


@dataclass(frozen=True, slots=True)
class FollowerState:
    """The leader that this replica follows, and its epoch."""

    leader: NodeId
    epoch: LeaderEpoch


def check_position(log: Log, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> Refusal | None:
    """Return why a consumer at ``fetch_offset`` must ask the leader and not a follower with this log.

    A follower may be behind, or have records that it will truncate, so it never says that the consumer's records
    differ. OFFSET_OUT_OF_RANGE makes any client ask the leader.
    """
    start, end = log.log_start_offset, log.log_end_offset
    if not start <= fetch_offset <= end:
        return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"expected an offset from {start} to {end}, found {fetch_offset}")
    if last_fetched_epoch >= 0:
        epoch, epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
        if epoch != last_fetched_epoch or epoch_end < fetch_offset:
            return Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {last_fetched_epoch} does not reach {fetch_offset} here"
            )
    return None


def truncation_point(log: Log, diverging_epoch: LeaderEpoch, diverging_end: Offset) -> Offset:
    """Return where to truncate if the leader's largest epoch not above ours is ``diverging_epoch``, ending at
    ``diverging_end``.

    If this log knows that epoch: the earlier of both ends. If not: the end of its own largest epoch below. The next
    fetch then compares one epoch further back, so that each round removes more of the part that the two logs do not
    share (KIP-279; ``AbstractFetcherThread.getOffsetTruncationState``).
    """
    end = log.log_end_offset
    own_epoch, own_end = log.end_offset_for_epoch(diverging_epoch)
    if own_epoch < 0 or own_end < 0:
        return Offset(min(diverging_end, end))
    if own_epoch != diverging_epoch:
        return Offset(min(own_end, end))
    return Offset(min(own_end, diverging_end, end))


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate: the leader's log ends before ours."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class StartAt:
    """Drop all records: the leader's log begins after ours ends."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class KeepLog:
    """The position is inside the leader's log after all: fetch again."""


OutOfRange = TruncateTo | StartAt | KeepLog
KEEP: Final = KeepLog()


def out_of_range(log: Log, leader_log_start: Offset, leader_log_end: Offset) -> OutOfRange:
    """Decide what to do if our end is outside the leader's log, from ``leader_log_start`` to ``leader_log_end``.

    Source: ``AbstractFetcherThread.fetchOffsetAndApplyTruncateAndBuild``. Our end can be beyond the leader's only after
    an unclean election (or if the leader lost its disk, which amounts to one).
    """
    end = log.log_end_offset
    if leader_log_end < end:
        return TruncateTo(leader_log_end)
    if leader_log_start > end:
        return StartAt(leader_log_start)
    return KEEP
