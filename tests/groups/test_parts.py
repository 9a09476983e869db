"""The parts beneath the coordinator: transitions, timers, offsets of a group, routing, replaying."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transition_pages import diagram, table
from tidelog.groups.routing import group_id_fault, partition_for
from tidelog.groups.state.group import Group
from tidelog.groups.state.group_offsets import GroupOffsets, Population
from tidelog.groups.state.transitions import TRANSITIONS, Cause, GroupState, Transition
from tidelog.model.errors import ErrorCode
from tidelog.model.hashes.java_hash import java_hash
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.model.timers import Timers
from tidelog.proto.logs.coordinator_records import OffsetCommitValue, encode_offset_key, encode_offset_value
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import encode_columns

from .conftest import Desk

DOCS = Path(__file__).parents[2] / "docs" / "groups.md"


# --- Transitions --------------------------------------------------------------------------------------


def test_the_page_shows_the_table() -> None:
    text = DOCS.read_text()
    assert f"```mermaid\n{diagram(TRANSITIONS, GroupState.EMPTY, GroupState.DEAD)}\n```" in text
    assert table(TRANSITIONS) in text


def test_each_transition_stands_once() -> None:
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
    assert {state for before, after, _ in TRANSITIONS for state in (before, after)} == set(GroupState)
    assert {cause for _, _, cause in TRANSITIONS} == set(Cause)
    assert not [transition for transition in TRANSITIONS if transition.before is GroupState.DEAD]


def test_another_transition_is_a_bug() -> None:
    group = Group("g", Population(), 0)
    with pytest.raises(AssertionError, match="no transition"):
        group.move(GroupState.STABLE, Cause.ASSIGNMENT_STORED, 0)


def test_every_transition_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the table, brought about by requests, time and appends."""
    seen: set[Transition] = set()
    move = Group.move

    def watched(group: Group, state: GroupState, cause: Cause, now_wall_ms: int) -> None:
        seen.add(Transition(group.state, state, cause))
        move(group, state, cause, now_wall_ms)

    monkeypatch.setattr(Group, "move", watched)

    def crowd() -> Desk:
        return Desk(initial_rebalance_delay_ms=3_000)

    def joined(desk: Desk) -> list[str]:
        waits = [desk.newcomer(rebalance=20_000, session=60_000)[1] for _ in range(2)]
        desk.pass_time(6_000)
        return [desk.answers[waiter].member_id for waiter in waits]

    desk = crowd()
    members = desk.stable(2)
    desk.join(members[0])  # Stable, a member changed
    desk = crowd()
    members = desk.stable(2)
    desk.leave((members[0], None))  # Stable, a member gone
    desk.leave((members[1], None))  # nobody left
    desk.pass_time(600_000)  # removed
    desk = crowd()
    first, second = joined(desk)
    desk.join(second, protocols={"range": b"x"})  # Completing, changed
    desk = crowd()
    desk.leave((joined(desk)[1], None))  # Completing, gone
    desk = crowd()
    joined(desk)
    desk.pass_time(20_000)  # Completing, sync missed
    desk = crowd()
    desk.sync(joined(desk)[0], 1, {})
    desk.pass_time(20_000)  # Stable, sync missed
    desk = crowd()
    first, _ = joined(desk)
    desk.auto = False
    desk.sync(first, 1, {})
    desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # lost
    desk = crowd()
    desk.stable(2)
    desk.fail_over(max_size=1)  # unloaded while Stable; over capacity
    desk.fail_over()  # while Preparing
    desk = crowd()
    joined(desk)
    desk.fail_over()  # while Completing
    desk.commit({"t-0": 1})
    desk.fail_over()  # while Empty
    desk = crowd()
    desk.come("new", "t")
    desk.join(desk.member_id())
    desk.beat("new", -1)  # Stable, converted
    assert seen == set(TRANSITIONS)


