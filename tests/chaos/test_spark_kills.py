"""The most telling cases of the kill matrix, with real Spark: two drivers are started, one of them is killed.
The others: `./dev kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.spark.cases import CASES
from tidelog.chaos.spark.command import run_cases

SHORT = ("worker-prepared", "answers-lost-then-abort", "driver-decided")
"""The last one is that which ends a driver."""


@pytest.mark.timeout(400)  # of two starts of Spark and three cases, each of which has its own bounds
def test_each_row_is_there_once_whatever_died(tmp_path: Path) -> None:
    results = run_cases([CASES[name] for name in SHORT], tmp_path, lambda result: None)
    assert {result.name: result.faults for result in results} == {name: [] for name in SHORT}
    assert all(result.rows == 720 for result in results)
