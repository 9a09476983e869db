"""Faults that an audit of pysyncobj 0.3.17 found: the stock engine shows them, ours must not.

Each pair of tests tells one fault. The stock half keeps the reasons for the hardening true: should a
later pysyncobj mend one, its test fails and the rule can be looked at again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pysyncobj
import pysyncobj.journal
import pysyncobj.syncobj
import pysyncobj.version
import pytest
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tidelog.chaos.simulated.quorum.world import QuorumWorld
from tidelog.metadata_quorum.raft import base as raft_base
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.types import QuorumFailure, QuorumLimits
from tidelog.model.ids import NodeId
from tidelog.proto.transport import raft_messages as rm

EMPTY = b"\x01"


class Outbox(Transport):  # type: ignore[misc]  # pysyncobj is not typed
    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True


class Stock(pysyncobj.SyncObj):  # type: ignore[misc]  # pysyncobj is not typed
    """pysyncobj as published, on a transport that only collects."""

    def __init__(self, **settings: Any) -> None:
        self.outbox = Outbox()
        conf = pysyncobj.SyncObjConf(autoTick=False, **settings)
        super().__init__(Node("me"), [Node("a"), Node("b")], conf, nodeClass=Node, transport=self.outbox)
        self.applied: list[str] = []

    @pysyncobj.replicated  # type: ignore[untyped-decorator]
    def put(self, what: str) -> None:
        self.applied.append(what)

    def hear(self, peer: str, **message: Any) -> list[tuple[str, dict[str, Any]]]:
        self.outbox.sent.clear()
        self._SyncObj__onMessageReceived(Node(peer), message)
        return list(self.outbox.sent)

    def hear_entries(self, first: int, last: int, previous: tuple[int, int], term: int = 1) -> list[Any]:
        new = [(EMPTY, index, term) for index in range(first, last + 1)]
        return self.hear(
            "a",
            type="append_entries",
            term=term,
            commit_index=1,
            entries=new,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
        )

    @property
    def last_index(self) -> int:
        index: int = self._SyncObj__raftLog[-1][1]
        return index


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("pysyncobj")
    before, logger.level = logger.level, logging.CRITICAL + 1
    yield
    logger.level = before


# --- a follower truncates what it acknowledged -----------------------------------------------------------


def test_stock_follower_truncates_what_it_acknowledged() -> None:
    stock = Stock()
    stock.hear_entries(2, 10, (1, 0))
    acknowledged = stock.hear_entries(3, 4, (2, 1))
    assert acknowledged[0][1]["success"]
    assert stock.last_index == 4  # 5 to 10 were acknowledged and are gone


def test_leader_kill_with_a_slow_follower_loses_nothing() -> None:
    """One kill -9 of the leader, one slow follower, batches resent: every acknowledged entry survives."""
    world = QuorumWorld(1, limits=QuorumLimits(batch_bytes=20_000, window_bytes=60_000))
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    fast, slow = (node for node in world.ids if node != leader)
    world.disconnect(leader, slow, block=True)
    world.disconnect(fast, slow, block=True)
    for number in range(1000):
        world.propose(leader, b"%d" % number + b"x" * 200)
    world.run(0.05)
    world.stall(fast, leader)  # acknowledgements no longer arrive: the leader sends again
    for number in range(50):
        world.propose(leader, b"late %d" % number + b"x" * 200)
    world.run(0.3)
    world.kill(leader)
    world.heal()
    assert world.run(3, lambda: world.leader not in (None, leader))
    assert len(world.acknowledged) >= 1000
    world.settle()


# --- a diverged follower never converges -----------------------------------------------------------------


def diverged_follower(engine_class: type[RaftEngine]) -> QuorumWorld:
    """A leader is cut off with entries of its own; meanwhile the others commit many batches."""
    world = QuorumWorld(2, limits=QuorumLimits(batch_bytes=20_000, window_bytes=80_000), engine_class=engine_class)
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    old = world.leader
    assert old is not None
    world.isolate(old, silent=True)
    for number in range(4):
        world.propose(old, b"uncommitted %d" % number)
    assert world.run(5, lambda: world.leader not in (None, old))
    new = world.leader
    assert new is not None
    for number in range(1000):
        world.propose(new, b"%d" % number + b"x" * 195)
    world.run(1)
    world.disconnect(old, new)  # what was under way is lost: the follower hears of the latest batch first
    world.heal()
    world.run(3)
    third = next(node for node in world.ids if node not in (old, new))
    world.kill(third)
    world.propose(new, b"after")
    world.run(3)
    return world


def test_a_diverged_follower_converges_and_a_majority_goes_on() -> None:
    world = diverged_follower(RaftEngine)
    assert b"after" in world.acknowledged
    world.settle()


def test_the_stock_answer_to_a_mismatch_never_converges() -> None:
    class StockAnswer(RaftEngine):
        """Every batch under way is answered with the end of the follower's log."""

        def _answer(self, node: Any, *, success: bool, reset: bool, next_index: int | None = None) -> None:
            if not success and reset:
                next_index = self.journal.last_index + 1
            super()._answer(node, success=success, reset=reset, next_index=next_index)

    assert b"after" not in diverged_follower(StockAnswer).acknowledged


