"""Groups with members of both protocols, and groups that change their protocol (KIP-848)."""

from __future__ import annotations

import pytest

from tidelog.groups.state.consumer_group import ConsumerGroupState, MemberState, only
from tidelog.groups.state.effects import Append
from tidelog.groups.state.settings import MigrationPolicy
from tidelog.groups.state.transitions import GroupState
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse
from tidelog.proto.calls.group_api import JoinGroupResponse, SyncGroupResponse
from tidelog.proto.logs.consumer_protocol import decode_assignment, encode_assignment, encode_subscription

from .conftest import Desk

TOPIC = "t"


@pytest.fixture
def desk() -> Desk:
    found = Desk()
    found.topics.put(TOPIC, 4)
    return found


def said(*owned: int, topics: tuple[str, ...] = (TOPIC,), assignor: str = "cooperative-sticky") -> dict[str, bytes]:
    """What a cooperative member joins with."""
    at = tuple(TopicPartition(TOPIC, number) for number in owned)
    return {assignor: encode_subscription(Subscription(topics, owned=at))}


def given(*numbers: int) -> bytes:
    return encode_assignment([TopicPartition(TOPIC, number) for number in numbers])


def classic(desk: Desk, *shares: tuple[int, ...], instances: tuple[str, ...] = ()) -> list[str]:
    """A stable classic group whose members have these shares; their ids."""
    waiters = [desk.join(instance=instance, protocols=said()) for instance in instances]
    waiters += [desk.newcomer(protocols=said())[1] for _ in shares[len(instances) :]]
    desk.settle()
    ids = [desk.answers[waiter].member_id for waiter in waiters]
    generation = desk.group().generation
    leader = desk.group().leader or ""
    assignments = {name: given(*share) for name, share in zip(ids, shares, strict=True)}
    for name in sorted(ids, key=lambda each: each != leader):
        desk.sync(name, generation, assignments if name == leader else None, instance=desk.instance_of(name))
    assert desk.group().state is GroupState.STABLE
    return ids


def rejoin(desk: Desk, member_id: str, *owned: int, instance: str | None = None) -> JoinGroupResponse:
    answer = desk.answers[desk.join(member_id, protocols=said(*owned), instance=instance)]
    assert isinstance(answer, JoinGroupResponse)
    return answer


def share(desk: Desk, member_id: str, generation: int, instance: str | None = None) -> list[int]:
    answer = desk.answers[desk.sync(member_id, generation, instance=instance)]
    assert isinstance(answer, SyncGroupResponse)
    assert answer.error is ErrorCode.NONE
    return [at.partition for at in decode_assignment(answer.assignment).partitions]


def got(desk: Desk, waiter: int) -> ConsumerGroupHeartbeatResponse:
    answer = desk.answers[waiter]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def numbers(desk: Desk, member_id: str) -> list[int]:
    found = only(desk.consumer().current_of(member_id).assigned)
    return sorted(number for partitions in found.values() for number in partitions)


# --- Upgrade --------------------------------------------------------------------------------------------


def test_a_classic_group_is_converted_and_its_members_are_led_to_their_shares(desk: Desk) -> None:
    (a,) = classic(desk, (0, 1, 2, 3))
    generation = desk.group().generation
    answer = got(desk, desk.come("new", TOPIC))
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, generation + 1)
    assert answer.assignment is not None
    assert not answer.assignment.topics, "the classic member has all of it"
    assert numbers(desk, a) == [0, 1, 2, 3]
    assert desk.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = rejoin(desk, a, 0, 1, 2, 3)
    assert (joined.error, joined.generation_id, joined.leader) == (ErrorCode.NONE, generation, "")
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "cooperative-sticky")
    kept = share(desk, a, generation)
    assert len(kept) == 2
    assert got(desk, desk.beat("new", generation + 1)).assignment is None, "it still has them"
    assert desk.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = rejoin(desk, a, *kept)
    assert joined.generation_id == generation + 1
    assert share(desk, a, generation + 1) == kept
    assert desk.heartbeat(a, generation + 1) is ErrorCode.NONE
    told = got(desk, desk.beat("new", generation + 1)).assignment
    assert told is not None
    assert sorted([*told.topics[0].partitions, *kept]) == [0, 1, 2, 3]
    assert desk.consumer().state is ConsumerGroupState.STABLE


