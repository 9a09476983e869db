"""Kafka's documented examples, and what its own tests hold to be right (named at each)."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tidelog.model.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
    unequal_subscriptions,
)
from tidelog.model.assignors.claims import Claim
from tidelog.model.assignors.sticky import decode_claim, encode_claim
from tidelog.model.ids import TopicPartition

STICKY: list[type[StickyAssignor | CooperativeStickyAssignor]] = [StickyAssignor, CooperativeStickyAssignor]
both_sticky = pytest.mark.parametrize("kind", STICKY)


def parts(text: str) -> tuple[TopicPartition, ...]:
    """``t0p1 t1p0`` as partitions."""
    return tuple(TopicPartition(item.rpartition("p")[0], int(item.rpartition("p")[2])) for item in text.split())


def told(assignments: object) -> dict[str, str]:
    assert isinstance(assignments, dict)
    return {m: " ".join(f"{topic}p{n}" for topic, n in part.partitions) for m, part in assignments.items()}


def sets(assignments: object) -> dict[str, set[str]]:
    return {member: set(text.split()) for member, text in told(assignments).items()}


def wants(*topics: str, instance: str | None = None) -> Subscription:
    return Subscription(topics, group_instance_id=instance)


def owns(kind: type[Assignor], topics: str, owned: str, generation: int = 1) -> Subscription:
    """A member that had partitions, as it would say so under either sticky assignor."""
    if kind is StickyAssignor:
        claim = encode_claim(Claim(parts(owned), generation))
        return Subscription(tuple(topics.split()), user_data=claim, generation_id=generation)
    return Subscription(tuple(topics.split()), owned=parts(owned), generation_id=generation)


# --- Range: the Javadoc of RangeAssignor -----------------------------------------------------------------

TWO_BY_THREE = {"t0": 3, "t1": 3}


def test_range_as_documented() -> None:
    got = RangeAssignor().assign(TWO_BY_THREE, {"C0": wants("t0", "t1"), "C1": wants("t0", "t1")})
    assert told(got) == {"C0": "t0p0 t0p1 t1p0 t1p1", "C1": "t0p2 t1p2"}


def test_range_without_instance_ids_follows_member_ids() -> None:
    got = RangeAssignor().assign(TWO_BY_THREE, {"C3": wants("t0", "t1"), "C2": wants("t0", "t1")})
    assert told(got) == {"C2": "t0p0 t0p1 t1p0 t1p1", "C3": "t0p2 t1p2"}


def test_range_with_instance_ids_outlives_a_restart() -> None:
    members = {"C3": wants("t0", "t1", instance="I1"), "C2": wants("t0", "t1", instance="I2")}
    assert told(RangeAssignor().assign(TWO_BY_THREE, members)) == {"C3": "t0p0 t0p1 t1p0 t1p1", "C2": "t0p2 t1p2"}


def test_static_members_come_before_the_others() -> None:
    members = {"A": wants("t"), "Z": wants("t", instance="later"), "Y": wants("t", instance="sooner")}
    assert told(RangeAssignor().assign({"t": 3}, members)) == {"Z": "tp0", "Y": "tp1", "A": "tp2"}
    assert told(RoundRobinAssignor().assign({"t": 4}, members)) == {"Z": "tp0 tp3", "Y": "tp1", "A": "tp2"}


def test_range_cuts_each_topic_among_those_who_want_it() -> None:
    """RangeAssignorTest.testMultipleConsumersMixedTopics."""
    members = {"c1": wants("t1"), "c2": wants("t1", "t2"), "c3": wants("t1")}
    got = RangeAssignor().assign({"t1": 3, "t2": 2}, members)
    assert told(got) == {"c1": "t1p0", "c2": "t1p1 t2p0 t2p1", "c3": "t1p2"}


def test_range_leaves_members_empty_when_partitions_are_few() -> None:
    got = RangeAssignor().assign({"t": 1}, {"c1": wants("t"), "c2": wants("t")})
    assert told(got) == {"c1": "tp0", "c2": ""}


# --- Round robin: the Javadoc of RoundRobinAssignor ---------------------------------------------------------


def test_round_robin_as_documented() -> None:
    got = RoundRobinAssignor().assign(TWO_BY_THREE, {"C0": wants("t0", "t1"), "C1": wants("t0", "t1")})
    assert told(got) == {"C0": "t0p0 t0p2 t1p1", "C1": "t0p1 t1p0 t1p2"}


def test_round_robin_with_unequal_subscriptions_as_documented() -> None:
    members = {"C0": wants("t0"), "C1": wants("t0", "t1"), "C2": wants("t0", "t1", "t2")}
    got = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert told(got) == {"C0": "t0p0", "C1": "t1p0", "C2": "t1p1 t2p0 t2p1 t2p2"}


def test_round_robin_follows_member_ids_and_instance_ids_as_documented() -> None:
    def topics(instance: str | None = None) -> Subscription:
        return wants("t0", "t1", instance=instance)

    got = RoundRobinAssignor().assign(TWO_BY_THREE, {"C5": topics(), "C3": topics(), "C4": topics()})
    assert told(got) == {"C3": "t0p0 t1p0", "C4": "t0p1 t1p1", "C5": "t0p2 t1p2"}
    got = RoundRobinAssignor().assign(TWO_BY_THREE, {"C5": topics("I0"), "C3": topics("I1"), "C4": topics("I2")})
    assert told(got) == {"C5": "t0p0 t1p0", "C3": "t0p1 t1p1", "C4": "t0p2 t1p2"}


# --- Sticky: the Javadoc of StickyAssignor -------------------------------------------------------------------


@both_sticky
def test_sticky_first_documented_example(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """After C1 left, the Javadoc gives t2p0 to C0 and t0p1 to C2; the code of Kafka 4.1.0 does it the other way."""
    counts = dict.fromkeys(("t0", "t1", "t2", "t3"), 2)
    topics = "t0 t1 t2 t3"
    got = told(kind().assign(counts, {member: wants(*counts) for member in ("C0", "C1", "C2")}))
    assert got == {"C0": "t0p0 t1p1 t3p0", "C1": "t0p1 t2p0 t3p1", "C2": "t1p0 t2p1"}
    after = kind().assign(counts, {member: owns(kind, topics, got[member]) for member in ("C0", "C2")})
    assert told(after) == {"C0": "t0p0 t3p0 t1p1 t0p1", "C2": "t1p0 t2p1 t2p0 t3p1"}


@both_sticky
def test_sticky_second_documented_example(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    counts = {"t0": 1, "t1": 2, "t2": 3}
    topics = {"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}
    got = told(kind().assign(counts, {member: wants(*text.split()) for member, text in topics.items()}))
    assert got == {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}
    after = kind().assign(counts, {member: owns(kind, topics[member], got[member]) for member in ("C1", "C2")})
    assert told(after) == {"C1": "t1p0 t1p1 t0p0", "C2": "t2p0 t2p1 t2p2"}


# --- Sticky: AbstractStickyAssignorTest ------------------------------------------------------------------------


@both_sticky
def test_mixed_subscriptions(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """testMultipleConsumersMixedTopicSubscriptions."""
    members = {"c1": wants("t1"), "c2": wants("t1", "t2"), "c3": wants("t1")}
    assert told(kind().assign({"t1": 3, "t2": 2}, members)) == {"c1": "t1p0 t1p2", "c2": "t2p0 t2p1", "c3": "t1p1"}


@both_sticky
def test_one_of_two_full_members_gets_the_rest(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """testConsumerOwningMinQuotaExpectedMaxQuota."""
    members = {"c1": owns(kind, "t1 t2", "t1p0 t2p1"), "c2": owns(kind, "t1 t2", "t1p1 t2p2")}
    assert told(kind().assign({"t1": 2, "t2": 3}, members)) == {"c1": "t1p0 t2p1 t2p0", "c2": "t1p1 t2p2"}


def test_a_member_joins_and_what_it_gets_is_withheld_until_it_is_given_up() -> None:
    """testMaxQuotaConsumerMoreThanNumExpectedMaxCapacityMembers. There ``a`` is called consumer2, ``b`` consumer1:
    who of two equals gives one up rests on the order of Java's hash map, with us on that of member ids."""
    counts = {"t1": 2, "t2": 2}

    def members(kind: type[Assignor], owned_by_b: str) -> dict[str, Subscription]:
        owned = {"b": owned_by_b, "a": "t1p1 t2p1", "c": ""}
        return {member: owns(kind, "t1 t2", owned[member]) for member in owned}

    at_once = {"a": "t1p1 t2p1", "b": "t1p0", "c": "t2p0"}
    assert told(StickyAssignor().assign(counts, members(StickyAssignor, "t1p0 t2p0"))) == at_once
    cooperative = CooperativeStickyAssignor()
    first = cooperative.assign(counts, members(CooperativeStickyAssignor, "t1p0 t2p0"))
    assert told(first) == {**at_once, "c": ""}
    assert told(cooperative.assign(counts, members(CooperativeStickyAssignor, "t1p0"))) == at_once


