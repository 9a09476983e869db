"""Fetch sessions (KIP-227): what Kafka answers, whose they are, and what makes room for a new one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.broker.kafka import fetch_sessions
from tidelog.broker.kafka.fetch_sessions import EVICTION_MS, FetchSession, FetchSessionCache, Stamp, next_epoch
from tidelog.broker.node.broker_role import BrokerRole
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.kafka.fetch_codec import PARTITIONS_MAX, WantedPartition
from tidelog.security.principal import ANONYMOUS, Principal
from tidelog.testing.cluster import Cluster

FETCH = 1
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


class Reader:
    """A client with one session; ``version`` says whether topics are named or numbered."""

    def __init__(self, cluster: Cluster, wire: WireClient, version: int) -> None:
        self.cluster = cluster
        self.wire = wire
        self.version = version
        self.session_id, self.epoch = 0, 0

    def topic(self, name: str) -> dict[str, Any]:
        if self.version >= 13:
            return {"topic_id": self.cluster.image.topic_ids.get(name, TopicId(b"x" * 16))}
        return {"topic": name}

    def fetch(
        self,
        *wanted: tuple[str, int, int],
        forgotten: tuple[tuple[str, int], ...] = (),
        wait_ms: int = 0,
        version: int | None = None,
        **more: int,
    ) -> Any:
        """``wanted``: topic, partition, offset."""
        topics = [
            {
                **self.topic(name),
                "partitions": [{"partition": at, "fetch_offset": offset, "partition_max_bytes": 1 << 20}],
            }
            for name, at, offset in wanted
        ]
        dropped = [{**self.topic(name), "partitions": [at]} for name, at in forgotten]
        values = {"session_id": self.session_id, "session_epoch": self.epoch, **more}
        answer = self.wire.ask(
            FETCH, version or self.version, max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            topics=topics, forgotten_topics_data=dropped, **values,
        )  # fmt: skip
        if answer.error_code == 0 and not more:
            self.session_id, self.epoch = answer.session_id, next_epoch(self.epoch)
        return answer

    def news(self, answer: Any) -> dict[tuple[str, int], tuple[int, int, bool]]:
        """By topic and partition: error, high watermark, whether there are records."""
        assert answer.error_code == 0
        names = {topic.topic_id: topic.name for topic in self.cluster.image.topics.values()}
        return {
            (names.get(topic.topic_id, "?") if self.version >= 13 else topic.topic, part.partition_index): (
                part.error_code,
                part.high_watermark,
                bool(part.records),
            )
            for topic in answer.responses
            for part in topic.partitions
        }


@pytest.fixture(params=[7, 12, 13, 18])
def reader(request: pytest.FixtureRequest, kafka_cluster: Cluster) -> Iterator[Reader]:
    with WireClient(kafka_cluster.kafka_bootstrap) as wire:
        yield Reader(kafka_cluster, wire, request.param)


@pytest.fixture
def topic(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> str:
    name = topic_name("session")
    kafka_cluster.create_topic(name, partitions=3)
    return name


def produce(cluster: Cluster, topic: str, partition: int, *values: bytes) -> None:
    with cluster.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=partition).result()


def broker(cluster: Cluster) -> BrokerRole:
    found = cluster.node(1).broker
    assert found is not None
    return found


def test_an_incremental_answer_has_only_news(reader: Reader, kafka_cluster: Cluster, topic: str) -> None:
    opened = reader.news(reader.fetch(*((topic, number, 0) for number in range(3))))
    assert opened == {(topic, number): (0, 0, False) for number in range(3)}
    assert reader.session_id > 0
    assert reader.news(reader.fetch()) == {}
    produce(kafka_cluster, topic, 1, b"a")
    assert reader.news(reader.fetch(wait_ms=20_000)) == {(topic, 1): (0, 1, True)}
    assert reader.news(reader.fetch()) == {(topic, 1): (0, 1, True)}, "its position has not moved"
    assert reader.news(reader.fetch((topic, 1, 1))) == {}
    assert reader.news(reader.fetch((topic, 1, 9))) == {(topic, 1): (ErrorCode.OFFSET_OUT_OF_RANGE, 1, False)}
    assert reader.news(reader.fetch((topic, 1, 1))) == {(topic, 1): (0, 1, False)}, "no error any more"
    assert reader.news(reader.fetch()) == {}


def test_what_is_forgotten_is_not_answered_and_an_empty_session_ends(
    reader: Reader, kafka_cluster: Cluster, topic: str
) -> None:
    reader.fetch((topic, 0, 0), (topic, 1, 0))
    before = broker(kafka_cluster).fetch_sessions.partitions
    produce(kafka_cluster, topic, 0, b"a")
    produce(kafka_cluster, topic, 1, b"b")
    assert reader.news(reader.fetch(forgotten=((topic, 0), (topic, 2), ("nobody", 0)))) == {(topic, 1): (0, 1, True)}
    assert broker(kafka_cluster).fetch_sessions.partitions == before - 1
    assert reader.news(reader.fetch((topic, 2, 0))) == {(topic, 1): (0, 1, True), (topic, 2): (0, 0, False)}
    session_id, epoch = reader.session_id, reader.epoch
    assert reader.fetch(forgotten=((topic, 1), (topic, 2))).session_id == 0
    found = reader.fetch(session_id=session_id, session_epoch=epoch + 1)
    assert (found.error_code, found.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_the_errors_of_sessions(reader: Reader, kafka_cluster: Cluster, topic: str) -> None:
    sessions = broker(kafka_cluster).fetch_sessions
    other = 12 if reader.version >= 13 else 13
    for session_id in (0, 9, -1):
        found = reader.fetch(session_id=session_id, session_epoch=1)
        assert (found.error_code, found.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
    reader.fetch((topic, 0, 0))
    for epoch in (2, 2**31 - 1, -2):
        found = reader.fetch(session_id=reader.session_id, session_epoch=epoch)
        assert (found.error_code, found.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    found = reader.fetch(session_id=reader.session_id, session_epoch=1, version=other)
    assert found.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert reader.news(reader.fetch()) == {}, "none of that moved its epoch"
    before = len(sessions)
    whole = reader.fetch((topic, 0, 0), session_id=reader.session_id, session_epoch=-1)
    assert (whole.session_id, len(whole.responses), len(sessions)) == (0, 1, before - 1)
    first = reader.session_id
    reader.epoch = 0
    assert reader.fetch((topic, 0, 0)).session_id not in (0, first)


def test_what_is_not_there_is_told_each_time_until_it_is(
    reader: Reader, kafka_cluster: Cluster, topic: str, topic_name: Callable[..., str]
) -> None:
    late = topic_name("late")
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if reader.version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    name = "?" if reader.version >= 13 else late
    asked = ((topic, 0, 0), (topic, 7, 0), (late, 0, 0))
    gone = {(topic, 7): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, False), (name, 0): (unknown, -1, False)}
    assert reader.news(reader.fetch(*asked)) == {(topic, 0): (0, 0, False), **gone}
    assert reader.news(reader.fetch(wait_ms=20_000)) == gone
    if reader.version >= 13:
        return
    kafka_cluster.create_topic(late)
    found = reader.news(reader.fetch(forgotten=((topic, 7),)))
    assert found == {(late, 0): (0, 0, False)}, "by its name it is there now"
    with kafka_cluster.admin() as admin:
        admin.delete_topics([late])
    kafka_cluster.wait_for(lambda: late not in broker(kafka_cluster)._view.image.topic_ids, "the topic is gone")
    assert reader.news(reader.fetch(wait_ms=20_000)) == {(late, 0): (unknown, -1, False)}


def test_a_node_without_slots_opens_none(reader: Reader, kafka_cluster: Cluster, topic: str) -> None:
    sessions = broker(kafka_cluster).fetch_sessions
    slots, sessions._slots = sessions._slots, 0
    try:
        assert reader.fetch((topic, 0, 0)).session_id == 0
    finally:
        sessions._slots = slots


# --- What they are made of --------------------------------------------------------------------------


def wanted(partition: int, offset: int = 0) -> WantedPartition:
    return WantedPartition(partition, -1, offset, -1, -1, 100)


def cache(slots: int) -> FetchSessionCache:
    return FetchSessionCache(slots, random.Random(1))


def opened(sessions: FetchSessionCache, size: int, now_ms: int, principal: Principal = ANONYMOUS) -> FetchSession:
    session = sessions.open(principal, size, True, now_ms)
    assert session is not None
    for number in range(size):
        session.put(b"t" * 16, wanted(number), lambda name: (TopicId(name), ErrorCode.NONE))
    assert sessions.touch(session, now_ms)
    return session


def test_a_session_is_found_by_its_own_principal_only() -> None:
    sessions = cache(5)
    session = opened(sessions, 1, 0, ALICE)
    assert sessions.find(session.session_id, ALICE) is session
    assert sessions.find(session.session_id, BOB) is None
    assert sessions.find(session.session_id, ANONYMOUS) is None


def test_what_makes_room_for_a_new_session() -> None:
    """Source: ``FetchSessionTest.testSessionCache`` and ``testZeroSizeFetchSession`` of Kafka."""
    sessions = cache(2)
    small, large = opened(sessions, 2, 0), opened(sessions, 5, 0)
    assert sessions.open(ANONYMOUS, 9, True, EVICTION_MS) is None, "both are young"
    sessions.touch(small, EVICTION_MS)
    sessions.touch(large, EVICTION_MS)
    now = EVICTION_MS + 1
    assert sessions.open(ANONYMOUS, 1, True, now) is None, "smaller than the smallest"
    assert opened(sessions, 3, now)
    assert sessions.find(small.session_id, ANONYMOUS) is None
    assert (len(sessions), sessions.partitions, sessions.evictions) == (2, 8, 1)
    late = EVICTION_MS + now
    sessions.touch(large, late)
    assert opened(sessions, 1, late + 1), "one that was not used for so long goes, whatever its size"
    assert sessions.find(large.session_id, ANONYMOUS) is large
    sessions.remove(large)
    assert (len(sessions), sessions.partitions, sessions.evictions) == (1, 1, 2)


def test_all_sessions_together_have_at_most_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_CACHED_MAX", 10)
    sessions = cache(100)
    first = opened(sessions, 6, 0)
    assert sessions.open(ANONYMOUS, 5, True, 1) is None
    second = opened(sessions, 4, 1)
    second.put(b"t" * 16, wanted(9), lambda name: (TopicId(name), ErrorCode.NONE))
    assert not sessions.touch(second, 2), "it grew, and nothing may go for it"
    assert (len(sessions), sessions.partitions) == (1, 6)
    assert opened(sessions, 7, EVICTION_MS + 1)
    assert sessions.find(first.session_id, ANONYMOUS) is None


def test_a_session_has_at_most_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 3)
    assert PARTITIONS_MAX > 3
    sessions = cache(5)
    session = opened(sessions, 3, 0)
    session.put(b"t" * 16, wanted(3), lambda name: (TopicId(name), ErrorCode.NONE))
    assert not sessions.touch(session, 1)
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_rights_are_judged_again_when_they_or_the_topics_change() -> None:
    faults = {b"t" * 16: ErrorCode.NONE, b"u" * 16: ErrorCode.NONE}
    asked: list[bytes] = []

    def judge(name: bytes) -> tuple[TopicId | None, ErrorCode]:
        asked.append(name)
        return TopicId(name), faults[name]

    session = FetchSession(7, ALICE, True, 0)
    for name in faults:
        for number in range(2):
            session.put(name, wanted(number), judge)
    session.judge(judge, Stamp(1, 1, True))
    asked.clear()
    session.judge(judge, Stamp(1, 1, True))
    assert (asked, len(session.standing.due), list(session.refused())) == ([], 4, [])
    faults[b"t" * 16] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    session.judge(judge, Stamp(1, 2, True))
    assert len(session.standing) == len(session.standing.due) == 2, "nobody reads the others any more"
    ((name, refused),) = session.refused()
    assert (name, [(part.partition, part.error) for part in refused]) == (
        b"t" * 16,
        [(number, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for number in range(2)],
    )
    session.put(b"t" * 16, wanted(1, 5), judge)
    assert len(session.standing) == 2
    faults[b"t" * 16] = ErrorCode.NONE
    session.judge(judge, None)
    assert (len(session.standing), list(session.refused())) == (4, [])


def test_epochs_go_round() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 2, 2**31 - 1)] == [1, 2, 2**31 - 1, 1]
