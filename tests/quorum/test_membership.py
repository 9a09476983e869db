"""The voters: founding, lost directories, and how they regain their seats (H10)."""

import random
import struct
from pathlib import Path

import pytest

from tidelog.chaos.simulated.quorum.watch import Violation
from tidelog.chaos.simulated.quorum.world import QuorumWorld
from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.journal import VOTERS_COMMAND, RaftJournal
from tidelog.metadata_quorum.raft.journal_records import HEAD_BYTES, body_at
from tidelog.metadata_quorum.raft.snapshot import Snapshot, SnapshotStore
from tidelog.metadata_quorum.raft.storage import open_engine
from tidelog.metadata_quorum.raft.types import (
    QuorumConfigurationError,
    QuorumDamaged,
    QuorumIdentity,
    QuorumLimits,
    QuorumTiming,
)
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import Voter, VoterSet, directory_of_seat
from tidelog.proto.transport import raft_messages as rm
from tidelog.storage.disk.memory_files import MemoryFiles

IDS = (NodeId(1), NodeId(2), NodeId(3))
FIXTURES = Path(__file__).parent / "fixtures"
"""A quorum's directories as release 0.1 left them: entries of term 4 up to 20 (17 on node 3), 16 committed."""


def directory(node: int, copy: int = 0) -> DirectoryId:
    return DirectoryId(bytes([copy]) * 15 + bytes([node]))


def voter(node: int, copy: int = 0) -> Voter:
    return Voter(NodeId(node), directory(node, copy))


ALL = VoterSet((voter(1), voter(2), voter(3)))


def opened(node: int, files: MemoryFiles | None = None, *, may_join: bool = False, copy: int = 0) -> RaftEngine:
    identity = QuorumIdentity("c", NodeId(node), IDS, directory(node, copy), may_join)
    disk = files or MemoryFiles()
    return open_engine(disk, "/q", identity, QuorumTiming(), QuorumLimits(), random.Random(node), 1.0)


def up(node: int, standing: rm.VoterStanding = rm.VoterStanding.FRESH, copy: int = 0) -> ev.LinkUp:
    return ev.LinkUp(NodeId(node), directory(node, copy), standing)


def hear(engine: RaftEngine, node: int, *messages: rm.RaftMessage, copy: int = 0, now: float = 1.0) -> list[ev.Effect]:
    return engine.step([ev.Received(NodeId(node), directory(node, copy), messages)], now)


def said(effects: list[ev.Effect]) -> list[tuple[int, rm.RaftMessage]]:
    return [(effect.peer, effect.message) for effect in effects if isinstance(effect, ev.Send)]


# --- founding --------------------------------------------------------------------------------------------------


def test_the_founder_waits_for_every_controller_and_tells_them_all() -> None:
    engine = opened(1)
    assert said(engine.step([up(2)], 1.0)) == []
    assert said(engine.step([], 60.0)) == []
    assert engine.journal.voters is None
    assert said(engine.step([up(3)], 61.0)) == [(2, rm.Voters(ALL)), (3, rm.Voters(ALL))]
    assert engine.journal.voters == ALL


def test_nobody_but_the_founder_founds() -> None:
    engine = opened(2)
    assert said(engine.step([up(1), up(3)], 1.0)) == []
    assert said(engine.step([], 60.0)) == []
    hear(engine, 1, rm.Voters(ALL))
    assert engine.journal.voters == ALL


def test_who_left_meanwhile_is_not_among_the_founders() -> None:
    engine = opened(1)
    engine.step([up(2), ev.LinkDown(NodeId(2)), up(3)], 1.0)
    assert engine.journal.voters is None
    engine.step([up(2, copy=7)], 1.0)
    assert engine.journal.voters == VoterSet((voter(1), voter(2, 7), voter(3)))


def test_a_founding_survives_a_loss_of_power() -> None:
    disk = MemoryFiles()
    opened(1, disk).step([up(2), up(3)], 1.0)
    disk.restart(power_loss=True)
    assert opened(1, disk, copy=9).journal.voters == ALL


