"""Mutants of messaging patterns: with a rule taken out, the test that is named beside it fails."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

_PRIORITY = "client/consumer/test_priority.py::"
MUTANTS = (
    bound(
        "the-heaviest-level-first",
        "client.fetching.turns",
        "if ready is not None and level.credit > 0:",
        "if ready is not None:",
        f"{_PRIORITY}test_no_level_with_data_waits_longer_than_one_turn_of_each_other",
    ),
    bound(
        "a-rebalance-gives-the-turn-to-the-heaviest",
        "client.fetching.turns",
        "if level.weight == turn), 0)\n",
        "if level.weight == turn and level.credit < 0), 0)\n",
        f"{_PRIORITY}test_levels_with_a_backlog_share_by_their_weights",
    ),
    bound(
        "records-cost-their-level-nothing",
        "client.consumer.core",
        "                    level.credit -= len(taken)\n",
        "",
        f"{_PRIORITY}test_a_group_reads_by_weight_and_loses_nothing_in_a_rebalance",
    ),
)


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
