"""One engine at a time, message by message: rules H2 to H6, H9 and H11."""

import random

import pytest

from tests.quorum.test_journal import entries_of
from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.storage import open_engine
from tidelog.metadata_quorum.raft.types import (
    QuorumDamaged,
    QuorumFailure,
    QuorumIdentity,
    QuorumLimits,
    QuorumTiming,
)
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.proto.transport import raft_messages as rm
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles

ME, A, B = NodeId(1), NodeId(2), NodeId(3)
TIMING = QuorumTiming()


def directory(node: NodeId) -> DirectoryId:
    return DirectoryId(bytes([node]) * 16)


def up(peer: NodeId) -> ev.LinkUp:
    return ev.LinkUp(peer, directory(peer), rm.VoterStanding.FRESH)


class Bench:
    """One engine, a clock, a disk; inputs in, effects out."""

    def __init__(self, voters: tuple[NodeId, ...] = (ME, A, B), limits: QuorumLimits | None = None) -> None:
        self.disk = MemoryFiles(faults=Faults(random.Random(1)))
        self.identity = QuorumIdentity("c", ME, voters, directory(ME))
        self.limits = limits or QuorumLimits()
        self.now = 10.0
        self.engine = self.open()
        if others := [voter for voter in voters if voter != ME]:
            self.step(*map(up, others), *map(ev.LinkDown, others))  # ME, the founder, has met them all

    def open(self) -> RaftEngine:
        rng = random.Random(5)
        return open_engine(self.disk, "/q", self.identity, TIMING, self.limits, rng, self.now)

    def restart(self, *, power_loss: bool) -> list[ev.Effect]:
        self.disk.restart(power_loss=power_loss)
        self.engine = self.open()
        return self.step()

    def step(self, *inputs: ev.EngineInput, after: float = 0.0) -> list[ev.Effect]:
        self.now += after
        return self.engine.step(inputs, self.now)

    def hear(self, peer: NodeId, *messages: rm.RaftMessage, after: float = 0.0) -> list[ev.Effect]:
        return self.step(ev.Received(peer, directory(peer), messages), after=after)

    def lead(self) -> int:
        """Become leader by the votes of A; returns the term."""
        self.step(up(A), up(B))
        asked = sent_to(A, self.step(after=2.0))
        assert isinstance(asked[-1], rm.PreVoteRequest)
        term = asked[-1].term
        assert rm.VoteRequest in kinds(self.hear(A, rm.PreVoteResult(term, term - 1, granted=True)))
        self.hear(A, rm.VoteGranted(term))
        assert self.engine.is_leader
        effects = self.hear(A, rm.AppendResult(term, self.engine.journal.last_index + 1, success=True, reset=False))
        assert ev.Leading(term) in effects
        return term


def sent_to(peer: NodeId, effects: list[ev.Effect]) -> list[rm.RaftMessage]:
    return [effect.message for effect in effects if isinstance(effect, ev.Send) and effect.peer == peer]


def kinds(effects: list[ev.Effect]) -> set[type]:
    return {type(effect.message) if isinstance(effect, ev.Send) else type(effect) for effect in effects}


def entries(first: int, last: int, term: int) -> tuple[rm.Entry, ...]:
    return (rm.Entry(term, b"\x00" + term.to_bytes(8, "little") + b"p"),) * (last - first + 1)


def append(term: int, previous: tuple[int, int], new: tuple[rm.Entry, ...], commit: int = 1) -> rm.Append:
    return rm.Append(term, commit, *previous, new, notice=False)


# --- H4: the receiver of appends -----------------------------------------------------------------------


def test_a_resent_batch_truncates_nothing_that_was_acknowledged() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    answer = sent_to(A, bench.hear(A, append(1, (2, 1), entries(3, 4, 1))))
    assert bench.engine.journal.last_index == 10
    assert answer == [rm.AppendResult(1, 5, success=True, reset=False)]


def test_only_a_conflict_truncates() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    bench.hear(B, append(2, (4, 1), entries(5, 6, 2)))
    assert [entry[1:] for entry in entries_of(bench.engine.journal)][3:] == [(4, 1), (5, 2), (6, 2)]


def test_an_answer_claims_no_more_than_the_message_proved() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    assert sent_to(B, bench.hear(B, append(2, (4, 1), ()))) == [rm.AppendResult(2, 5, success=True, reset=False)]


def test_the_commit_index_is_clamped_to_what_matched() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    effects = bench.hear(B, append(2, (4, 1), (), commit=9))
    assert bench.engine.commit_index == 4
    assert [effect.index for effect in effects if isinstance(effect, ev.Committed)] == [2, 3, 4]


