"""The quorum's interface: propose changes, receive committed entries, know the leader.

Everything here runs on the event loop. The Raft engine behind it runs in its own thread or, for the simulation, on the
loop (:mod:`tidelog.metadata_quorum.raft.driver`). A metadata offset is a Raft index, an epoch is a Raft term; offsets
start at :data:`FIRST_OFFSET`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, assert_never

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.committed_log import CommittedEntry, CommittedLog, SnapshotNeeded
from tidelog.metadata_quorum.raft.driver import EngineDriver, InlineDriver, ThreadDriver
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.files import QuorumFiles, QuorumLock
from tidelog.metadata_quorum.raft.storage import lock_directory, open_engine
from tidelog.metadata_quorum.raft.transport import RaftLinks
from tidelog.metadata_quorum.raft.types import (
    PROPOSAL_BYTES_MAX,
    NotLeading,
    OutcomeUnknown,
    QuorumBusy,
    QuorumConfigurationError,
    QuorumIdentity,
    QuorumLimits,
    QuorumListener,
    QuorumTiming,
)
from tidelog.model.ids import ControllerEpoch, DirectoryId, NodeId, Offset, random_id
from tidelog.model.voter_set import Voter, VoterSet
from tidelog.proto.transport import raft_messages as rm
from tidelog.proto.transport.network import Address, Connection, SessionFactory

PROPOSALS_UNDER_WAY_MAX: Final = 4096
PROPOSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of pending proposals; a single one is always allowed."""

PLACE_TOLD_AFTER_S: Final = 5.0
"""How often a directory that waits for its place logs that."""

log = logging.getLogger(__name__)


