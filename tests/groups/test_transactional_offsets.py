"""Offsets committed within transactions: permission, when they count, and those that a new coordinator finds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tidelog.groups.state.effects import Append, AppendMarker
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.logs.coordinator_records import OffsetCommitKey, decode_key, decode_offset_value

from .conftest import Desk

NONE = ErrorCode.NONE
ONE, TWO = ((ProducerId(number), ProducerEpoch(0)) for number in (1, 2))


# --- when they count --------------------------------------------------------------------------------


def test_a_commit_counts_with_the_marker(desk: Desk) -> None:
    assert desk.error(desk.commit_in(ONE, {"t-0": 5, "t-1": 6})) is NONE
    assert desk.committed() == {}
    assert desk.unstable("t-0", "t-1", "t-2") == ["t-0", "t-1"]
    assert desk.error(desk.complete(ONE, committed=True)) is NONE
    assert desk.committed() == {"t-0": 5, "t-1": 6}
    assert desk.unstable("t-0", "t-1") == []
    assert not len(desk.shard.state.transactions)


def test_an_abort_leaves_what_was_there(desk: Desk) -> None:
    desk.commit({"t-0": 3})
    desk.commit_in(ONE, {"t-0": 5, "t-1": 6})
    desk.complete(ONE, committed=False)
    assert desk.committed() == {"t-0": 3}
    assert desk.unstable("t-0", "t-1") == []
    assert desk.shard.state.population.offsets == 1


def test_a_group_of_nothing_but_an_aborted_commit_is_gone(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    assert desk.has_group()
    desk.complete(ONE, committed=False)
    assert not desk.has_group()


def test_the_marker_is_waited_for_until_it_is_in_the_log(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.auto = False
    marker = desk.complete(ONE, committed=True)
    assert marker not in desk.answers
    assert desk.committed() == {}
    assert desk.unstable("t-0") == ["t-0"]
    desk.end()
    assert desk.error(marker) is NONE
    assert desk.committed() == {"t-0": 5}


def test_a_marker_that_is_refused_ends_nothing(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.auto = False
    marker = desk.complete(ONE, committed=False)
    desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(marker) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.unstable("t-0") == ["t-0"]
    desk.complete(ONE, committed=True)
    desk.end()
    assert desk.committed() == {"t-0": 5}


def test_of_an_empty_group_any_member_without_a_generation_may_commit(desk: Desk) -> None:
    """Kafka's ``ClassicGroup.validateOffsetCommit``: nobody is there whose work it could cross."""
    desk.commit({"t-0": 3})
    assert desk.error(desk.commit_in(ONE, {"t-0": 5}, member_id="long gone")) is NONE
    assert desk.error(desk.commit_in(TWO, {"t-0": 5}, member_id="long gone", generation=1)) is not NONE


