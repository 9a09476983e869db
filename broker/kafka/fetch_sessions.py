"""Incremental fetch sessions (KIP-227) of a node's Kafka listeners: what each client reads, remembered between fetches.

Source: Kafka's ``FetchSession`` and ``FetchManager``. Two rules are added: a session belongs to the principal that
opened it, and all sessions together remember at most :data:`PARTITIONS_CACHED_MAX` partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId
from tidelog.proto.kafka.fetch_codec import PARTITIONS_MAX, WantedPartition
from tidelog.proto.transport.frames import FetchedPartition
from tidelog.replication.serving.standing import Standing, Watched
from tidelog.security.principal import Principal

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""``min.incremental.fetch.session.eviction.ms``: unused for so long, a session makes room for any other; older than
that, for a larger one."""
PARTITIONS_CACHED_MAX: Final = 200_000
"""Each takes about 270 bytes, and what its replica keeps to wake it."""
_ID_MAX: Final = 2**31 - 1

Judge = Callable[[bytes], "tuple[TopicId | None, ErrorCode]"]
"""A topic as the request names it → its id, and why it may not be read."""


class Stamp(NamedTuple):
    """What the judgement of a session's topics rests on."""

    names: int
    """``TopicNames.version``"""
    rights: int
    """``StandardAuthorizer.version``"""
    knows_zstd: bool


class SessionTopic:
    """One topic of a session. The partitions of one that may not be read are remembered, not watched."""

    __slots__ = ("fault", "name", "topic_id", "watched")

    def __init__(self, name: bytes, topic_id: TopicId | None, fault: ErrorCode) -> None:
        self.name = name
        self.topic_id = topic_id
        self.fault = fault
        self.watched: dict[int, Watched] = {}


class FetchSession:
    """One client's partitions and their positions."""

    __slots__ = (
        "_stamp",
        "cached_size",
        "created_ms",
        "epoch",
        "is_by_id",
        "principal",
        "session_id",
        "size",
        "standing",
        "topics",
        "used_ms",
    )

    def __init__(self, session_id: int, principal: Principal, is_by_id: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.principal = principal
        self.is_by_id = is_by_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = self.used_ms = now_ms
        self.cached_size = self.size = 0
        """Partitions, as last counted by the cache, and as they are."""
        self.standing = Standing()
        self.topics: dict[bytes, SessionTopic] = {}
        self._stamp: Stamp | None = None

    def put(self, name: bytes, wanted: WantedPartition, judge: Judge) -> Watched:
        """Add a partition, or take its new position over."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = SessionTopic(name, *judge(name))
        watched = topic.watched.get(wanted.partition)
        if watched is None:
            watched = Watched(self.standing, topic.topic_id or ZERO_TOPIC_ID, wanted.partition)
            topic.watched[wanted.partition] = watched
            self.size += 1
        watched.current_leader_epoch = LeaderEpoch(wanted.current_leader_epoch)
        watched.fetch_offset = Offset(wanted.fetch_offset)
        watched.last_fetched_epoch = LeaderEpoch(wanted.last_fetched_epoch)
        watched.bytes_max = max(wanted.bytes_max, 0)
        if not topic.fault:
            self.standing.name(watched)
        return watched

    def forget(self, name: bytes, partitions: Sequence[int]) -> None:
        topic = self.topics.get(name)
        if topic is None:
            return
        for partition in partitions:
            watched = topic.watched.pop(partition, None)
            if watched is not None:
                self.standing.remove(watched)
                self.size -= 1
        if not topic.watched:
            del self.topics[name]

    def judge(self, judge: Judge, stamp: Stamp | None) -> None:
        """Look again at what may be read, unless nothing that it rests on has changed (``stamp``)."""
        if stamp is not None and stamp == self._stamp:
            return
        self._stamp = stamp
        for topic in self.topics.values():
            topic_id, fault = judge(topic.name)
            if topic_id == topic.topic_id and fault == topic.fault:
                continue
            topic.topic_id, topic.fault = topic_id, fault
            for watched in topic.watched.values():
                self.standing.remove(watched)
                watched.topic_id = topic_id or ZERO_TOPIC_ID
                watched.mark = NO_OFFSET
                if not fault:
                    self.standing.name(watched)

    def refused(self) -> Iterator[tuple[bytes, list[FetchedPartition]]]:
        """The answers for topics that may not be read; every fetch repeats them."""
        for topic in self.topics.values():
            if topic.fault:
                topic_id = topic.topic_id or ZERO_TOPIC_ID
                yield topic.name, [FetchedPartition(topic_id, each, topic.fault) for each in topic.watched]

    def untold(self, name: bytes, found: FetchedPartition) -> None:
        """The client was not sent this after all: the next fetch looks at it again."""
        topic = self.topics.get(name)
        watched = None if topic is None else topic.watched.get(found.partition)
        if watched is not None and self.standing.has(watched):
            watched.mark = NO_OFFSET
            self.standing.name(watched)


class FetchSessionCache:
    """At most ``slots`` sessions, and what makes room for a new one (``FetchSessionCacheShard.tryEvict``)."""

    def __init__(self, slots: int, rng: Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: dict[int, FetchSession] = {}
        """The one unused for the longest comes first."""
        self.partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, principal: Principal) -> FetchSession | None:
        """A session of this principal's; those of others are not there for it."""
        found = self._sessions.get(session_id)
        return found if found is not None and found.principal == principal else None

    def open(self, principal: Principal, size: int, is_by_id: bool, now_ms: int) -> FetchSession | None:
        """A new session for ``size`` partitions; ``None`` if there is no room for it."""
        while len(self._sessions) >= self._slots or self.partitions + size > PARTITIONS_CACHED_MAX:
            if not self._evict(size, now_ms):
                return None
        session_id = self._rng.randint(1, _ID_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, _ID_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, principal, is_by_id, now_ms)
        session.cached_size = size
        self.partitions += size
        return session

    def touch(self, session: FetchSession, now_ms: int) -> bool:
        """It was used, and its size may have changed. Returns whether there is room for it; it is removed if not."""
        if self._sessions.pop(session.session_id, None) is None:
            return False
        self.partitions += session.size - session.cached_size
        session.cached_size = session.size
        session.used_ms = now_ms
        is_small = session.size <= PARTITIONS_MAX
        while is_small and self.partitions > PARTITIONS_CACHED_MAX:
            is_small = self._evict(session.size, now_ms)
        self._sessions[session.session_id] = session
        if not is_small:
            self.remove(session)
        return is_small

    def remove(self, session: FetchSession) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self.partitions -= session.cached_size
            session.standing.close()

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of ``size`` partitions by ending another one, if that is worth less."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms <= EVICTION_MS:
            settled = [each for each in self._sessions.values() if now_ms - each.created_ms > EVICTION_MS]
            if not settled:
                return False
            oldest = min(settled, key=lambda each: (each.cached_size, each.session_id))
            if (size, 0) < (oldest.cached_size, oldest.session_id):
                return False
        self.evictions += 1
        self.remove(oldest)
        return True


def next_epoch(epoch: int) -> int:
    """Source: ``FetchMetadata.nextEpoch``."""
    return 1 if epoch == _ID_MAX else epoch + 1
