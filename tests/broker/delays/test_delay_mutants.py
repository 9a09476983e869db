"""Mutants of delay topics that the simulation does not reach: the test named beside each must fail."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

DELAYS = (
    bound(
        "delay-topics-of-any-length",
        "replication.partition.partition",
        "        if found < most:\n",
        "        if True:\n",
        "broker/delays/test_delivery.py::test_a_full_partition_takes_no_more_until_some_are_delivered",
    ),
    bound(
        "what-is-not-read-is-deleted",
        "broker.coordinators.delays.reading",
        "        if record is None and offset >= found.log_start_offset:\n",
        "        if False:\n",
        "broker/delays/test_reading.py::test_a_record_that_is_not_found_is_deleted_only_below_the_logs_start",
    ),
    bound(
        "anybody-is-a-mover",
        "broker.access.reserved",
        "            if context.listener in node_listeners:\n",
        "            if True:\n",
        "security/access/test_reserved.py::test_what_movers_use_is_refused_to_clients_alone",
    ),
)


@pytest.mark.parametrize("one", DELAYS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
