"""Seeds that failed once hold, and so does the first seed of every scenario."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tidelog.chaos.simulated.runner.determinism import differences
from tidelog.chaos.simulated.runner.regressions import Regression, load
from tidelog.chaos.simulated.scenarios.registry import SCENARIOS, Registry
from tidelog.chaos.simulated.world.scenario import Fault, Outcome

KINDS = ("quorum", "replication", "reassignment", "groups", "transactions", "spark")
"""One scenario of each kind."""
FIRST_SEEDS = [Regression(name, 1, None, "nothing: the first seed", "") for name in SCENARIOS if name not in KINDS]


@pytest.mark.parametrize("regression", [*load(), *FIRST_SEEDS], ids=str)
def test_seed_holds(regression: Regression) -> None:
    outcome = Registry().get(regression.scenario).run(regression.seed, regression.faults)
    assert outcome.violations == [], f"again: {regression.wrong}"
    assert outcome.operations > 0


def test_the_first_seed_holds_and_gives_the_same_run_twice() -> None:
    """In two processes with different hash seeds, after other runs and before them; of each kind of scenario one
    (``./dev sim --check-determinism`` takes all)."""
    outcomes: list[Outcome] = []
    assert differences(KINDS, [1], workers=2, first_run=outcomes.append) == []
    assert sorted(outcome.scenario for outcome in outcomes) == sorted(KINDS)
    for outcome in outcomes:
        assert outcome.violations == [], outcome.scenario
        assert outcome.operations > 0


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text(
        '[[seed]]\nscenario = "a"\nseed = 7\nfaults = ["1.500 kill node:2 0.25"]\nwrong = "w"\nfixed_in = "f"\n'
    )
    assert load(file) == (Regression("a", 7, (Fault(1.5, "kill", ("node:2", 0.25)),), "w", "f"),)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_fault_of_a_schedule_is_read_as_it_is_shown(name: str) -> None:
    for seed in range(20):
        schedule = Registry().get(name).schedule(seed)
        assert tuple(Fault.parse(str(fault)) for fault in schedule) == tuple(
            dataclasses.replace(fault, at_s=round(fault.at_s, 3)) for fault in schedule
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[seed]]\nscenario = "a"\nseed = 7\nwrong = "w"\n', "entry 1: expected faults, fixed_in"),
        ('[[seed]]\nscenario = "a"\nseed = 7\nwrong = "w"\nfixed_in = "f"\nkept = [1]\n', "found .*kept"),
        ('[[seeds]]\nscenario = "a"\n', "only, found seeds"),
    ],
)
def test_an_entry_that_is_not_whole_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        load(file)
