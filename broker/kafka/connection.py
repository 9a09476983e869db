"""One connection of a Kafka listener: requests in, answers out in the same order.

Produce and Fetch start on arrival, any number of them at a time. Every other request starts only after earlier requests
on this connection have been answered or, for produces and fetches, started; and nothing starts behind it before it is
answered. So a connection's calls never overtake each other, as in Kafka, which reads no further request while one is
being processed.

Sockets are used directly: a transport could neither send from files nor read into a large frame's own memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.broker.kafka.host import Host
from tidelog.broker.kafka.login import KafkaLogin, LoginOver
from tidelog.broker.kafka.referring import refer
from tidelog.broker.kafka.requests import Call, KafkaRequests
from tidelog.broker.kafka.wire.incoming import FRAME_MIN, Incoming
from tidelog.broker.kafka.wire.junk import GrpcCaller
from tidelog.broker.kafka.wire.outgoing import FileCut, Outgoing
from tidelog.broker.kafka.wire.pending import CloseConnection, Pending, Pieces
from tidelog.broker.kafka.wire.slots import Slot
from tidelog.broker.kafka.wire.tls_socket import AnySocket, TlsSocket
from tidelog.proto.kafka import produce_codec
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.network import CallContext
from tidelog.security.session import UNSECURED, Session

REQUESTS_A_TURN: Final = 32
"""Requests started before other connections get their turn."""
LINGER_S: Final = 1.0
"""How long a connection that we end is drained, so that its peer sees an end and not a reset."""
DISCARDED_BYTES: Final = 64 * 1024
"""How much is drained at a time."""


class KafkaConnection:
    """See the module. Made for an accepted socket; :meth:`begin` starts reading."""

    __slots__ = (
        "_call",
        "_fd",
        "_first_look",
        "_flush_due",
        "_go_on_due",
        "_held",
        "_host",
        "_incoming",
        "_kept",
        "_linger",
        "_login",
        "_loop",
        "_muted",
        "_on_closed",
        "_open",
        "_outgoing",
        "_pause",
        "_peer",
        "_reading",
        "_referring",
        "_requests",
        "_slots",
        "_sock",
        "_writing",
        "bytes_in",
        "bytes_out",
        "opened_s",
        "progress_s",
    )

    def __init__(
        self,
        host: Host,
        sock: AnySocket,
        number: int,
        peer: str,
        on_closed: Callable[[KafkaConnection], None],
        session: Session = UNSECURED,
    ) -> None:
        """``on_closed`` is called once, when the socket has been closed."""
        self._host = host
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._requests = KafkaRequests(host, number, peer, session, self._mute)
        self._login = None if host.logins is None else KafkaLogin(host.logins, self._requests.versions)
        most = host.limits.frame_bytes_max if self._login is None else self._login.receive_bytes_max
        self._incoming = Incoming(most, host.limits.first_bytes_max, host.shared_buffer)
        if self._login is not None:
            self._incoming.bounded_by = "sasl.server.max.receive.size, before the login"
        self._first_look: asyncio.TimerHandle | None = None
        """Waits for the first request, or for the end of the login."""
        self._outgoing = Outgoing()
        self._slots: deque[Slot] | None = None
        """Requests whose answers have not been sent, in order. Created on demand, because most connections are idle."""
        self._held = 0
        """Bytes held by unanswered requests, counted in the node's budget."""
        self._kept = 0
        """Bytes of requests that have not started, also counted there."""
        self._call: asyncio.Task[None] | None = None
        """The current request that nothing may overtake."""
        self._referring: asyncio.Task[None] | None = None
        """Refers a gRPC client elsewhere, if one came."""
        self._pause: asyncio.Future[None] | None = None
        self._muted: asyncio.TimerHandle | None = None
        """Ends the time for which its client has to wait (KIP-219)."""
        self._reading = False
        self._writing = False
        self._flush_due = False
        self._go_on_due = False
        self._open = True
        self._linger: asyncio.TimerHandle | None = None
        self.opened_s = self.progress_s = self._loop.time()
        """When it was accepted, and when bytes last moved."""
        self.bytes_in = self.bytes_out = 0

    # --- Life ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._read_on()
        self._look_for_first()

    def _look_for_first(self) -> None:
        self._first_look = self._loop.call_later(self._host.limits.first_request_ms / 1000, self._close_unproven)

    def _close_unproven(self) -> None:
        late_s = self._loop.time() - self._host.limits.first_request_ms / 1000
        # We are keeping it waiting, or a large request is arriving over a slow line.
        slow = self._login is None and self._incoming.in_large and self.progress_s > late_s
        if self._pause is not None or slow:
            self._look_for_first()
            return
        self._host.traffic.idle_closed += 1
        self.abort()

    def _prove(self) -> None:
        """Note that the first request was well formed."""
        self._incoming.proven = True
        self._no_first_look()

    def _no_first_look(self) -> None:
        if self._first_look is not None:
            self._first_look.cancel()
            self._first_look = None

    @property
    def at_work(self) -> bool:
        """Whether its peer waits for an answer that is not ready."""
        return bool(self._slots) or self._call is not None

    @property
    def stands_still(self) -> bool:
        """Whether the peer has to act: nothing is in progress here, or an answer waits to be taken."""
        return bool(self._outgoing) or not self.at_work

    def abort(self) -> None:
        """Close immediately and abandon what is in progress."""
        self._give_up()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._sock.fileno() >= 0:
            self._stop_reading()
            self._sock.close()
            self._on_closed(self)

    def end(self, why: str) -> None:
        """Close so that the peer sees an end, and log why."""
        if not self._open:
            return
        self._host.traffic.malformed += 1
        self._host.notice(self._peer, why)
        self._part()

    def _part(self) -> None:
        """Close so that the peer sees an end."""
        self._give_up()
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()
            return
        self._read_on()
        self._linger = self._loop.call_later(LINGER_S, self.abort)

    def _give_up(self) -> None:
        """Drop everything in progress; only the socket remains."""
        if not self._open:
            return
        self._open = False
        self._no_first_look()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        slots, self._slots = self._slots, None
        for slot in slots or ():
            slot.drop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._referring is not None:
            self._referring.cancel()
            self._referring = None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._outgoing.clear()
        self._incoming.drop()
        held, self._held, self._kept = self._held + self._kept, 0, 0
        self._host.produce_budget.give(held)

    def _lost(self) -> None:
        """Handle that the peer is gone."""
        self.abort()

    @property
    def is_open(self) -> bool:
        """Whether requests are still served; the socket may stay a moment longer."""
        return self._open

    @property
    def caller(self) -> CallContext:
        return self._requests.caller

    @property
    def software(self) -> str:
        return self._requests.software

    def dismiss(self, why: str) -> None:
        """Close so that the peer sees an end; see :class:`tidelog.proto.transport.network.Peer`."""
        if self._open:
            self._host.notice(self._peer, why)
            self._part()

    # --- Reading ------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)
            self._read_pending()

    def _read_pending(self) -> None:
        """Continue reading if bytes wait where the loop does not see them."""
        if isinstance(self._sock, TlsSocket) and self._open and self._sock.pending:
            self._loop.call_soon(self._readable_still)

    def _readable_still(self) -> None:
        if self._reading and self._open:
            self._readable()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        if not self._open:
            self._drain()
            return
        try:
            count = self._incoming.receive(self._sock)
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        if not count:
            self._lost()
            return
        self.progress_s = self._loop.time()
        self._host.traffic.bytes_in += count
        self.bytes_in += count
        self._work()
        if self._reading:
            self._read_pending()

    def _drain(self) -> None:
        """Discard everything that arrives after the end."""
        try:
            if self._sock.recv(DISCARDED_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.abort()

    def _work(self) -> None:
        """Start the requests that have arrived, within the limits."""
        try:
            self._begin_requests()
        except GrpcCaller:
            self._stop_reading()
            self._referring = self._loop.create_task(self._refer(self._incoming.rest()))
            self._incoming.drop()
            return
        except (BadMessage, CloseConnection) as bad:
            if self._outgoing and not self._writing:
                self._flush()  # send earlier answers first
            self.end(str(bad))
        except Exception as bug:
            self.abort()
            self._host.bug(bug)
        if self._open:
            self._incoming.keep()
            self._count_kept()
            if self._outgoing and not self._writing:
                self._flush()

    def _begin_requests(self) -> None:
        for _ in range(REQUESTS_A_TURN):
            if not self._may_begin():
                # What was read waits here; a peer that keeps sending fills the system's buffers, not ours. While there
                # is nothing, we keep listening, to notice the peer's end.
                if self._incoming.empty:
                    self._read_on()
                else:
                    self._stop_reading()
                return
            frame = self._incoming.next_frame()
            if frame is None:
                self._read_on()
                return
            self._begin(frame)
            if not self._open:
                return
            if self._login is None and not self._incoming.proven:
                self._prove()
        if not self._go_on_due:
            self._go_on_due = True
            self._stop_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._go_on_due = False
        if self._open:
            self._work()

    def _resume(self) -> None:
        """Check whether more may start, because something has finished."""
        waits = self._pause is not None or self._muted is not None or self._call is not None
        if not self._reading and not self._go_on_due and not waits:
            self._go_on_due = True
            self._loop.call_soon(self._go_on)

    def _may_begin(self) -> bool:
        limits = self._host.limits
        if (
            self._call is not None
            or self._pause is not None
            or self._muted is not None
            or (self._slots is not None and len(self._slots) >= limits.requests_max)
            or self._held >= limits.held_bytes_max
            or self._outgoing.size >= limits.unsent_bytes_max
        ):
            return False
        budget = self._host.produce_budget
        if budget.full and self._incoming.wants_room(produce_codec.API_KEY):
            pause = self._pause = budget.pause()
            assert pause is not None
            pause.add_done_callback(self._paused)
            return False
        return True

    def _paused(self, pause: asyncio.Future[None]) -> None:
        if self._pause is pause:
            self._pause = None
            self._resume()

    def _mute(self, wait_ms: int) -> None:
        """Start no further request for this long."""
        until_s = self._loop.time() + wait_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until_s:
                return
            self._muted.cancel()
        self._muted = self._loop.call_at(until_s, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._resume()

    def _count_kept(self) -> None:
        kept = self._incoming.held
        if kept != self._kept:
            budget = self._host.produce_budget
            more = kept - self._kept
            self._kept = kept
            if more > 0:
                budget.use(more)
            else:
                budget.give(-more)

    # --- Requests -----------------------------------------------------------------------------------

    def _begin(self, frame: memoryview) -> None:
        if self._login is not None and self._login.takes(frame, self._loop.time()):
            self._work_on(partial(self._log_in, self._login, memoryview(bytes(frame))))
            return
        answer = self._requests.begin(frame)
        if callable(answer):
            self._work_on(answer)
        else:
            self._take(answer)

    async def _log_in(self, login: KafkaLogin, frame: memoryview) -> Pieces:
        reply = await login.take(frame)
        self._incoming.frame_bytes_min = 0 if login.bare else FRAME_MIN
        if reply.over is not None:
            raise LoginOver(reply.over, reply.answer, reply.failed, reply.mechanism)
        if reply.logged_in is not None:
            self._requests.of(reply.logged_in.session)
            self._incoming.frame_bytes_max = self._host.limits.frame_bytes_max
            self._incoming.bounded_by = "socket.request.max.bytes"
            self._prove()
        return (reply.answer,)

    def _work_on(self, answer: Call) -> None:
        """Start nothing behind this request before it is answered."""
        slot = Slot(None, 0)
        self._line_up(slot)
        self._call = self._loop.create_task(self._run(answer, slot))

    async def _run(self, answer: Call, slot: Slot) -> None:
        try:
            pieces = await answer()
        except LoginOver as over:
            self._call = None
            self._turn_away(over, slot)
        except (BadMessage, CloseConnection) as bad:
            self._call = None
            self.end(str(bad))
        except Exception as bug:
            self._call = None
            self.abort()
            self._host.bug(bug)
        else:
            self._call = None
            slot.pieces = pieces
            self._answered()

    def _turn_away(self, over: LoginOver, slot: Slot) -> None:
        """Answer a failed login and close."""
        self._host.login_failed(self._peer, over)
        slot.pieces = () if over.answer is None else (over.answer,)
        self._answered()
        if self._outgoing and not self._writing:
            self._flush()
        if self._open:
            self._part()

    async def _refer(self, data: bytes) -> None:
        await refer(self._sock, self._host.referral(), data)
        self._referring = None
        self._part()

    def _take(self, answer: Pieces | Pending) -> None:
        """Take an answer to the request just started, or what it waits for."""
        if isinstance(answer, Pending):
            slot = Slot(answer, answer.held)
            self._line_up(slot)
            self._held += answer.held
            self._host.produce_budget.use(answer.held)
            answer.future.add_done_callback(lambda _: self._finish(slot))
        elif self._slots:
            slot = Slot(None, 0)
            slot.pieces = answer
            self._slots.append(slot)
        elif answer:
            self._outgoing.add_answer(answer)

    def _line_up(self, slot: Slot) -> None:
        if self._slots is None:
            self._slots = deque()
        self._slots.append(slot)

    def _finish(self, slot: Slot) -> None:
        """Handle the result that a produce or fetch waited for."""
        pending, slot.pending = slot.pending, None
        if pending is None or not self._open:
            return
        if pending.future.cancelled():
            self.abort()  # the node is being killed
            return
        self._held -= slot.held
        self._host.produce_budget.give(slot.held)
        try:
            slot.pieces = pending.finish(pending.future)
        except CloseConnection as refused:
            self.end(str(refused))
        except Exception as bug:
            self.abort()
            self._host.bug(bug)
        else:
            self._answered()

    def _answered(self) -> None:
        """Hand over the answers that are ready and next in order."""
        if not self._open:
            return
        slots = self._slots
        while slots and slots[0].pieces is not None:
            self._outgoing.add_answer(slots.popleft().pieces)
        if not slots:
            self._slots = None
        if self._outgoing and not self._writing and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_soon)
        self._resume()

    # --- Writing ------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        self._flush_due = False
        if self._open and not self._writing:
            self._flush()

    def _flush(self) -> None:
        """Send what is available, then wait for the socket to take the rest."""
        try:
            sent, from_files = self._outgoing.send(self._sock)
        except FileCut:
            self.end("a log was truncated while it was being sent")
            return
        except OSError:
            self._lost()
            return
        traffic = self._host.traffic
        traffic.bytes_out += sent
        traffic.bytes_from_files += from_files
        self.bytes_out += sent
        if sent:
            self.progress_s = self._loop.time()
        if self._outgoing:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._flush)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        self._resume()
