"""The links of a laboratory: one proxy for each pair of dialler and target, and the impairments of a link.

A link has two ends and two directions. Data from end ``a`` to end ``b`` runs *up* the proxies by which ``a`` dials
``b``, and *down* those by which ``b`` dials ``a``; a direction is impaired in all of them together. Ends are nodes, and
:data:`CLIENTS` for all clients together.

=============  ======================================================================================================
impairment     effect in toxiproxy
=============  ======================================================================================================
``cut``        drops all data; the proxy accepts new connections meanwhile, and they hang; all connections that lost
               bytes are closed when the link is healed (``timeout`` of 0)
``hold``       holds all data, like a cut wire with both ends still sending: after healing it all arrives, late
               (``latency`` of an hour)
``latency``    each piece waits ``ms``, give or take ``jitter``
``throttle``   at most ``rate`` KiB/s
``slow-close`` a close arrives ``ms`` late
``reset``      the next piece closes the connection after ``ms``, new ones with RST
``limit``      a connection is closed after ``bytes``
``loss``       as ``cut``, for the ``share`` of connections that it hits
``refuse``     connections are cut and new ones refused, always in both directions
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.chaos.laboratory.links.proxy_server import DOWNSTREAM, UPSTREAM, ProxyServer, ProxyTrouble
from tidelog.cli.failure import CommandFailed
from tidelog.proto.transport.network import Address
from tidelog.testing import ports

CLIENTS: Final = 0
"""The end that represents all clients."""
HOUR_MS: Final = 3_600_000
REFUSE: Final = "refuse"


class Way(NamedTuple):
    """One direction of a link."""

    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Route:
    """A proxy: its dialler, its target, and the target's listener."""

    dialler: int
    target: int
    listener: str
    listen: Address
    upstream: Address

    @property
    def name(self) -> str:
        """Its name at the proxy server."""
        return f"{self.dialler or 'clients'}-{self.target}-{self.listener}"


@dataclass(frozen=True, slots=True)
class Impairment:
    """The impairment of one direction. Its values are those of the table above."""

    kind: str
    ms: int = 0
    jitter: int = 0
    rate: int = 0
    bytes: int = 0
    share: float = 1.0

    def toxic(self) -> tuple[str, dict[str, int]]:
        """Return Toxiproxy's name for it, and its attributes. Raises ``ValueError`` for an unknown impairment."""
        match self.kind:
            case "cut" | "loss":
                return "timeout", {"timeout": 0}
            case "hold":
                return "latency", {"latency": HOUR_MS, "jitter": 0}
            case "latency":
                return "latency", {"latency": self.ms, "jitter": self.jitter}
            case "throttle":
                return "bandwidth", {"rate": self.rate}
            case "slow-close":
                return "slow_close", {"delay": self.ms}
            case "reset":
                return "reset_peer", {"timeout": self.ms}
            case "limit":
                return "limit_data", {"bytes": self.bytes}
            case _:
                raise ValueError(f"expected a kind of impairment, found {self.kind!r}")


