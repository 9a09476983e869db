"""Seeds that failed once hold, and so does the first seed of every scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.sim.determinism import differences
from tidelog.chaos.sim.regressions import Regression, load
from tidelog.chaos.sim.scenarios import SCENARIOS, Registry
from tidelog.chaos.sim.worker import select

FIRST_SEEDS = [Regression(name, 1, None, "nothing: the first seed", "") for name in SCENARIOS]


@pytest.mark.parametrize("regression", [*load(), *FIRST_SEEDS], ids=str)
def test_seed_holds(regression: Regression) -> None:
    scenario = Registry().get(regression.scenario)
    schedule = scenario.schedule(regression.seed)
    outcome = scenario.run(regression.seed, select(schedule, regression.keep))
    assert outcome.violations == [], f"again: {regression.wrong}"
    assert outcome.operations > 0


def test_the_first_seed_of_every_scenario_gives_the_same_run_twice() -> None:
    """In two processes with different hash seeds, after other runs and before them."""
    assert differences(list(SCENARIOS), [1], workers=2) == []


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text('[[seed]]\nscenario = "a"\nseed = 7\nkeep = [1, 2]\nwrong = "w"\nfixed_in = "f"\n')
    assert load(file) == (Regression("a", 7, (1, 2), "w", "f"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[seed]]\nscenario = "a"\nseed = 7\nwrong = "w"\n', "entry 1: expected fixed_in"),
        ('[[seed]]\nscenario = "a"\nseed = 7\nwrong = "w"\nfixed_in = "f"\nkept = [1]\n', "found .*kept"),
        ('[[seeds]]\nscenario = "a"\n', "only, found seeds"),
    ],
)
def test_an_entry_that_is_not_whole_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        load(file)
