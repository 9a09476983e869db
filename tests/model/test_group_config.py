"""What a group may set for itself, and what holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.model.settings.group_config import ASSIGNMENT, HEARTBEAT, SESSION, GroupTimes, group_fault, in_force
from tidelog.model.settings.node.coordinator_settings import GroupSettings

NODE = GroupSettings()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, None),
        ({SESSION: "45000", HEARTBEAT: "15000"}, None),
        ({SESSION: "60000", HEARTBEAT: "5000"}, None),
        ({SESSION: "44999"}, "expected 45000 to 60000 (group.consumer.min.session.timeout.ms"),
        ({SESSION: "60001"}, "found 60001"),
        ({HEARTBEAT: "4999"}, "expected 5000 to 15000 (group.consumer.min.heartbeat.interval.ms"),
        ({HEARTBEAT: "15001"}, "found 15001"),
        ({ASSIGNMENT: "0"}, None),
        ({ASSIGNMENT: "15001"}, "expected 0 to 15000 (group.consumer.min.assignment.interval.ms"),
    ],
)
def test_the_bounds_of_a_groups_own_settings(values: dict[str, str], said: str | None) -> None:
    fault = group_fault(NODE, values)
    assert fault is None if said is None else said in (fault or "")


def test_heartbeats_are_more_frequent_than_sessions_are_long() -> None:
    wide = replace(NODE, group_consumer_min_session_timeout_ms=1, group_consumer_max_heartbeat_interval_ms=60_000)
    assert group_fault(wide, {SESSION: "5001"}) is None
    assert "expected less than consumer.session.timeout.ms (5000), found 5000" in (
        group_fault(wide, {SESSION: "5000"}) or ""
    )
    assert "found 45000" in (group_fault(wide, {HEARTBEAT: "45000"}) or "")


def test_bounds_that_became_narrower_hold_and_unreadable_values_are_left_out() -> None:
    own = {SESSION: "60000", HEARTBEAT: "15000"}
    assert in_force(NODE, {ASSIGNMENT: "300"}) == GroupTimes(45_000, 5_000, 300)
    assert in_force(NODE, own) == GroupTimes(60_000, 15_000, 1_000)
    narrower = replace(
        NODE, group_consumer_max_session_timeout_ms=50_000, group_consumer_max_heartbeat_interval_ms=9_000
    )
    assert in_force(narrower, own) == GroupTimes(50_000, 9_000, 1_000)
    assert in_force(NODE, {SESSION: "soon", "consumer.later.ms": "1"}) == GroupTimes(45_000, 5_000, 1_000)