def test_a_mismatch_is_answered_with_the_end_of_the_committed_prefix() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1), commit=6))
    for previous in ((40, 1), (10, 2)):
        answers = sent_to(B, bench.hear(B, append(2, previous, entries(previous[0] + 1, previous[0] + 2, 2))))
        assert answers == [rm.AppendResult(2, 7, success=False, reset=True)]


def test_a_committed_entry_is_never_overwritten() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1), commit=6))
    with pytest.raises(QuorumFailure, match="node 3 would overwrite committed entry 5 of term 1"):
        bench.hear(B, append(2, (4, 1), entries(5, 5, 2)))


def test_a_notice_is_not_answered_unless_it_does_not_fit() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    assert sent_to(A, bench.hear(A, rm.Append(1, 10, 10, 1, (), notice=True))) == []
    assert bench.engine.commit_index == 10
    assert sent_to(A, bench.hear(A, rm.Append(1, 12, 12, 1, (), notice=True))) != []


# --- H2, H3: durable before it is said -------------------------------------------------------------------


def test_a_vote_survives_power_loss_and_is_not_given_twice() -> None:
    bench = Bench()
    assert sent_to(A, bench.hear(A, rm.VoteRequest(5, 1, 0))) == [rm.VoteGranted(5)]
    bench.restart(power_loss=True)
    assert sent_to(B, bench.hear(B, rm.VoteRequest(5, 1, 0))) == []
    assert sent_to(A, bench.hear(A, rm.VoteRequest(5, 1, 0))) == [rm.VoteGranted(5)]  # again to the same: no harm


def test_an_acknowledged_entry_survives_power_loss() -> None:
    bench = Bench()
    assert kinds(bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))) >= {rm.AppendResult}
    bench.restart(power_loss=True)
    assert bench.engine.journal.last_index == 10


def test_a_directory_that_was_made_is_there_after_power_loss() -> None:
    for seed in range(20):
        bench = Bench()
        bench.disk.faults.rng = random.Random(seed)
        bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
        bench.restart(power_loss=True)
        assert bench.engine.journal.last_index == 10


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("crash_at", range(1, 8))
def test_directories_above_it_are_made_durable_too(crash_at: int, seed: int) -> None:
    disk = MemoryFiles(faults=Faults(random.Random(seed)))
    identity = QuorumIdentity("c", ME, (ME,), directory(ME))
    disk.faults.kill_at = disk.faults.steps + crash_at  # and what a killed process began, the next one completes
    for _ in range(2):
        try:
            engine = open_engine(disk, "/data/of/quorum", identity, TIMING, QuorumLimits(), random.Random(1), 1.0)
        except Killed:
            pass
        disk.restart()
    engine = open_engine(disk, "/data/of/quorum", identity, TIMING, QuorumLimits(), random.Random(1), 1.0)
    engine.step([], 1.0)
    disk.restart(power_loss=True)
    assert open_engine(disk, "/data/of/quorum", identity, TIMING, QuorumLimits(), random.Random(1), 1.0).term == 1


def test_a_step_syncs_once_however_much_it_takes() -> None:
    bench = Bench()
    bench.lead()
    trace: list[str] = []
    bench.disk.faults.trace = trace
    effects = bench.step(*(ev.Propose(ticket, bench.engine.term, b"x") for ticket in range(100)))
    assert sum(" fdatasync " in step for step in trace) == 1
    messages = sent_to(A, effects)
    assert len(messages) == 1
    assert isinstance(messages[0], rm.Append)
    assert len(messages[0].entries) == 100


def test_nothing_is_said_when_the_disk_fails() -> None:
    bench = Bench()
    bench.disk.faults.fail_at = bench.disk.faults.steps + 1
    with pytest.raises(OSError, match="Input/output"):
        bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))
    with pytest.raises(QuorumFailure, match="unusable"):
        bench.hear(A, append(1, (1, 0), entries(2, 10, 1)))


# --- H5: terms on answers, votes counted once ----------------------------------------------------------------


def test_an_answer_of_an_older_term_is_dropped() -> None:
    bench = Bench()
    term = bench.lead()
    bench.step(ev.Propose(1, term, b"x"))
    effects = bench.hear(B, rm.AppendResult(term - 1, bench.engine.journal.last_index + 1, success=True, reset=False))
    assert ev.Committed not in kinds(effects)


def test_an_answer_of_a_higher_term_deposes() -> None:
    bench = Bench()
    term = bench.lead()
    effects = bench.hear(B, rm.AppendResult(term + 3, 1, success=False, reset=False))
    assert not bench.engine.is_leader
    assert bench.engine.term == term + 3
    assert ev.Resigned(term) in effects


