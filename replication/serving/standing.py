"""The partitions of a fetch session (KIP-227): from one fetch to the next, the node remembers which may have changed.

Each is watched at its replica. A fetch checks those that are *due*: newly named, moved since the last check, or
answered with records or an error the last time. So an idle fetch costs next to nothing, however many partitions its
session has. Changes that wake no watcher (a log's start, the nearest replica) are found by rotation: each fetch also
checks :data:`SWEPT` others.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.ids import NO_NODE, NO_OFFSET, LeaderEpoch, Offset, TopicId, TopicIdPartition
from tidelog.proto.transport.frames import FetchedPartition, FetchRequest
from tidelog.replication.partition.replica import Replica
from tidelog.replication.serving.consumer_fetch import ConsumerFetch, Owner, Part
from tidelog.replication.serving.slices import SLICE, Steps

SWEPT: Final = 50
"""Partitions that a fetch checks in rotation, besides the due ones."""


class Watched:
    """One partition of a session, and the last state sent to the client."""

    __slots__ = (
        "bytes_max",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "mark",
        "part",
        "partition",
        "replica",
        "standing",
        "topic_id",
    )

    def __init__(self, standing: Standing, topic_id: TopicId, partition: int) -> None:
        self.standing = standing
        self.topic_id = topic_id
        self.partition = partition
        self.current_leader_epoch = LeaderEpoch(-1)
        self.fetch_offset = Offset(0)
        self.last_fetched_epoch = LeaderEpoch(-1)
        self.bytes_max = 0
        self.mark = NO_OFFSET
        """The high watermark that the client knows; -1: none, or it got an error."""
        self.log_start_offset = NO_OFFSET
        self.replica: Replica | None = None
        """The replica where it is watched."""
        self.part: Part | None = None
        """Its part of the running fetch, if the fetch has checked it."""

    def reached(self, replica: Replica) -> None:
        """Implements :class:`~tidelog.replication.partition.replica.ReachWatch`. Without a running fetch, one call is
        enough: a session that its client has left costs its partitions nothing more."""
        standing = self.standing
        standing.due[self] = None
        if standing.fetch is None:
            self.unwatch()
        else:
            standing.fetch.woken(self)

    def watch(self, replica: Replica | None) -> None:
        if self.replica is not replica:
            self.unwatch()
            self.replica = replica
        if replica is not None:
            replica.consumers[self] = None

    def unwatch(self) -> None:
        if self.replica is not None:
            self.replica.consumers.pop(self, None)
            self.replica = None

    def says(self, found: FetchedPartition) -> bool:
        """Return whether the client must get a result; if so, it counts as known to the client.

        Source: ``FetchSession.CachedPartition.maybeUpdateResponseData``.
        """
        is_news = bool(
            found.records
            or found.in_files
            or found.error
            or found.high_watermark != self.mark
            or found.log_start_offset != self.log_start_offset
            or found.preferred_read_replica != NO_NODE
            or found.diverging_epoch >= 0
        )
        if is_news:
            self.mark = NO_OFFSET if found.error else found.high_watermark
            self.log_start_offset = found.log_start_offset
        return is_news


class Standing:
    """See the module."""

    __slots__ = ("_swept", "_watched", "due", "fetch")

    def __init__(self) -> None:
        self._watched: dict[Watched, None] = {}
        self._swept: list[Watched] = []
        self.due: dict[Watched, None] = {}
        """In reading order: partitions answered with records move to the end."""
        self.fetch: StandingFetch | None = None
        """The running fetch."""

    def __len__(self) -> int:
        return len(self._watched)

    def name(self, watched: Watched) -> None:
        """Queue a partition that is new, or has a new position, after those that have waited for longer."""
        self._watched[watched] = None
        self.due.pop(watched, None)
        self.due[watched] = None

    def remove(self, watched: Watched) -> None:
        watched.unwatch()
        self.due.pop(watched, None)
        self._watched.pop(watched, None)

    def has(self, watched: Watched) -> bool:
        return watched in self._watched

    def close(self) -> None:
        """Stop watching; a running fetch is answered with what it has."""
        if self.fetch is not None:
            self.fetch.end()
        for watched in self._watched:
            watched.unwatch()
        self._watched.clear()
        self.due.clear()
        self._swept.clear()

    def to_look_at(self) -> list[Watched]:
        """Return the due partitions, and the next ones in rotation."""
        found = list(self.due)
        if len(self.due) < len(self._watched):
            if not self._swept:
                self._swept = list(self._watched)
                self._swept.reverse()
            turn = self._swept[: -SWEPT - 1 : -1]
            found += [watched for watched in turn if watched in self._watched and watched not in self.due]
            del self._swept[len(self._swept) - len(turn) :]
        return found


class StandingFetch(ConsumerFetch):
    """A fetch of a session's due partitions. It answers with news only."""

    __slots__ = ("_is_ended", "_standing")

    def __init__(self, owner: Owner, standing: Standing, request: FetchRequest, in_files: bool) -> None:
        super().__init__(owner, request, in_files)
        if standing.fetch is not None:
            standing.fetch.end()
        self._is_ended = False
        self._standing = standing
        standing.fetch = self

    def end(self) -> None:
        """Stop waiting: answer with what is available."""
        self._is_ended = True
        if self._waits:
            self._sliced.go_on()

    def woken(self, watched: Watched) -> None:
        """Note that a partition of the session has moved."""
        part = watched.part
        if part is None or part.fetch is not self:
            if not (self._is_looking or self._waits):
                return  # it is due for the next fetch
            part = self._begin_part(watched)
        self.moved(part)

    def _look_at_all(self) -> Steps[None]:
        for number, watched in enumerate(self._standing.to_look_at(), 1):
            if (watched.part is None or watched.part.fetch is not self) and self._standing.has(watched):
                self._read(self._begin_part(watched))
            if not number % SLICE:
                yield None

    def _begin_part(self, watched: Watched) -> Part:
        replica = self._owner.replicas.get(TopicIdPartition(watched.topic_id, watched.partition))
        watched.watch(replica)
        part = watched.part = Part(self, watched, replica)
        self._parts.append(part)
        return part

    def _may_wait(self) -> bool:
        return (
            not self._is_ended
            and len(self._standing) > 0
            and not self._is_enough()
            and self._owner.may_wait(self._size)
        )

    def _watch(self) -> None:
        """Do nothing: the partitions are watched already."""

    def _unwatch(self) -> None:
        """Detach this fetch only; the partitions stay watched."""
        if self._standing.fetch is self:
            self._standing.fetch = None
        for part in self._parts:
            assert isinstance(part.item, Watched)
            if part.item.part is part:
                part.item.part = None

    def _answer(self) -> Steps[list[FetchedPartition]]:
        told: list[tuple[Part, FetchedPartition]] = []
        for number, part in enumerate(self._parts, 1):
            found = self._result(part)
            assert isinstance(part.item, Watched)
            self._settle(part, part.item, found)
            if part.item.says(found):
                told.append((part, found))
            if not number % SLICE and number < len(self._parts):
                yield None
        for part, found in told:
            if found.in_files:
                part.spans = []  # the answer owns them now
        return [found for _, found in told]

    def _settle(self, part: Part, watched: Watched, found: FetchedPartition) -> None:
        """Decide whether the next fetch must check it."""
        standing = self._standing
        if not standing.has(watched):
            return
        if part.size:
            standing.name(watched)
        elif part.cut or found.error or part.answer is not None:
            standing.due[watched] = None
        else:
            standing.due.pop(watched, None)