# --- votes ---------------------------------------------------------------------------------------------------


def test_stock_forgets_its_vote_with_its_meta_file(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    journal = pysyncobj.journal.FileJournal(path)
    journal.setCurrentTerm(7, "a")
    journal._destroy()
    Path(path + ".meta").write_bytes(b"")  # what a power loss leaves of a file that was renamed and not synced
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pysyncobj leaves the file open
        again = pysyncobj.journal.FileJournal(path)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (0, None)
    again._destroy()


# the other half: test_engine.py::test_a_vote_survives_power_loss_and_is_not_given_twice,
# test_journal.py::test_a_file_that_is_no_journal_is_refused


# --- the journal on disk ---------------------------------------------------------------------------------------


def test_stock_loses_its_tail_when_killed_in_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "journal")
    journal = pysyncobj.journal.FileJournal(path)
    for index in range(1, 101):
        journal.add(EMPTY, index, 1)
    added: list[int] = []
    add = pysyncobj.journal.FileJournal.add

    def killed(self: object, command: bytes, index: int, term: int) -> None:
        if len(added) == 10:
            raise KeyboardInterrupt
        added.append(index)
        add(self, command, index, term)

    monkeypatch.setattr(pysyncobj.journal.FileJournal, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        journal.deleteEntriesTo(50)
    monkeypatch.undo()
    journal._destroy()
    again = pysyncobj.journal.FileJournal(path)
    assert len(again) == 10  # of 50
    again._destroy()


def test_stock_takes_flipped_bytes_for_entries(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = pysyncobj.journal.FileJournal(str(path))
    journal.add(b"\x00payload", 1, 1)
    journal._destroy()
    path.write_bytes(path.read_bytes().replace(b"payload", b"PAYLOAD"))
    again = pysyncobj.journal.FileJournal(str(path))
    assert again[0][0] == b"\x00PAYLOAD"
    again._destroy()


# the other half: test_journal.py, test_snapshot.py


# --- callbacks and apply ---------------------------------------------------------------------------------------


def stock_leader() -> Stock:
    stock = Stock()
    stock._SyncObj__connectedNodes.update((Node("a"), Node("b")))
    stock._SyncObj__raftElectionDeadline = 0
    stock.doTick()
    stock.hear("a", type="response_vote", term=stock.raftCurrentTerm)
    assert stock._isLeader()
    return stock


def acknowledge_all(stock: Stock) -> None:
    stock.hear("a", type="next_node_idx", reset=False, next_node_idx=stock.last_index + 1, success=True)


def test_stock_applies_an_entry_twice_when_a_callback_raises() -> None:
    stock = stock_leader()
    calls: list[object] = []

    def callback(result: object, error: object) -> None:
        calls.append(result)
        if len(calls) == 1:
            raise RuntimeError("the client went away")

    stock.put("x", callback=callback)
    stock.doTick()
    acknowledge_all(stock)
    with pytest.raises(RuntimeError):
        stock.doTick()
    stock.doTick()
    assert stock.applied == ["x", "x"]


# the other half: test_quorum.py::test_a_listener_that_raises_stops_the_node


# --- a cut-off leader ------------------------------------------------------------------------------------------


def test_stock_leader_that_is_cut_off_leads_on_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [pysyncobj.syncobj.monotonicTime()]
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: now[0])
    stock = stock_leader()
    began = now[0]
    while stock._isLeader():
        now[0] += 0.1
        stock.doTick()
    assert now[0] - began > 29


def test_a_leader_that_is_cut_off_steps_down_before_another_is_elected() -> None:
    world = QuorumWorld(3)
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    old = world.leader
    assert old is not None
    world.run(1)
    world.isolate(old, silent=True)
    cut_at = world.now
    assert world.run(1, lambda: not world.voters[old].leading)
    assert world.now - cut_at < 0.5
    assert world.judge.terms_led == 1
    assert world.run(3, lambda: world.leader is not None)


# --- elections that disturb --------------------------------------------------------------------------------------


def test_an_isolated_voter_burns_no_terms_and_deposes_nobody_when_it_returns() -> None:
    world = QuorumWorld(4)
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    other = next(node for node in world.ids if node != leader)
    for silent in (True, False):
        term = world.engine(leader).term
        world.isolate(other, silent=silent)
        world.run(60)
        assert world.engine(other).term == term
        world.heal()
        world.run(5)
        assert world.leader == leader
        assert world.engine(leader).term == term


def test_one_broken_link_changes_no_leader() -> None:
    world = QuorumWorld(5)
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    other = next(node for node in world.ids if node != leader)
    world.disconnect(leader, other, block=True)
    world.run(60)
    assert world.judge.terms_led == 1


def test_stock_voter_burns_a_term_with_each_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [pysyncobj.syncobj.monotonicTime()]
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: now[0])
    stock = Stock()
    stock._SyncObj__connectedNodes.add(Node("read-only"))  # enough for it to campaign
    for _ in range(600):
        now[0] += 0.1
        stock.doTick()
    assert stock.raftCurrentTerm > 40