def test_before_it_knows_who_votes_a_directory_neither_follows_nor_votes() -> None:
    engine = opened(2)
    entry = rm.Entry(1, b"\x01")
    asks = (rm.PreVoteRequest(2, 9, 9), rm.VoteRequest(2, 9, 9), rm.Append(1, 2, 1, 0, (entry,), notice=False))
    assert said(hear(engine, 1, *asks)) == []
    assert (engine.term, engine.journal.last_index) == (0, 1)


# --- a directory that was lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("founder", [False, True])
def test_an_empty_directory_is_refused_where_others_vote(founder: bool) -> None:
    node, other = (1, 2) if founder else (2, 1)
    engine = opened(node, copy=5)
    engine.step([up(other, rm.VoterStanding.FOUNDED)], 1.0)
    assert engine.journal.voters is None
    with pytest.raises(
        QuorumConfigurationError, match=f"expected the directory with which node {node} votes.*--format"
    ):
        hear(engine, other, rm.Voters(ALL))


def test_with_leave_it_follows_and_remembers_that_it_may() -> None:
    disk = MemoryFiles()
    opened(2, disk, copy=5)
    opened(2, disk, may_join=True).step([], 1.0)
    engine = opened(2, disk, copy=6)
    assert engine.journal.directory_id == directory(2, 5)
    hear(engine, 1, rm.Voters(ALL))
    assert voters_of(engine) is None
    entry = rm.Entry(1, VOTERS_COMMAND + ALL.encode())
    assert said(hear(engine, 1, rm.Append(1, 2, 1, 0, (entry,), notice=False))) == [
        (1, rm.AppendResult(1, 3, success=True, reset=False))
    ]
    assert voters_of(engine) == ALL
    assert engine.step([], 500.0) == []  # and never asks for votes


def voters_of(engine: RaftEngine) -> VoterSet | None:
    return engine.journal.voters


def lead(engine: RaftEngine) -> int:
    """Node 1 leads by the vote of node 3; node 2 is not there."""
    engine.step([up(2), up(3)], 1.0)
    engine.step([ev.LinkDown(NodeId(2))], 1.0)
    engine.step([], 5.0)
    term = engine.term + 1
    hear(engine, 3, rm.PreVoteResult(term, term - 1, granted=True), now=5.0)
    hear(engine, 3, rm.VoteGranted(term), now=5.0)
    assert engine.is_leader
    acknowledge(engine, 3)
    return term


def acknowledge(engine: RaftEngine, node: int, copy: int = 0, now: float = 5.0) -> list[ev.Effect]:
    answer = rm.AppendResult(engine.term, engine.journal.last_index + 1, success=True, reset=False)
    return hear(engine, node, answer, copy=copy, now=now)


def test_neither_votes_nor_pre_votes_of_an_emptied_directory_count() -> None:
    engine = opened(1)
    engine.step([up(2), up(3)], 1.0)
    engine.step([ev.LinkDown(NodeId(2)), ev.LinkDown(NodeId(3)), up(2, copy=5)], 1.0)
    engine.step([], 5.0)
    term = engine.term + 1
    assert said(hear(engine, 2, rm.PreVoteResult(term, 0, granted=True), copy=5, now=5.0)) == []
    assert engine.term == term - 1
    hear(engine, 3, rm.PreVoteResult(term, 0, granted=True), now=5.0)
    hear(engine, 2, rm.VoteGranted(term), copy=5, now=5.0)
    assert not engine.is_leader
    hear(engine, 3, rm.VoteGranted(term), now=5.0)
    assert engine.is_leader


def test_neither_its_acknowledgements_nor_its_answers_count() -> None:
    engine = opened(1)
    term = lead(engine)
    engine.step([up(2, copy=5), ev.Propose(1, term, b"x")], 5.0)
    committed = engine.commit_index
    hear(engine, 2, rm.AppendResult(term, engine.journal.last_index + 1, success=True, reset=False), copy=5, now=5.0)
    assert engine.commit_index == committed
    hear(engine, 2, rm.AppendResult(term, engine.journal.last_index + 1, success=True, reset=False), copy=5, now=5.4)
    assert ev.Resigned(term) in engine.step([], 5.49)


