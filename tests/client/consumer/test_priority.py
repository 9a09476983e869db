"""Priorities of poll: shares and waits of the levels as a property of the schedule, and on a cluster with a group."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import TopicPartition
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import ConfigError
from tidelog.client.fetching.turns import Turns
from tidelog.testing import Cluster


class Queue:
    """A partition with so many records."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.count = 0
        self.paused = False

    @property
    def is_ready(self) -> bool:
        return self.count > 0 and not self.paused


class Poll:
    """Takes records as the consumer does, and counts for how long each level with data was passed over."""

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.turns = Turns[Queue](dict(weights))
        self.queues = [Queue(TopicPartition(topic, number)) for topic in weights for number in range(2)]
        self.turns.assign(self.queues)
        self.others = Counter[int]()
        self.taken: list[int] = []

    def ready(self) -> set[int]:
        return {self.weights[queue.at.topic] for queue in self.queues if queue.is_ready}

    def take(self, count: int, batch: int) -> None:
        while count and (found := self.turns.next()) is not None:
            queue, level = found
            some = min(count, level.credit, queue.count, batch)
            assert some > 0
            ready = self.ready()
            queue.count -= some
            level.credit -= some
            level.pass_turn(queue)
            count -= some
            self.taken += [level.weight] * some
            for other in ready - {level.weight}:
                self.others[other] += some
            self.others[level.weight] = 0
        assert not count or not self.ready()


weights = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda given: {f"t{number}": weight for number, weight in enumerate(given)}
)
steps = st.lists(
    st.tuples(st.sampled_from(("arrive", "poll", "pause", "assign")), st.integers(0, 40), st.integers(1, 30)),
    max_size=80,
)


@given(weights, steps)
def test_no_level_with_data_waits_longer_than_one_turn_of_each_other(
    weights: dict[str, int], steps: list[tuple[str, int, int]]
) -> None:
    poll = Poll(weights)
    whole = sum(set(weights.values()))
    for step, first, second in steps:
        queue = poll.queues[first % len(poll.queues)]
        before = poll.ready()
        match step:
            case "arrive":
                queue.count += second
            case "pause":
                queue.paused = not queue.paused
            case "assign":
                poll.turns.assign(poll.queues)
            case "poll":
                poll.take(first, second)
        for idle in before - poll.ready():
            poll.others[idle] = 0
        for weight in poll.ready():
            assert poll.others[weight] <= whole - weight


@given(weights, st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_levels_with_a_backlog_share_by_their_weights(weights: dict[str, int], polls: list[int]) -> None:
    poll = Poll(weights)
    for queue in poll.queues:
        queue.count = 100_000
    for count in polls:
        poll.take(count, 3)
        poll.turns.assign(poll.queues)  # a rebalance gives nobody more
    levels = set(weights.values())
    for start in range(0, len(poll.taken), 7):
        window = poll.taken[start:]
        for weight in levels:
            share = weight * len(window) / sum(levels)
            assert abs(window.count(weight) - share) <= weight


def test_partitions_of_a_level_take_turns() -> None:
    poll = Poll({"a": 2, "b": 2})
    for queue in poll.queues:
        queue.count = 6
    poll.take(12, 1)
    assert [queue.count for queue in poll.queues] == [3, 3, 3, 3]


def test_without_weights_there_is_one_level() -> None:
    turns = Turns[Queue](None)
    assert turns.next() is None
    queue = Queue(TopicPartition("a", 0))
    queue.count = 5
    turns.assign([queue])
    found = turns.next()
    assert found is not None
    assert found[1].credit > 1 << 40
    turns.assign([])
    assert turns.next() is None


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"a": 0}, "expected 1 to 10000 for a, found 0"),
        ({"a": True}, "expected 1 to 10000 for a, found True"),
        ({TopicPartition("a", 1): 10_001}, "expected 1 to 10000 for a-1, found 10001"),
        ({("a", 1): 3}, r"expected names of topics or TopicPartition, found \('a', 1\)"),
    ],
)
def test_weights_are_checked(weights: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.of({"priority_weights": weights})


def test_a_group_reads_by_weight_and_loses_nothing_in_a_rebalance() -> None:
    with Cluster(1) as cluster:
        cluster.create_topic("urgent", partitions=2)
        cluster.create_topic("bulk", partitions=2)
        with cluster.producer() as producer:
            for topic in ("bulk", "urgent"):
                for number in range(400):
                    producer.send(topic, b"%d" % number, partition=number % 2)
        settings: dict[str, Any] = {
            "group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False,
            "priority_weights": {"urgent": 3, TopicPartition("bulk", 0): 1},
        }  # fmt: skip
        seen = Counter[tuple[str, int, int]]()
        until = time.monotonic() + 60
        with cluster.consumer(**settings) as first:
            first.subscribe(["bulk", "urgent"])
            while len(first.assignment()) < 4 or any(first.lag(at) is None for at in first.assignment()):
                assert time.monotonic() < until
                seen.update((r.topic, r.partition, r.offset) for r in first.poll(0.1, max_records=1))
            found = first.poll(5.0, max_records=100)
            assert 73 <= sum(r.topic == "urgent" for r in found) <= 77
            seen.update((r.topic, r.partition, r.offset) for r in found)
            first.commit()
            with cluster.consumer(**settings) as second:
                second.subscribe(["bulk", "urgent"])
                while sum(seen.values()) < 800 or not second.assignment():
                    assert time.monotonic() < until
                    for member in (first, second):
                        seen.update((r.topic, r.partition, r.offset) for r in member.poll(0.05, max_records=40))
                        if member.assignment():
                            member.commit()
                assert len(first.assignment()) == len(second.assignment()) == 2
        assert len(seen) == sum(seen.values()) == 800
