"""Random histories of one partition of ``__consumer_offsets``: members, zombies, appends that end late or never,
coordinators that crash with any part of the unacknowledged log lost. What must hold in each of them:

- each request is answered once, at the latest when leadership ends;
- all that are told an assignment in one generation are told the same leader's, and it is in the log;
- a group's generation never falls, neither in memory nor from record to record of the log;
- what is read as committed is what the log's committed part says, and of what was acknowledged nothing is lost;
- a member of an older generation, or none, commits nothing;
- a node that loads the log has the groups that the coordinator had stored.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tidelog.groups.state.effects import Append
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import JoinGroupResponse, SyncGroupResponse
from tidelog.proto.logs.coordinator_records import (
    CoordinatorKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

from .conftest import Desk

GROUPS = ("g", "h")
PARTITIONS = ("t-0", "t-1")
groups = st.sampled_from(GROUPS)
pick = st.integers(0, 63)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(
            auto=False,
            initial_rebalance_delay_ms=3_000,
            offsets_retention_minutes=3,
            offsets_retention_check_interval_ms=60_000,
        )
        self.asked: set[int] = set()
        # (group, member id) → (generation, is leader), as that member was told last; zombies stay here.
        self.told: dict[tuple[str, str], tuple[int, bool]] = {}
        self.joins: dict[int, str] = {}
        self.syncs: dict[int, tuple[str, int]] = {}
        self.seen: set[int] = set()
        self.assigned_by: dict[tuple[str, int, int], bytes] = {}
        self.highest: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.commits: dict[int, tuple[str, str, int]] = {}
        self.offset = 0
        # All of the log, decoded; a value of None is a tombstone.
        self.groups_written: list[tuple[CoordinatorKey, GroupMetadataValue | None]] = []
        self.offsets_written: list[tuple[CoordinatorKey, OffsetCommitValue | None]] = []
        self.decoded = 0
        self.syncs_made = 0

    # --- Members --------------------------------------------------------------------------------

    def _ask(self, waiter: int) -> int:
        self.asked.add(waiter)
        self._look()
        return waiter

    def _join(self, group: str, member_id: str = "", **changes: Any) -> None:
        waiter = self.desk.join(member_id, group=group, rebalance=20_000, **changes)
        self.joins[waiter] = group
        self._ask(waiter)

    def _member(self, number: int) -> tuple[str, str] | None:
        known = list(self.told)
        return known[number % len(known)] if known else None

    @rule(group=groups, twice=st.booleans())
    def newcomer(self, group: str, twice: bool) -> None:
        waiter = self._ask(self.desk.join(group=group, rebalance=20_000))
        answer = self.desk.answers[waiter]
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.told[group, answer.member_id] = (-1, False)
            if twice:
                self._join(group, answer.member_id)

    @rule(group=groups, instance=st.sampled_from("ab"))
    def static_newcomer(self, group: str, instance: str) -> None:
        self._join(group, instance=instance)

    @rule(number=pick, changed=st.booleans(), instance=st.sampled_from([None, None, "a", "b"]))
    def join_again(self, number: int, changed: bool, instance: str | None) -> None:
        found = self._member(number)
        if found is not None:
            protocols = {"range": b"%d" % number} if changed else {"range": b""}
            self._join(*found, instance=instance, protocols=protocols)

    @rule()
    def all_join_again(self) -> None:
        for group in GROUPS:
            found = self.desk.shard.state.groups.get(group)
            if found is None or found.state is GroupState.EMPTY:
                continue
            for member_id in list(found.members):
                if member_id in found.members:
                    self._join(group, member_id, instance=found.members[member_id].instance_id)

    @rule(number=pick)
    def sync(self, number: int) -> None:
        found = self._member(number)
        if found is not None:
            self._sync(*found)

    @rule()
    def all_sync(self) -> None:
        for group, member_id in list(self.told):
            self._sync(group, member_id)

    def _sync(self, group: str, member_id: str) -> None:
        generation, is_leader = self.told[group, member_id]
        assignments: dict[str, bytes] = {}
        live = self.desk.shard.state.groups.get(group)
        if is_leader and live is not None:
            self.syncs_made += 1
            assignments = dict.fromkeys(live.members, b"%d" % self.syncs_made)
        waiter = self.desk.sync(member_id, generation, assignments, group=group)
        self.syncs[waiter] = (group, generation)
        self._ask(waiter)

    @rule(group=groups, count=st.integers(0, 2), replicated=st.booleans())
    def rebalance(self, group: str, count: int, replicated: bool) -> None:
        """All join and sync, newcomers too; the assignment is replicated, or left under way."""
        for _ in range(count):
            self.newcomer(group, True)
        self.all_join_again()
        for _ in range(3):
            self.desk.pass_time(3_000)
        self._look()
        if replicated:
            self.all_is_replicated()
        self.all_sync()
        if replicated:
            self.all_is_replicated()

    @rule(number=pick)
    def heartbeat(self, number: int) -> None:
        found = self._member(number)
        if found is not None:
            self.desk.heartbeat(found[1], self.told[found][0], group=found[0])

    @rule()
    def all_heartbeat(self) -> None:
        for (group, member_id), (generation, _) in self.told.items():
            self.desk.heartbeat(member_id, generation, group=group)

    @rule(number=pick)
    def leave(self, number: int) -> None:
        found = self._member(number)
        if found is not None:
            self.desk.leave((found[1], None), group=found[0])
            self._look()

    # --- Offsets --------------------------------------------------------------------------------

    @rule(number=pick, partition=st.sampled_from(PARTITIONS))
    def commit(self, number: int, partition: str) -> None:
        found = self._member(number)
        if found is None:
            return
        group, member_id = found
        generation = self.told[found][0]
        live = self.desk.shard.state.groups.get(group)
        may = live is not None and (
            (
                member_id in live.members
                and generation == live.generation
                and live.state is not GroupState.COMPLETING_REBALANCE
            )
            or (generation < 0 and live.state is GroupState.EMPTY)
        )
        waiter = self._commit(group, partition, member_id, generation)
        if not may and not (live is None and generation < 0):
            assert waiter in self.desk.answers, "a zombie's commit is let through"
            assert self.desk.error(waiter) is not ErrorCode.NONE
            assert not self._is_under_way(group, partition, self.offset), "a zombie's commit is on its way"

    @rule(group=groups, partition=st.sampled_from(PARTITIONS))
    def simple_commit(self, group: str, partition: str) -> None:
        self._commit(group, partition, "", -1)

    def _commit(self, group: str, partition: str, member_id: str, generation: int) -> int:
        self.offset += 1
        waiter = self.desk.commit({partition: self.offset}, member_id, generation, group=group)
        self.commits[waiter] = (group, partition, self.offset)
        return self._ask(waiter)

    @rule(group=groups, number=pick, partition=st.sampled_from(PARTITIONS))
    def commit_of_a_member(self, group: str, number: int, partition: str) -> None:
        live = self.desk.shard.state.groups.get(group)
        if live is not None and live.members:
            member_id = list(live.members)[number % len(live.members)]
            self._commit(group, partition, member_id, live.generation)

    def _is_under_way(self, group: str, partition: str, offset: int) -> bool:
        return (group, partition, offset) in {
            (key.group, f"{key.topic}-{key.partition}", decode_offset_value(value).offset)
            for append in self.desk.appends
            if isinstance(append, Append)
            for raw, value in append.records
            if value is not None and isinstance(key := decode_key(raw), OffsetCommitKey)
        }

    @rule(group=groups, partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, group: str, partition: str) -> None:
        self._ask(self.desk.delete_offsets(partition, group=group))

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        self._ask(self.desk.delete_group(group))

    # --- Time, log, crashes ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0, 1, 3, 4, 9, 10, 21, 200]))
    def pass_time(self, seconds: int) -> None:
        self.desk.pass_time(1_000 * seconds)
        self._look()

    @rule()
    def all_is_replicated(self) -> None:
        while self.desk.appends:
            self.desk.end()
        self._look()

    @rule(refuse=st.booleans())
    def one_append_ends(self, refuse: bool) -> None:
        """In the order of the log; a refusal comes before anything later is decided."""
        if self.desk.appends:
            if refuse:
                self.desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE, at=len(self.desk.appends) - 1)
            else:
                self.desk.end()
            self._look()

    @rule(kept=st.integers(0, 8))
    def crash(self, kept: int) -> None:
        """Another coordinator: of what was not replicated, the log keeps the first ``kept`` appends."""
        written = self.desk.appends[:kept]
        before = len(self.desk.answers)
        self.desk.perform(self.desk.shard.resign(self.desk.now))
        assert set(self.desk.answers) >= self.asked, "somebody waits for ever"
        assert len(self.desk.answers) >= before
        self._look()
        self.desk.log += written
        self.desk.fail_over()
        self.highest = dict.fromkeys(GROUPS, 0)
        self._look()

    # --- What must hold -------------------------------------------------------------------------

    def _look(self) -> None:
        """Take in what was answered since."""
        for waiter, answer in list(self.desk.answers.items()):
            if waiter in self.seen:
                continue
            self.seen.add(waiter)
            if isinstance(answer, JoinGroupResponse) and answer.error is ErrorCode.NONE:
                group = self.joins[waiter]
                is_leader = bool(answer.members) and not answer.skip_assignment
                self.told[group, answer.member_id] = (answer.generation_id, is_leader)
            elif isinstance(answer, SyncGroupResponse) and answer.error is ErrorCode.NONE:
                self._assigned(*self.syncs[waiter], answer.assignment)
            elif waiter in self.commits and self.desk.error(waiter) is ErrorCode.NONE:
                group, partition, offset = self.commits[waiter]
                assert offset in self._written(group, partition), "acknowledged, but not in the log"

    def _assigned(self, group: str, generation: int, assignment: bytes) -> None:
        stored = [
            value
            for key, value in self._group_records()
            if key == GroupMetadataKey(group)
            if value is not None and value.generation == generation and value.members
        ]
        assert stored, "an assignment was told that is not in the log"
        view = {member.assignment for member in stored[-1].members}
        assert len(view) <= 1
        assert assignment in view
        life = sum(1 for key, value in self._group_records() if key == GroupMetadataKey(group) and value is None)
        known = self.assigned_by.setdefault((group, life, generation), assignment)
        assert known == assignment, "two leaders' assignments in one generation"

    def _read(self) -> None:
        for append in self.desk.log[self.decoded :]:
            assert isinstance(append, Append)
            for raw, value in append.records:
                key = decode_key(raw)
                if isinstance(key, OffsetCommitKey):
                    self.offsets_written.append((key, None if value is None else decode_offset_value(value)))
                else:
                    self.groups_written.append((key, None if value is None else decode_group_value(value)))
        self.decoded = len(self.desk.log)

    def _group_records(self) -> list[tuple[CoordinatorKey, GroupMetadataValue | None]]:
        self._read()
        return self.groups_written

    def _written(self, group: str, partition: str) -> list[int | None]:
        topic, _, number = partition.rpartition("-")
        wanted = OffsetCommitKey(group, topic, int(number))
        self._read()
        return [None if value is None else value.offset for key, value in self.offsets_written if key == wanted]

    @invariant()
    def what_is_read_is_what_the_log_says(self) -> None:
        for group in GROUPS:
            expected = {}
            for partition in PARTITIONS:
                written = self._written(group, partition)
                if written and written[-1] is not None:
                    expected[partition] = written[-1]
            assert self.desk.committed(group) == expected

    @invariant()
    def generations_never_fall(self) -> None:
        for group in GROUPS:
            live = self.desk.shard.state.groups.get(group)
            if live is None:
                self.highest[group] = 0
            else:
                assert live.generation >= self.highest[group]
                self.highest[group] = live.generation
            last = 0
            for key, value in self._group_records():
                if key == GroupMetadataKey(group):
                    generation = 0 if value is None else value.generation
                    assert value is None or generation >= last
                    last = generation

    @invariant()
    def counts_are_true(self) -> None:
        state = self.desk.shard.state
        assert state.population.members == sum(
            len(group.members) + len(group.pending_joins) for group in state.groups.values()
        )
        assert state.population.offsets == sum(len(group.offsets.keys()) for group in state.groups.values())
        for group in state.groups.values():
            assert group.awaiting_join == sum(1 for m in group.members.values() if m.join_waiter is not None)
            assert set(group.static_members.values()) == {
                member.member_id for member in group.members.values() if member.instance_id is not None
            }
            assert group.leader in group.members or not group.members
            assert (group.state is GroupState.EMPTY) <= (not group.members)
            assert set(group.pending_syncs) <= set(group.members)

    def teardown(self) -> None:
        """Let all appends through: another coordinator has the same groups, and nobody waits for ever."""
        while self.desk.appends:
            self.desk.end()
        self._look()
        stored = {
            group.group_id: (group.generation, {m.member_id: m.assignment for m in group.members.values()})
            for group in self.desk.shard.state.groups.values()
            if group.state is GroupState.STABLE
        }
        offsets = {group: self.desk.committed(group) for group in GROUPS}
        self.desk.fail_over()
        assert set(self.desk.answers) >= self.asked
        for group_id, (generation, members) in stored.items():
            found = self.desk.group(group_id)
            assert (found.state, found.generation) == (GroupState.STABLE, generation)
            assert {member.member_id: member.assignment for member in found.members.values()} == members
        assert {group: self.desk.committed(group) for group in GROUPS} == offsets


@pytest.mark.timeout(300)
def test_random_histories() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