def test_a_seat_changes_hands_in_two_committed_steps() -> None:
    engine = opened(1)
    lead(engine)
    engine.step([up(2, copy=5)], 5.0)
    assert engine.journal.voters == ALL  # it has nothing yet
    acknowledge(engine, 2, copy=5)
    left = VoterSet((voter(1), voter(3)), (NodeId(2),))
    assert engine.journal.voters == left
    acknowledge(engine, 2, copy=5)
    assert engine.journal.voters == left  # node 3 has to say so: the two that are left are a majority together only
    assert engine.commit_index < engine.journal.last_index
    acknowledge(engine, 3)
    engine.step([], 5.0)
    assert engine.journal.voters == VoterSet((voter(1), voter(2, 5), voter(3)))
    acknowledge(engine, 2, copy=5)
    assert engine.commit_index == engine.journal.last_index


def test_what_an_observer_acknowledged_in_an_earlier_term_does_not_count() -> None:
    engine = opened(1)
    term = lead(engine)
    engine.step([up(2, copy=5), *(ev.Propose(ticket, term, b"x") for ticket in range(9))], 5.0)
    newcomer = engine._linked[NodeId(2)]
    acknowledge(engine, 2, copy=5)
    assert engine._SyncObj__raftMatchIndex[newcomer] == engine.journal.last_index - 1  # and now a change of voters
    engine.step([ev.LinkDown(NodeId(2))], 5.0)
    hear(engine, 3, rm.AppendResult(term + 1, 1, success=False, reset=False), now=5.0)
    engine.step([], 9.0)
    hear(engine, 3, rm.PreVoteResult(engine.term + 1, engine.term, granted=True), now=9.0)
    hear(engine, 3, rm.VoteGranted(engine.term), now=9.0)
    assert engine.is_leader
    engine.step([up(2, copy=5)], 9.0)
    assert engine._SyncObj__raftMatchIndex[newcomer] == 0


def test_a_vote_is_given_again_to_the_same_directory_only() -> None:
    engine = opened(2)
    hear(engine, 1, rm.Voters(ALL))
    for copy, granted in ((0, True), (0, True), (5, False)):
        answers = said(hear(engine, 3, rm.VoteRequest(4, 1, 0), copy=copy))
        assert answers == ([(3, rm.VoteGranted(4))] if granted else [])


def test_a_change_of_voters_that_is_truncated_is_taken_back() -> None:
    disk = MemoryFiles()
    engine = opened(3, disk)
    hear(engine, 1, rm.Voters(ALL))
    left = rm.Entry(1, VOTERS_COMMAND + ALL.without(NodeId(2)).encode())
    hear(engine, 1, rm.Append(1, 1, 1, 0, (rm.Entry(1, b"\x01"), left), notice=False))
    assert engine.journal.voters == ALL.without(NodeId(2))
    hear(engine, 2, rm.Append(2, 1, 2, 1, (rm.Entry(2, b"\x01"),), notice=False))
    assert engine.journal.voters == ALL
    disk.restart()
    assert opened(3, disk).journal.voters == ALL


# --- the story ---------------------------------------------------------------------------------------------------


def test_an_emptied_voter_and_a_laggard_do_not_outvote_who_knows_better() -> None:
    """Node 3 is killed; things are committed by 1 and 2; both are killed, 2 loses its disk; 2 and 3 come back."""
    world = QuorumWorld(1)
    world.start()
    assert world.run(5, lambda: world.leader is not None)
    one, two, three = world.ids
    world.kill(three)
    assert world.run(5, lambda: world.leader in (one, two))
    assert world.leader is not None
    world.propose(world.leader, *(b"%d" % number for number in range(50)))
    assert world.run(5, lambda: len(world.acknowledged) == 50)
    world.kill(one, two)
    world.wipe(two)
    world.start(two, three)
    assert not world.run(30, lambda: world.leader is not None)
    world.start(one)
    assert world.run(5, lambda: world.leader == one)
    world.settle()  # everything is there, and all three vote again
    voters = world.engine(one).journal.voters
    assert voters is not None
    assert set(voters.voters) == {world.engine(node).journal.me for node in world.ids}
    assert world.events["voter-left"] == world.events["voter-admitted"] == 1


def test_the_watch_sees_a_set_that_the_log_does_not_hold() -> None:
    world = QuorumWorld(2)
    world.start()
    assert world.run(5, lambda: world.leader is not None)
    assert world.leader is not None
    follower = next(node for node in world.ids if node != world.leader)
    journal = world.engine(follower).journal
    journal._voters[-1] = (journal.voters_index, ALL)
    world.propose(world.leader, b"x")
    with pytest.raises(Violation, match=f"voters by the log: node {follower} goes by"):
        world.run(1)