# --- Timers -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["set", "cancel", "due"]), st.integers(0, 5), st.integers(0, 50))))
def test_timers_are_a_map_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    now = 0
    for what, key, number in steps:
        if what == "set":
            timers.set(key, now + number)
            model[key] = now + number
        elif what == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now += number
            due = timers.due(now)
            assert sorted(due) == sorted(key for key, deadline in model.items() if deadline <= now)
            assert len(set(due)) == len(due)
            for found in due:
                del model[found]
        assert len(timers) == len(model)
        deadline = timers.next_deadline()
        assert (deadline is None) == (not model)
        if deadline is not None:
            assert deadline <= min(model.values())


def test_timers_that_are_moved_or_cancelled_take_no_room() -> None:
    timers: Timers[int] = Timers()
    for number in range(10_000):
        timers.set(0, number)
        timers.set(number, 10**9)
        timers.cancel(number - 1)
    assert len(timers._heap) < 200


# --- Offsets ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["value", "tombstone", "end", "fail"]), st.integers(0, 2)), max_size=40))
def test_the_latest_append_that_ended_well_counts(steps: list[tuple[str, int]]) -> None:
    """Whatever the order in which appends end: as if the log were replayed up to them."""
    population = Population()
    offsets = GroupOffsets(population)
    under_way: list[tuple[int, int, OffsetCommitValue | None]] = []
    ended: dict[int, tuple[int, OffsetCommitValue | None]] = {}
    for number, (what, at) in enumerate(steps):
        if what in ("value", "tombstone"):
            value = OffsetCommitValue(Offset(number), LeaderEpoch(1), "", 0) if what == "value" else None
            offsets.began("t", at)
            under_way.append((number, at, value))
        elif under_way:
            done, partition, value = under_way.pop(at % len(under_way))
            if what == "end":
                offsets.ended("t", partition, done, value)
                if partition not in ended or ended[partition][0] < done:
                    ended[partition] = (done, value)
            else:
                offsets.failed("t", partition)
        for partition in range(3):
            assert offsets.get("t", partition) == ended.get(partition, (0, None))[1]
            assert offsets.is_pending("t", partition) == any(at == partition for _, at, _ in under_way)
        assert population.offsets == len(offsets.keys())
    assert bool(offsets) == bool(offsets.keys())


# --- Routing ------------------------------------------------------------------------------------------


def test_groups_are_where_kafka_looks_for_them() -> None:
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("grüße") == 98768023
    assert java_hash("😀") == 0xD83D * 31 + 0xDE00
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 99162322 % 50


def test_group_ids() -> None:
    assert group_id_fault("g") is None
    assert "empty" in (group_id_fault("") or "")
    assert group_id_fault("", may_be_empty=True) is None
    assert "32767" in (group_id_fault("x" * 32_768) or "")


# --- Replaying ----------------------------------------------------------------------------------------


def _replayed(*batches: bytearray) -> Desk:
    desk = Desk()
    desk.shard = desk._shard(2)
    for built in batches:
        (batch,) = split_batches(bytes(built))
        desk.shard.replay(batch)
    desk.perform(desk.shard.loaded(desk.now))
    return desk


def _batch(*records: tuple[bytes | None, bytes | None], producer_id: int | None = None) -> bytearray:
    """A batch of the records, in a transaction of the producer if one is named."""
    columns = [0] * len(records), [key for key, _ in records], [value for _, value in records]
    if producer_id is None:
        return encode_columns(*columns)
    return encode_columns(*columns, producer_id=producer_id, producer_epoch=0, is_transactional=True)


VALUE = encode_offset_value(OffsetCommitValue(Offset(7), LeaderEpoch(1), "", 1_700_000_000_000))


def test_a_record_that_cannot_be_used_stops_nothing() -> None:
    desk = _replayed(
        _batch(
            (b"\0\3\0\1x", b"of the newer protocol"),
            (b"\0", VALUE),
            (None, VALUE),
            (encode_offset_key("g", "t", 1), b"\0\7"),
            (b"\0\2\0\1h", b"\0\3\xff\xff"),
            (encode_offset_key("g", "t", 0), VALUE),
        ),
    )
    assert desk.committed() == {"t-0": 7}
    assert list(desk.shard.state.groups) == ["g"]
    assert desk.shard.passed_over == 5
    assert desk.shard.replayed == 6


