"""A group of the consumer protocol in virtual time: it goes through what it must, and damage to its rules shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.chaos.simulated.scenarios.consumer_groups import CONSUMER_GROUPS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.groups.consumer import reconciling
from tidelog.groups.consumer.reconciling import next_step

SCHEDULE = (
    Fault(5.0, "join"),
    Fault(5.4, "kill", ("coordinator", 2.0)),
    Fault(12.0, "pause-member", (0, 5.0)),
    Fault(20.0, "kill-member", (1, 2.0)),
)


def test_a_group_whose_members_and_coordinator_die_gets_everything() -> None:
    outcome = ClusterScenario(CONSUMER_GROUPS).run(5, SCHEDULE)
    assert outcome.held, outcome.violations
    assert outcome.events["epoch"] >= 5
    assert outcome.events["coordinator-moved"] >= 1
    assert outcome.events["lost-partitions"] >= 1
    assert outcome.events["forged-commit"] > 10
    assert outcome.events["forged-heartbeat"] > 10
    assert outcome.events["commit"] > 20


def test_a_partition_that_is_given_to_two_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_owners(*arguments: object) -> object:
        return next_step(*arguments[:5], {}, *arguments[6:])  # type: ignore[arg-type, call-arg]

    monkeypatch.setattr("tidelog.groups.consumer.deciding.next_step", without_owners)
    assert reconciling.next_step is next_step
    assert shows("one owner: ", ClusterScenario(CONSUMER_GROUPS), 5, SCHEDULE)
