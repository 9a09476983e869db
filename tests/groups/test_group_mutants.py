"""Mutants of the consumer protocol's coordinator that tests must catch: with a rule taken out, the test that is named
beside it fails. Those that the simulation catches are in ``chaos/simulated/mutants/consumer_group_mutants.py``."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

_LATE = "groups/test_portions.py::test_who_leaves_while_a_target_is_made_gets_none_and_who_comes_gets_one_later"
BOUNDS = (
    bound(
        "a-late-target-counts-for-now",
        "groups.consumer.assigning",
        "TargetEpoch(work.epoch, timestamp_ms)",
        "TargetEpoch(group.epoch, timestamp_ms)",
        _LATE,
    ),
    bound(
        "a-late-target-names-those-who-left",
        "groups.consumer.assigning",
        "    return None if found in members else found\n",
        "    return name\n",
        _LATE,
    ),
    bound(
        "a-late-target-forgets-who-took-a-place",
        "groups.consumer.assigning",
        "    return None if found in members else found\n",
        "    return None\n",
        "groups/test_portions.py::test_who_takes_a_static_members_place_while_a_target_is_made_gets_its_share",
    ),
    bound(
        "a-target-of-what-is-undone",
        "groups.consumer.heartbeating",
        "        consumer.work = None  # it may have begun with what is undone\n",
        "",
        "groups/test_portions.py::test_what_is_undone_is_in_no_later_target",
    ),
    bound(
        "half-a-target-is-whole",
        "groups.consumer.decided",
        "            consumer.whole_target = consumer.whole_target and not self._change.has_target\n",
        "            consumer.whole_target = False\n",
        "groups/test_portions.py::test_a_target_that_is_stored_in_part_is_made_again",
    ),
    bound(
        "portions-of-any-size",
        "groups.consumer.steps",
        "        limit = self.spent + units\n",
        "        limit = self.spent + 1_000 * units\n",
        "groups/test_portions.py::test_no_turn_is_long",
    ),
    bound(
        "heartbeats-without-bound",
        "groups.consumer.heartbeating",
        "        while consumer.queue and change.spent < work_max and",
        "        while consumer.queue and",
        "groups/test_portions.py::test_many_heartbeats_that_waited_are_no_long_turn_either",
    ),
    bound(
        "targets-at-any-time",
        "groups.consumer.deciding",
        "        if consumer.work is None and not is_young:\n",
        "        if consumer.work is None:\n",
        "groups/test_portions.py::test_targets_are_made_at_most_once_in_an_interval",
    ),
    bound(
        "offsets-watched-without-bound",
        "broker.coordinators.group_lag",
        "            if len(committed) >= POSITIONS_MAX:\n",
        "            if False:\n",
        "health/test_group_lag.py::test_groups_are_told_of_by_their_coordinator_whoever_leads_their_partitions",
    ),
    bound(
        "an-upgrade-forgets-what-a-member-had-when-it-joined",
        "groups.consumer.converting",
        "        kept = [at for at in subscription.owned if at not in taken]\n",
        "        kept: list[TopicPartition] = []\n",
        "groups/test_mixed_groups.py::"
        "test_of_a_rebalance_whose_assignments_were_withdrawn_each_keeps_what_it_had_when_it_joined",
    ),
    bound(
        "a-loaded-downgrade-rests",
        "groups.shard",
        "            if group.is_unled:\n",
        "            if False:\n",
        "groups/test_mixed_groups.py::test_a_coordinator_that_loads_a_downgraded_group_rebalances_it",
    ),
    bound(
        "a-conversion-of-any-size",
        "groups.consumer.change",
        "        return self.bytes + sum(map(_size, records)) <= bytes_max - _HEADER_BYTES\n",
        "        return True\n",
        "groups/test_mixed_groups.py::test_a_conversion_must_fit_into_one_batch",
    ),
    bound(
        "classic-members-need-not-come-back",
        "groups.consumer.classic_members",
        "        self._timing.call_back(consumer, member_id, now)\n        return HeartbeatResponse",
        "        return HeartbeatResponse",
        "groups/test_mixed_groups.py::test_a_classic_member_must_rejoin_and_sync_within_its_rebalance_timeout",
    ),
)


@pytest.mark.parametrize("one", BOUNDS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