def test_offsets_of_transactions_count_when_a_marker_says_so() -> None:
    offsets = _batch((encode_offset_key("g", "t", 0), VALUE))
    committed, aborted, undecided = (
        _batch((encode_offset_key("g", "t", producer), VALUE), producer_id=producer) for producer in (5, 6, 7)
    )
    commit, abort = (
        encode_control_batch(kind, timestamp=0, producer_id=producer, producer_epoch=0, coordinator_epoch=0)
        for kind, producer in ((ControlKind.COMMIT, 5), (ControlKind.ABORT, 6))
    )
    desk = _replayed(offsets, undecided, committed, commit, aborted, abort, commit)
    assert desk.committed() == {"t-0": 7, "t-5": 7}
    assert desk.unstable("t-0", "t-5", "t-6", "t-7") == ["t-7"]
    assert desk.shard.state.population.offsets == 3, "the one that is undecided is counted"


def test_an_old_expire_timestamp_counts() -> None:
    value = bytes.fromhex("0001" + f"{7:016x}" + "0000" + f"{1_700_000_000_000:016x}" + f"{1_700_000_900_000:016x}")
    desk = _replayed(_batch((encode_offset_key("g", "t", 0), value)))
    desk.pass_time(600_000)
    assert desk.committed() == {"t-0": 7}
    desk.pass_time(600_000)
    assert desk.committed() == {}


def test_a_groups_tombstone_leaves_later_offsets() -> None:
    desk = _replayed(
        _batch((encode_offset_key("g", "t", 0), VALUE)),
        _batch((b"\0\2\0\1g", None), (encode_offset_key("h", "t", 0), None), (b"\0\2\0\1h", None)),
    )
    assert desk.committed() == {"t-0": 7}
    assert not desk.has_group("h")


def test_loaded_members_get_a_whole_session() -> None:
    desk = Desk()
    (member_id,) = desk.stable()
    desk.pass_time(9_000)
    desk.fail_over()
    described = desk.shard.describe("g")
    assert described.members[0].client_host == "/h"
    assert described.members[0].assignment == b"of " + member_id.encode()
    desk.pass_time(9_999)
    assert desk.group().members
    desk.pass_time(1)
    assert not desk.group().members


def test_member_ids_come_from_the_generator_that_is_handed_in() -> None:
    ids = {tuple(Desk().member_id() for _ in range(1)) for _ in range(3)}
    assert len(ids) == 1
    first, second = Desk(), Desk()
    second.shard.state.rng = random.Random(6)
    assert first.member_id() != second.member_id()


# --- Describing ---------------------------------------------------------------------------------------


def test_groups_are_described(desk: Desk) -> None:
    missing = desk.shard.describe("g")
    assert (missing.error, missing.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    desk.stable()
    found = desk.shard.describe("g")
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
    assert found.members[0].metadata
    desk.newcomer()
    found = desk.shard.describe("g")
    assert (found.state, found.protocol) == ("PreparingRebalance", "")
    assert [member.metadata for member in found.members] == [b"", b""]


def test_groups_are_listed_by_state_and_type(desk: Desk) -> None:
    desk.stable()
    desk.commit({"t-0": 1}, group="simple")

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[tuple[str, str, str]]:
        return {(item.group_id, item.state, item.protocol_type) for item in desk.shard.list_groups(states, types)}

    assert listed() == {("g", "Stable", "consumer"), ("simple", "Empty", "")}
    assert listed(states=("stable",)) == {("g", "Stable", "consumer")}
    assert listed(states=("Dead",)) == set()
    assert listed(types=("Classic",)) == listed()
    assert listed(types=("consumer",)) == set()