class Links:
    """All links of a cluster. An impairment belongs to an ``owner``, which heals its own; for one owner, the same kind
    on the same way counts once."""

    def __init__(self, server: ProxyServer, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._server = server
        self._on: dict[str, list[tuple[str, str]]] = {}
        """Owner → proxy and toxic; an empty name of a toxic is a proxy that refuses."""

    def open(self) -> None:
        """Create the proxies. Raises :class:`ProxyTrouble`; :class:`CommandFailed` if a port was taken meanwhile."""
        if busy := ports.taken([route.listen.port for route in self.routes]):
            raise CommandFailed(
                f"toxiproxy: port {busy[0]} of {ports.LOOPBACK} was taken by another program since it was chosen; "
                "start again: other ports are chosen"
            )
        for route in self.routes:
            self._server.create(route.name, route.listen, route.upstream)

    def impair(
        self, owner: str, ways: Iterable[Way], impairment: Impairment, listeners: frozenset[str] | None = None
    ) -> int:
        """Impair directions, on some listeners or on all; return how many proxies' directions are hit. Raises
        :class:`ProxyTrouble`."""
        if impairment.kind == REFUSE:
            return self._refuse(owner, ways, listeners)
        kind, attributes = impairment.toxic()
        mine = self._on.setdefault(owner, [])
        hit = 0
        for route, stream in self._streams(ways, listeners):
            toxic = f"{owner}-{impairment.kind}-{stream}"
            if (route.name, toxic) in mine:
                continue
            mine.append((route.name, toxic))  # before the request: the toxic may exist although no answer came
            self._server.add_toxic(route.name, toxic, kind, stream, attributes, impairment.share)
            hit += 1
        return hit

    def heal(self, owner: str) -> None:
        """Remove this owner's impairments. Raises :class:`ProxyTrouble`; the rest stays the owner's."""
        mine = self._on.get(owner, [])
        while mine:
            proxy, toxic = mine[-1]
            if toxic:
                self._server.remove_toxic(proxy, toxic)
            elif not any((proxy, "") in theirs for other, theirs in self._on.items() if other != owner):
                self._server.enable(proxy, True)
            mine.pop()
        self._on.pop(owner, None)

    def heal_all(self) -> None:
        """Remove all impairments. Raises :class:`ProxyTrouble`."""
        self._server.reset()
        self._on.clear()
        left = [name for name, proxy in self._server.proxies().items() if proxy["toxics"] or not proxy["enabled"]]
        if left:
            raise ProxyTrouble(f"expected every link whole after a reset, found {', '.join(sorted(left))}")

    def _refuse(self, owner: str, ways: Iterable[Way], listeners: frozenset[str] | None) -> int:
        mine = self._on.setdefault(owner, [])
        proxies = {route.name: route for route, _ in self._streams(ways, listeners)}
        for name in proxies:
            mine.append((name, ""))
            self._server.enable(name, False)
        return len(proxies)

    def _streams(self, ways: Iterable[Way], listeners: frozenset[str] | None) -> list[tuple[Route, str]]:
        found: list[tuple[Route, str]] = []
        for way in dict.fromkeys(ways):
            for route in self.routes:
                if listeners is not None and route.listener not in listeners:
                    continue
                if (route.dialler, route.target) == (way.sender, way.receiver):
                    found.append((route, UPSTREAM))
                elif (route.dialler, route.target) == (way.receiver, way.sender):
                    found.append((route, DOWNSTREAM))
        return found


# --- The ways of a topology --------------------------------------------------------------------------------


def both(a: int, b: int) -> list[Way]:
    """Return both directions between two ends."""
    return [Way(a, b), Way(b, a)]


def isolate(node: int, nodes: Iterable[int], *, clients: bool = False) -> list[Way]:
    """Isolate a node; its clients still reach it, or not."""
    others = [other for other in nodes if other != node]
    return [way for other in (*others, *((CLIENTS,) if clients else ())) for way in both(node, other)]


def deaf(node: int, nodes: Iterable[int]) -> list[Way]:
    """Let a node send to the others and receive from none."""
    return [Way(other, node) for other in nodes if other != node]


def mute(node: int, nodes: Iterable[int]) -> list[Way]:
    """Let a node receive from the others and send to none."""
    return [Way(node, other) for other in nodes if other != node]


def bridge(middle: int, nodes: Iterable[int]) -> list[Way]:
    """Make two halves; only the node in the middle reaches both."""
    others = [other for other in nodes if other != middle]
    half = len(others) // 2
    return [way for a in others[:half] for b in others[half:] for way in both(a, b)]


def ring(order: Iterable[int]) -> list[Way]:
    """Let each node send to the next one only: requests arrive and their answers do not."""
    nodes = list(order)
    following = dict(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    return [Way(a, b) for a in nodes for b in nodes if a != b and following[a] != b]


def topology(name: str, node: int, nodes: Sequence[int]) -> list[Way]:
    """Return the ways of a topology around a node. Raises ``ValueError`` for an unknown name."""
    match name:
        case "isolate":
            return isolate(node, nodes)
        case "around":
            return isolate(node, nodes, clients=True)
        case "deaf":
            return deaf(node, nodes)
        case "mute":
            return mute(node, nodes)
        case "bridge":
            return bridge(node, nodes)
        case "ring":
            return ring(nodes)
        case "clients":
            return both(CLIENTS, node)
        case "to-clients":
            return [Way(node, CLIENTS)]
        case "from-clients":
            return [Way(CLIENTS, node)]
        case _:
            raise ValueError(f"expected a topology, found {name!r}")
