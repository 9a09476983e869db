"""Mutants of the console's bounds and of what it hides: without the rule, the test named beside it must fail."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

BOUNDS = (
    bound(
        "hidden-fields-can-be-searched",
        "console.schemas.view",
        "            self._seen(VALUE, record.value) if mask.value else record.value,\n",
        "            record.value,\n",
        "console/test_schemas.py::test_a_search_looks_at_what_is_not_hidden",
    ),
    bound(
        "avro-items-without-bound",
        "console.schemas.structured",
        "        if self._items > ITEMS_MAX:\n",
        "        if self._items > 2 * ITEMS_MAX:\n",
        "console/test_schemas.py::test_hostile_avro_is_refused_within_bounds",
    ),
    bound(
        "a-search-without-bounds",
        "console.reading.scan",
        "            if getattr(seen, name) >= getattr(most, name):\n",
        "            if False:\n",
        "console/test_scan.py::test_each_bound_stops_a_search_and_it_goes_on_where_it_stopped",
    ),
)


@pytest.mark.parametrize("one", BOUNDS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
