"""Transactions in virtual time: they go through what they must, and damage to them shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.chaos.simulated.scenarios.clusters import TRANSACTIONS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.replication.partition.partition import Partition
from tidelog.storage.producers.state import ProducerStates
from tidelog.transactions.ending import Ending


def test_producers_that_die_and_fence_one_another() -> None:
    schedule = (
        Fault(4.0, "late-verdicts", (0.7, 0.5, 4.0)),
        Fault(6.0, "kill-producer", (0, 0.5)),
        Fault(10.0, "second-producer", (2, 3.0)),
        Fault(15.0, "kill", ("transactions", 2.0)),
        Fault(22.0, "pause-producer", (3, 5.0)),
        Fault(30.0, "kill", ("coordinator", 2.0)),
        Fault(40.0, "double-requests", (0.5, 5.0)),
    )
    outcome = ClusterScenario(TRANSACTIONS).run(1, schedule)
    assert outcome.held, outcome.violations
    assert set(outcome.faults) == {fault.kind for fault in schedule}
    assert outcome.events["committed"] > 50
    assert outcome.events["aborted"] > 10
    assert outcome.events["decided-elsewhere"] > 2
    assert outcome.events["snapshot"] >= 2
    assert outcome.events["ended-ProducerFencedError"] >= 1


def test_faults_of_producers_are_part_of_schedules() -> None:
    kinds = {fault.kind for seed in range(1, 30) for fault in ClusterScenario(TRANSACTIONS).schedule(seed)}
    assert {"kill-producer", "pause-producer", "second-producer", "late-verdicts"} <= kinds


def test_what_is_shown_undecided_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "fetchable_end", lambda partition, read_committed: partition.high_watermark)
    assert shows("only what counts: ", ClusterScenario(TRANSACTIONS), 3, ())


def test_transactions_that_nobody_ends_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, "send_markers", lambda ending, entry, now: None)
    assert shows("no progress after healing: ", ClusterScenario(TRANSACTIONS), 3, ())


def test_a_last_stable_offset_that_passes_an_open_transaction_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "first_unstable_offset", lambda states, high_watermark: None)
    assert shows("stable: on node", ClusterScenario(TRANSACTIONS), 3, ())


def test_an_end_that_is_too_old_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "latest_offset", lambda partition, read_committed: partition.log.log_start_offset)
    assert shows("ends: node", ClusterScenario(TRANSACTIONS), 3, ())
