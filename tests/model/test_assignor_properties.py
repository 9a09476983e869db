"""Properties of every assignor, for any group."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.assignors import (
    ASSIGNORS,
    Assignment,
    CooperativeStickyAssignor,
    StickyAssignor,
    Subscription,
)
from tidelog.model.assignors.claims import Claim
from tidelog.model.assignors.sticky import decode_claim, encode_claim
from tidelog.model.ids import TopicPartition

Parts = dict[str, frozenset[TopicPartition]]
TOPICS = ("a", "b", "c", "d", "e")
REBALANCES_MAX = 4
"""What Kafka's own test allows until a cooperative group is settled."""

counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), min_size=1)
member_ids = st.lists(st.sampled_from([f"m{number:02}" for number in range(12)]), min_size=1, max_size=8, unique=True)
some_topics = st.frozensets(st.sampled_from(TOPICS), max_size=5).map(lambda topics: tuple(sorted(topics)))
instances = st.sampled_from([None, None, "x", "y"])


@st.composite
def equal_groups(draw: st.DrawFn) -> dict[str, Subscription]:
    topics = draw(some_topics)
    return {member: Subscription(topics) for member in draw(member_ids)}


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Subscription]:
    if draw(st.booleans()):
        return draw(equal_groups())
    return {member: Subscription(draw(some_topics)) for member in draw(member_ids)}


any_partition = st.builds(TopicPartition, st.sampled_from([*TOPICS, "gone"]), st.integers(-1, 8))


@st.composite
def claiming_groups(draw: st.DrawFn) -> dict[str, Subscription]:
    """Members that claim whatever they like: twice, in old generations, of others, of topics they do not want.

    The user data is that of the sticky assignor.
    """
    claimed: dict[str, Subscription] = {}
    for member, said in draw(groups()).items():
        owned = tuple(draw(st.lists(any_partition, max_size=12)))
        generation = draw(st.integers(-1, 3))
        instance = f"{draw(instances)}-{member}" if draw(instances) else None
        user_data = encode_claim(Claim(owned, generation))
        claimed[member] = Subscription(said.topics, user_data, owned, generation, group_instance_id=instance)
    return claimed


def parts_of(assignments: Mapping[str, Assignment]) -> Parts:
    for member, assignment in assignments.items():
        assert len(set(assignment.partitions)) == len(assignment.partitions), f"{member} got a partition twice"
    return {member: frozenset(assignment.partitions) for member, assignment in assignments.items()}


def owning(
    members: Mapping[str, Subscription], parts: Mapping[str, frozenset[TopicPartition]]
) -> dict[str, Subscription]:
    """The members as they join again, having got these parts in the generation before; newcomers own nothing."""
    joined = {}
    for member, said in members.items():
        part = tuple(sorted(parts.get(member, ())))
        generation = 5 if member in parts else -1
        user_data = encode_claim(Claim(part, generation)) if member in parts else b""
        joined[member] = replace(said, owned=part, generation_id=generation, user_data=user_data)
    return joined