def test_the_same_marker_twice_is_one(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.auto = False
    markers = [desk.complete(ONE, committed=True) for _ in range(2)]
    desk.end()
    desk.end()
    assert [desk.error(marker) for marker in markers] == [NONE, NONE]
    assert desk.committed() == {"t-0": 5}
    assert desk.unstable("t-0") == []


def test_a_marker_overtakes_no_commit_of_its_transaction(desk: Desk) -> None:
    """Appends are told in any order; what lies before the marker in the log belongs to it."""
    desk.auto = False
    commit = desk.commit_in(ONE, {"t-0": 5})
    desk.complete(ONE, committed=True)
    desk.end(at=1)
    assert desk.committed() == {}
    desk.end()
    assert desk.error(commit) is NONE
    assert desk.committed() == {"t-0": 5}
    assert desk.unstable("t-0") == []


def test_a_transaction_that_is_just_ending_takes_nothing_in(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.auto = False
    desk.complete(ONE, committed=True)
    assert not desk.shard.has_open(*ONE)
    late = desk.commit_in(ONE, {"t-0": 9})
    assert desk.error(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    desk.end()
    assert desk.committed() == {"t-0": 5}


def test_an_older_epoch_takes_no_part(desk: Desk) -> None:
    desk.commit_in((1, 4), {"t-0": 5})
    assert desk.shard.has_open(ProducerId(1), ProducerEpoch(4))
    assert not desk.shard.has_open(ProducerId(1), ProducerEpoch(3))
    assert desk.error(desk.commit_in((1, 3), {"t-0": 9})) is ErrorCode.INVALID_PRODUCER_EPOCH
    desk.complete((1, 5), committed=True, version=2)
    assert desk.committed() == {"t-0": 5}, "a marker of the second protocol bears the next epoch"


@pytest.mark.parametrize(("epoch", "version"), [(3, 1), (4, 2)])
def test_a_marker_that_is_late_ends_no_later_transaction(desk: Desk, epoch: int, version: int) -> None:
    desk.commit_in((1, 4), {"t-0": 5})
    late = desk.complete((1, epoch), committed=True, version=version)
    assert desk.error(late) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert desk.unstable("t-0") == ["t-0"]


def test_of_one_key_the_last_record_wins_whichever_marker_comes_first(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.commit_in(TWO, {"t-0": 6})
    desk.complete(TWO, committed=True)
    assert desk.committed() == {"t-0": 6}
    assert desk.unstable("t-0") == ["t-0"]
    desk.complete(ONE, committed=True)
    assert desk.committed() == {"t-0": 6}
    desk.fail_over()
    assert desk.committed() == {"t-0": 6}


def test_a_plain_commit_behind_one_in_a_transaction_wins(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.commit({"t-0": 7})
    assert desk.committed() == {"t-0": 7}
    desk.complete(ONE, committed=True)
    assert desk.committed() == {"t-0": 7}
    desk.fail_over()
    assert desk.committed() == {"t-0": 7}


def test_a_transaction_over_several_groups(desk: Desk) -> None:
    desk.commit_in(ONE, {"t-0": 5})
    desk.commit_in(ONE, {"t-0": 6}, group="h")
    desk.complete(ONE, committed=True)
    assert (desk.committed(), desk.committed("h")) == ({"t-0": 5}, {"t-0": 6})


# --- permission -------------------------------------------------------------------------------------


def test_a_member_commits_in_its_generation_alone(desk: Desk) -> None:
    (member,) = desk.stable()
    generation = desk.group().generation
    commit = {"t-0": 5}
    assert desk.error(desk.commit_in(ONE, commit, member, generation - 1)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.commit_in(ONE, commit, member, generation + 1)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.commit_in(ONE, commit, "else", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.error(desk.commit_in(ONE, commit, group="new", generation=1)) is ErrorCode.ILLEGAL_GENERATION
    assert not desk.has_group("new")
    assert desk.unstable("t-0") == []
    assert desk.error(desk.commit_in(ONE, commit, member, generation)) is NONE
    assert desk.unstable("t-0") == ["t-0"]


def test_a_static_member_that_was_replaced_is_fenced(desk: Desk) -> None:
    (member,) = desk.stable(0, ("i",))
    desk.join(instance="i")
    desk.settle()
    error = desk.error(desk.commit_in(ONE, {"t-0": 5}, member, desk.group().generation, "i"))
    assert error is ErrorCode.FENCED_INSTANCE_ID


def test_a_producer_without_a_member_commits_to_any_group(desk: Desk) -> None:
    """Kafka's rule for the oldest version of the call (``ClassicGroup.validateOffsetCommit``)."""
    desk.stable()
    assert desk.error(desk.commit_in(ONE, {"t-0": 5})) is NONE


def test_a_commit_while_the_assignment_is_awaited(desk: Desk) -> None:
    """Unlike a plain one it is taken: the generation is the member's."""
    member, waiter = desk.newcomer()
    desk.settle()
    assert desk.group().state is GroupState.COMPLETING_REBALANCE
    generation = desk.answers[waiter].generation_id
    assert desk.error(desk.commit({"t-0": 5}, member, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.error(desk.commit_in(ONE, {"t-0": 5}, member, generation)) is NONE


def test_what_cannot_be_committed_is_said_for_each_partition(desk: Desk) -> None:
    answer = desk.answers[desk.commit_in(ONE, {"t-0": 5, "no topic!-1": 6})]
    assert [result.error for result in answer.results] == [NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
    desk.complete(ONE, committed=True)
    assert desk.committed() == {"t-0": 5}


@pytest.mark.parametrize(
    ("of_log", "told"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_is_not_written_is_not_pending(desk: Desk, of_log: ErrorCode, told: ErrorCode) -> None:
    desk.auto = False
    waiter = desk.commit_in(ONE, {"t-0": 5})
    desk.end(of_log)
    assert desk.error(waiter) is told
    assert not desk.has_group()
    assert not len(desk.shard.state.transactions)


def test_a_commit_that_is_not_replicated_in_time_may_count_yet(desk: Desk) -> None:
    desk.auto = False
    waiter = desk.commit_in(ONE, {"t-0": 5})
    desk.pass_time(5_000)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.end()
    desk.complete(ONE, committed=True)
    desk.end()
    assert desk.committed() == {"t-0": 5}


def test_everybody_is_answered_when_leadership_ends(desk: Desk) -> None:
    desk.auto = False
    waiters = [desk.commit_in(ONE, {"t-0": 5}), desk.complete(ONE, committed=True)]
    desk.fail_over()
    assert [desk.error(waiter) for waiter in waiters] == [ErrorCode.NOT_COORDINATOR] * 2


# --- what is forgotten, and loaded ------------------------------------------------------------------


def test_nothing_expires_under_an_open_transaction() -> None:
    desk = Desk(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    desk.commit({"t-0": 3, "t-1": 3})
    desk.commit_in(ONE, {"t-0": 5})
    desk.pass_time(200_000)
    assert desk.committed() == {"t-0": 3}, "t-1 has expired"
    desk.complete(ONE, committed=False)
    desk.pass_time(60_000)
    assert not desk.has_group()


@pytest.mark.parametrize("how", ["delete_offsets", "delete_group", "topics_deleted"])
@pytest.mark.parametrize("committed", [True, False])
def test_what_is_deleted_does_not_come_back_with_the_marker(desk: Desk, how: str, committed: bool) -> None:
    desk.commit({"t-0": 3})
    desk.commit_in(ONE, {"t-0": 5})
    match how:
        case "delete_offsets":
            assert desk.error_of_group(desk.delete_offsets("t-0")) is NONE
        case "delete_group":
            assert desk.error_of_group(desk.delete_group()) is NONE
        case _:
            desk.perform(desk.shard.topics_deleted(["t"], desk.now))
    assert not desk.has_group()
    assert not len(desk.shard.state.transactions)
    desk.complete(ONE, committed=committed)
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()


def test_a_new_coordinator_waits_for_the_marker_as_the_old_one_did(desk: Desk) -> None:
    desk.commit({"t-0": 3})
    desk.commit_in(ONE, {"t-0": 5})
    desk.commit_in(TWO, {"t-1": 6})
    desk.complete(TWO, committed=True)
    desk.fail_over()
    assert desk.committed() == {"t-0": 3, "t-1": 6}
    assert desk.unstable("t-0", "t-1") == ["t-0"]
    assert desk.shard.has_open(*ONE)
    desk.commit({"t-0": 4})
    desk.complete(ONE, committed=True)
    assert desk.committed() == {"t-0": 4, "t-1": 6}, "the plain commit lies behind it in the log"


# --- random histories against a plain model of the log -----------------------------------------------


KEYS = ("t-0", "t-1")
GROUPS = ("g", "h")
producers = st.sampled_from([(1, 0), (2, 0), (3, 7)])


def model_of(log: list[Append | AppendMarker]) -> tuple[dict[OffsetCommitKey, int], set[OffsetCommitKey]]:
    """The committed and the undecided values: takes each record and each marker in its place, one by one."""
    decided: dict[OffsetCommitKey, tuple[int, int | None]] = {}
    open_: dict[int, dict[OffsetCommitKey, tuple[int, int]]] = {}
    index = 0
    for append in log:
        if isinstance(append, AppendMarker):
            for left, (at, offset) in open_.pop(append.writer.producer_id, {}).items():
                if append.committed and at > decided.get(left, (-1, None))[0]:
                    decided[left] = (at, offset)
            index += 1
            continue
        for raw, value in append.records:
            key = decode_key(raw)
            if isinstance(key, OffsetCommitKey):
                if value is None:
                    decided[key] = (index, None)
                    for of_producer in open_.values():
                        of_producer.pop(key, None)
                elif append.writer is None:
                    decided[key] = (index, decode_offset_value(value).offset)
                else:
                    of_producer = open_.setdefault(append.writer.producer_id, {})
                    of_producer[key] = (index, decode_offset_value(value).offset)
            index += 1
    counts = {key: offset for key, (_, offset) in decided.items() if offset is not None}
    return counts, {key for of_producer in open_.values() for key in of_producer}


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(auto=False, offsets_retention_minutes=3, offsets_retention_check_interval_ms=60_000)
        self.offset = 0
        self.asked: list[int] = []

    @rule(group=st.sampled_from(GROUPS), key=st.sampled_from(KEYS))
    def commit(self, group: str, key: str) -> None:
        self.offset += 1
        self.asked.append(self.desk.commit({key: self.offset}, group=group))

    @rule(
        producer=producers,
        group=st.sampled_from(GROUPS),
        keys=st.sets(st.sampled_from(KEYS), min_size=1).map(sorted),
    )
    def commit_in(self, producer: tuple[int, int], group: str, keys: list[str]) -> None:
        self.offset += 1
        self.asked.append(self.desk.commit_in(producer, dict.fromkeys(keys, self.offset), group=group))

    @rule(producer=producers, committed=st.booleans())
    def complete(self, producer: tuple[int, int], committed: bool) -> None:
        self.asked.append(self.desk.complete(producer, committed=committed))

    @rule(group=st.sampled_from(GROUPS), key=st.sampled_from(KEYS))
    def delete_offsets(self, group: str, key: str) -> None:
        self.asked.append(self.desk.delete_offsets(key, group=group))

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.asked.append(self.desk.delete_group(group))

    @rule(how_many=st.integers(1, 8))
    def replicate(self, how_many: int) -> None:
        for _ in range(min(how_many, len(self.desk.appends))):
            self.desk.end()

    @rule(number=st.integers(0, 63))
    def refuse(self, number: int) -> None:
        if self.desk.appends:
            self.desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE, at=number % len(self.desk.appends))

    @rule(minutes=st.integers(1, 4))
    def wait(self, minutes: int) -> None:
        self.desk.pass_time(60_000 * minutes)

    @rule()
    def fail_over(self) -> None:
        self.desk.fail_over()
        assert all(waiter in self.desk.answers for waiter in self.asked)

    @invariant()
    def what_counts_is_what_the_log_says(self) -> None:
        counts, undecided = model_of(self.desk.log)
        found = {
            OffsetCommitKey(group, name[0], int(name[2:])): offset
            for group in GROUPS
            for name, offset in self.desk.committed(group).items()
            if offset >= 0
        }
        assert found == counts
        under_way = {
            decode_key(record.key)
            for append in self.desk.appends
            if not isinstance(append, AppendMarker)
            for record in append.records
        }
        unstable = {
            OffsetCommitKey(group, name[0], int(name[2:]))
            for group in GROUPS
            for name in self.desk.unstable(*KEYS, group=group)
        }
        offsets = {key for key in under_way if isinstance(key, OffsetCommitKey)}
        assert unstable == undecided | offsets
        assert self.desk.shard.state.population.offsets == len(unstable | set(counts))


def test_random_histories() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