# --- on disk -------------------------------------------------------------------------------------------------------


def test_a_snapshot_keeps_the_voters_of_its_last_entry() -> None:
    files = MemoryFiles()
    files.makedirs("/q")
    store = SnapshotStore(files, "/q", "c")
    store.write(Snapshot(7, 3, b"state", ALL))
    assert store.load() == Snapshot(7, 3, b"state", ALL)


@pytest.mark.parametrize("damage", [b"\x02", b"\x02\x01", VOTERS_COMMAND + ALL.encode() + b"\x00"])
def test_an_entry_of_voters_that_cannot_be_read_is_named(damage: bytes) -> None:
    files = MemoryFiles()
    files.makedirs("/q")
    journal = RaftJournal(files, "/q", QuorumIdentity("c", NodeId(1), IDS, directory(1)))
    journal.add(b"\x01", 1, 0)
    with pytest.raises(QuorumDamaged, match=r"/q/journal: entry 2 cannot be read: expected"):
        journal.add(damage, 2, 1)


# --- directories of release 0.1 --------------------------------------------------------------------------------------


def old(node: int) -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs("/q")
    for name in ("journal", "snapshot"):
        path = FIXTURES / f"node-{node}.{name}"
        if path.exists():
            files.put(f"/q/{name}", path.read_bytes())
    return files


SEATS = VoterSet(tuple(Voter(node, directory_of_seat("c", node)) for node in IDS))


def from_old(node: int, *messages: rm.RaftMessage) -> ev.Received:
    return ev.Received(*SEATS.voters[node - 1], messages)


def elected(disks: dict[int, MemoryFiles]) -> RaftEngine:
    """Node 1 leads, by the votes of the two others."""
    engine = opened(1, disks[1])
    engine.step([ev.LinkUp(*voter, rm.VoterStanding.OLD) for voter in SEATS.voters[1:]], 1.0)
    engine.step([], 60.0)
    granted = [from_old(node, rm.PreVoteResult(engine.term + 1, engine.term, granted=True)) for node in (2, 3)]
    engine.step([*granted], 60.0)
    engine.step([from_old(2, rm.VoteGranted(engine.term))], 60.0)
    assert engine.is_leader
    return engine


def read_by_0_1(disk: MemoryFiles) -> None:
    """Whether release 0.1 can still read a journal: its format, no kinds of changes but its own, no voters."""
    data, at, kinds = bytes(disk.content("/q/journal")), 0, set[int]()
    head = body_at(data, 0)
    assert head is not None
    assert struct.unpack_from("<BH", head) == (1, 1)
    while (body := body_at(data, at)) is not None:
        at += HEAD_BYTES + len(body)
        inside = 0 if body[0] != 1 else len(body)
        while inside < len(body):
            kinds.add(body[inside])
            size = struct.unpack_from("<I", body, inside + 17)[0] if body[inside] == 2 else 0
            inside += {2: 21, 3: 9, 4: 17, 5: 9}[body[inside]] + size
            assert body[inside - size : inside - size + 1] != VOTERS_COMMAND or size == 0
    assert at == len(data)
    assert kinds <= {2, 3, 4, 5}


def test_a_directory_of_release_0_1_votes_and_leads_and_stays_readable_for_it() -> None:
    disks = {node: old(node) for node in (1, 2, 3)}
    engine = elected(disks)
    assert engine.standing is rm.VoterStanding.OLD
    assert engine.journal.voters == SEATS
    last = engine.journal.last_index
    assert last == 21, "the entry with which a leader begins"
    done = engine.step([ev.Propose(1, engine.term, b"more"), from_old(2, rm.AppendResult(5, 22, True, False))], 60.1)
    done += engine.step([from_old(2, rm.AppendResult(engine.term, 23, success=True, reset=False))], 60.2)
    assert ev.ProposalEnded(1, ev.ProposalOutcome.COMMITTED, 22) in done
    assert not any(isinstance(message, rm.Voters) for _, message in said(done))
    engine.step([ev.Compact(20, 4, b"state at 20")], 60.3)
    read_by_0_1(disks[1])
    assert bytes(disks[1].content("/q/snapshot"))[:8] == b"TLQSNAP1"
    disks[1].restart(power_loss=True)
    again = opened(1, disks[1], copy=9)
    assert (again.standing, again.journal.me) == (rm.VoterStanding.OLD, SEATS.voters[0])
    assert (again.term, again.journal.last_index) == (engine.term, 22)
    read_by_0_1(disks[1])