def test_the_conversion_is_one_batch_that_replaces_the_classic_record(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    before = len(desk.log)
    desk.come("new", TOPIC)
    conversion = desk.log[before]
    assert isinstance(conversion, Append)
    kinds = [int.from_bytes(record.key[:2]) for record in conversion.records]
    assert kinds == [2, 5, 5, 3, 7, 7, 6, 8, 8], "as Kafka: the tombstone, members, epoch, targets, current assignments"
    assert conversion.records[0].value is None
    assert numbers(desk, a) + numbers(desk, b) == [0, 1, 2, 3]


def test_what_is_loaded_is_the_mixed_group(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.come("new", TOPIC)
    before = desk.consumer().members, desk.consumer().current, desk.consumer().owner
    desk.fail_over()
    assert (desk.consumer().members, desk.consumer().current, desk.consumer().owner) == before
    assert desk.consumer().classic_members == 2
    assert desk.heartbeat(a, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    desk.pass_time(10_000)
    assert b not in desk.consumer().members, "a session lasts as long as the classic member asked for"
    assert "new" in desk.consumer().members


def test_an_upgrade_that_is_not_stored_leaves_the_classic_group_as_it_was(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.auto = False
    waiter = desk.come("new", TOPIC)
    joining = desk.join(a, protocols=said(0, 1))
    assert not {waiter, joining} & desk.answers.keys()
    desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(joining) is ErrorCode.REBALANCE_IN_PROGRESS
    desk.auto = True
    assert desk.group().consumer is None
    assert desk.group().state is GroupState.STABLE
    assert [desk.heartbeat(each, 1) for each in (a, b)] == [ErrorCode.NONE] * 2
    assert share(desk, b, 1) == [2, 3]
    assert desk.shard.state.population.members == 2
    assert got(desk, desk.come("new", TOPIC)).error is ErrorCode.NONE


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE])
def test_members_that_wait_are_told_to_rejoin_and_keep_what_they_have(desk: Desk, state: GroupState) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    waiter = desk.join(a, protocols={**said(0, 1), "other": said(0, 1)["cooperative-sticky"]})
    if state is GroupState.COMPLETING_REBALANCE:
        desk.join(b, protocols=said(2, 3))
        waiter = desk.sync(b, 2)
        leave = desk.newcomer(protocols=said())[1]  # begins another rebalance: assignments are withdrawn
        desk.join(a, protocols=said(0, 1))
        desk.join(b, protocols=said(2, 3))
        waiter = desk.sync(b, 3) if desk.group().leader != b else desk.sync(a, 3)
        assert leave in desk.answers
    assert desk.group().state is state
    assert waiter not in desk.answers
    answer = got(desk, desk.come("new", TOPIC))
    assert desk.error(waiter) is ErrorCode.REBALANCE_IN_PROGRESS
    assert answer.assignment is not None
    assert not answer.assignment.topics, "the members still have everything"


def test_of_a_rebalance_whose_assignments_were_withdrawn_each_keeps_what_it_had_when_it_joined(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.newcomer(protocols=said())
    desk.join(a, protocols=said(0, 1))
    desk.join(b, protocols=said(2, 3))
    assert desk.group().state is GroupState.COMPLETING_REBALANCE
    desk.newcomer(protocols=said())
    assert not any(member.assignment for member in desk.group().members.values())
    answer = got(desk, desk.come("new", TOPIC))
    assert answer.assignment is not None
    assert not answer.assignment.topics
    current = desk.consumer().current_of(a)
    assert current.state == MemberState.UNREVOKED_PARTITIONS
    assert sorted(next(iter(current.pending.values()))) == [0, 1]
    generation = current.epoch
    assert rejoin(desk, a, 0, 1).generation_id == generation, "it has yet to give them up"
    assert rejoin(desk, a).generation_id > generation


# --- What is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "upgrade", "downgrade"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
        (MigrationPolicy.BIDIRECTIONAL, True, True),
    ],
)
def test_the_policy_decides(policy: MigrationPolicy, upgrade: bool, downgrade: bool) -> None:
    desk = Desk(migration_policy=policy)
    desk.topics.put(TOPIC, 4)
    classic(desk, (0, 1, 2, 3))
    answer = got(desk, desk.come("new", TOPIC))
    assert (answer.error is ErrorCode.NONE) == upgrade
    if not upgrade:
        assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert policy.value in answer.error_message
    desk.come("other", TOPIC, group="h")
    member_id = desk.member_id(group="h", protocols=said())
    desk.join(member_id, group="h", protocols=said())
    desk.beat("other", -1, group="h")
    assert (desk.group("h").consumer is None) == downgrade


WITH_DATA = encode_assignment([TopicPartition(TOPIC, 0)], b"mine")


def led(desk: Desk, assignor: str, assignment: bytes) -> str:
    """A classic group of one member, which gave itself this assignment; its id."""
    member_id, waiter = desk.newcomer(protocols=said(assignor=assignor))
    desk.settle()
    desk.sync(member_id, desk.answers[waiter].generation_id, {member_id: assignment})
    return member_id


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_data_that_no_assignor_reads_prevents_no_upgrade(desk: Desk, assignor: str) -> None:
    """librdkafka's leader copies each member's data from its subscription into its assignment."""
    member_id = led(desk, assignor, WITH_DATA)
    assert got(desk, desk.come("new", TOPIC)).error is ErrorCode.NONE
    assert numbers(desk, member_id) == [0]


@pytest.mark.parametrize(
    ("assignor", "assignment", "reason"),
    [("cooperative-sticky", b"not an assignment", "unreadable"), ("mine", WITH_DATA, "data of its assignor mine")],
)
def test_an_assignment_that_cannot_be_taken_over_is_no_upgrade(
    desk: Desk, assignor: str, assignment: bytes, reason: str
) -> None:
    member_id = led(desk, assignor, assignment)
    answer = got(desk, desk.come("new", TOPIC))
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in answer.error_message
    assert desk.heartbeat(member_id, 1) is ErrorCode.NONE


def test_only_groups_of_consumers_are_upgraded(desk: Desk) -> None:
    desk.newcomer(protocol_type="connect")
    desk.settle()
    answer = got(desk, desk.come("new", TOPIC))
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "connect" in answer.error_message


def test_a_group_has_its_bounds_in_both_directions() -> None:
    desk = Desk(consumer_max_size=2)
    desk.topics.put(TOPIC, 4)
    classic(desk, (0, 1), (2, 3))
    assert got(desk, desk.come("new", TOPIC)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    desk = Desk(max_size=1)
    desk.topics.put(TOPIC, 4)
    desk.come("new", TOPIC)
    for _ in range(2):
        desk.join(desk.member_id(protocols=said()), protocols=said())
    desk.beat("new", -1)
    assert desk.consumer().classic_members == 2, "too many for a classic group"


def test_a_conversion_must_fit_into_one_batch(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.shard.state.batch_bytes_max = 900
    answer = got(desk, desk.come("new", TOPIC))
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "one batch" in answer.error_message
    desk.shard.state.batch_bytes_max = 1 << 20
    desk.come("new", TOPIC)
    desk.shard.state.batch_bytes_max = 900
    desk.beat("new", -1)
    assert desk.consumer().members.keys() == {a, b}, "it stays as it is"


def test_who_has_no_protocol_in_common_with_the_classic_members_is_refused(desk: Desk) -> None:
    (a,) = classic(desk, (0, 1, 2, 3))
    desk.come("new", TOPIC)
    other = {"range": said()["cooperative-sticky"]}
    assert desk.error(desk.join(protocols=other)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.error(desk.join(protocols={}, admit_unknown=True)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.error(desk.join(protocols=said(), protocol_type="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = {"cooperative-sticky": b"?"}
    assert desk.error(desk.join(protocols=broken)) is ErrorCode.MEMBER_ID_REQUIRED, "nobody has read it yet"
    assert desk.error(desk.join(protocols=broken, admit_unknown=True)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.error(desk.join(a, protocols=other)) is ErrorCode.NONE, "nobody else speaks the classic protocol"


def test_what_classic_members_are_told_about_their_claims(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3), instances=("i",))
    desk.come("new", TOPIC)
    assert desk.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat("new", 2) is ErrorCode.UNKNOWN_MEMBER_ID, "not a classic member"
    assert desk.heartbeat(b, 7) is ErrorCode.ILLEGAL_GENERATION
    assert desk.heartbeat(b, 1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert desk.heartbeat(b, 1, instance="none") is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.error(desk.sync(b, 7)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.sync(b, 1, protocol_name="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.error(desk.sync(b, 1)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.error(desk.join(b, instance="i", protocols=said())) is ErrorCode.FENCED_INSTANCE_ID
    assert desk.error(desk.join(b, instance="none", protocols=said())) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.error(desk.commit({"t-2": 1}, b, 1)) is ErrorCode.NONE
    assert desk.error(desk.commit({"t-2": 1}, b, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.commit({"t-2": 1}, b, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.commit({"t-2": 1}, "new", 9)) is ErrorCode.STALE_MEMBER_EPOCH
    assert a in desk.consumer().members
    described = desk.shard.describe_consumer("g")
    assert {each.member_id: each.is_classic for each in described.members} == {a: True, b: True, "new": False}


# --- Time -----------------------------------------------------------------------------------------------


def test_a_classic_member_must_rejoin_and_sync_within_its_rebalance_timeout(desk: Desk) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.come("new", TOPIC)
    for _ in range(16):  # 60 s in steps that keep all sessions; b is called back, and does not come
        assert desk.heartbeat(b, 1) in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
        if a in desk.consumer().members:
            rejoin(desk, a)  # joins, and never syncs
        desk.beat("new", desk.consumer().current_of("new").epoch)
        desk.pass_time(4_000)
    assert b not in desk.consumer().members
    assert a in desk.consumer().members, "each join gives it the time again"
    for _ in range(16):
        desk.heartbeat(a, desk.consumer().current_of(a).epoch)
        desk.beat("new", desk.consumer().current_of("new").epoch)
        desk.pass_time(4_000)
        if desk.group().consumer is None or a not in desk.consumer().members:
            break
    assert a not in desk.consumer().members


def test_classic_members_alone_are_told_of_new_partitions_and_of_targets_that_were_too_young() -> None:
    desk = Desk(migration_policy=MigrationPolicy.UPGRADE, consumer_assignment_interval_ms=1_000)
    desk.topics.put(TOPIC, 4)
    (a,) = classic(desk, (0, 1, 2, 3))
    desk.come("new", TOPIC)
    desk.beat("new", -1)
    assert desk.consumer().classic_members == 1
    for _ in range(8):
        if desk.heartbeat(a, desk.consumer().current_of(a).epoch) is ErrorCode.REBALANCE_IN_PROGRESS:
            rejoin(desk, a, *numbers(desk, a))
            desk.sync(a, desk.consumer().current_of(a).epoch)
        desk.pass_time(1_000)
    assert numbers(desk, a) == [0, 1, 2, 3]
    assert desk.consumer().state is ConsumerGroupState.STABLE
    desk.topics.put(TOPIC, 6)
    assert desk.heartbeat(a, desk.consumer().current_of(a).epoch) is ErrorCode.NONE
    desk.pass_time(1_000)
    assert desk.heartbeat(a, desk.consumer().current_of(a).epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(desk, a, *numbers(desk, a))
    assert numbers(desk, a) == [0, 1, 2, 3, 4, 5]


# --- Downgrade ------------------------------------------------------------------------------------------


def mixed(desk: Desk) -> str:
    """A stable group of one classic member, with partitions 0 and 1, and "new", with 2 and 3."""
    desk.come("new", TOPIC)
    member_id = desk.member_id(protocols=said())
    rejoin(desk, member_id)
    desk.beat("new", 1, owned={desk.topics.shapes[TOPIC].topic_id: (0, 1)})
    epoch = desk.consumer().epoch
    desk.beat("new", epoch)
    if desk.heartbeat(member_id, epoch) is ErrorCode.REBALANCE_IN_PROGRESS:
        rejoin(desk, member_id)
    desk.sync(member_id, epoch)
    assert desk.consumer().state is ConsumerGroupState.STABLE
    return member_id


@pytest.mark.parametrize("why", ["leaves", "silent", "static"])
def test_without_members_of_the_consumer_protocol_the_group_is_classic_again(desk: Desk, why: str) -> None:
    if why == "static":
        desk.come("new", TOPIC, instance="i")
        a = desk.member_id(protocols=said())
        rejoin(desk, a)
        epoch = desk.consumer().current_of(a).epoch
        answer = desk.answers[desk.join(instance="i", protocols=said())]
        assert answer.error is ErrorCode.NONE
        expected = {a, answer.member_id}
    else:
        a = mixed(desk)
        epoch = desk.consumer().epoch
        expected = {a}
        if why == "leaves":
            assert got(desk, desk.beat("new", -1)).error is ErrorCode.NONE
        else:
            for _ in range(10):
                desk.pass_time(5_000)
                if desk.group().consumer is None:
                    break
                desk.heartbeat(a, epoch)
    group = desk.group()
    assert group.consumer is None
    assert group.members.keys() == expected
    assert group.state is GroupState.PREPARING_REBALANCE
    assert desk.heartbeat(a, epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.shard.state.population.members == len(expected)
    last = desk.log[-1]
    assert isinstance(last, Append)
    kinds = [int.from_bytes(record.key[:2]) for record in last.records if record.value is not None]
    assert kinds[-1:] == [2], "the classic record comes last"
    names = {record.key for record in last.records if record.value is None}
    assert len(names) >= 3 * 2 + 2, "all its records are removed in the same batch"
    joins = [desk.join(name, protocols=said(), instance=group.members[name].instance_id) for name in sorted(expected)]
    desk.settle()
    assert [desk.error(each) for each in joins] == [ErrorCode.NONE] * len(joins)
    assert desk.group().generation == desk.answers[joins[0]].generation_id
    desk.fail_over()
    assert desk.group().consumer is None


def test_a_coordinator_that_loads_a_downgraded_group_rebalances_it(desk: Desk) -> None:
    a = mixed(desk)
    had = numbers(desk, a)
    epoch = desk.consumer().epoch
    desk.beat("new", -1)
    desk.fail_over()
    assert desk.group().consumer is None
    assert desk.group().state is GroupState.PREPARING_REBALANCE, "else nobody would get what the others had"
    assert desk.heartbeat(a, epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    assert [at.partition for at in decode_assignment(desk.group().members[a].assignment).partitions] == had
    waiter = desk.join(a, protocols=said(*had))
    desk.settle()
    desk.sync(a, desk.answers[waiter].generation_id, {a: given(0, 1, 2, 3)})
    desk.fail_over()
    assert desk.group().state is GroupState.STABLE


def test_a_downgrade_that_is_not_stored_leaves_the_mixed_group(desk: Desk) -> None:
    a = mixed(desk)
    before = desk.consumer().members
    desk.auto = False
    waiter = desk.beat("new", -1)
    joining = desk.join(a, protocols=said())
    desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.auto = True
    while desk.appends:
        desk.end()
    assert desk.consumer().members.keys() == before.keys()
    assert desk.error(joining) is ErrorCode.NONE
    desk.pass_time(44_000)
    assert desk.group().consumer is None or "new" in desk.consumer().members


def test_who_asks_during_a_downgrade_asks_again(desk: Desk) -> None:
    a = mixed(desk)
    desk.auto = False
    desk.beat("new", -1)
    joining, coming = desk.join(a, protocols=said()), desk.come("other", TOPIC)
    syncing = desk.sync(a, 2)
    desk.end()
    assert desk.error(joining) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.error(syncing) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.error(coming) is ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- Deletion -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE])
def test_a_mixed_group_can_be_deleted_once_all_its_members_have_left(policy: MigrationPolicy) -> None:
    desk = Desk(migration_policy=policy)
    desk.topics.put(TOPIC, 4)
    a = mixed(desk)
    desk.commit({"t-0": 7}, a, desk.consumer().epoch)
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NON_EMPTY_GROUP
    desk.beat("new", -1)
    assert (desk.group().consumer is None) == policy.allows_downgrade
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NON_EMPTY_GROUP
    if policy.allows_downgrade:
        desk.leave((a, None))
        desk.settle()
    else:
        desk.beat(a, -1)  # as the shell does for LeaveGroup
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NONE
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group(), "none of its records is left"


def test_what_the_log_refused_to_end_is_ended_with_the_classic_groups_record(desk: Desk) -> None:
    desk.come("new", TOPIC)
    desk.beat("new", -1)
    desk.auto = False
    joining = desk.join(admit_unknown=True)
    desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    desk.auto = True
    desk.pass_time(3_000)
    joined = desk.answers[joining]
    assert isinstance(joined, JoinGroupResponse)
    a = joined.member_id
    assert desk.error(desk.sync(a, 1, {a: b""})) is ErrorCode.NONE
    left = {record.key: record.value for append in desk.log if isinstance(append, Append) for record in append.records}
    kinds = [int.from_bytes(key[:2]) for key, value in left.items() if value is not None]
    assert kinds == [2], "compaction leaves nothing else of the group"


def test_a_group_whose_downgrade_is_under_way_is_not_deleted(desk: Desk) -> None:
    a = mixed(desk)
    desk.auto = False
    desk.beat("new", -1)
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NON_EMPTY_GROUP
    desk.end()
    assert desk.group().members.keys() == {a}


# --- Static members -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", ["the same", "new"])
def test_a_member_may_change_its_protocol_under_its_own_id(desk: Desk, epoch: str) -> None:
    a, b = classic(desk, (0, 1), (2, 3))
    desk.come("new", TOPIC)
    answer = got(desk, desk.come(a, TOPIC) if epoch == "new" else desk.beat(a, 1))
    assert answer.error is ErrorCode.NONE
    assert desk.consumer().classic_members == 1
    assert desk.heartbeat(a, answer.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID, "it is no classic member"
    joined = rejoin(desk, "new")
    assert joined.error is ErrorCode.NONE
    assert desk.consumer().members["new"].classic is not None
    assert got(desk, desk.beat(a, -1)).error is ErrorCode.NONE
    assert desk.group().members.keys() == {b, "new"}, "the last member of the consumer protocol has left"


def test_a_static_members_place_changes_its_protocol(desk: Desk) -> None:
    a, _ = classic(desk, (0, 1), (2, 3), instances=("i",))
    answer = got(desk, desk.come("s", TOPIC, instance="i"))
    assert answer.error is ErrorCode.NONE
    assert answer.assignment is not None
    assert answer.assignment.topics[0].partitions == (0, 1), "it has what the classic one had"
    assert desk.heartbeat(a, 1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert a not in desk.consumer().members
    assert got(desk, desk.come("s2", TOPIC, instance="i")).error is ErrorCode.UNRELEASED_INSTANCE_ID
