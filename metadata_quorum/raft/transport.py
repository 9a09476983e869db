"""Raft messages between controllers over our own frame streams (H7).

Each controller opens one stream of :attr:`StreamKind.RAFT` to each other one and only sends on it; it receives on the
streams that the others opened. A stream begins with a hello that both sides check: cluster, sender, receiver, and the
sender's directory. Everything received on it is bound to that directory. The carrier provides mutual TLS; nothing here
depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.types import QuorumIdentity, QuorumTiming
from tidelog.metadata_quorum.raft.unreached import Unreached
from tidelog.model.ids import UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.model.voter_set import Voter, directory_of_seat
from tidelog.proto.transport import raft_messages as rm
from tidelog.proto.transport.network import (
    Address,
    BadFrame,
    CallContext,
    Connection,
    ConnectionLost,
    Frame,
    StreamKind,
)

QUEUED_MESSAGES_MAX: Final = 1024
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Beyond either limit, messages to a peer are dropped; Raft resends those that matter."""
FRAME_BYTES: Final = 1024 * 1024
"""A frame collects messages up to this many bytes."""
BACKLOG_MAX: Final = 64
"""Frames that the engine has not processed; beyond it incoming streams are not read."""
_OPEN_TIMEOUT_S: Final = 5.0
_HELD_READ_S: Final = 0.002

log = logging.getLogger(__name__)

Submit = Callable[[ev.EngineInput], None]
Own = Callable[[], tuple[DirectoryId, rm.VoterStanding]]
"""Returns this controller's directory and its current standing in the quorum."""


class OutgoingLink:
    """The stream to one peer: connects, says hello, sends queued messages, reconnects."""

    def __init__(
        self,
        identity: QuorumIdentity,
        own: Own,
        peer: NodeId,
        connection: Connection,
        timing: QuorumTiming,
        rng: random.Random,
        submit: Submit,
    ) -> None:
        self._identity = identity
        self._own = own
        self._peer = peer
        self._connection = connection
        self._timing = timing
        self._rng = rng
        self._submit = submit
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self.up = False
        self.to_old = False
        """Whether the peer has release 0.1, as far as it answered."""
        self._told = ""
        self._unreached = Unreached()
        self.dropped = 0
        """Messages dropped because the queue was full."""

    def send(self, message: bytes) -> None:
        """Queue one message; dropped if there is no stream or no room."""
        if not self.up:
            return
        if len(self._queue) >= QUEUED_MESSAGES_MAX or self._queued_bytes >= QUEUED_BYTES_MAX:
            self.dropped += 1
            return
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._wake.set()

    async def run(self) -> None:
        """Keep the stream up until cancelled."""
        wait = self._timing.reconnect_min_s
        try:
            while True:
                if await self._serve_once():
                    wait = self._timing.reconnect_min_s
                await asyncio.sleep(wait * (0.5 + self._rng.random() / 2))
                wait = min(wait * 2, self._timing.reconnect_max_s)
        finally:
            await self._connection.close()

    async def _serve_once(self) -> bool:
        """Open one stream and use it until it ends; return whether the peer accepted us."""
        try:
            stream = await self._connection.open(StreamKind.RAFT, timeout_s=_OPEN_TIMEOUT_S)
        except (ConnectionLost, TimeoutError) as error:
            log.debug("no Raft stream to node %d: %s", self._peer, error)
            now_s = asyncio.get_running_loop().time()
            self._unreached.failed(self._peer, self._connection.address, error, now_s)
            return False
        self._unreached.answered(self._peer)
        welcomed = False
        try:
            directory_id, standing = self._own()
            hello = rm.Hello(
                rm.UNBOUND_VERSION if standing is rm.VoterStanding.OLD else rm.PROTOCOL_VERSION,
                self._identity.cluster_id,
                self._identity.node_id,
                self._peer,
                self._identity.voters,
                directory_id,
            )
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await stream.send([rm.encode_hello(hello)])
                answer = rm.decode_hello_answer(await stream.receive())
            if answer.refusal:
                self._say_refused(answer.refusal)
                return False
            welcomed = True
            self._told = ""
            self._open_queue(answer)
            ended = asyncio.ensure_future(stream.receive())
            sender = asyncio.ensure_future(self._send_queued(stream.send))
            try:
                await asyncio.wait((ended, sender), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _cancel(ended, sender)
        except (ConnectionLost, TimeoutError, BadFrame) as error:
            log.debug("Raft stream to node %d ended: %s", self._peer, error)
        finally:
            self._close_queue()
            stream.close()
        return welcomed

    async def _send_queued(self, send: Callable[[Frame], Awaitable[None]]) -> None:
        while True:
            while self._queue:
                messages = [self._queue.popleft()]
                size = len(messages[0])
                while self._queue and size + len(self._queue[0]) <= FRAME_BYTES:
                    messages.append(self._queue.popleft())
                    size += len(messages[-1])
                self._queued_bytes -= size
                await send(rm.join_messages(messages))
            self._wake.clear()
            await self._wake.wait()

    def _open_queue(self, answer: rm.HelloAnswer) -> None:
        self.up = True
        self.to_old = not answer.directory_id
        if self.to_old:
            seat = directory_of_seat(self._identity.cluster_id, self._peer)
            self._submit(ev.LinkUp(self._peer, seat, rm.VoterStanding.OLD))
        else:
            self._submit(ev.LinkUp(self._peer, answer.directory_id, answer.standing))

    def _close_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        if self.up:
            self.up = False
            self._submit(ev.LinkDown(self._peer))

    def _say_refused(self, refusal: str) -> None:
        """Log a refusal once, not at each attempt."""
        if refusal != self._told:
            self._told = refusal
            at = self._connection.address
            log.error("controller %d, reached at %s, refuses our Raft stream: %s", self._peer, at, refusal)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, (ConnectionLost, BadFrame)):
            raise outcome


