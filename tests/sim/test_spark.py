"""Queries in virtual time: they go through what they must, and damage to them shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.showing import shows
from tidelog.chaos.simulated.faults.fault_plots import DRIVER_POINTS
from tidelog.chaos.simulated.scenarios import registry as scenarios
from tidelog.chaos.simulated.scenarios.spark import SPARK
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.chaos.workloads import spark as spark_clients
from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.sinks import SinkMessage


def test_drivers_that_die_freeze_and_are_stopped_at_any_point() -> None:
    points = list(dict.fromkeys(DRIVER_POINTS))
    schedule = (
        *(Fault(2.0 + 2 * n, "driver-dies-at", (n, point, 0.3)) for n, point in enumerate(points)),
        *(Fault(15.5 + n, "driver-freezes-at", (n, point, 1.5)) for n, point in enumerate(points)),
        Fault(23.0, "driver-stops-at", (0, "deciding", 0.0)),
        Fault(18.0, "kill", ("sink", 1.0)),
        Fault(24.0, "second-producer", (1, 2.0)),
    )
    outcome = ClusterScenario(SPARK).run(3, schedule)
    assert outcome.held, outcome.violations
    assert set(outcome.faults) == {fault.kind for fault in schedule}
    assert outcome.events["copied"] > 100
    assert outcome.events["replayed"] >= 3
    assert outcome.events["input-aborted"] >= 3
    assert outcome.events["stops-deciding"] == 1
    assert sum(count for event, count in outcome.events.items() if event.startswith(("dies-", "freezes-"))) >= 6


def test_a_range_that_ends_where_not_all_is_decided_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = AsyncAdmin.list_offsets
    monkeypatch.setattr(AsyncAdmin, "list_offsets", lambda admin, specs, read_committed: ask(admin, specs))
    assert shows("decided ranges: ", ClusterScenario(SPARK), 3, ())


def test_two_attempts_at_a_task_that_are_both_committed_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(arrived: Sequence[tuple[int, SinkMessage]]) -> list[SinkMessage]:
        return [message for _, message in arrived]

    monkeypatch.setattr(spark_clients, "one_of_each", all_of_them)
    seeds = (3, 1, 2, 4, 5, 6, 7, 8)  # each has its chances, and the first shows it as long as no draw changes
    assert any(shows("each once: ", ClusterScenario(SPARK), seed, ()) for seed in seeds)


def test_where_spark_is_not_installed_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "NEEDS", {"spark": ("nowhere_to_be_found",)})
    assert "spark" not in scenarios.Registry().names
    assert "sinks" in scenarios.Registry().names
    with pytest.raises(scenarios.ScenarioError, match=r"needs nowhere_to_be_found: pip install 'tidelog\[spark\]'"):
        scenarios.Registry().get("spark")
