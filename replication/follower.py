"""What a follower does with its log when it hears from its leader: where to cut, where to begin again.

Pure. A follower never cuts its log on its own account: only where the leader of the current epoch
shows that the logs differ (KIP-101, KIP-279), or that the follower stands outside the leader's log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.storage.log import Log


@dataclass(frozen=True, slots=True)
class FollowerState:
    """Whom this replica follows, under which leader epoch."""

    leader: NodeId
    epoch: LeaderEpoch


def truncation_point(log: Log, diverging_epoch: LeaderEpoch, diverging_end: Offset) -> Offset:
    """Where to cut, told that the leader's largest epoch not above ours is ``diverging_epoch`` and ends at
    ``diverging_end``.

    Where this log knows that epoch, the earlier of both ends. Where it does not, the end of its own
    largest epoch below: the next fetch then compares one epoch further back, so that each round
    removes what the two logs do not share (KIP-279; ``AbstractFetcherThread.getOffsetTruncationState``).
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
    """Cut the tail: what the leader has ends before what we have."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class StartAt:
    """Drop everything: the leader's log begins after ours ends."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class KeepLog:
    """The position is within the leader's log after all: ask again."""


OutOfRange = TruncateTo | StartAt | KeepLog
KEEP: Final = KeepLog()


def out_of_range(log: Log, leader_log_start: Offset, leader_log_end: Offset) -> OutOfRange:
    """What to do when the leader's log is from ``leader_log_start`` to ``leader_log_end`` and our end is outside.

    Source: ``AbstractFetcherThread.fetchOffsetAndApplyTruncateAndBuild``. Our end beyond the leader's
    is possible only after an unclean election (or a leader that lost its disk, which is one).
    """
    end = log.log_end_offset
    if leader_log_end < end:
        return TruncateTo(leader_log_end)
    if leader_log_start > end:
        return StartAt(leader_log_start)
    return KEEP
