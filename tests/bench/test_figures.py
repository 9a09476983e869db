"""The bounds of ``./dev bench --check`` and the history's lines."""

from __future__ import annotations

import getpass
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.bench import figures, history, runner
from tidelog.bench.figures import Figure
from tidelog.cli.work.workload import percentile

MORE = Figure("rate", "produce", "records/s", True, 100.0, 200.0, 5, "some")
LESS = Figure("delay", "latency", "ms", False, 10.0, 4.0, 5, "some")


def test_the_bound_holds_from_below_where_more_is_better() -> None:
    assert [MORE.holds(value) for value in (99.9, 100.0, 300.0)] == [False, True, True]
    assert [MORE.reaches_aim(value) for value in (199.0, 200.0)] == [False, True]


def test_the_bound_holds_from_above_where_less_is_better() -> None:
    assert [LESS.holds(value) for value in (10.1, 10.0, 1.0)] == [False, True, True]
    assert [LESS.reaches_aim(value) for value in (4.1, 4.0)] == [False, True]


def test_targets_are_whole() -> None:
    found = figures.load_figures()
    assert len(found) >= 20
    for figure in found.values():
        assert figure.repeats == 5
        if figure.at_least is not None and figure.aim is not None:
            assert figure.holds(figure.aim), f"{figure.name}: the aim does not reach the bound"
            assert not figure.reaches_aim(figure.at_least), f"{figure.name}: the bound is beyond the aim"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('better = "sideways"', "better: expected more or less"),
        ('bettre = "more"', "found bettre"),
        ("", "expected better"),
    ],
)
def test_a_wrong_target_is_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(f'[figure.x]\nbenchmark = "b"\nunit = "s"\nrepeats = 5\nworkload = "w"\n{change}\n')
    with pytest.raises(figures.TargetsWrong, match=message):
        figures.load_figures(path)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    smaller = [value for value in values if value < found]
    assert not smaller or sum(value <= max(smaller) for value in values) < share * len(values) + 1e-6


def test_a_line_names_machine_and_command_and_nobody(tmp_path: Path) -> None:
    now = datetime(2026, 3, 4, tzinfo=UTC)
    entry = history.line(MORE, [3.0, 1.0, 2.0], "./dev bench --only produce", now)
    path = history.append([entry, entry], now, tmp_path)
    assert path.name == "2026-03.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    read = json.loads(lines[0])
    assert (read["median"], read["command"]) == (2.0, "./dev bench --only produce")
    assert read["machine"]["cores"] >= 1
    assert platform.node() not in lines[0] or len(platform.node()) < 3
    assert str(Path.home()) not in lines[0]
    assert getpass.getuser() not in json.dumps(read["machine"])


def test_every_line_of_the_history_can_be_read() -> None:
    known = {
        "time",
        "commit",
        "figure",
        "median",
        "unit",
        "values",
        "at_least",
        "aim",
        "workload",
        "command",
        "machine",
    }
    for path in history.DIRECTORY.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            assert json.loads(line).keys() == known


def test_every_figure_has_a_benchmark_and_every_benchmark_a_figure() -> None:
    assert {figure.benchmark for figure in figures.load_figures().values()} == set(runner.BENCHMARKS)
    for benchmark in runner.BENCHMARKS:
        assert callable(runner.load(benchmark))


def test_a_figure_below_its_bound_shows_in_table_and_outcome(tmp_path: Path) -> None:
    outcomes = runner.measure("x", [MORE, LESS], 3, lambda: tmp_path, lambda directory: {"rate": 50.0, "delay": 3.0})
    assert [outcome.holds for outcome in outcomes] == [False, True]
    lines = runner.report(outcomes, check=True)
    assert lines[1].split() == ["rate", "50.0", "≥", "100.0", "200.0", "records/s", "BELOW"]
    assert lines[2].endswith("aim reached")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError, match="prodcue"):
        runner.chosen(figures.load_figures(), ["prodcue"])
