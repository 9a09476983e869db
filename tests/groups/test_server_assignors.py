"""What must hold of every target assignment, whatever the members want and had before."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.consumer import dividing
from tidelog.groups.consumer.assigning import TargetWork, preferred
from tidelog.groups.consumer.dividing import Divide, Input
from tidelog.groups.consumer.steps import whole
from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.group_offsets import Population
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.logs.consumer_group_records import (
    MEMBER,
    TARGET,
    ConsumerKey,
    MemberSubscription,
    Partitions,
    Target,
)

from .conftest import SomeTopics

TOPICS = ("t", "u", "v")
sizes = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
wishes = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.sets(st.sampled_from((*TOPICS, "gone"))))
same = st.tuples(
    st.sets(st.text("abcdef", min_size=1, max_size=2), min_size=1, max_size=8), st.sets(st.sampled_from(TOPICS))
)
Shares = dict[str, list[TopicPartition]]


class Wishes(NamedTuple):
    """What members want, and what they had."""

    wanted: dict[str, set[str]]
    had: Shares


def members(wanted: dict[str, set[str]], had: Shares | None = None) -> Wishes:
    return Wishes(wanted, had or {})


def divided(divide: Divide, partitions_of: dict[str, int], given: Wishes) -> Shares:
    """What an assignor makes of it; topics have their names for ids."""
    wishes = {
        name: frozenset(TopicId(topic.encode()) for topic in topics & partitions_of.keys())
        for name, topics in sorted(given.wanted.items())
    }
    subscribed: set[TopicId] = set().union(*wishes.values())
    counts = {TopicId(t.encode()): n for t, n in sorted(partitions_of.items()) if TopicId(t.encode()) in subscribed}
    had: dict[str, Partitions] = {}
    for name in wishes.keys() & given.had.keys():
        share: dict[TopicId, set[int]] = {}
        for topic, number in given.had[name]:
            share.setdefault(TopicId(topic.encode()), set()).add(number)
        had[name] = {topic_id: frozenset(numbers) for topic_id, numbers in share.items()}
    changed = whole(divide(Input(counts, wishes, had)))
    assert all(had.get(name) != share for name, share in changed.items()), "only what changes is named"
    return {
        name: sorted(
            TopicPartition(topic_id.decode(), number)
            for topic_id, numbers in changed.get(name, had.get(name, {})).items()
            for number in numbers
        )
        for name in wishes
    }


uniform, ranges = partial(divided, dividing.uniform), partial(divided, dividing.ranges)


def check(partitions_of: dict[str, int], wanted: dict[str, set[str]], shares: Shares) -> None:
    """Each subscribed partition has one owner, which wants it; no other partition has any."""
    assert set(shares) == set(wanted)
    given_out = [at for share in shares.values() for at in share]
    subscribed = set().union(*wanted.values())
    expected = {TopicPartition(t, n) for t, count in partitions_of.items() if t in subscribed for n in range(count)}
    assert sorted(given_out) == sorted(expected), "each once"
    assert all(at.topic in wanted[member] for member, share in shares.items() for at in share)


@given(sizes, wishes, wishes)
def test_every_partition_has_one_owner_that_wants_it(
    partitions_of: dict[str, int], before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    had = uniform(partitions_of, members(before))
    check(partitions_of, before, had)
    check(partitions_of, after, uniform(partitions_of, members(after, had)))
    check(partitions_of, after, ranges(partitions_of, members(after)))


@given(sizes, wishes)
def test_equal_input_gives_equal_output_whatever_its_order(
    partitions_of: dict[str, int], wanted: dict[str, set[str]]
) -> None:
    turned = dict(reversed(wanted.items()))
    for divide in (uniform, ranges):
        assert divide(partitions_of, members(wanted)) == divide(partitions_of, members(turned))


@given(sizes, same)
def test_unchanged_members_keep_everything(partitions_of: dict[str, int], group: tuple[set[str], set[str]]) -> None:
    """KAFKA-18688."""
    wanted = dict.fromkeys(group[0], group[1])
    had = uniform(partitions_of, members(wanted))
    again = uniform(partitions_of, members(wanted, had))
    assert {member: set(share) for member, share in again.items()} == {m: set(share) for m, share in had.items()}


def test_who_has_everything_gives_up_the_highest_numbers_topic_by_topic() -> None:
    """A step looks at one topic, so a member with 100,000 partitions makes no turn of the event loop long."""
    topics = [TopicId(bytes([number])) for number in range(50)]
    had = {"a": {topic_id: frozenset(range(300)) for topic_id in topics}}
    wishes = dict.fromkeys("ab", frozenset(topics))
    work = dividing.uniform(Input(dict.fromkeys(topics, 300), wishes, had))
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            kept = end.value["a"]
            break
        steps += 1
    assert kept == {topic_id: frozenset(range(150)) for topic_id in topics}
    assert steps > 3 * len(topics) + 50 * 150, "each topic is looked at, counted and cut in steps of its own"


@given(sizes, same, st.text("xyz", min_size=1, max_size=2))
def test_who_is_replaced_leaves_the_others_alone(
    partitions_of: dict[str, int], group: tuple[set[str], set[str]], newcomer: str
) -> None:
    names, topics = sorted(group[0]), group[1]
    had = uniform(partitions_of, members(dict.fromkeys(names, topics)))
    gone = max(names, key=lambda name: (len(had[name]), name))
    stayed = [name for name in names if name != gone]
    now = uniform(partitions_of, members(dict.fromkeys([*stayed, newcomer], topics), had))
    if len(had[gone]) == max(map(len, had.values())):
        assert all(set(had[name]) <= set(now[name]) for name in stayed)
    check(partitions_of, dict.fromkeys([*stayed, newcomer], topics), now)


@given(sizes, same, st.integers(0, 30))
def test_shares_of_equal_members_differ_by_one_at_most(
    partitions_of: dict[str, int], group: tuple[set[str], set[str]], gone: int
) -> None:
    """Also after members left, and with few moves: nobody loses while below the largest share."""
    names, topics = sorted(group[0]), group[1]
    had = uniform(partitions_of, members(dict.fromkeys(names, topics)))
    left = [name for at, name in enumerate(names) if not gone >> at & 1] or names[:1]
    now = uniform(partitions_of, members(dict.fromkeys(left, topics), had))
    sizes_now = sorted(len(share) for share in now.values())
    assert sizes_now[-1] - sizes_now[0] <= 1
    assert all(set(had[name]) <= set(now[name]) for name in left), "there are fewer members: nobody loses"


def test_members_of_different_wishes_are_served_fast_evenly_and_with_few_moves() -> None:
    """KAFKA-17710: with this input, Kafka's first assignor took a minute, and its second one 15 ms."""
    partitions_of = {f"t{number}": 100 for number in range(50)}
    wanted = {
        f"m{member:03}": {topic for number, topic in enumerate(partitions_of) if number % 5 != member % 5}
        for member in range(500)
    }
    began = time.process_time()
    had = uniform(partitions_of, members(wanted))
    stayed = {member: topics for member, topics in wanted.items() if member != "m003"}
    now = uniform(partitions_of, members(stayed, had))
    assert time.process_time() - began < 2, "30 ms on an idle machine"
    check(partitions_of, wanted, had)
    check(partitions_of, stayed, now)
    assert {len(share) for share in had.values()} == {10}
    assert {len(share) for share in now.values()} == {10, 11}
    assert all(set(had[member]) <= set(now[member]) for member in stayed), "only what is free moves"


