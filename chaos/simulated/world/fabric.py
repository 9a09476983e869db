"""The network of a simulation: every connection has its own pace, and ends as TCP connections end.

- A message takes a random time; those of one connection stay in order, others may overtake them.
- A connection that breaks ends for each side when that side learns of it. For each direction, chance
  decides whether messages in transit are lost or still arrive: so a request may take effect long after
  its sender gave up, for as long as a cut link held it.
- The request of a call may arrive twice, the second time much later (a proxy that retried).
- A process that is gone refuses connections, and its peers learn of it; a host that lost its power says
  nothing, and peers find out after a while.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable
from typing import Any, Final

from tidelog.chaos.simulated.world.loop import SimulatedLoop
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.memory_transport import Link, MemoryFabric, MemoryNetwork, Wire
from tidelog.proto.transport.network import Address, StreamKind
from tidelog.security.session import UNSECURED, Session

Passed = Callable[[str, Request[Any]], None]
"""Called for each request of a call, with its sender, or the receiver that it has reached."""
Answered = Callable[[str, Request[Any], Response, float], None]
"""Called for each call: the node that answered, request and response, and the arrival time of the request."""
LATENCY_S: Final = (0.0001, 0.0015)
SILENCE_S: Final = (0.5, 6.0)
"""How long after a host's loss of power its peers' connections to it end (their keepalive)."""
LATE_S: Final = (0.01, 3.0)
"""How much later the copy of a doubled request arrives."""


class SimulatedFabric(MemoryFabric):
    """Seeded wires. ``doubled``: the share of calls whose request arrives twice. ``heard``: called for arrivals."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, heard: Callable[[Wire, bool], None]) -> None:
        super().__init__()
        self._loop = loop
        self._rng = rng
        self._heard = heard
        self._world = contextvars.Context()
        self.latency_s = LATENCY_S
        self.doubled = 0.0
        self.doubled_count = 0
        self.late_s = LATE_S
        self.late_answers: tuple[str, float, float] | None = None
        """Answers that take longer than others: for which request, their share, and up to how many seconds."""
        self.garble: Callable[[memoryview], memoryview] | None = None
        """Changes what leaders send to their followers."""
        self._dark: set[str] = set()
        """Hosts without power: they say nothing, so they refuse nothing either."""
        self.sessions: dict[str, Session] = {}
        """Clients that have proved an identity, by name; others have none."""
        self.sent: list[Passed] = []
        self.arrived: list[Passed] = []
        self.answered: list[Answered] = []

    def schedule(self, link: Link, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        low, high = self.latency_s
        due = self._loop.now + low + (high - low) * self._rng.random() + link.delay_s
        if self.late_answers is not None and not to_server and wire.what == self.late_answers[0]:
            _, share, late_s = self.late_answers
            due += late_s * self._rng.random() if self._rng.random() < share else 0.0
        wire.due[to_server] = due = max(wire.due[to_server], due)
        self._loop.at(due, self.arrive, wire, to_server, action, context=self._world)

    def arrive(self, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        if not wire.lost[to_server]:
            self._heard(wire, to_server)
            action()

    def send_request(self, wire: Wire, arrive: Callable[[], None]) -> None:
        super().send_request(wire, arrive)
        if self.doubled and self._rng.random() < self.doubled:
            server = self._networks.get(wire.server)

            def again() -> None:
                if self._networks.get(wire.server) is server and not wire.lost[True]:
                    self.doubled_count += 1
                    arrive()

            self._loop.at(self._loop.now + self._rng.uniform(*self.late_s), again, context=self._world)

    def deliver(self, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        if not wire.closed:
            super().deliver(wire, to_server, action)

    def mend(self) -> None:
        """Deliver everything once, unchanged and in time again; messages that a cut link held arrive."""
        self.doubled, self.late_s = 0.0, LATE_S
        self.late_answers = self.garble = None
        for link in self._links.values():
            link.delay_s = 0.0
        self.heal()

    @property
    def is_troubled(self) -> bool:
        """Return whether anything is cut, slow or garbled now."""
        return self.garble is not None or any(link.cut or link.delay_s for link in self._links.values())

    def carried(self, wire: Wire, to_server: bool, frame: memoryview) -> memoryview:
        if self.garble is None or to_server or wire.what != StreamKind.REPLICA_FETCH.value:
            return frame
        return self.garble(frame)

    def pieces(self, wire: Wire, data: bytes) -> list[bytes]:
        """Return what TCP makes of the bytes of a follower's stream: often two pieces, which arrive one by one."""
        if wire.what != StreamKind.REPLICA_FETCH.value or len(data) < 2 or self._rng.random() < 0.5:
            return [data]
        at = self._rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    def break_wire(self, wire: Wire, reason: str, silence_s: float = 0.0) -> None:
        if wire.closed:
            return
        wire.closed = True
        gone = wire.client.dead
        self._end_side(wire, False, reason, wire.on_break, silence_s)
        self._end_side(wire, True, reason, wire.on_break_server, silence_s)
        if gone:
            wire.on_break(reason)

    def close_wire(self, wire: Wire, reason: str) -> None:
        if not wire.closed:
            wire.closed = True
            wire.on_break(reason)
            self._end_side(wire, True, reason, wire.on_break_server, 0.0)

    def session_of(self, node: str) -> Session:
        return self.sessions.get(node, UNSECURED)

    def on_answer(self, server: str, request: Request[Any], response: Response, asked_s: float) -> None:
        for hear in self.answered:
            hear(server, request, response, asked_s)

    def on_send(self, client: str, request: Request[Any]) -> None:
        for hear in self.sent:
            hear(client, request)

    def on_arrival(self, server: str, request: Request[Any]) -> None:
        for hear in self.arrived:
            hear(server, request)

    def now(self) -> float:
        return self._loop.now

    def lose_host(self, node: str) -> None:
        """Cut a host's power: nobody is notified."""
        self._dark.add(node)
        self.drop_node(node, lambda wire, reason: self.break_wire(wire, reason, self._rng.uniform(*SILENCE_S)))

    def refuses(self, client: str, address: Address) -> bool:
        return self._owners.get(address) not in self._dark and super().refuses(client, address)

    def network(self, node: str, *given: Any, **named: Any) -> MemoryNetwork:
        self._dark.discard(node)
        return super().network(node, *given, **named)

    def _end_side(self, wire: Wire, to_server: bool, reason: str, end: Callable[[str], None], silence_s: float) -> None:
        """Let one side learn of the end, after the messages in transit to it, or instead of them."""
        notice = Wire(wire.client, wire.server, wire.what, wire.on_break, due=list(wire.due))
        if self._rng.random() < 0.5:
            wire.lost[to_server] = True
            notice.due = [0.0, 0.0]
        if silence_s:
            self._loop.at(self._loop.now + silence_s, end, reason, context=self._world)
        else:
            super().deliver(notice, to_server, lambda: end(reason))