def test_no_voter_changes_before_release_0_1_is_left() -> None:
    engine = elected({1: old(1), 2: old(2), 3: old(3)})
    for now in (60.1, 60.2):
        seen = [from_old(node, rm.AppendResult(engine.term, 22, True, False)) for node in (2, 3)]
        engine.step([*seen, up(3, copy=7), ev.Received(NodeId(3), directory(3, 7), ())], now)
        newcomer = rm.AppendResult(engine.term, 22, success=True, reset=False)
        engine.step([ev.Received(NodeId(3), directory(3, 7), (newcomer,))], now)
    assert (engine.journal.voters, engine.journal.last_index) == (SEATS, 21)


def test_once_it_is_left_the_directories_vote() -> None:
    disks = {node: old(node) for node in (1, 2, 3)}
    engine = elected(disks)
    engine.step([from_old(2, rm.AppendResult(engine.term, 22, success=True, reset=False))], 60.1)
    effects = engine.step([ev.Bind()], 60.2)
    assert ev.VotersChanged(SEATS, rm.VoterStanding.FOUNDED, SEATS.voters[0].directory_id) in effects
    assert engine.journal.voters_index == engine.journal.last_index == 22, "for nodes that will get only the log"
    assert engine.step([ev.Bind()], 60.3) is not None
    assert engine.journal.last_index == 22
    disks[1].restart(power_loss=True)
    again = opened(1, disks[1], copy=9)
    assert (again.standing, again.journal.me, again.journal.voters) == (
        rm.VoterStanding.FOUNDED,
        SEATS.voters[0],
        SEATS,
    )


def test_a_laggard_gets_the_voters_in_the_old_format_and_keeps_them() -> None:
    """It was down while the level was raised: entries and snapshots with voters come before it has heard of that."""
    disk = old(3)
    engine = opened(3, disk)
    changed = SEATS.without(NodeId(2))
    entries = tuple(rm.Entry(5, command) for command in (b"\x01", VOTERS_COMMAND + changed.encode()))
    engine.step([from_old(1, rm.Append(5, 16, 17, 4, entries, notice=False))], 1.0)
    assert (engine.standing, engine.journal.voters) == (rm.VoterStanding.OLD, changed)
    disk.restart(power_loss=True)
    assert opened(3, disk).journal.voters == changed
    journal = RaftJournal(disk, "/q", QuorumIdentity("c", NodeId(3), IDS, directory(3)))
    journal.reset([(b"\x01", 30, 5)], changed)
    assert not journal.is_old
    journal.close(clean=True)
    again = RaftJournal(disk, "/q", QuorumIdentity("c", NodeId(3), IDS, directory(3)))
    assert (again.voters, again.is_old, again.me) == (changed, False, SEATS.voters[2])


def test_an_emptied_directory_does_not_vote_beside_logs_of_release_0_1() -> None:
    emptied = opened(2)
    with pytest.raises(QuorumConfigurationError, match="has the log of a quorum"):
        emptied.step([ev.LinkUp(*SEATS.voters[0], rm.VoterStanding.OLD)], 1.0)
    whole = opened(1, old(1))
    granted = whole.step([up(2), ev.Received(NodeId(2), directory(2), (rm.PreVoteResult(5, 4, granted=True),))], 60.0)
    assert not whole.is_leader
    assert not any(isinstance(message, rm.Voters) for _, message in said(granted))


def test_whoever_learns_who_votes_tells_those_who_do_not_know_it() -> None:
    """The founder may end for good when it has told but one."""
    engine = opened(2)
    engine.step([up(1), up(3), ev.LinkDown(NodeId(1))], 1.0)
    assert (3, rm.Voters(ALL)) in said(hear(engine, 1, rm.Voters(ALL)))
