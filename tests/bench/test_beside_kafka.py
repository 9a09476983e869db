"""What is made of the rounds beside Apache Kafka: medians, ratios, lines of the history."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidelog.bench.kafka_side.__main__ import FIGURE, ROWS, WORKLOAD
from tidelog.bench.kafka_side.rows import entries, ratio, report

ROUNDS = [
    {name: value * factor for row in ROWS for name, value in ((row.ours, 300.0), (row.theirs, 100.0))}
    for factor in (1.0, 10.0, 0.1)
]


def test_a_ratio_above_one_says_that_ours_is_better() -> None:
    for row in ROWS:
        assert ratio(row, [{row.ours: 300.0, row.theirs: 100.0}]) == pytest.approx(1 / 3 if row.less_is_better else 3)


def test_a_round_that_was_slow_for_both_changes_no_ratio() -> None:
    row = next(row for row in ROWS if not row.less_is_better)
    rounds = [{row.ours: 2.0, row.theirs: 1.0}, {row.ours: 0.02, row.theirs: 0.01}, {row.ours: 1.0, row.theirs: 1.0}]
    assert ratio(row, rounds) == pytest.approx(2)


def test_every_row_is_shown_and_kept() -> None:
    assert len(report(ROWS, ROUNDS)) == 2 + len(ROWS)
    kept = entries(FIGURE, ROWS, ROUNDS, WORKLOAD, "./dev beside-kafka", datetime.now(UTC))
    assert [line["figure"] for line in kept] == [f"beside-kafka: {row.name}" for row in ROWS]
    assert kept[0]["values"] == [[300, 100], [3000, 1000], [30, 10]]
