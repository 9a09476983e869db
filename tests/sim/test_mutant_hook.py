"""Mutants: loaded in place of the source, which stays as it is; each of the lists fits the code it names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.chaos.simulated import mutants
from tidelog.chaos.simulated.mutants.hook import MutantError, MutantFinder, install, mutated_source
from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant
from tidelog.chaos.simulated.runner import proof
from tidelog.chaos.simulated.runner.pool import Pool
from tidelog.chaos.simulated.scenarios.registry import SCENARIOS

SOURCE = '''"""A rule."""


def allowed(votes: int, nodes: int) -> bool:
    # more than half
    return votes > nodes // 2


def name() -> str:
    return "rule"
'''
MAJORITY = "votes > nodes // 2"
ROOT = Path(__file__).resolve().parents[2]


def mutant(old: str = MAJORITY, new: str = "votes > 0", module: str = "a_rule", more: tuple[Edit, ...] = ()) -> Mutant:
    return Mutant("one-vote-is-enough", "RULE-1", "one vote elects", module, old, new, "voting", more)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the import path with the modules ``a_rule`` and ``another_rule``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "a_rule.py").write_text(SOURCE)
    (tmp_path / "another_rule.py").write_text(SOURCE)
    importlib.invalidate_caches()
    before = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = before
    for name in ("a_rule", "another_rule"):
        sys.modules.pop(name, None)


def load(name: str = "a_rule") -> ModuleType:
    return importlib.import_module(name)


def test_the_module_is_loaded_with_the_replacement_and_the_file_stays(directory: Path) -> None:
    finder = install(mutant())
    assert finder.never_loaded == ["a_rule"]
    module = load()
    assert module.allowed(1, 3)
    assert module.__file__ == str(directory / "a_rule.py")
    assert finder.never_loaded == []
    assert (directory / "a_rule.py").read_text() == SOURCE
    assert not load("another_rule").allowed(1, 3)


def test_nothing_of_it_is_cached_and_no_cache_is_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not load().allowed(1, 3)
    cache = Path(importlib.util.cache_from_source(str(directory / "a_rule.py")))
    was = cache.read_bytes()
    del sys.modules["a_rule"]
    install(mutant())
    assert load().allowed(1, 3)
    assert cache.read_bytes() == was


def test_several_replacements_in_several_modules(directory: Path) -> None:
    more = (Edit("a_rule", '"rule"', '"none"'), Edit("another_rule", MAJORITY, "True"))
    finder = install(mutant(more=more))
    assert (load().allowed(1, 3), load().name()) == (True, "none")
    assert finder.never_loaded == ["another_rule"]
    assert load("another_rule").allowed(0, 3)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (mutant(old="votes >= nodes"), "expected its text once in .*a_rule.py, but it occurs 0 times: 'votes >="),
        (mutant(old="return"), "expected its text once in .*a_rule.py, but it occurs 2 times: 'return'"),
        (mutant(old=""), "but it is empty"),
        (mutant(new=MAJORITY), "old and new are the same text"),
        (mutant(new="votes >"), "is no Python with it"),
        (mutant(more=(Edit("a_rule", "return votes > nodes", "return nodes"),)), "overlap"),
    ],
)  # fmt: skip
def test_a_mutant_that_does_not_fit_is_refused(directory: Path, patch: Mutant, words: str) -> None:
    install(patch)
    with pytest.raises(MutantError, match=f"mutant one-vote-is-enough: .*{words}"):
        load()


def test_a_mutant_that_comes_too_late_is_refused(directory: Path) -> None:
    load()
    with pytest.raises(MutantError, match="a_rule imported before the mutant was installed"):
        install(mutant())


def test_what_is_no_source_is_refused(directory: Path) -> None:
    with pytest.raises(MutantError, match="itertools is no Python source but built-in"):
        MutantFinder(mutant(module="itertools")).find_spec("itertools", None)


def test_workers_and_lists_import_nothing_that_a_mutant_may_change() -> None:
    modules = ("runner.worker", "mutants", "scenarios.registry")
    code = (
        f"import sys, {', '.join('tidelog.chaos.simulated.' + name for name in modules)}\n"
        "print(*(n for n in sys.modules if n.startswith('tidelog.') and not n.startswith('tidelog.chaos')))\n"
        "print(*(n for n in sys.modules if n.startswith('tidelog.chaos.simulated.')))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    production, simulation = done.stdout.splitlines()
    assert production == ""
    allowed = {*modules, "runner", "scenarios", "world", "world.scenario", "mutants.mutant"}
    room = ROOT / "chaos/simulated"
    files = list((room / "mutants").rglob("*_mutants*.py"))
    lists = {".".join(path.relative_to(room).with_suffix("").parts) for path in files}
    lists |= {".".join(path.parent.relative_to(room).parts) for path in files}
    assert {name.removeprefix("tidelog.chaos.simulated.") for name in simulation.split()} <= allowed | lists


SCENARIO = '''
import a_rule
from tidelog.chaos.simulated.world.scenario import Fault, Outcome


class Voting:
    """Elects with as many votes as the seed says."""

    name = "voting"
    faults_expected = frozenset()
    events_expected = frozenset()

    def schedule(self, seed):
        return ()

    def run(self, seed, schedule=None, *, trace=None):
        outcome = Outcome(self.name, seed, digest="d")
        if a_rule.allowed(seed % 5, 9):
            outcome.violations.append("elected by a minority")
        return outcome


voting = Voting()
'''


@pytest.fixture
def prove(directory: Path) -> Callable[..., proof.Proof]:
    def run(patch: Mutant, text: str = SCENARIO, seeds: Sequence[int] = range(10, 60), **bounds: float) -> proof.Proof:
        file = directory / "voting.py"
        file.write_text(text)
        with Pool(["voting"], 1, file=file) as clean:
            return proof.prove(patch, seeds, workers=2, clean=clean, file=file, **bounds)

    return run


def line(found: proof.Proof) -> str:
    table = proof.Table([found.mutant])
    assert table.head() == "      mutant              rule    scenario   seeds  caught by"
    return table.line(found)


def test_a_mutant_that_a_seed_sees_is_caught(prove: Callable[..., proof.Proof]) -> None:
    found = prove(mutant(new="votes > 2"))
    assert (found.caught, found.seeds, found.seed, found.by) == (True, 4, 13, "elected by a minority")
    assert line(found) == "ok    one-vote-is-enough  RULE-1  voting         4  elected by a minority"


def test_a_mutant_that_no_seed_sees_is_not(prove: Callable[..., proof.Proof]) -> None:
    found = prove(mutant(new="votes > 4"))
    assert (found.caught, found.seeds, found.by) == (False, 50, "not caught")
    assert line(found) == "FAIL  one-vote-is-enough  RULE-1  voting       >50  not caught"


def test_a_mutant_gets_no_more_than_its_time(directory: Path) -> None:
    (directory / "voting.py").write_text(SCENARIO)
    found = proof.prove(mutant(new="votes > 4"), range(200_000), workers=1, file=directory / "voting.py", budget_s=0.6)
    assert not found.caught
    assert found.seeds < 200_000  # none, where the machine is busy


@pytest.mark.parametrize(
    ("patch", "by"),
    [
        (mutant(new="vote > 2"), "the patch is no sound Python: run raised NameError"),
        (mutant(new="votes > 'two'"), "the patch is no sound Python: run raised TypeError"),
        (mutant(old="nowhere"), "does not run: "),
        (mutant(old='"""A rule."""', new="x = 1 / 0"), "does not run: "),
        (mutant(module="another_rule"), "no run imported another_rule"),
    ],
)
def test_what_is_seen_for_another_reason_is_no_proof(prove: Callable[..., proof.Proof], patch: Mutant, by: str) -> None:
    found = prove(patch)
    assert not found.caught
    assert by in found.by


def test_a_mutant_that_does_not_fit_a_module_imported_amid_a_run_is_no_proof(
    prove: Callable[..., proof.Proof],
) -> None:
    late = SCENARIO.replace("import a_rule\n", "", 1).replace(
        "        outcome", "        import a_rule\n        outcome", 1
    )
    found = prove(mutant(old="nowhere"), late)
    assert not found.caught
    assert "run raised MutantError: mutant one-vote-is-enough: expected its text once" in found.by


def test_a_seed_that_fails_without_the_mutant_is_no_proof(prove: Callable[..., proof.Proof]) -> None:
    found = prove(mutant(new="votes > 2"), SCENARIO.replace("a_rule.allowed(seed % 5, 9)", "seed == 13"))
    assert not found.caught
    assert found.by == "the unchanged code fails on that seed too: elected by a minority"


ENDLESS = SCENARIO.replace("import a_rule", "import time, a_rule", 1).replace(
    "        if a_rule", "        time.sleep(60 * a_rule.allowed(4 if seed % 7 == 6 else 0, 9))\n        if a_rule"
)
"""With ``votes > 3``, every seventh seed, 13 and 20 among them, does not end in time."""


def test_a_run_out_of_time_is_no_proof(prove: Callable[..., proof.Proof]) -> None:
    """The unchanged code ends in time for that seed; but nobody has seen the mutant do wrong."""
    found = prove(mutant(new="votes > 3"), ENDLESS.replace("seed % 5", "0"), range(10, 24), run_s_max=2.0)
    assert (found.caught, found.seeds, found.seed) == (False, 14, None)
    assert found.by == "not caught; 2 runs did not end within 2 s, the first of seed 13"
    assert line(found).startswith("FAIL ")


def test_a_run_out_of_time_hides_no_seed_that_sees_it(prove: Callable[..., proof.Proof]) -> None:
    found = prove(mutant(new="votes > 3"), ENDLESS, range(13, 24), run_s_max=2.0)
    assert (found.caught, found.seeds, found.seed, found.by) == (True, 2, 14, "elected by a minority")


def test_every_mutant_has_an_id_of_its_own_and_says_what_it_does() -> None:
    assert [name for name, count in Counter(one.id for one in mutants.ALL).items() if count > 1] == []
    assert [one.id for one in mutants.ALL if not (one.rule and one.what) or "\n" in one.what] == []
    assert [one.id for one in mutants.ALL if one.scenario not in SCENARIOS] == []


@pytest.mark.parametrize("one", mutants.ALL, ids=lambda one: one.id)
def test_mutant_fits_the_code_and_changes_it(one: Mutant, tmp_path: Path) -> None:
    """A name that the patch misspells would be 'caught' at once: ruff finds it."""
    for module in dict.fromkeys(edit.module for edit in one.edits):
        path = ROOT / "src" / (module.replace(".", "/") + ".py")
        source = path.read_text(encoding="utf-8")
        changed = mutated_source(one, module, source, str(path))
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(changed)), "a change of comments proves nothing"
        (tmp_path / path.name).write_text(changed, encoding="utf-8")
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "check", "--isolated", "--no-cache", "--select", "F821,F823,E9", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
