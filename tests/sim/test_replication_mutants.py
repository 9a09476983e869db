"""The list of replication mutants fits the code and the page of its rules. Catching them is the scenarios' part."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

from tidelog.chaos.simulated.mutants.answer_mutants import MUTANTS as ANSWERS
from tidelog.chaos.simulated.mutants.damage_mutants import MUTANTS as DAMAGE
from tidelog.chaos.simulated.mutants.hook import mutated_source
from tidelog.chaos.simulated.mutants.log_mutants import MUTANTS as LOG
from tidelog.chaos.simulated.mutants.metadata.leadership_mutants import MUTANTS as LEADERSHIP
from tidelog.chaos.simulated.mutants.mutant import Mutant
from tidelog.chaos.simulated.mutants.replication_mutants import MUTANTS as REPLICATION
from tidelog.chaos.simulated.scenarios.registry import SCENARIOS

MUTANTS = (*REPLICATION, *LEADERSHIP, *LOG, *DAMAGE, *ANSWERS)
REPOSITORY = Path(__file__).parents[2]


def _rules() -> dict[str, str]:
    """The rules of the page, by id."""
    page = (REPOSITORY / "docs/replication.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\*\*(R\d+)\. (.+?)\*\*", page, flags=re.MULTILINE))


def _source(module: str) -> tuple[str, str]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8"), spec.origin


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_fits_its_modules(mutant: Mutant) -> None:
    for module in {edit.module for edit in mutant.edits}:
        source, file = _source(module)
        changed = ast.parse(mutated_source(mutant, module, source, file), file)
        assert ast.dump(changed) != ast.dump(ast.parse(source, file)), "the replacement changes nothing but the layout"


def test_ids_are_unique_and_short() -> None:
    assert [found for found, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1] == []
    assert [mutant.id for mutant in MUTANTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){1,6}", mutant.id)] == []


def test_every_mutant_breaks_a_rule_of_the_page_and_every_rule_is_broken() -> None:
    assert {mutant.rule for mutant in MUTANTS} == set(_rules())


def test_every_mutant_says_what_goes_wrong_and_where_it_shows() -> None:
    for mutant in MUTANTS:
        assert mutant.what.endswith("."), mutant.id
        assert mutant.scenario in SCENARIOS, mutant.id
