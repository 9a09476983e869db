"""What clients of one process learn, and the next ones use: for as long as their own, and never what was in doubt."""

from __future__ import annotations

import pytest

from tidelog.client.cluster import kept_knowledge
from tidelog.client.cluster.kept_knowledge import KeptKnowledge
from tidelog.client.cluster.metadata import MetadataCache, TopicView
from tidelog.model.ids import NodeId, TopicId
from tidelog.model.sinks import SinkAttempt, sink_key
from tidelog.proto.transport.network import Address


def cache(*topics: str, node: int = 1) -> MetadataCache:
    made = MetadataCache()
    made.brokers = {NodeId(node): Address("here", node)}
    for name in topics:
        made.take_topic(TopicView(name, TopicId(bytes(16)), False, []))
    return made


def test_what_is_too_old_is_not_used() -> None:
    known, mine = KeptKnowledge(), MetadataCache()
    assert known.brokers(mine, 0) is None
    known.keep(cache("orders"), at_ms=10)
    assert known.brokers(mine, 11) is None
    assert known.topic(mine, "orders", 11) is None
    assert not mine.brokers
    assert not mine.topics
    assert known.brokers(mine, 10) == 10
    assert known.topic(mine, "orders", 10) == 10
    assert known.topic(mine, "refunds", 10) is None
    assert mine.brokers == {1: Address("here", 1)}
    assert list(mine.topics) == ["orders"]
    assert mine.topics["orders"] is not known._topics["orders"][1], "each client changes its own"


def test_the_newest_counts_and_doubts_remove_it() -> None:
    known, mine = KeptKnowledge(), MetadataCache()
    known.keep(cache("orders", node=2), at_ms=20)
    known.keep(cache("orders", "refunds", node=1), at_ms=10)
    assert known.topic(mine, "orders", 0) == 20
    assert known.topic(mine, "refunds", 0) == 10
    assert known.brokers(mine, 0) == 20
    assert list(mine.brokers) == [2]
    known.forget({"orders": None})
    assert known.brokers(mine, 0) is None
    assert known.topic(mine, "orders", 0) is None
    assert known.topic(mine, "refunds", 0) == 10
    known.keep(MetadataCache(), at_ms=30)
    assert known.brokers(mine, 0) is None, "who closes before any answer knows nothing"


def test_as_many_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_knowledge, "KEPT_MAX", 2)
    known, mine = KeptKnowledge(), MetadataCache()
    for number, name in enumerate(("a", "b", "a", "c")):
        known.keep(cache(name), at_ms=number)
        known.keep_coordinator(sink_key(name), NodeId(number))
    assert [known.topic(mine, name, 0) for name in "abc"] == [2, None, 3]
    assert [known.coordinator(sink_key(name)) for name in "abc"] == [2, None, 3]


def test_all_transactions_of_a_sink_have_its_coordinator() -> None:
    known = KeptKnowledge()
    one, other = (SinkAttempt("a/b", batch, "job", "x").transactional_id for batch in (1, 2))
    known.keep_coordinator(one, NodeId(3))
    assert known.coordinator(other) == known.coordinator(sink_key("a/b")) == 3
    assert known.coordinator(sink_key("a")) is None
    known.keep_coordinator("payments", NodeId(3))
    assert known.coordinator("payments") is None, "no sink's"
    known.keep_coordinator(sink_key("a/b"), None)
    assert known.coordinator(one) is None
