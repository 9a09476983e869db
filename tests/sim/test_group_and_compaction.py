"""A consumer group and a compacted topic in virtual time: they go through what they must, and damage to them shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.chaos.simulated.scenarios.clusters import COMPACTION, GROUPS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.groups.state.group_offsets import GroupOffsets
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.spans import emptied
from tidelog.storage.cleaner.batch_filter import BatchFilter


def test_a_group_whose_members_die_in_a_rebalance_gets_everything() -> None:
    schedule = (
        Fault(5.0, "join"),
        Fault(5.1, "kill-member", (0, 4.0)),
        Fault(5.3, "kill", ("coordinator", 2.0)),
        Fault(15.0, "grow-topic"),
        Fault(16.0, "pause-member", (0, 5.0)),
    )
    outcome = ClusterScenario(GROUPS).run(5, schedule)
    assert outcome.held, outcome.violations
    assert outcome.faults == {fault.kind: 1 for fault in schedule}
    assert outcome.events["generation"] >= 3
    assert outcome.events["coordinator-moved"] >= 1
    assert outcome.events["forged-commit"] > 10
    assert outcome.events["commit"] > 20


def test_members_that_leave_and_are_replaced_are_faults_of_a_schedule() -> None:
    kinds = {fault.kind for seed in range(1, 30) for fault in ClusterScenario(GROUPS).schedule(seed)}
    assert {"leave", "join", "replace-member", "grow-topic", "new-topic", "kill-member", "pause-member"} <= kinds


def test_a_compacted_topic_is_cleaned_while_nodes_die() -> None:
    schedule = (
        Fault(8.0, "kill-in-disk-call", ("node:1", 10, 2.0)),
        Fault(20.0, "power-loss-all", (1.0,)),
        Fault(35.0, "disk-full", ("node:2", 0, 1.0)),
    )
    outcome = ClusterScenario(COMPACTION).run(2, schedule)
    assert outcome.held, outcome.violations
    assert outcome.events["compacted"]
    assert outcome.events["scan-of-a-cleaned-log"] > 50
    assert set(outcome.faults) == {fault.kind for fault in schedule}


def test_committed_offsets_that_are_forgotten_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupOffsets, "get", lambda offsets, topic, partition: None)
    assert shows("no regress: ", ClusterScenario(GROUPS), 5, (Fault(5.0, "join"), Fault(9.0, "leave", (0, 2.0))))


def test_records_that_a_cleaner_takes_without_reason_show(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = BatchFilter.filter

    def without_every_fifth(kept: BatchFilter, batch: Batch, *, is_last: bool) -> object:
        found = filtered(kept, batch, is_last=is_last)
        return emptied(batch) if batch.record_count and batch.base_offset % 5 == 0 else found

    monkeypatch.setattr(BatchFilter, "filter", without_every_fifth)
    outcome = ClusterScenario(COMPACTION).run(4, ())
    assert [text for text in outcome.violations if "latest stays: " in text]
    assert [text for text in outcome.violations if "latest value: " in text]