# --- failover ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_failover_after_a_kill_takes_a_few_round_trips(seed: int) -> None:
    world = QuorumWorld(seed)
    world.start()
    assert world.run(1, lambda: world.leader is not None)
    world.run(0.5)
    old = world.leader
    assert old is not None
    world.kill(old)
    killed_at = world.now
    assert world.run(1, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    world.propose(leader, b"first")
    assert world.run(1, lambda: b"first" in world.acknowledged)
    assert world.now - killed_at < 0.2


# --- what may not be reached ---------------------------------------------------------------------------------------


def test_pickle_sockets_and_forks_are_cut_off() -> None:
    module = raft_base._Base.__init__.__globals__
    for name in ("pickle", "os", "TCPTransport", "PipeNotifier", "random", "time"):
        with pytest.raises(QuorumFailure, match=f"reached {name}.*cut off"):
            _ = module[name].anything
    assert module["pickle"] is not pysyncobj.syncobj.pickle
    assert pysyncobj.syncobj.pickle.loads(pysyncobj.syncobj.pickle.dumps(1)) == 1  # a user's own is untouched


@pytest.mark.parametrize("kind", ["apply_command", "apply_command_response", "timeout_now"])
def test_what_pysyncobj_would_forward_stops_the_node(kind: str) -> None:
    world = QuorumWorld(6)
    world.start()
    engine = world.engine(NodeId(1))
    with pytest.raises(QuorumFailure, match=f"tried to send '{kind}'"):
        engine._outbox.send(raft_base.Node(NodeId(2)), {"type": kind})


def test_an_oversized_entry_is_sent_as_any_other() -> None:
    world = QuorumWorld(7)
    world.start()
    assert world.run(3, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    world.propose(leader, bytes(3 * 1024 * 1024))
    world.settle()
    assert max(len(payload) for payload in world.acknowledged) == 3 * 1024 * 1024


def test_the_version_is_pinned() -> None:
    assert pysyncobj.version.VERSION == raft_base.PINNED_VERSION == "0.3.17"


def test_messages_name_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="expected a RaftFrame, found 3 bytes"):
        rm.decode_frame(b"\xff\xff\xff")