def test_two_members_join_then_two_leave() -> None:
    """testAddRemoveTwoConsumersTwoTopics."""
    counts, topics, kind = {"t1": 3, "t2": 4}, "t1 t2", StickyAssignor
    got = told(kind().assign(counts, {"c1": wants("t1", "t2"), "c2": wants("t1", "t2")}))
    assert got == {"c1": "t1p0 t1p2 t2p1 t2p3", "c2": "t1p1 t2p0 t2p2"}
    got = told(kind().assign(counts, {m: owns(kind, topics, got.get(m, "")) for m in ("c1", "c2", "c3", "c4")}))
    assert got == {"c1": "t1p0 t2p1", "c2": "t2p0 t1p1", "c3": "t1p2 t2p3", "c4": "t2p2"}
    got = told(kind().assign(counts, {m: owns(kind, topics, got[m]) for m in ("c3", "c4")}))
    assert got == {"c3": "t1p2 t2p3 t1p0 t2p1", "c4": "t2p2 t1p1 t2p0"}


@both_sticky
def test_topics_stay_spread_out(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """testTopicBalanceAfterReassignment: of two topics each member ends with half, not one with all of one."""
    topics, counts = "t1 t2", {"t1": 12, "t2": 12}
    got = told(kind().assign(counts, {"c1": wants("t1", "t2")}))
    for _ in range(2):  # cooperative: to give up, and to get
        got = told(kind().assign(counts, {m: owns(kind, topics, got.get(m, "")) for m in ("c1", "c2")}))
    assert {m: (text.count("t1p"), text.count("t2p")) for m, text in got.items()} == {"c1": (6, 6), "c2": (6, 6)}


@both_sticky
def test_the_higher_generation_keeps_a_partition(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """testOwnedPartitionsAreInvalidatedForConsumerWithStaleGeneration, …WithNoGeneration."""
    counts, owned = {"t": 3, "u": 3}, "tp0 tp2 up1"
    for stale in (9, -1):
        members = {"c1": owns(kind, "t u", owned, 10), "c2": owns(kind, "t u", owned, stale)}
        expected = {"c1": set(owned.split()), "c2": {"tp1", "up0", "up2"}}
        assert sets(kind().assign(counts, members)) == expected
        members = {"c1": members["c2"], "c2": members["c1"]}
        assert sets(kind().assign(counts, members)) == {"c1": expected["c2"], "c2": expected["c1"]}


@both_sticky
def test_partitions_go_to_the_highest_of_three_generations(
    kind: type[StickyAssignor | CooperativeStickyAssignor],
) -> None:
    """testEnsurePartitionsAssignedToHighestGeneration."""
    members = {
        "c1": owns(kind, "t u v", "tp0 up0 vp0", 10),
        "c2": owns(kind, "t u v", "tp1 up1 vp1", 9),
        "c3": owns(kind, "t u v", "up1 vp0 vp2", 8),
    }
    expected = {"c1": {"tp0", "up0", "vp0"}, "c2": {"tp1", "up1", "vp1"}, "c3": {"tp2", "up2", "vp2"}}
    assert sets(kind().assign({"t": 3, "u": 3, "v": 3}, members)) == expected


@both_sticky
@pytest.mark.parametrize("order", [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)])
def test_three_claim_one_partition_with_unequal_subscriptions(
    kind: type[StickyAssignor | CooperativeStickyAssignor], order: tuple[int, int, int]
) -> None:
    """testSubscriptionNotEqualAndAssignSamePartitionWith3Generation."""
    members = {
        "c1": owns(kind, "t", "tp0 tp2", order[0]),
        "c2": owns(kind, "t", "tp1 tp2 tp3", order[1]),
        "c3": owns(kind, "t", "tp2 tp4 tp5", order[2]),
        "c4": owns(kind, "u", "up0", 2),
    }
    got = sets(kind().assign({"t": 6, "u": 1}, members))
    assert sum(map(len, got.values())) == len(set().union(*got.values()))
    assert all(1 <= len(part) <= 2 for part in got.values())
    newest = f"c{order.index(3) + 1}"
    assert "tp2" in got[newest] or len(got[newest]) == 2


def test_two_claim_one_partition_with_equal_right_and_neither_keeps_it() -> None:
    """testAllConsumersHaveOwnedPartitionInvalidatedWhenClaimedByMultipleConsumersInSameGeneration…"""
    for counts, first in (({"t": 3}, "tp1"), ({"t": 4}, "tp1 tp3")):
        for kind, third in ((StickyAssignor, "tp0"), (CooperativeStickyAssignor, "")):
            members = {"c1": owns(kind, "t", "tp0 tp1"), "c2": owns(kind, "t", "tp0 tp2"), "c3": owns(kind, "t", "")}
            assert told(kind().assign(counts, members)) == {"c1": first, "c2": "tp2", "c3": third}


def test_of_three_claims_the_highest_counts_whoever_made_it() -> None:
    """Kafka takes the partition from all three where its hash map has the highest claim last; we never do."""
    claims = (("tp0", 4), ("tp0", 4), ("tp0", 5))
    for turn in range(3):
        members = {
            f"c{number}": owns(StickyAssignor, "t", *claims[(number + turn) % 3]) for number in range(len(claims))
        }
        got = told(StickyAssignor().assign({"t": 3}, members))
        assert got[f"c{(2 - turn) % 3}"] == "tp0"


@both_sticky
def test_a_topic_goes_and_the_rest_stays(kind: type[StickyAssignor | CooperativeStickyAssignor]) -> None:
    """testAddRemoveTopicTwoConsumers, testAssignmentUpdatedForDeletedTopic."""
    members = {"c1": owns(kind, "u", "tp0 tp2 up1"), "c2": owns(kind, "u", "tp1 up0 up2")}
    assert told(kind().assign({"u": 3}, members)) == {"c1": "up1", "c2": "up0 up2"}


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_topics_that_are_not_there_and_members_that_want_nothing(name: str) -> None:
    """testOneConsumerNoTopic, testOneConsumerNonexistentTopic, testNoExceptionThrownWhenOnlySubscribedTopicDeleted."""
    members = {"c1": wants("gone"), "c2": wants()}
    assert told(ASSIGNORS[name]().assign({}, members)) == {"c1": "", "c2": ""}
    assert told(ASSIGNORS[name]().assign({"gone": 0, "unwanted": 3}, members)) == {"c1": "", "c2": ""}
    assert told(ASSIGNORS[name]().assign({"t": 1}, {**members, "c3": wants("t")})) == {"c1": "", "c2": "", "c3": "tp0"}
    assert ASSIGNORS[name]().assign({"t": 1}, {}) == {}


@both_sticky
def test_partitions_that_a_topic_no_longer_has_are_not_assigned(
    kind: type[StickyAssignor | CooperativeStickyAssignor],
) -> None:
    """A topic made anew with fewer: Kafka 4.1.0 throws at equal subscriptions, and hands out tp7 at unequal ones."""
    for other in ("t", "t u"):
        members = {"c1": owns(kind, "t", "tp0 tp7"), "c2": owns(kind, other, "tp1 tp6")}
        got = sets(kind().assign({"t": 3}, members))
        assert got["c1"] | got["c2"] == {"tp0", "tp1", "tp2"}


def test_nobody_gets_back_a_topic_that_it_no_longer_wants() -> None:
    """c2 had tp0 in an older generation and is no longer subscribed: Kafka's would move tp0 to it for balance."""
    members = {
        "c1": owns(StickyAssignor, "t", "tp0 tp1 tp2 tp3", 5),
        "c2": owns(StickyAssignor, "u", "tp0", 4),
        "c3": owns(StickyAssignor, "t u", "", 5),
    }
    got = told(StickyAssignor().assign({"t": 4, "u": 1}, members))
    assert got == {"c1": "tp2 tp3", "c2": "up0", "c3": "tp0 tp1"}


def test_what_has_to_move_goes_back_to_who_had_it_before() -> None:
    """c3 has more than c2, and gets tp0 all the same."""
    members = {
        "c1": owns(StickyAssignor, "t", "tp0 tp1 tp2 tp3", 5),
        "c2": owns(StickyAssignor, "t", "", 5),
        "c3": owns(StickyAssignor, "t u", "tp0", 4),
    }
    got = told(StickyAssignor().assign({"t": 4, "u": 1}, members))
    assert got == {"c1": "tp2 tp3", "c2": "tp1", "c3": "up0 tp0"}
    members["c3"] = owns(StickyAssignor, "t u", "", 5)
    assert told(StickyAssignor().assign({"t": 4, "u": 1}, members)) == {"c1": "tp2 tp3", "c2": "tp0 tp1", "c3": "up0"}


GROUP_IN_WHICH_TAKING_BACK_ALONE_WOULD_NOT_HELP = {
    "A": ("t4 t2 t0 t1 t3", "t0p0 t1p6 t1p7 t2p2 t2p4 t2p6 t3p0 t3p2 t4p2 t4p3 t4p6 t4p7"),
    "B": ("t3", ""),
    "C": ("t3 t1", "t1p4"),
    "D": ("t4 t3", "t4p0"),
    "E": ("t2 t4", ""),
    "F": ("t1 t4", ""),
    "G": ("t0 t1 t2", "t1p2 t2p0"),
    "H": ("t4 t3", ""),
    "I": ("t2 t3 t1 t0", "t3p1"),
}


def test_each_move_brings_loads_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So balancing ends. Here t2p4 went from A to G and t2p0 from G to E; when E is to give one to A, t2p4 comes
    back to A and t2p0 to G. Kafka's would take t2p4 from G alone, which has only one more than A."""
    move = unequal_subscriptions._Division._move
    squares: list[int] = []

    def watched(self: unequal_subscriptions._Division, partition: TopicPartition, target: str) -> None:
        before = sum(len(part) ** 2 for part in self.parts.values())
        move(self, partition, target)
        squares.append(sum(len(part) ** 2 for part in self.parts.values()) - before)

    monkeypatch.setattr(unequal_subscriptions._Division, "_move", watched)
    group = GROUP_IN_WHICH_TAKING_BACK_ALONE_WOULD_NOT_HELP
    members = {member: owns(StickyAssignor, *said) for member, said in group.items()}
    got = sets(StickyAssignor().assign({"t0": 7, "t1": 8, "t2": 7, "t3": 3, "t4": 8}, members))
    assert len(squares) > 10
    assert max(squares) < 0
    assert "t2p4" in got["A"]
    assert "t2p0" in got["G"]


# --- What members say ---------------------------------------------------------------------------------------------


def test_user_data_of_the_sticky_assignor() -> None:
    assignor = StickyAssignor()
    assert assignor.user_data(frozenset({"t"})) == b""
    assignor.on_assignment(Assignment(parts("tp0 up1 tp2")), 9)
    said = assignor.user_data(frozenset({"t"}))
    assert decode_claim(said) == Claim(parts("tp0 tp2 up1"), 9)
    assert decode_claim(said[:-4]) == Claim(parts("tp0 tp2 up1"), -1)  # version 0 ends before the generation
    assert decode_claim(said[:-5]) == Claim((), -1)


def test_sticky_reads_user_data_only_as_its_members_have_given_everything_up() -> None:
    """StickyAssignorTest.testMemberDataWithInconsistentData."""
    said = Subscription(("t",), encode_claim(Claim(parts("tp1"), 1)), owned=parts("tp0"), generation_id=1)
    got = StickyAssignor().assign({"t": 2}, {"c1": said, "c2": wants("t")})
    assert told(got) == {"c1": "tp1", "c2": "tp0"}


def test_cooperative_sticky_takes_the_generation_of_old_subscriptions_from_user_data() -> None:
    """CooperativeStickyAssignorTest.testMemberDataWithInconsistentData: version 1 has no generation of its own."""
    later, sooner = CooperativeStickyAssignor(), CooperativeStickyAssignor()
    later.on_assignment(Assignment(()), 7)
    sooner.on_assignment(Assignment(()), 6)
    members = {
        "c1": Subscription(("t",), sooner.user_data(frozenset()), owned=parts("tp0")),
        "c2": Subscription(("t",), later.user_data(frozenset()), owned=parts("tp0")),
    }
    assert told(CooperativeStickyAssignor().assign({"t": 2}, members)) == {"c1": "tp1", "c2": "tp0"}
    members["c1"] = Subscription(("t",), sooner.user_data(frozenset()), owned=parts("tp0"), generation_id=8)
    assert told(CooperativeStickyAssignor().assign({"t": 2}, members)) == {"c1": "tp0", "c2": "tp1"}


def test_names_and_protocols_are_kafkas() -> None:
    eager, cooperative = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE
    assert {name: set(ASSIGNORS[name]().protocols) for name in ASSIGNORS} == {
        "range": {eager},
        "roundrobin": {eager},
        "sticky": {eager},
        "cooperative-sticky": {eager, cooperative},
    }
    assert [ASSIGNORS[name]().name for name in ASSIGNORS] == list(ASSIGNORS)
    assert (eager, cooperative) == (0, 1)


def test_the_assignor_in_the_documentation_works() -> None:
    lines = (inspect.getdoc(Assignor) or "").partition("class WholeTopics:")[2].partition("consumer =")[0].splitlines()
    source = "\n".join(["class WholeTopics:", *(line.removeprefix("    ") for line in lines[1:])])
    names: dict[str, Any] = {
        "RebalanceProtocol": RebalanceProtocol,
        "Assignment": Assignment,
        "TopicPartition": TopicPartition,
    }
    exec(source, names)
    own: Assignor = names["WholeTopics"]()
    assert own.name == "whole-topics"
    got = own.assign({"t": 2, "u": 1}, {"c1": wants("t", "u"), "c2": wants("t", "u")})
    assert told(got) == {"c1": "tp0 tp1", "c2": "up0"}