class Quorum:
    """One voter.

    :param voters: the node id and controller listener of every seat, this node's among them; the ids are fixed for
        the life of the cluster, the directories are in the log.
    :param directory: holds journal and snapshot; used by one process at a time.
    :param rng: seeds the random timeouts and draws a new directory's id, so two processes must not share a seed; a
        simulation passes in its own.
    :param may_join: whether a directory without a vote may follow the voters until they admit it.
    :param threaded: whether the engine has its own thread.
    :param on_fatal: called once when the node must stop: a disk error, a broken invariant, a listener
        that raised. Nothing is delivered to the listener afterwards.
    :param on_sending: called after every message to other voters, heartbeats included.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: NodeId,
        voters: Mapping[NodeId, Address],
        directory: str | os.PathLike[str],
        files: QuorumFiles,
        connect: Callable[[Address], Connection],
        rng: random.Random,
        listener: QuorumListener,
        on_fatal: Callable[[BaseException], None],
        timing: QuorumTiming | None = None,
        limits: QuorumLimits | None = None,
        may_join: bool = False,
        threaded: bool = True,
        on_sending: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises ``ValueError`` if ``node_id`` is not a voter. Touches neither disk nor network."""
        new_directory_id = DirectoryId(random_id(rng))
        self.identity = QuorumIdentity(cluster_id, node_id, tuple(sorted(voters)), new_directory_id, may_join)
        self._directory = os.fspath(directory)
        self._files = files
        self._listener = listener
        self._on_fatal = on_fatal
        self._on_sending = on_sending
        self._timing = timing or QuorumTiming()
        self._limits = limits or QuorumLimits()
        self._threaded = threaded
        self._engine_rng = random.Random(rng.random())
        self._driver: EngineDriver | None = None
        self._links = RaftLinks(
            self.identity,
            lambda: (self._directory_id, self._standing),
            voters,
            connect,
            self._timing,
            random.Random(rng.random()),
            self._submit,
            lambda: self._driver.backlog if self._driver is not None else 0,
        )
        self._directory_id = new_directory_id
        self._standing = rm.VoterStanding.FRESH
        self._voters: VoterSet | None = None
        self._placed: asyncio.Future[None] | None = None
        self._lock: QuorumLock | None = None
        self._tickets = count(1)
        self._pending: dict[int, tuple[asyncio.Future[Offset], int]] = {}
        self._pending_bytes = 0
        self._committed = CommittedLog()
        self._leader: NodeId | None = None
        self._epoch = ControllerEpoch(0)
        self._leading: ControllerEpoch | None = None
        self._barrier: asyncio.Future[Offset] | None = None
        self._failed = False
        self._stopped = False
        self._snapshot_offset = Offset(1)

    # --- lifecycle ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover from disk, pass the known state to the listener, and join the quorum.

        Raises
        :class:`QuorumConfigurationError`, :class:`QuorumDamaged`, :class:`QuorumFailure`, ``OSError``.
        """
        if self._driver is not None:
            raise RuntimeError("a quorum is started once")
        self._lock = lock_directory(self._files, self._directory)
        driver: EngineDriver
        if self._threaded:
            name = f"quorum-{self.identity.node_id}"
            driver = ThreadDriver(name, self._open_engine, self._deliver, self._fail)
        else:
            driver = InlineDriver(self._open_engine, self._deliver, self._fail)
        self._driver = driver
        self._placed = asyncio.get_running_loop().create_future()
        try:
            await driver.start()
        except BaseException:
            self._lock.release()
            raise
        self._links.start()

    async def placed(self) -> None:
        """Wait until this directory has a place: it votes, or may follow the voters.

        At a cluster's first start, that is once all controllers have been seen. Raises
        :class:`QuorumConfigurationError` if the others have voters and this directory is not one of them.
        """
        assert self._placed is not None
        while not self._placed.done():
            await asyncio.wait((self._placed,), timeout=PLACE_TOLD_AFTER_S)
            if waits := self.waits_for:
                log.warning("node %d waits: %s", self.identity.node_id, waits)
        await self._placed

    @property
    def waits_for(self) -> str:
        """Why this directory has no place yet; empty once it has one, and before it starts."""
        if self._placed is None or self._placed.done():
            return ""
        unheard = ", ".join(map(str, self._links.unheard()))
        return (
            f"its directory {self._directory} is new, and a quorum begins once all of its controllers "
            f"({', '.join(map(str, self.identity.voters))}) have been started; "
            f"{f'no stream to {unheard} yet' if unheard else 'all were heard'}"
        )

    async def stop(self) -> None:
        """Stop cleanly: unsettled proposals fail with :class:`OutcomeUnknown`."""
        await self._end(clean=True)

    async def kill(self) -> None:
        """End as if the process were killed: nothing more is written. For tests."""
        await self._end(clean=False)

    async def _end(self, *, clean: bool) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._abandon(OutcomeUnknown("this node is stopping"))
        await self._links.stop()
        if self._driver is not None:
            await self._driver.stop(clean=clean)
        if self._lock is not None:
            self._lock.release()

    def _submit(self, given: ev.EngineInput) -> None:
        if self._driver is not None:
            self._driver.submit(given)

    def _open_engine(self, now: float) -> RaftEngine:
        return open_engine(
            self._files, self._directory, self.identity, self._timing, self._limits, self._engine_rng, now
        )

    # --- what a controller asks --------------------------------------------------------------------

    def propose(self, payload: bytes, epoch: ControllerEpoch) -> asyncio.Future[Offset]:
        """Propose a command decided under ``epoch``; proposals keep the order of the calls.

        The future yields the command's offset once it is committed and the listener has received it. It fails with
        :class:`NotLeading` (not committed, and never will be) or :class:`OutcomeUnknown`.

        Raises :class:`QuorumBusy` beyond :data:`PROPOSALS_UNDER_WAY_MAX` or :data:`PROPOSED_BYTES_MAX`,
        ``ValueError`` for a payload that is empty or larger than :data:`PROPOSAL_BYTES_MAX`.
        """
        if not 0 < len(payload) <= PROPOSAL_BYTES_MAX:
            raise ValueError(f"expected a payload of 1 to {PROPOSAL_BYTES_MAX} bytes, found {len(payload)}")
        return self._propose(payload, epoch)

    def _propose(self, payload: bytes, epoch: ControllerEpoch) -> asyncio.Future[Offset]:
        future: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        if self._driver is None or self._stopped or self._failed or self._leading != epoch:
            future.set_exception(NotLeading(self._not_leading_text(epoch)))
            return future
        if len(self._pending) >= PROPOSALS_UNDER_WAY_MAX:
            raise QuorumBusy(f"expected at most {PROPOSALS_UNDER_WAY_MAX} proposals under way")
        if self._pending and self._pending_bytes + len(payload) > PROPOSED_BYTES_MAX:
            raise QuorumBusy(
                f"expected at most {PROPOSED_BYTES_MAX} proposed bytes under way, found {self._pending_bytes} "
                f"and {len(payload)} more"
            )
        ticket = next(self._tickets)
        self._pending[ticket] = (future, len(payload))
        self._pending_bytes += len(payload)
        self._driver.submit(ev.Propose(ticket, epoch, payload))
        return future

    async def barrier(self) -> Offset:
        """Return an offset at or after everything that was committed anywhere at the time of the call.

        The listener has received everything up to it. The call commits an empty entry (H11); concurrent callers share
        one. Raises :class:`NotLeading` or :class:`OutcomeUnknown`.
        """
        under_way = self._barrier
        if under_way is not None and not under_way.done():
            await asyncio.wait((under_way,))  # it may have been proposed before an entry that we must see
        if self._barrier is None or self._barrier.done():
            self._barrier = self._propose(b"", self._leading if self._leading is not None else ControllerEpoch(-1))
        return await asyncio.shield(self._barrier)

    def leader(self) -> tuple[NodeId | None, ControllerEpoch]:
        """Return the known leader, and the latest epoch that this node has seen."""
        return self._leader, self._epoch

    @property
    def voters(self) -> VoterSet | None:
        """The voters, as far as this node knows; ``None`` while it knows none."""
        return self._voters

    @property
    def up_to_date(self) -> list[NodeId]:
        """The connected controllers with a release later than 0.1, including this one."""
        return sorted((self.identity.node_id, *self._links.up_to_date()))

    @property
    def unreached(self) -> list[NodeId]:
        """The other controllers without a stream to this node: they are down, or cut off from it."""
        return self._links.unheard()

    def bind(self) -> None:
        """Leave the formats of release 0.1. Called once the log says that no controller needs them."""
        if self._standing is rm.VoterStanding.OLD:
            self._submit(ev.Bind())

    @property
    def me(self) -> Voter:
        """This node with its directory; known once it has started."""
        return Voter(self.identity.node_id, self._directory_id)

    @property
    def leading(self) -> ControllerEpoch | None:
        """The epoch under which this node leads, from ``on_leading`` to ``on_resigned``."""
        return self._leading

    @property
    def commit_offset(self) -> Offset:
        """The last offset that the listener has received; 1 before any."""
        return Offset(self._committed.end - 1)

    @property
    def snapshot_offset(self) -> Offset:
        """The last offset in a durable snapshot of this node; 1 before any."""
        return self._snapshot_offset

    def compact(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        """Write a snapshot of the state at an offset that the listener has received, and truncate the journal.

        The engine does this in the background. Ignored if there is a later snapshot already.
        """
        if offset > self.commit_offset:
            raise ValueError(f"expected a snapshot of at most offset {self.commit_offset}, found {offset}")
        if self._driver is not None:
            self._driver.submit(ev.Compact(offset, epoch, snapshot))

    def entries(
        self, from_offset: Offset, last_epoch: ControllerEpoch, bytes_max: int
    ) -> tuple[CommittedEntry, ...] | SnapshotNeeded:
        """Return committed entries for a broker that has everything before ``from_offset``.

        ``last_epoch`` is the epoch of its last entry. A broker without entries passes offset 0. At least one entry is
        returned if there is any, whatever its size.
        """
        return self._committed.read(from_offset, last_epoch, bytes_max)

    @property
    def raft_session(self) -> SessionFactory:
        """The controller listener's session for :attr:`StreamKind.RAFT`; peers wait until :meth:`start`."""
        return self._links.session

    # --- what the engine did -------------------------------------------------------------------------

    def _deliver(self, effects: list[ev.Effect]) -> None:
        if self._failed or self._stopped:
            return
        try:
            for effect in effects:
                self._execute(effect)
            if any(isinstance(effect, ev.Send) for effect in effects):
                self._on_sending()
        except Exception as error:
            self._fail(error)

    def _execute(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(peer, message):
                self._links.send(peer, rm.encode_message(message))
            case ev.Committed(index, term, payload):
                entry = CommittedEntry(Offset(index), ControllerEpoch(term), payload)
                self._committed.append(entry)
                self._listener.on_commit(entry.offset, entry.epoch, payload)
            case ev.ProposalEnded(ticket, outcome, index):
                self._settle(ticket, outcome, Offset(index))
            case ev.Loaded(index, term, state):
                self._committed.restart(Offset(index), ControllerEpoch(term))
                self._snapshot_offset = Offset(index)
                self._listener.on_load(Offset(index), ControllerEpoch(term), state)
            case ev.VotersChanged():
                self._voters_changed(effect)
            case ev.Leading(term):
                self._leading = ControllerEpoch(term)
                self._listener.on_leading(self._leading)
            case ev.Resigned(term):
                self._leading = None
                self._listener.on_resigned(ControllerEpoch(term))
            case ev.LeaderChanged(leader, term):
                self._leader, self._epoch = leader, ControllerEpoch(term)
                self._listener.on_leader_change(leader, self._epoch)
            case ev.Compacted(index, first_index):
                self._snapshot_offset = Offset(index)
                self._committed.trim_before(Offset(first_index))
            case _:
                assert_never(effect)

    def _voters_changed(self, change: ev.VotersChanged) -> None:
        self._voters, self._standing, self._directory_id = change.voters, change.standing, change.directory_id
        voters = change.voters
        if voters is not None:
            role = "a voter" if self.me in voters else "an observer"
            log.info("node %d is %s; the voters are %s", self.identity.node_id, role, voters)
        if self._placed is not None and not self._placed.done() and (voters is not None or self.identity.may_join):
            self._placed.set_result(None)

    def _settle(self, ticket: int, outcome: ev.ProposalOutcome, offset: Offset) -> None:
        future, size = self._pending.pop(ticket)
        self._pending_bytes -= size
        if future.done():
            return
        match outcome:
            case ev.ProposalOutcome.COMMITTED:
                future.set_result(offset)
            case ev.ProposalOutcome.NOT_LEADING:
                future.set_exception(NotLeading(self._not_leading_text(None)))
            case ev.ProposalOutcome.UNKNOWN:
                future.set_exception(OutcomeUnknown("leadership ended before the proposal was settled"))
            case ev.ProposalOutcome.BUSY:
                future.set_exception(QuorumBusy("the engine's queue of proposals is full"))
            case _:
                assert_never(outcome)

    def _not_leading_text(self, epoch: ControllerEpoch | None) -> str:
        under = "" if epoch is None else f" under epoch {epoch}"
        leader = "none known" if self._leader is None else f"node {self._leader}"
        return f"node {self.identity.node_id} does not lead{under}: leader is {leader}, epoch {self._epoch}"

    def _fail(self, error: BaseException) -> None:
        if self._failed or self._stopped:
            return
        self._failed = True
        self._abandon(OutcomeUnknown(f"the quorum stopped: {error}"))
        if isinstance(error, QuorumConfigurationError) and self._placed is not None and not self._placed.done():
            self._placed.set_exception(error)
            return
        log.critical("the quorum of node %d stops: %s", self.identity.node_id, error, exc_info=error)
        self._on_fatal(error)

    def _abandon(self, reason: OutcomeUnknown) -> None:
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        self._leading = None
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(reason)
                future.exception()  # there may be no waiter any more; the loss is not worth a warning


__all__ = [
    "PROPOSALS_UNDER_WAY_MAX",
    "CommittedEntry",
    "Quorum",
    "QuorumConfigurationError",
    "SnapshotNeeded",
]