def test_a_vote_counts_once() -> None:
    voters = (ME, A, B, NodeId(4), NodeId(5))
    bench = Bench(voters)
    bench.step(*(up(peer) for peer in voters[1:]))
    bench.step(after=2.0)
    asked = bench.engine.term + 1
    bench.step(
        *(ev.Received(peer, directory(peer), (rm.PreVoteResult(asked, asked - 1, granted=True),)) for peer in (A, B))
    )
    bench.hear(A, *[rm.VoteGranted(asked)] * 5)
    assert not bench.engine.is_leader
    bench.hear(B, rm.VoteGranted(asked))
    assert bench.engine.is_leader


def test_the_next_index_does_not_go_back_on_success() -> None:
    bench = Bench(limits=QuorumLimits(batch_bytes=1))
    term = bench.lead()
    last = bench.engine.journal.last_index
    bench.step(*(ev.Propose(ticket, term, b"x") for ticket in range(5)))
    effects = bench.hear(A, rm.AppendResult(term, last + 2, success=True, reset=False))  # the first of five
    assert [message for message in sent_to(A, effects) if isinstance(message, rm.Append) and message.entries] == []


def test_who_lost_what_it_acknowledged_is_not_counted_any_more() -> None:
    bench = Bench()
    term = bench.lead()
    bench.step(ev.Propose(1, term, b"x"))
    last = bench.engine.journal.last_index
    bench.step(ev.LinkDown(A), up(A))
    bench.hear(A, rm.AppendResult(term, 2, success=False, reset=True))  # a wiped disk
    effects = bench.hear(B, rm.AppendResult(term, 2, success=True, reset=False))
    assert ev.Committed not in kinds(effects)
    assert ev.ProposalEnded(1, ev.ProposalOutcome.COMMITTED, last) in bench.hear(
        A, rm.AppendResult(term, last + 1, success=True, reset=False)
    )


def test_an_answer_that_claims_more_than_was_written_stops_the_leader() -> None:
    bench = Bench()
    term = bench.lead()
    with pytest.raises(QuorumFailure, match="node 2 holds committed or acknowledged entries up to 98"):
        bench.hear(A, rm.AppendResult(term, 99, success=True, reset=False))


def test_two_leaders_of_a_term_stop_the_node() -> None:
    bench = Bench()
    term = bench.lead()
    with pytest.raises(QuorumFailure, match=f"both lead in term {term}"):
        bench.hear(B, append(term, (1, 0), ()))


# --- H6: snapshots -------------------------------------------------------------------------------------------


def with_snapshot(bench: Bench, last: int = 10, commit: int = 10) -> None:
    bench.hear(A, append(1, (1, 0), entries(2, last, 1), commit=commit))
    bench.step(ev.Compact(commit, 1, b"state"))


def test_compaction_and_restart() -> None:
    bench = Bench(limits=QuorumLimits(retained_entries=1))
    with_snapshot(bench, last=12)
    assert bench.engine.journal.first_index == 9
    effects = bench.restart(power_loss=True)
    assert effects[0] == ev.Loaded(10, 1, b"state")
    assert bench.engine.journal.last_index == 12
    assert [effect.index for effect in effects if isinstance(effect, ev.Committed)] == []


def test_a_journal_that_was_cut_needs_its_snapshot() -> None:
    bench = Bench(limits=QuorumLimits(retained_entries=1))
    with_snapshot(bench)
    bench.disk.restart()
    snapshot = bytes(bench.disk.content("/q/snapshot"))
    bench.disk.unlink("/q/snapshot")
    with pytest.raises(QuorumFailure, match=r"begins at entry 9, and /q/snapshot, .* is missing"):
        bench.open()
    bench.disk.put("/q/snapshot", snapshot)
    bench.open()


def test_a_snapshot_needs_its_journal() -> None:
    bench = Bench()
    with_snapshot(bench)
    bench.disk.restart()
    bench.disk.unlink("/q/journal")
    with pytest.raises(QuorumDamaged, match="/q/journal: missing, though /q/snapshot is there"):
        bench.open()


def test_a_gap_between_snapshot_and_journal_is_refused() -> None:
    bench = Bench(limits=QuorumLimits(retained_entries=1))
    bench.hear(A, append(1, (1, 0), entries(2, 20, 1), commit=20))
    bench.step(ev.Compact(5, 1, b"old"))
    old = bytes(bench.disk.content("/q/snapshot"))
    bench.step(ev.Compact(20, 1, b"new"))
    bench.disk.restart()
    bench.disk.put("/q/snapshot", old)
    with pytest.raises(QuorumFailure, match="begins at entry 19, /q/snapshot ends at 5"):
        bench.open()


