"""A small random run in virtual time. The long one, and the mutants that it must catch, come with the chaos tests."""

import pytest

from tidelog.chaos.quorum_faults import FaultSchedule
from tidelog.chaos.quorum_world import QuorumWorld, Violation
from tidelog.metadata_quorum.quorum_types import QuorumFailure
from tidelog.metadata_quorum.raft_engine import RaftEngine
from tidelog.proto import raft_messages as rm


@pytest.mark.parametrize("seed", range(30))
def test_three_voters_in_trouble(seed: int) -> None:
    world = FaultSchedule(seed, seconds=4).run()
    assert world.acknowledged


@pytest.mark.parametrize("seed", range(100, 106))
def test_five_voters_in_trouble(seed: int) -> None:
    world = FaultSchedule(seed, voters=5, seconds=4).run()
    assert world.acknowledged


def test_a_single_voter_in_trouble() -> None:
    for seed in range(200, 205):
        assert FaultSchedule(seed, voters=1, seconds=4).run().acknowledged


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(world: QuorumWorld) -> object:
        return world.steps, world.crashes, world.now, world.acknowledged, world.committed, world.leaders

    assert trace(FaultSchedule(7, seconds=4).run()) == trace(FaultSchedule(7, seconds=4).run())
    assert trace(FaultSchedule(7, seconds=4).run()) != trace(FaultSchedule(8, seconds=4).run())


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


class AcknowledgesAll(RaftEngine):
    """Acknowledges its whole log, not what the message proved (H4 removed)."""

    def _answer(self, node: object, *, success: bool, reset: bool, next_index: int | None = None) -> None:
        if success and not reset:
            next_index = None
        super()._answer(node, success=success, reset=reset, next_index=next_index)


@pytest.mark.parametrize(
    ("mutant", "voters"),
    [(ClampsNoCommit, 3), (CountsVotesTwice, 5), (AcknowledgesAll, 3)],
    ids=lambda value: str(value),
)
def test_a_rule_that_is_removed_is_missed(mutant: type[RaftEngine], voters: int) -> None:
    def run_all() -> None:
        for seed in range(20):
            FaultSchedule(seed, voters=voters, seconds=10, engine_class=mutant).run()

    with pytest.raises((Violation, QuorumFailure)):
        run_all()
