"""The admin client's calls about groups against three nodes: groups that lie on all of them, and one that dies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tidelog import Admin, GroupState, OffsetAndMetadata, TopicPartition
from tidelog.client.errors import GroupSubscribedToTopicError, NonEmptyGroupError, UnknownMemberIdError
from tidelog.testing import Cluster

GROUPS = [f"group-{number}" for number in range(12)]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as found:
        found.create_topic("t", 2)
        yield found


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with cluster.admin() as found:
        yield found


def test_groups_outlive_the_node_that_kept_them(cluster: Cluster, admin: Admin) -> None:
    for number, group in enumerate(GROUPS):
        admin.alter_consumer_group_offsets(group, {T0: OffsetAndMetadata(number, metadata="by hand")})
    homes = {one.coordinator.node_id for one in admin.describe_consumer_groups(GROUPS).values()}
    assert homes == {1, 2, 3}
    assert [one.group_id for one in admin.list_consumer_groups(states=[GroupState.EMPTY])] == sorted(GROUPS)
    cluster.kill(2)
    everything = admin.list_consumer_group_offsets(dict.fromkeys(GROUPS))
    assert {name: offsets[T0].offset for name, offsets in everything.items()} == {
        group: number for number, group in enumerate(GROUPS)
    }
    assert all(offsets[T0].metadata == "by hand" for offsets in everything.values())
    assert [one.group_id for one in admin.list_groups()] == sorted(GROUPS)
    assert {one.coordinator.node_id for one in admin.describe_consumer_groups(GROUPS).values()} == {1, 3}
    cluster.restart(2)
    admin.delete_consumer_groups(GROUPS)
    assert admin.list_groups() == []


def test_a_group_with_members_is_described_and_left_alone(cluster: Cluster, admin: Admin) -> None:
    with (
        cluster.consumer(group_id="alive", client_id="one", group_instance_id="static") as consumer,
        cluster.consumer(group_id="alive", client_id="two") as other,
    ):
        for member in (consumer, other):
            member.subscribe(["t"])
        deadline = time.monotonic() + 30
        while not (len(consumer.assignment()) == len(other.assignment()) == 1):
            assert time.monotonic() < deadline
            consumer.poll(0.05)
            other.poll(0.05)
        found = admin.describe_consumer_groups(["alive"])["alive"]
        assert (found.state, found.partition_assignor) == (GroupState.STABLE, "range")
        assert {m.client_id: m.assignment for m in found.members} == {
            "one": tuple(consumer.assignment()),
            "two": tuple(other.assignment()),
        }
        assert {m.client_id: m.group_instance_id for m in found.members} == {"one": "static", "two": None}
        assert all(m.subscription == ("t",) and m.host for m in found.members)
        with pytest.raises(UnknownMemberIdError, match="alive: t-0: "):
            admin.alter_consumer_group_offsets("alive", {T0: 0, T1: 0})
        with pytest.raises(NonEmptyGroupError, match="alive: "):
            admin.delete_consumer_groups(["alive"])
        with pytest.raises(GroupSubscribedToTopicError, match="alive: t-0: "):
            admin.delete_consumer_group_offsets("alive", [T0])
        with pytest.raises(UnknownMemberIdError, match="alive: nobody: the member does not exist"):
            admin.remove_members_from_consumer_group("alive", ["nobody"])
        admin.remove_members_from_consumer_group("alive", ["static"])
        (left,) = admin.describe_consumer_groups(["alive"])["alive"].members
        assert left.client_id == "two"