def parts_of(state: bytes, index: int, term: int) -> list[rm.SnapshotPart]:
    source = Bench(limits=QuorumLimits(snapshot_part_bytes=200))
    source.hear(A, append(term, (1, 0), entries(2, index, term), commit=index))
    source.step(ev.Compact(index, term, state))
    sender = source.engine._sender
    found = []
    while (part := sender.next_part(A)) is not None:
        found.append(rm.SnapshotPart(term, index, *part.snapshot, part.offset, part.data))
        sender.on_result(A, rm.SnapshotResult(term, *part.snapshot[:3], part.offset + len(part.data), gap=False))
    return found


def test_a_received_snapshot_is_installed_and_survives() -> None:
    bench = Bench()
    parts = parts_of(bytes(1000), 8, 2)
    for part in parts[:-1]:
        answers = sent_to(A, bench.hear(A, part))
        assert isinstance(answers[0], rm.SnapshotResult)
        assert answers[0].offset == part.offset + len(part.data)
    effects = bench.hear(A, parts[-1])
    assert ev.Loaded(8, 2, bytes(1000)) in effects
    assert sent_to(A, effects) == [rm.AppendResult(2, 9, success=True, reset=True)]
    assert bench.restart(power_loss=True)[0] == ev.Loaded(8, 2, bytes(1000))
    assert bench.engine.journal.last_index == 8


def test_a_snapshot_is_not_installed_over_newer_commits() -> None:
    bench = Bench()
    bench.hear(A, append(2, (1, 0), entries(2, 10, 2), commit=10))
    effects = bench.hear(A, *parts_of(b"old", 8, 2))
    assert ev.Loaded not in kinds(effects)
    assert sent_to(A, effects) == [rm.AppendResult(2, 11, success=True, reset=True)]
    assert not bench.disk.exists("/q/snapshot")


def test_a_snapshot_keeps_the_suffix_that_follows_it() -> None:
    bench = Bench()
    bench.hear(A, append(2, (1, 0), entries(2, 10, 2), commit=3))
    assert ev.Loaded(8, 2, b"s") in bench.hear(A, *parts_of(b"s", 8, 2))
    assert [entry[1] for entry in entries_of(bench.engine.journal)] == [8, 9, 10]


def test_a_gap_in_the_parts_is_refused_and_said() -> None:
    bench = Bench()
    parts = parts_of(bytes(1000), 8, 2)
    bench.hear(A, parts[0])
    answers = sent_to(A, bench.hear(A, parts[2]))
    assert isinstance(answers[0], rm.SnapshotResult)
    assert (answers[0].offset, answers[0].gap) == (200, True)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_in_any_call_of_an_installation_loses_nothing(power_loss: bool) -> None:
    parts = parts_of(bytes(300), 8, 2)
    for crash_at in range(1, 60):
        bench = Bench()
        bench.hear(A, append(2, (1, 0), entries(2, 5, 2), commit=3))
        bench.hear(A, rm.VoteRequest(2, 99, 2), after=2)
        vote = bench.engine.journal.getVotedForNodeId()
        bench.disk.faults.kill_at = bench.disk.faults.steps + crash_at
        crashed = False
        try:
            bench.hear(A, *parts)
        except Killed:
            crashed = True
        effects = bench.restart(power_loss=power_loss)
        loaded = ev.Loaded(8, 2, bytes(300)) in effects
        assert loaded or (crashed and bench.engine.journal.last_index == 5)
        assert bench.engine.journal.getVotedForNodeId() == vote
        assert bench.engine.term == 2
        if not crashed:
            return
    pytest.fail("the installation never completed")


# --- H9: pre-vote and stickiness -----------------------------------------------------------------------------


def test_a_voter_that_hears_its_leader_refuses_votes() -> None:
    bench = Bench()
    bench.hear(A, append(1, (1, 0), ()))
    effects = bench.hear(B, rm.PreVoteRequest(2, 9, 9), rm.VoteRequest(7, 9, 9))
    assert sent_to(B, effects) == [rm.PreVoteResult(2, 1, granted=False)]
    assert bench.engine.term == 1


