"""The quorum's scenario: runs hold, are the same each time, can be cut down, and see what they are there to see."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidelog.chaos.sim.quorum_faults import OPERATIONS
from tidelog.chaos.sim.quorum_scenario import PROFILES, QuorumScenario
from tidelog.chaos.sim.quorum_watch import Violation
from tidelog.chaos.sim.quorum_world import QuorumWorld
from tidelog.metadata_quorum.raft_engine import RaftEngine
from tidelog.proto import raft_messages as rm

SCENARIO = QuorumScenario()


@pytest.mark.parametrize("profile", range(len(PROFILES)), ids=lambda at: PROFILES[at].name)
def test_seeds_of_each_profile_hold(profile: int) -> None:
    for seed in range(profile, 4 * len(PROFILES), len(PROFILES)):
        outcome = SCENARIO.run(seed)
        assert outcome.violations == [], seed
        assert outcome.operations >= 100
        assert outcome.events["election"] >= 1
        assert outcome.events["proposal-committed"] >= 20


def test_a_schedule_has_its_faults_and_proposals_and_follows_from_the_seed() -> None:
    for seed in range(50):
        schedule = SCENARIO.schedule(seed)
        assert schedule == SCENARIO.schedule(seed)
        assert sum(entry.kind not in OPERATIONS for entry in schedule) >= 7
        assert [entry.at_s for entry in schedule] == sorted(entry.at_s for entry in schedule)
    assert SCENARIO.schedule(1) != SCENARIO.schedule(1 + len(PROFILES))


def test_the_same_seed_gives_the_same_run_whatever_hashes_are() -> None:
    code = (
        "from tidelog.chaos.sim.quorum_scenario import QuorumScenario\n"
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
            timeout=60,
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


class ClampsNoCommit(RaftEngine):
    """Believes the leader's commit index whatever it has matched (H4 removed)."""

    def _on_append(self, node: object, message: rm.Append) -> None:
        super()._on_append(node, message)
        if message.term == self.term:
            self._SyncObj__raftCommitIndex = max(self.commit_index, min(message.commit_index, self.journal.last_index))


class CountsVotesTwice(RaftEngine):
    """H5 removed."""

    def _on_vote_granted(self, node: object, message: rm.VoteGranted) -> None:
        for _ in range(2):
            self._to_pysyncobj(node, type="response_vote", term=message.term)


@pytest.mark.parametrize("mutant", [ClampsNoCommit, CountsVotesTwice])
def test_a_rule_that_is_removed_is_missed(mutant: type[RaftEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*arguments: object, **named: object) -> QuorumWorld:
        return QuorumWorld(*arguments, **named, engine_class=mutant)  # type: ignore[arg-type]

    monkeypatch.setattr("tidelog.chaos.sim.quorum_scenario.QuorumWorld", made)
    assert any(SCENARIO.run(seed).violations for seed in range(60))


def test_a_quorum_that_comes_to_no_rest_is_a_violation() -> None:
    world = QuorumWorld(1)
    world.start()
    world.resume = lambda *_: None  # type: ignore[method-assign]  # what is cut stays cut
    world.isolate(world.ids[0], silent=True)
    world.isolate(world.ids[1], silent=True)
    with pytest.raises(Violation, match="progress: no leader"):
        world.settle(5)