def wanted(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> set[TopicPartition]:
    topics = {topic for said in members.values() for topic in said.topics}
    return {TopicPartition(topic, n) for topic in topics for n in range(counts.get(topic, 0))}


def assert_valid(counts: Mapping[str, int], members: Mapping[str, Subscription], parts: Parts, *, whole: bool) -> None:
    assert parts.keys() == members.keys()
    given_out = Counter(partition for part in parts.values() for partition in part)
    assert not [partition for partition, times in given_out.items() if times > 1]
    for member, part in parts.items():
        assert {partition.topic for partition in part} <= set(members[member].topics)
    everything = wanted(counts, members)
    assert given_out.keys() == everything if whole else given_out.keys() <= everything


def assert_sizes_differ_by_one_at_most(parts: Parts) -> None:
    sizes = [len(part) for part in parts.values()]
    assert max(sizes) - min(sizes) <= 1, sizes


def assert_nobody_could_take_from_one_with_two_more(members: Mapping[str, Subscription], parts: Parts) -> None:
    for poor, said in members.items():
        for rich, part in parts.items():
            if len(part) > len(parts[poor]) + 1:
                assert not [partition for partition in part if partition.topic in said.topics], (poor, rich)


def settle(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Parts:
    """Rebalance a cooperative group, members giving up what they do not get, until nothing is given up."""
    assignor = CooperativeStickyAssignor()
    for _ in range(REBALANCES_MAX):
        before = {member: frozenset(said.owned) for member, said in members.items()}
        parts = parts_of(assignor.assign(counts, members))
        if all(before[member] <= parts[member] for member in members):
            return parts
        members = owning(members, parts)
    raise AssertionError("the group goes on giving up partitions")


# --- Validity, balance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@settings(max_examples=150)
@given(counts=counts_of_topics, members=claiming_groups())
def test_each_wanted_partition_goes_to_one_member_that_wants_it(
    name: str, counts: dict[str, int], members: dict[str, Subscription]
) -> None:
    assert_valid(counts, members, parts_of(ASSIGNORS[name]().assign(counts, members)), whole=True)


@settings(max_examples=250)
@given(counts=counts_of_topics, members=claiming_groups())
def test_a_cooperative_group_never_has_two_owners_and_settles(
    counts: dict[str, int], members: dict[str, Subscription]
) -> None:
    members = {member: replace(said, user_data=b"") for member, said in members.items()}
    parts = parts_of(CooperativeStickyAssignor().assign(counts, members))
    assert_valid(counts, members, parts, whole=False)
    for member, part in parts.items():
        for partition in part:
            own = members[member].generation_id if partition in members[member].owned else -2
            others = [
                other
                for other, said in members.items()
                if other != member and partition in said.owned and said.generation_id >= own
            ]
            assert not others, f"{member} gets {partition}, which {others} may be reading"
    settled = settle(counts, members)
    assert_valid(counts, members, settled, whole=True)
    assert_nobody_could_take_from_one_with_two_more(members, settled)


@settings(max_examples=100)
@given(counts=counts_of_topics, members=groups())
def test_range_is_balanced_within_each_topic(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    parts = parts_of(ASSIGNORS["range"]().assign(counts, members))
    for topic in counts:
        mine = {
            m: sorted(p.partition for p in parts[m] if p.topic == topic) for m in members if topic in members[m].topics
        }
        assert not mine or max(map(len, mine.values())) - min(map(len, mine.values())) <= 1
        assert all(numbers == list(range(numbers[0], numbers[-1] + 1)) for numbers in mine.values() if numbers)


@settings(max_examples=100)
@given(counts=counts_of_topics, members=equal_groups())
def test_equal_subscriptions_get_equal_shares(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    for name in ("roundrobin", "sticky", "cooperative-sticky"):
        assert_sizes_differ_by_one_at_most(parts_of(ASSIGNORS[name]().assign(counts, members)))


@settings(max_examples=250)
@given(counts=counts_of_topics, members=claiming_groups())
def test_sticky_is_as_balanced_as_subscriptions_allow(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    parts = parts_of(StickyAssignor().assign(counts, members))
    assert_nobody_could_take_from_one_with_two_more(members, parts)
    if len({frozenset(said.topics) for said in members.values()}) == 1:
        assert_sizes_differ_by_one_at_most(parts)


# --- Stickiness -----------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(counts=counts_of_topics, members=groups())
def test_nothing_moves_where_nothing_changed(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    parts = parts_of(StickyAssignor().assign(counts, members))
    again = owning(members, parts)
    assert parts_of(StickyAssignor().assign(counts, again)) == parts
    assert parts_of(CooperativeStickyAssignor().assign(counts, again)) == parts


@settings(max_examples=200)
@given(counts=counts_of_topics, members=equal_groups(), data=st.data())
def test_survivors_keep_all_when_members_leave(
    counts: dict[str, int], members: dict[str, Subscription], data: st.DataObject
) -> None:
    parts = parts_of(StickyAssignor().assign(counts, members))
    stay = data.draw(st.lists(st.sampled_from(sorted(members)), min_size=1, unique=True))
    left = owning({member: members[member] for member in stay}, parts)
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        after = parts_of(assignor.assign(counts, left))
        assert_valid(counts, left, after, whole=True)  # cooperative too: nobody has to give anything up
        assert all(parts[member] <= after[member] for member in stay)


@settings(max_examples=200)
@given(counts=counts_of_topics, members=equal_groups(), newcomers=st.integers(1, 4))
def test_only_newcomers_get_when_members_join(
    counts: dict[str, int], members: dict[str, Subscription], newcomers: int
) -> None:
    parts = parts_of(StickyAssignor().assign(counts, members))
    topics = next(iter(members.values())).topics
    grown = owning({**members, **{f"new{n}": Subscription(topics) for n in range(newcomers)}}, parts)
    after = parts_of(StickyAssignor().assign(counts, grown))
    assert all(after[member] <= parts[member] for member in members)
    assert_sizes_differ_by_one_at_most(after)
    first = parts_of(CooperativeStickyAssignor().assign(counts, grown))
    assert all(first[member] == after[member] for member in members)
    assert not any(first[member] for member in grown if member not in members)
    assert settle(counts, grown) == after


@settings(max_examples=150)
@given(counts=counts_of_topics, members=equal_groups(), grown=counts_of_topics)
def test_new_partitions_move_no_old_ones(
    counts: dict[str, int], members: dict[str, Subscription], grown: dict[str, int]
) -> None:
    parts = parts_of(StickyAssignor().assign(counts, members))
    more = {topic: max(counts.get(topic, 0), grown.get(topic, 0)) for topic in TOPICS}
    after = parts_of(StickyAssignor().assign(more, owning(members, parts)))
    assert all(parts[member] <= after[member] for member in members)


@settings(max_examples=200)
@given(counts=counts_of_topics, members=claiming_groups())
def test_no_two_members_trade_partitions_of_a_topic(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    """AbstractStickyAssignorTest's isSticky."""
    claims = {member: set(decode_claim(said.user_data).partitions) for member, said in members.items()}
    claimants = Counter(partition for claimed in claims.values() for partition in claimed)
    before = {
        partition: member
        for member, claimed in claims.items()
        for partition in claimed
        if claimants[partition] == 1 and partition.topic in members[member].topics
    }
    parts = parts_of(StickyAssignor().assign(counts, members))
    moves = {
        (before[partition], member, partition.topic)
        for member, part in parts.items()
        for partition in part
        if before.get(partition, member) != member
    }
    assert not [move for move in moves if (move[1], move[0], move[2]) in moves]


# --- A cooperative group through changes -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_changing_cooperative_group_keeps_one_reader_a_partition(seed: int) -> None:
    rng = random.Random(seed)
    counts = {topic: rng.randint(0, 6) for topic in TOPICS}
    reading: dict[str, frozenset[TopicPartition]] = {}
    generation_of: dict[str, int] = {}
    topics_of: dict[str, tuple[str, ...]] = {}
    for generation in range(60):
        change = rng.random()
        if change < 0.3 or not topics_of:
            topics_of[f"m{rng.randint(0, 9)}"] = tuple(rng.sample(TOPICS, rng.randint(1, len(TOPICS))))
        elif change < 0.45 and len(topics_of) > 1:
            gone = rng.choice(sorted(topics_of))
            del topics_of[gone]
            reading.pop(gone, None)
            generation_of.pop(gone, None)
        elif change < 0.55:
            counts[rng.choice(TOPICS)] += 1
        for member, topics in topics_of.items():  # the client gives up what it no longer wants before it joins
            reading[member] = frozenset(p for p in reading.get(member, ()) if p.topic in topics)
        members = {
            member: Subscription(topics, b"", tuple(sorted(reading[member])), generation_of.get(member, -1))
            for member, topics in topics_of.items()
        }
        parts = parts_of(CooperativeStickyAssignor().assign(counts, members))
        assert_valid(counts, members, parts, whole=False)
        for member, part in parts.items():  # a member starts what it got before others have given anything up
            others = frozenset[TopicPartition]().union(*(reading[other] for other in members if other != member))
            assert not (part - reading[member]) & others
        for member in members:
            if rng.random() < 0.9 or generation == 59:  # else it missed the end of this rebalance and goes on
                reading[member], generation_of[member] = parts[member], generation
        assert not [p for p, readers in Counter(p for part in reading.values() for p in part).items() if readers > 1]
    members = owning({m: Subscription(t) for m, t in topics_of.items()}, reading)
    settled = settle(counts, members)
    assert_valid(counts, members, settled, whole=True)
    assert_nobody_could_take_from_one_with_two_more(members, settled)


# --- Order, size -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ASSIGNORS))
@settings(max_examples=80)
@given(counts=counts_of_topics, members=claiming_groups(), seed=st.integers(0, 1000))
def test_the_order_of_what_goes_in_does_not_show(
    name: str, counts: dict[str, int], members: dict[str, Subscription], seed: int
) -> None:
    rng = random.Random(seed)

    def shuffled(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(rng.sample(items, len(items)))

    other_members = {m: replace(members[m], topics=shuffled(members[m].topics)) for m in shuffled(tuple(members))}
    other_counts = {topic: counts[topic] for topic in shuffled(tuple(counts))}
    first = ASSIGNORS[name]().assign(counts, members)
    second = ASSIGNORS[name]().assign(other_counts, other_members)
    assert list(first.items()) == list(second.items())


@settings(max_examples=100)
@given(counts=counts_of_topics, members=claiming_groups())
def test_topics_named_twice_count_once(counts: dict[str, int], members: dict[str, Subscription]) -> None:
    doubled = {member: replace(said, topics=said.topics * 2) for member, said in members.items()}
    for kind in ASSIGNORS.values():
        assert kind().assign(counts, doubled) == kind().assign(counts, members)


@settings(max_examples=200)
@given(said=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_no_user_data_breaks_an_assignment(said: list[bytes]) -> None:
    members = {f"m{number}": Subscription(("a",), user_data) for number, user_data in enumerate(said)}
    for kind in ASSIGNORS.values():
        assert_valid({"a": 5}, members, parts_of(kind().assign({"a": 5}, members)), whole=True)


@pytest.mark.parametrize("case", ["fresh", "leave", "unequal", "unequal-leave", "all-with-one"])
def test_two_hundred_members_and_twenty_thousand_partitions(case: str) -> None:
    """It runs while a rebalance waits: 2 s of this process's time at most, here some 0.2 s."""
    counts = {f"t{number:03}": 100 for number in range(200)}
    rng = random.Random(1)
    unequal = case.startswith("unequal")
    members = {
        f"m{number:03}": Subscription(tuple(rng.sample(sorted(counts), 20)) if unequal else tuple(counts))
        for number in range(200)
    }
    if case.endswith("leave"):
        parts = parts_of(CooperativeStickyAssignor().assign(counts, members))
        del members["m100"], members["m101"]
        members = owning(members, {member: parts[member] for member in members})
    if case == "all-with-one":
        everything = frozenset(wanted(counts, members))
        members = {**owning(members, {"m000": everything}), "odd": Subscription(("t000",))}
    for name, kind in ASSIGNORS.items():
        started = time.process_time()
        parts = parts_of(kind().assign(counts, members))
        assert time.process_time() - started < 2, name
        assert_valid(counts, members, parts, whole=name != "cooperative-sticky")
