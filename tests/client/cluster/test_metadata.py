"""The metadata cache: only newer knowledge replaces older."""

from __future__ import annotations

from tidelog.client.cluster.metadata import MetadataCache
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from tidelog.proto.calls.api import BrokerEndpoint, MetadataResponse, PartitionMetadata, TopicMetadata

FIRST_ID = TopicId(b"1" * 16)
SECOND_ID = TopicId(b"2" * 16)


def answer(leader: int, epoch: int, topic_id: TopicId = FIRST_ID, partitions: int = 1) -> MetadataResponse:
    views = tuple(
        PartitionMetadata(
            ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            number,
            NodeId(leader),
            LeaderEpoch(epoch),
            (),
            (),
            (),
            (),
        )
        for number in range(partitions)
    )
    topic = TopicMetadata(ErrorCode.NONE, "t", topic_id, False, views)
    brokers = (BrokerEndpoint(NodeId(1), "a", 1), BrokerEndpoint(NodeId(2), "b", 2))
    return MetadataResponse("c", NodeId(1), brokers, (topic,))


def test_a_leader_of_an_older_epoch_is_not_taken() -> None:
    cache = MetadataCache()
    assert cache.apply(answer(1, 5), ["t"]) == {TopicPartition("t", 0)}
    assert cache.apply(answer(2, 4), ["t"]) == set()
    assert cache.leader_of("t", 0) == 1
    assert cache.apply(answer(2, 6), ["t"]) == {TopicPartition("t", 0)}
    assert cache.leader_of("t", 0) == 2


def test_a_topic_made_again_starts_anew() -> None:
    cache = MetadataCache()
    cache.apply(answer(1, 5), ["t"])
    assert cache.apply(answer(2, 0, SECOND_ID), ["t"]) == {TopicPartition("t", 0)}
    assert cache.leader_of("t", 0) == 2
    assert cache.name_of(FIRST_ID) is None
    assert cache.name_of(SECOND_ID) == "t"


def test_growth_is_seen() -> None:
    cache = MetadataCache()
    cache.apply(answer(1, 5), ["t"])
    assert cache.apply(answer(1, 5, partitions=3), ["t"]) == {TopicPartition("t", 1), TopicPartition("t", 2)}
    assert cache.with_leader("t") == [0, 1, 2]


def test_a_broker_that_has_not_heard_of_the_growth_takes_nothing_back() -> None:
    cache = MetadataCache()
    cache.apply(answer(1, 5, partitions=3), ["t"])
    assert cache.apply(answer(2, 6), ["t"]) == {TopicPartition("t", 0)}
    assert [cache.leader_of("t", number) for number in range(3)] == [2, 1, 1]
    assert cache.apply(answer(2, 4, partitions=3), ["t"]) == set(), "older leaders are not taken then either"
    cache.apply(answer(2, 0, SECOND_ID), ["t"])
    assert cache.with_leader("t") == [0], "a topic made again may be smaller"


def test_a_topic_that_is_gone_is_dropped_with_the_reason() -> None:
    cache = MetadataCache()
    cache.apply(answer(1, 5), ["t"])
    cache.apply(MetadataResponse("c", NodeId(1), (), ()), ["t"])
    assert cache.topic_id("t") is None
    assert cache.errors["t"][0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cache.apply(answer(1, 5), ["t"])
    assert "t" not in cache.errors


def test_no_leader_or_one_whose_address_is_unknown() -> None:
    cache = MetadataCache()
    cache.apply(answer(-1, 5), ["t"])
    assert cache.leader_of("t", 0) == -1
    cache.apply(answer(9, 6), ["t"])
    assert cache.leader_of("t", 0) == -1
    assert cache.with_leader("t") == []
    assert cache.leader_of("t", 1) == cache.leader_of("t", 7) == cache.leader_of("u", 0) == -1


def test_a_brokers_hint_is_taken_if_it_is_news() -> None:
    cache = MetadataCache()
    cache.apply(answer(1, 5), ["t"])
    assert not cache.update_leader("t", 0, NodeId(2), LeaderEpoch(5))
    assert not cache.update_leader("t", 0, NodeId(9), LeaderEpoch(6))
    assert cache.update_leader("t", 0, NodeId(2), LeaderEpoch(6))
    assert cache.leader_of("t", 0) == 2
