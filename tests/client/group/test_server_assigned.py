"""Groups whose coordinator assigns (KIP-848), their members the SDK's consumers of both forms, on a real cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tidelog import Consumer, ConsumerRebalanceListener, TopicPartition, aio
from tidelog.client.errors import CommitFailedError, TidelogError, exception_for
from tidelog.client.group.consumer_membership import MemberState
from tidelog.client.group.poll_commits import PollCommits
from tidelog.client.group.server_assigned import ServerAssignedGroup
from tidelog.model.errors import ErrorCode
from tidelog.testing import Cluster

CONFIG = {"group.consumer.heartbeat.interval.ms": "100", "group.consumer.session.timeout.ms": "1500"}
FAST: dict[str, Any] = {"group_protocol": "consumer", "auto_offset_reset": "earliest", "retry_backoff_max_ms": 200}
PARTITIONS = 4
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, config=CONFIG) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name)[:60].strip("-")
    cluster.create_topic(name, PARTITIONS)
    return name


class Member(ConsumerRebalanceListener):
    """A consumer; what it was told, and what it was handed out."""

    def __init__(self, cluster: Cluster, topic: str, *, group: str = "", pattern: Any = None, **settings: Any) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []
        self.values: list[bytes] = []
        self.consumer: Consumer = cluster.consumer(group_id=group or topic, **(FAST | settings))
        self.consumer.subscribe([] if pattern else [topic], pattern=pattern, listener=self)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", _numbers(partitions)))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", _numbers(partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", _numbers(partitions)))

    @property
    def has(self) -> frozenset[int]:
        return _numbers(self.consumer.assignment())

    @property
    def group(self) -> ServerAssignedGroup:
        group = self.consumer._core.group
        assert isinstance(group, ServerAssignedGroup)
        return group

    def poll(self) -> None:
        self.values += [record.value or b"" for record in self.consumer.poll(0.02)]

    def kill(self) -> None:
        """End as a killed process does: no word to anybody."""
        self.consumer._background.run(self.consumer._core.close())


def _numbers(partitions: Any) -> frozenset[int]:
    return frozenset(at.partition for at in partitions)


def until(condition: Callable[[], bool], *members: Member) -> None:
    """Let the members poll until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [(member.has, member.told) for member in members]
        for member in members:
            member.poll()


def shared(*members: Member) -> bool:
    """Whether each partition is held by one member, and the shares are even."""
    sizes = sorted(len(member.has) for member in members)
    return (
        sum(sizes) == PARTITIONS
        and sizes[-1] - sizes[0] <= 1
        and len(frozenset().union(*(m.has for m in members))) == 4
    )