class RaftLinks:
    """All streams of one controller: its own, and the sessions that serve the others'."""

    def __init__(
        self,
        identity: QuorumIdentity,
        own: Own,
        voters: Mapping[NodeId, Address],
        connect: Callable[[Address], Connection],
        timing: QuorumTiming,
        rng: random.Random,
        submit: Submit,
        backlog: Callable[[], int],
    ) -> None:
        self.identity = identity
        self.own = own
        self._submit = submit
        self._backlog = backlog
        self._links = {
            peer: OutgoingLink(identity, own, peer, connect(address), timing, random.Random(rng.random()), submit)
            for peer, address in voters.items()
            if peer != identity.node_id
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions: dict[NodeId, RaftSession] = {}
        self._told = ""
        self._accepting = asyncio.Event()

    def start(self) -> None:
        self._accepting.set()
        self._tasks = [asyncio.ensure_future(link.run()) for link in self._links.values()]

    async def stop(self) -> None:
        self._accepting.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def unheard(self) -> list[NodeId]:
        """Return the other controllers without a stream to this node."""
        return sorted(peer for peer, link in self._links.items() if not link.up)

    def up_to_date(self) -> list[NodeId]:
        """Return the other controllers with a stream to this node and a release later than 0.1."""
        return sorted(peer for peer, link in self._links.items() if link.up and not link.to_old)

    def send(self, peer: NodeId, message: bytes) -> None:
        self._links[peer].send(message)

    def session(self, context: CallContext) -> RaftSession:
        """Serve a stream that another controller opened. A :data:`SessionFactory`."""
        return RaftSession(self, context)

    def refusal_of(self, hello: rm.Hello) -> str:
        """Return why a hello is refused; empty if it is accepted."""
        mine = self.identity
        standing = self.own()[1]
        version = rm.PROTOCOL_VERSION
        if hello.version == rm.UNBOUND_VERSION and (hello.directory_id or standing is rm.VoterStanding.OLD):
            version = rm.UNBOUND_VERSION
        expected_found: tuple[tuple[str, object, object], ...] = (
            ("Raft stream version", version, hello.version),
            ("cluster", mine.cluster_id, hello.cluster_id),
            ("a stream to node", mine.node_id, hello.peer_id),
        )
        if standing is not rm.VoterStanding.FOUNDED:  # from then on the log names the voters
            expected_found += (("controller.quorum.voters with the ids", list(mine.voters), list(hello.voters)),)
        for what, expected, found in expected_found:
            if expected != found:
                return f"expected {what} {expected}, found {found}"
        if hello.node_id not in self._links:
            return f"expected a stream from one of the controllers {sorted(self._links)}, found node {hello.node_id}"
        if hello.directory_id and len(hello.directory_id) != len(UNASSIGNED_DIRECTORY):
            return f"expected a directory id of {len(UNASSIGNED_DIRECTORY)} bytes, found {len(hello.directory_id)}"
        return ""

    def say_refused(self, peer: str, refusal: str) -> None:
        """Log a refusal once, not at each attempt."""
        if refusal != self._told:
            self._told = refusal
            log.warning("refused a Raft stream from %s: %s", peer, refusal)

    async def welcome(self, peer: NodeId, session: RaftSession) -> None:
        """Listen to this stream of the peer instead of older ones; waits until the engine runs."""
        await self._accepting.wait()
        self._sessions[peer] = session

    def receive(self, peer: Voter, session: RaftSession, messages: list[rm.RaftMessage]) -> None:
        if self._accepting.is_set() and self._sessions.get(peer.node_id) is session:  # an older stream is ignored
            self._submit(ev.Received(*peer, tuple(messages)))

    def closed(self, peer: NodeId, session: RaftSession) -> None:
        if self._sessions.get(peer) is session:
            del self._sessions[peer]
            if self._accepting.is_set():
                self._submit(ev.PeerSuspected(peer))

    def hold(self) -> Awaitable[None] | None:
        return asyncio.sleep(_HELD_READ_S) if self._backlog() >= BACKLOG_MAX else None


class RaftSession:
    """The receiving end of one stream."""

    def __init__(self, links: RaftLinks, context: CallContext) -> None:
        self._links = links
        self._context = context
        self._peer: Voter | None = None

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | None:
        if self._peer is None:
            return self._answer(rm.decode_hello(frame))
        self._links.receive(self._peer, self, rm.decode_frame(frame))
        return None

    async def _answer(self, hello: rm.Hello) -> Frame:
        refusal = self._links.refusal_of(hello)
        if refusal:
            self._links.say_refused(self._context.peer, refusal)
        else:
            await self._links.welcome(hello.node_id, self)
            seat = directory_of_seat(hello.cluster_id, hello.node_id)
            self._peer = Voter(hello.node_id, hello.directory_id or seat)
        return [rm.encode_hello_answer(rm.HelloAnswer(refusal, *self._links.own()))]

    def on_close(self) -> None:
        if self._peer is not None:
            self._links.closed(self._peer.node_id, self)

    def hold(self) -> Awaitable[None] | None:
        return self._links.hold()

    def on_written(self, frame: Frame) -> None:
        """Do nothing: only the answer to the hello is ever written."""