def test_a_broken_stream_with_the_leader_makes_it_probe_at_once_and_nothing_else() -> None:
    bench = Bench()
    bench.step(up(A), up(B))
    bench.hear(A, append(1, (1, 0), ()))
    bench.step(ev.LinkDown(A))
    effects = bench.step(after=2 * TIMING.probe_spacing_s)
    assert sent_to(B, effects) == [rm.PreVoteRequest(2, 1, 0)]
    assert bench.engine.term == 1
    assert bench.engine.leader_id == A
    bench.hear(B, rm.PreVoteResult(2, 1, granted=False))
    bench.hear(A, append(1, (1, 0), ()))
    assert rm.PreVoteRequest not in kinds(bench.step(after=TIMING.election_min_s - 0.01))


def test_a_pre_vote_needs_a_log_as_good() -> None:
    bench = Bench()
    bench.hear(A, append(3, (1, 0), entries(2, 5, 3)))
    for last in ((4, 3), (99, 2)):
        answers = sent_to(B, bench.hear(B, rm.PreVoteRequest(4, *last), after=5))
        assert rm.PreVoteResult(4, 3, granted=False) in answers
    assert rm.PreVoteResult(4, 3, granted=True) in sent_to(B, bench.hear(B, rm.PreVoteRequest(4, 5, 3), after=5))


def test_a_leader_that_hears_no_majority_steps_down_within_half_a_second() -> None:
    bench = Bench()
    term = bench.lead()
    bench.step(ev.Propose(9, term, b"x"))
    lost_at = bench.now
    while bench.engine.is_leader:
        bench.now = max(bench.now, bench.engine.deadline())
        effects = bench.step()
        assert bench.now < lost_at + 0.5
    assert ev.Resigned(term) in effects
    assert ev.ProposalEnded(9, ev.ProposalOutcome.UNKNOWN, -1) in effects


def test_an_answer_that_is_handed_over_later_proves_that_its_sender_was_there_when_it_came() -> None:
    bench = Bench()
    term = bench.lead()
    matched = bench.engine.journal.last_index + 1
    came = bench.now + 0.1
    answer = ev.Received(A, directory(A), (rm.AppendResult(term, matched, success=True, reset=False),), at=came)
    assert ev.Resigned(term) not in bench.step(answer, after=0.3)
    assert bench.engine.silence_deadline() == pytest.approx(came + TIMING.majority_lost_s)
    while bench.engine.is_leader:
        bench.now = max(bench.now, bench.engine.deadline())
        bench.step()
    assert bench.now == pytest.approx(came + TIMING.majority_lost_s, abs=0.001)


# --- H11: the epoch of a command -----------------------------------------------------------------------------


def test_a_proposal_of_another_epoch_never_enters_the_log() -> None:
    bench = Bench()
    term = bench.lead()
    last = bench.engine.journal.last_index
    effects = bench.step(ev.Propose(1, term - 1, b"x"), ev.Propose(2, term + 1, b"x"))
    refused = ev.ProposalOutcome.NOT_LEADING
    assert [ev.ProposalEnded(1, refused, -1), ev.ProposalEnded(2, refused, -1)] == [
        effect for effect in effects if isinstance(effect, ev.ProposalEnded)
    ]
    assert bench.engine.journal.last_index == last


def test_a_command_of_another_epoch_than_its_entry_is_void() -> None:
    bench = Bench()
    late = rm.Entry(5, b"\x00" + (4).to_bytes(8, "little") + b"late")
    valid = rm.Entry(5, b"\x00" + (5).to_bytes(8, "little") + b"valid")
    effects = bench.hear(A, append(5, (1, 0), (late, valid), commit=3))
    assert ev.Committed(2, 5, b"") in effects
    assert ev.Committed(3, 5, b"valid") in effects


def test_a_leader_leads_only_after_its_own_first_entry() -> None:
    bench = Bench()
    bench.step(up(A), up(B))
    bench.step(after=2.0)
    term = bench.engine.term + 1
    bench.hear(A, rm.PreVoteResult(term, term - 1, granted=True))
    assert ev.Leading not in kinds(bench.hear(A, rm.VoteGranted(term)))
    effects = bench.hear(A, rm.AppendResult(term, 3, success=True, reset=False))
    assert effects.index(ev.Committed(2, term, b"")) < effects.index(ev.Leading(term))


def test_a_single_voter_leads_with_its_first_step() -> None:
    bench = Bench((ME,))
    effects = bench.step()
    assert ev.Leading(1) in effects
    assert bench.engine.deadline() < bench.now + 1.1
    bench.step(after=1.1)
    assert bench.engine.journal.sealed
    assert bench.engine.deadline() == float("inf")  # and sleeps until somebody proposes
    assert ev.ProposalEnded(1, ev.ProposalOutcome.COMMITTED, 4) in bench.step(ev.Propose(1, 1, b"x"))