def fill(cluster: Cluster, topic: str, first: int, count: int) -> set[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    with cluster.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush()
    return set(values)


def committed(cluster: Cluster, group: str, topic: str) -> int:
    with cluster.consumer(group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
    return sum(each.offset for each in found.values() if each)


def test_members_come_and_go_and_hear_only_of_what_changes(cluster: Cluster, topic: str) -> None:
    sent = fill(cluster, topic, 0, 40)
    with ExitStack() as stack:
        first, second = Member(cluster, topic), None
        stack.callback(first.consumer.close)
        until(lambda: len(first.values) == 40, first)
        second = Member(cluster, topic)
        stack.callback(second.consumer.close)
        until(lambda: shared(first, second), first, second)
        kept = first.has
        assert first.told == [("assigned", frozenset(range(4))), ("revoked", second.has)], "what stays is not touched"
        assert second.told[-1] == ("assigned", second.has)
        assert first.consumer.group_metadata().member_id == first.group.membership.member_id
        sent |= fill(cluster, topic, 40, 40)
        until(lambda: len(first.values + second.values) == 80, first, second)
        second.consumer.close()
        assert second.told[-1] == ("revoked", frozenset(range(4)) - kept)
        until(lambda: len(first.has) == PARTITIONS, first)
        assert first.told[-1] == ("assigned", frozenset(range(4)) - kept)
        assert sorted(first.values + second.values) == sorted(sent), "committed before it went, so not read twice"
    assert committed(cluster, topic, topic) == 80


def test_a_killed_members_partitions_go_to_the_others(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        first, second = (Member(cluster, topic) for _ in range(2))
        stack.callback(first.consumer.close)
        until(lambda: shared(first, second), first, second)
        second.kill()
        until(lambda: len(first.has) == PARTITIONS, first)


def test_a_member_that_does_not_poll_loses_its_partitions_and_comes_back(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        first, slow = Member(cluster, topic), Member(cluster, topic, max_poll_interval_ms=2_000)
        for member in (first, slow):
            stack.callback(member.consumer.close)
        until(lambda: shared(first, slow), first, slow)
        had = slow.has
        until(lambda: len(first.has) == PARTITIONS, first)
        with pytest.raises(CommitFailedError, match="not part of an active group"):
            slow.consumer.commit({TopicPartition(topic, min(had)): 1})
        until(lambda: shared(first, slow), first, slow)
        assert ("lost", had) in slow.told
        assert ("revoked", had) not in slow.told


def test_a_member_that_the_coordinator_fences_tells_what_is_lost_and_joins_anew(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        member = Member(cluster, topic)
        stack.callback(member.consumer.close)
        until(lambda: len(member.has) == PARTITIONS, member)
        with member.consumer._core.lock:
            member.group.membership.epoch += 7
        until(lambda: ("lost", frozenset(range(4))) in member.told, member)
        until(lambda: len(member.has) == PARTITIONS, member)
        assert member.told[-1] == ("assigned", frozenset(range(4)))
        member.consumer.commit({TopicPartition(topic, 0): 5})


def test_a_static_member_comes_back_to_its_partitions_and_a_second_one_is_refused(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        other, first = Member(cluster, topic), Member(cluster, topic, group_instance_id="i")
        stack.callback(other.consumer.close)
        until(lambda: shared(first, other), first, other)
        mine = first.has
        first.consumer.close()
        again = Member(cluster, topic, group_instance_id="i")
        stack.callback(again.consumer.close)
        until(lambda: again.has == mine, again, other)
        assert all(what != "revoked" or not told & other.has for what, told in other.told[1:])
        thief = Member(cluster, topic, group_instance_id="i")
        stack.callback(thief.consumer.close)
        with pytest.raises(type(exception_for(ErrorCode.UNRELEASED_INSTANCE_ID)), match="in use by member"):
            until(lambda: bool(thief.has), thief, again, other)
        assert again.has == mine


def test_a_pattern_is_matched_by_the_coordinator_and_a_compiled_one_here(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}-a", 1)
    cluster.create_topic(f"x{topic}-a", 1)
    with ExitStack() as stack:
        there = Member(cluster, topic, group="there", pattern=f"{topic}-[ab]")
        here = Member(cluster, topic, group="here", pattern=re.compile(f"{topic}-(?=[ab]).*"), metadata_max_age_ms=500)
        for member in (there, here):
            stack.callback(member.consumer.close)
        only = {TopicPartition(f"{topic}-a", 0)}
        until(lambda: there.consumer.assignment() == here.consumer.assignment() == only, there, here)
        assert there.consumer.subscription() == {f"{topic}-a"}
        cluster.create_topic(f"{topic}-b", 1)
        both = only | {TopicPartition(f"{topic}-b", 0)}
        until(lambda: here.consumer.assignment() == both, there, here)
        there.consumer.subscribe([topic], listener=there)
        until(lambda: {at.topic for at in there.consumer.assignment()} == {topic}, there)
        there.consumer.subscribe(pattern="(a)\\1", listener=there)
        with pytest.raises(TidelogError, match=r"expected a regular expression of RE2"):
            until(lambda: False, there)


def test_a_member_asks_for_an_assignor_and_a_strange_one_is_refused(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        pair = [Member(cluster, topic, group_remote_assignor="range") for _ in range(2)]
        for member in pair:
            stack.callback(member.consumer.close)
        until(lambda: {member.has for member in pair} == {frozenset({0, 1}), frozenset({2, 3})}, *pair)
        odd = Member(cluster, topic, group_remote_assignor="sticky")
        stack.callback(odd.consumer.close)
        with pytest.raises(TidelogError, match="expected one of uniform, range, found 'sticky'"):
            until(lambda: False, odd)


def test_unsubscribe_leaves_and_a_new_subscription_joins(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        first, second = (Member(cluster, topic) for _ in range(2))
        for member in (first, second):
            stack.callback(member.consumer.close)
        until(lambda: shared(first, second), first, second)
        first.consumer.unsubscribe()
        until(lambda: len(second.has) == PARTITIONS, second)
        first.consumer.subscribe([topic], listener=first)
        until(lambda: shared(first, second), first, second)


def test_the_coordinator_is_killed(topic: str) -> None:
    with Cluster(nodes=3, config=CONFIG) as cluster, ExitStack() as stack:
        cluster.create_topic(topic, PARTITIONS)
        sent = fill(cluster, topic, 0, 40)
        members = [Member(cluster, topic, auto_commit_interval_ms=100) for _ in range(2)]
        for member in members:
            stack.callback(member.consumer.close)
        until(lambda: shared(*members) and sum(len(each.values) for each in members) >= 40, *members)
        had, told = [each.has for each in members], [list(each.told) for each in members]
        node = members[0].group.heartbeats._node
        assert node is not None
        cluster.kill(node)
        sent |= fill(cluster, topic, 40, 40)
        until(lambda: sent <= {value for each in members for value in each.values}, *members)
        until(lambda: members[0].group.heartbeats._node not in (None, node), *members)
        until(lambda: all(each.group.membership.state.value == "stable" for each in members), *members)
        assert [each.has for each in members] == had
        assert [each.told for each in members] == told, "nobody loses anything over it"
        cluster.restart(node)


def test_offsets_in_a_transaction_are_the_members(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 0, 8)
    with ExitStack() as stack:
        member = Member(cluster, topic, enable_auto_commit=False)
        stack.callback(member.consumer.close)
        until(lambda: len(member.values) == 8, member)
        producer = stack.enter_context(cluster.producer(transactional_id=topic))
        with producer.transaction(consumer=member.consumer):
            producer.send(topic, b"made of them", partition=0)
        assert committed(cluster, topic, topic) == 8
        past = replace(member.consumer.group_metadata(), generation_id=0)
        producer.begin_transaction()
        with pytest.raises(CommitFailedError, match="no longer in the group"):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, past)
        producer.abort_transaction()


async def test_the_asyncio_form(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 0, 8)
    settings = FAST | {"group_id": topic, "enable_auto_commit": False}
    async with aio.Consumer(cluster.bootstrap, _network=cluster.client_network(), **settings) as consumer:
        consumer.subscribe([topic])
        found = [record async for record in _first(consumer, 8)]
        assert len(found) == 8
        await consumer.commit()
    assert committed(cluster, topic, topic) == 8


async def _first(consumer: aio.Consumer, count: int) -> Any:
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


def test_without_its_feature_or_among_classic_members_the_error_says_what_to_do(topic: str) -> None:
    config = {**CONFIG, "group.consumer.migration.policy": "disabled"}
    with Cluster(nodes=1, config=config) as cluster, ExitStack() as stack:
        cluster.create_topic("t", PARTITIONS)
        classic = stack.enter_context(cluster.consumer(group_id="g"))
        classic.subscribe(["t"])
        while not classic.assignment():
            classic.poll(0.1)
        member = Member(cluster, "t", group="g")
        stack.callback(member.consumer.close)
        with pytest.raises(TidelogError, match=r"members of the classic protocol.*use group_protocol='classic'"):
            until(lambda: False, member)
        with cluster.admin() as admin:
            admin.update_features({"group.version": 0}, upgrade_type="safe downgrade")
        with pytest.raises(TidelogError, match=r"tidelog features upgrade.*use group_protocol='classic'"):
            until(lambda: False, member)


def test_what_stays_is_read_on_while_other_partitions_are_given_up(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a commit is not known for as long as the test wants, so the member cannot give up what it must."""
    known = vars(PollCommits)["unanswered"].fget
    held: list[PollCommits] = []
    monkeypatch.setattr(
        PollCommits, "unanswered", property(lambda commits: len(held) if commits in held else known(commits))
    )
    with ExitStack() as stack:
        first = Member(cluster, topic)
        stack.callback(first.consumer.close)
        until(lambda: len(first.has) == PARTITIONS, first)
        held.append(first.group.commits)
        second = Member(cluster, topic)
        stack.callback(second.consumer.close)
        until(lambda: first.group.membership.state is MemberState.RECONCILING, first, second)
        target = first.group.membership.target
        assert target is not None
        stays = {partition for _, partition in target.partitions}
        assert len(stays) == PARTITIONS // 2
        sent = fill(cluster, topic, 0, 400)
        until(lambda: len(first.values) == len(sent) // 2, first, second)
        assert {int(value) % PARTITIONS for value in first.values} == stays
        assert first.told == [("assigned", frozenset(range(PARTITIONS)))], "it still gives them up"
        held.clear()
        until(lambda: shared(first, second) and len(first.values + second.values) == len(sent), first, second)
        assert first.has == stays
        assert {*first.values, *second.values} == sent