@given(st.integers(1, 9), st.sets(st.text("abcdef", min_size=1, max_size=2), min_size=1))
def test_range_cuts_topics_of_equal_size_alike(count: int, names: set[str]) -> None:
    shares = ranges({"t": count, "u": count}, members({name: {"t", "u"} for name in names}))
    for share in shares.values():
        mine = [at.partition for at in share if at.topic == "t"]
        assert mine == [at.partition for at in share if at.topic == "u"]
        assert mine == list(range(mine[0], mine[-1] + 1)) if mine else True


def subscription(*topics: str, assignor: str | None = None) -> MemberSubscription:
    return MemberSubscription(None, None, "c", "/h", topics, None, 1, assignor)


def test_the_assignor_is_the_one_that_most_members_ask_for() -> None:
    group = ConsumerGroup("g", Population())
    offered = ("uniform", "range")
    assert preferred(group, offered) == "uniform"
    for name, asked in (("a", "range"), ("b", None), ("c", "gone"), ("d", "gone")):
        group.apply(ConsumerKey(MEMBER, "g", name), subscription("t", assignor=asked))
    assert preferred(group, offered) == "range"
    group.apply(ConsumerKey(MEMBER, "g", "e"), subscription("t", assignor="uniform"))
    assert preferred(group, offered) == "uniform", "on a tie the one that is offered first"


def target(group: ConsumerGroup, topics: SomeTopics) -> dict[str, Partitions]:
    """Every member's next target."""
    work = TargetWork(group, topics, "uniform")
    assert work.steps.advance(1 << 30) or work.steps.advance(1)
    return {**group.target, **work.steps.result}


def test_a_target_names_topics_by_their_ids_and_forgets_those_of_a_topic_made_anew() -> None:
    topics, group = SomeTopics(), ConsumerGroup("g", Population())
    old = topics.put("t", 2)
    for name in ("a", "b"):
        group.apply(ConsumerKey(MEMBER, "g", name), subscription("t", "gone"))
    assert target(group, topics) == {"a": {old: frozenset({0})}, "b": {old: frozenset({1})}}
    for name, partitions in (("a", {old: frozenset({1})}), ("b", {old: frozenset({0})})):
        group.apply(ConsumerKey(TARGET, "g", name), Target(partitions))
    assert target(group, topics)["a"] == {old: frozenset({1})}, "it keeps what it had"
    topics.delete("t")
    new = topics.put("t", 2)
    assert target(group, topics)["a"] == {new: frozenset({0})}
