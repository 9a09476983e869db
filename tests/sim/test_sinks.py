"""Sinks in virtual time: they go through what they must, and damage to them shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.chaos.simulated.scenarios.clusters import SINKS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.transactions.ending import Ending


def test_drivers_and_tasks_that_die_and_fence_one_another() -> None:
    schedule = (
        Fault(5.0, "second-producer", (0, 3.0)),
        Fault(10.0, "kill-producer", (1, 0.5)),
        Fault(15.0, "at-step", ("CommitBatchRequest", 1, 6.0, "kill", "u", 1.0)),
        Fault(25.0, "kill-producer", (0, 0.5)),
        Fault(30.0, "kill", ("sink", 2.0)),
        Fault(40.0, "pause-producer", (0, 5.0)),
        Fault(45.0, "double-requests", (0.5, 5.0)),
    )
    outcome = ClusterScenario(SINKS).run(3, schedule)
    assert outcome.held, outcome.violations
    assert set(outcome.faults) >= {fault.kind for fault in schedule} - {"at-step"}
    assert outcome.events["decided"] > 30
    assert outcome.events["already-committed"] >= 1
    assert outcome.events["speculative"] >= 1


def test_transactions_that_nobody_ends_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, "send_markers", lambda ending, entry, now: None)
    assert shows("no progress after healing: ", ClusterScenario(SINKS), 3, ())
