"""A survivor that goes on alone: its new state, and refusals."""

import random

import pytest

from tests.quorum.test_membership import ALL, IDS, acknowledge, hear, old, opened, said, up, voter
from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.journal import VOTERS_COMMAND
from tidelog.metadata_quorum.raft.recovery import EPOCHS_SKIPPED, look, recover
from tidelog.metadata_quorum.raft.snapshot import Snapshot, SnapshotStore
from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumDamaged, QuorumFailure
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter, VoterSet, directory_of_seat
from tidelog.proto.transport import raft_messages as rm
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles

ALONE = VoterSet((voter(3),), (NodeId(1), NodeId(2)))


def survivor() -> MemoryFiles:
    """Node 3 as a follower of term 4, with ten entries of which five are known to be committed."""
    disk = MemoryFiles(faults=Faults(random.Random(1)))
    engine = opened(3, disk)
    hear(engine, 1, rm.Voters(ALL))
    entries = (
        rm.Entry(4, b"\x01"),
        rm.Entry(4, VOTERS_COMMAND + ALL.encode()),
        *(rm.Entry(4, b"\x00" + (4).to_bytes(8, "little") + b"%d" % index) for index in range(4, 12)),
    )
    hear(engine, 1, rm.Append(4, 6, 1, 0, entries, notice=False))
    engine.close(clean=True)
    disk.restart()
    return disk


def test_it_says_what_it_holds_and_changes_nothing() -> None:
    disk = survivor()
    before = bytes(disk.content("/q/journal"))
    found = look(disk, "/q")
    assert (found.cluster_id, found.me, found.voters) == ("c", voter(3), ALL)
    assert (found.epoch, found.last_offset, found.last_epoch, found.committed_offset) == (4, 11, 4, 6)
    assert bytes(disk.content("/q/journal")) == before


def test_it_leads_alone_with_all_that_it_holds_and_admits_the_others() -> None:
    disk = survivor()
    made = recover(disk, "/q")
    assert (made.voters, made.epoch) == (ALONE, 4 + EPOCHS_SKIPPED)
    disk.restart(power_loss=True)
    engine = opened(3, disk)
    effects = engine.step([], 1.0)
    assert ev.Leading(4 + EPOCHS_SKIPPED + 1) in effects
    committed = [effect.payload for effect in effects if isinstance(effect, ev.Committed) and effect.payload]
    assert committed == [b"%d" % index for index in range(4, 12)]
    for node, copy in ((1, 0), (2, 5)):  # one that was not lost after all, one that was
        engine.step([up(node, copy=copy)], 1.0)
        acknowledge(engine, node, copy=copy, now=1.0)
    acknowledge(engine, 1, now=1.0)
    engine.step([], 1.0)
    acknowledge(engine, 1, now=1.0)
    acknowledge(engine, 2, copy=5, now=1.0)
    assert engine.journal.voters == VoterSet((voter(1), voter(2, 5), voter(3)))


def test_voters_of_before_lose_against_it() -> None:
    disk = survivor()
    recover(disk, "/q")
    engine = opened(3, disk)
    engine.step([], 1.0)
    for message in (rm.PreVoteRequest(7, 99, 6), rm.VoteRequest(7, 99, 6), rm.Append(7, 99, 99, 6, (), notice=False)):
        answers = said(hear(engine, 1, message))
        assert not any(isinstance(answer, rm.VoteGranted) for _, answer in answers)
        assert engine.is_leader


@pytest.mark.parametrize("at", range(1, 12))
def test_killed_at_any_call_it_is_done_or_not(at: int) -> None:
    disk = survivor()
    disk.faults.kill_at = disk.faults.steps + at
    try:
        recover(disk, "/q")
    except Killed:
        pass
    disk.restart(power_loss=True)
    found = look(disk, "/q")
    assert (found.voters, found.epoch) in ((ALL, 4), (ALONE, 4 + EPOCHS_SKIPPED))
    assert recover(disk, "/q").voters == ALONE  # and again


