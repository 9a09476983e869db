"""The quorum's scenario: runs hold, are the same each time, can be cut down, and see what they are there to see."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.chaos.simulated.mutants.hook import mutated_source
from tidelog.chaos.simulated.mutants.metadata import quorum_membership_mutants, quorum_mutants
from tidelog.chaos.simulated.quorum.faults import OPERATIONS
from tidelog.chaos.simulated.quorum.scenario import PROFILES, QuorumScenario
from tidelog.chaos.simulated.quorum.watch import Violation
from tidelog.chaos.simulated.quorum.world import QuorumWorld

SCENARIO = QuorumScenario()


@pytest.mark.parametrize("profile", range(len(PROFILES)), ids=lambda at: PROFILES[at].name)
def test_seeds_of_each_profile_hold(profile: int) -> None:
    for seed in range(profile, 4 * len(PROFILES), len(PROFILES)):
        outcome = SCENARIO.run(seed)
        assert outcome.violations == [], seed
        assert outcome.operations >= 100
        assert sum(outcome.faults.values()) >= 5
        assert outcome.events["election"] >= 1


def test_a_schedule_has_its_faults_and_proposals_and_follows_from_the_seed() -> None:
    for seed in range(50):
        schedule = SCENARIO.schedule(seed)
        assert schedule == SCENARIO.schedule(seed)
        assert sum(entry.kind not in OPERATIONS for entry in schedule) >= 7
        assert [entry.at_s for entry in schedule] == sorted(entry.at_s for entry in schedule)
    assert SCENARIO.schedule(1) != SCENARIO.schedule(1 + len(PROFILES))


def test_the_same_seed_gives_the_same_run_whatever_hashes_are() -> None:
    code = (
        "from tidelog.chaos.simulated.quorum.scenario import QuorumScenario\n"
        "lines = []\n"
        "for seed in range(20):\n"
        "    outcome = QuorumScenario().run(seed, trace=lines.append)\n"
        "    print(seed, outcome.digest, sorted(outcome.events.items()), sorted(outcome.faults.items()))\n"
        "import hashlib\n"
        "print(hashlib.sha256('\\n'.join(lines).encode()).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len({line.split()[1] for line in runs[0].splitlines()[:-1]}) == 20


def test_any_part_of_a_schedule_is_a_schedule() -> None:
    for seed in range(len(PROFILES)):
        schedule = SCENARIO.schedule(seed)
        for part in (schedule[::2], schedule[1::2], ()):
            outcome = SCENARIO.run(seed, part)
            assert outcome.violations == []
            assert sum(outcome.faults.values()) <= len(part)


@pytest.mark.parametrize("name", ["quorum-vote-forgotten", "quorum-no-stickiness", "quorum-commits-older-terms"])
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    """All of them: ``./dev sim --mutants``."""
    code = (
        "import sys\n"
        "from tidelog.chaos.simulated.mutants import ALL\n"
        "from tidelog.chaos.simulated.mutants.hook import install\n"
        "finder = install(next(mutant for mutant in ALL if mutant.id == sys.argv[1]))\n"
        "from tidelog.chaos.simulated.quorum.scenario import QuorumScenario\n"
        "caught = any(QuorumScenario().run(seed).violations for seed in range(1, 60))\n"
        "print('caught' if caught and not finder.never_loaded else 'missed')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True, timeout=240)
    assert ran.stdout == "caught\n"


def test_mutants_have_names_of_their_own_and_fit_their_sources() -> None:
    mutants = (*quorum_mutants.MUTANTS, *quorum_membership_mutants.MUTANTS)
    names = [mutant.id for mutant in mutants]
    assert len(set(names)) == len(names) >= 50
    for mutant in mutants:
        for edit in mutant.edits:
            spec = importlib.util.find_spec(edit.module)
            assert spec is not None
            assert spec.origin is not None
            source = Path(spec.origin).read_text()
            assert mutated_source(mutant, edit.module, source, spec.origin) != source


def test_a_quorum_that_comes_to_no_rest_is_a_violation() -> None:
    world = QuorumWorld(1)
    world.start()
    world.resume = lambda *_: None  # type: ignore[method-assign]  # what is cut stays cut
    world.isolate(world.ids[0], silent=True)
    world.isolate(world.ids[1], silent=True)
    with pytest.raises(Violation, match="progress: no leader"):
        world.settle(5)