def test_a_directory_of_release_0_1_can_go_on_alone() -> None:
    disk = old(3)
    seats = VoterSet(tuple(Voter(node, directory_of_seat("c", node)) for node in IDS))
    assert look(disk, "/q").voters == seats
    assert recover(disk, "/q").voters == VoterSet((seats.voters[2],), IDS[:2])
    engine = opened(3, disk)
    assert ev.Leading(4 + EPOCHS_SKIPPED + 1) in engine.step([], 1.0)


def test_whoever_was_no_voter_is_refused() -> None:
    disk = MemoryFiles()
    opened(3, disk, may_join=True).close(clean=True)
    with pytest.raises(
        QuorumConfigurationError, match="expected the directory of a voter, found node 3 with directory"
    ):
        recover(disk, "/q")
    with pytest.raises(QuorumConfigurationError, match="expected the metadata log of a controller, found none"):
        recover(disk, "/elsewhere")
    disk.makedirs("/torn")
    disk.put("/torn/journal", b"x" * 40)
    with pytest.raises(QuorumDamaged, match="/torn/journal: damaged at offset 0"):
        look(disk, "/torn")


def test_killed_at_any_call_of_its_first_start_it_says_what_was_found() -> None:
    said = set()
    for at in range(1, 40):
        disk = MemoryFiles(faults=Faults(random.Random(1)))
        disk.faults.kill_at = at
        try:
            opened(3, disk).close(clean=True)
        except Killed:
            pass
        disk.restart(power_loss=True)
        try:
            assert look(disk, "/q").last_offset == 1
            said.add("its first entry")
        except QuorumConfigurationError as error:
            said.add(str(error).partition(":")[2].partition(",")[0])
    assert said == {
        " expected the metadata log of a controller",
        " expected the log of a controller that has run",
        "its first entry",
    }


def test_one_that_runs_is_left_alone() -> None:
    disk = survivor()
    lock = disk.lock("/q/quorum.lock")
    with pytest.raises(QuorumConfigurationError, match="in use by another process"):
        recover(disk, "/q")
    lock.release()


@pytest.mark.parametrize("committed", [11, 15, 40])
def test_one_that_knows_more_to_be_committed_stops_and_the_survivor_goes_on(committed: int) -> None:
    disk = survivor()
    recover(disk, "/q")
    leader = opened(3, disk)
    leader.step([], 1.0)
    for ticket in range(10):
        leader.step([ev.Propose(ticket, leader.term, b"new")], 1.0)
    other = opened(2)
    entries = (
        rm.Entry(4, b"\x01"),
        rm.Entry(4, VOTERS_COMMAND + ALL.encode()),
        *(rm.Entry(4, b"\x00" + (4).to_bytes(8, "little") + b"%d" % index) for index in range(4, 41)),
    )
    hear(other, 1, rm.Voters(ALL))
    hear(other, 1, rm.Append(4, committed, 1, 0, entries, notice=False))
    assert other.commit_index == committed
    stopped: Exception | None = None
    to_other = said(leader.step([up(2)], 1.0))
    for _ in range(50):
        try:
            answers = said(hear(other, 3, *(message for node, message in to_other if node == 2)))
        except QuorumFailure as error:
            stopped = error
            break
        to_other = said(hear(leader, 2, *(message for node, message in answers if node == 3)))
    if committed == 11:
        assert stopped is None
        assert other.journal.last_term == leader.term
    else:
        assert "would overwrite committed entry" in str(stopped)
    assert leader.is_leader


def test_a_snapshot_that_was_being_installed_counts_as_held() -> None:
    """The node was killed before its journal was cut: what is appended to that goes on from the snapshot."""
    disk = survivor()
    SnapshotStore(disk, "/q", "c").write(Snapshot(50, 4, b"state", ALL))
    assert look(disk, "/q").last_offset == 50
    assert recover(disk, "/q").last_offset == 51
    engine = opened(3, disk)
    assert ev.Leading(4 + EPOCHS_SKIPPED + 1) in engine.step([], 1.0)
    assert engine.journal.voters == ALONE
