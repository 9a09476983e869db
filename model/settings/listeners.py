"""Addresses in settings: ``NAME://host:port`` listeners and ``id@host:port`` voters.

Source: Kafka's ``EndPoint``/``SocketServerConfigs`` and ``QuorumConfig.parseVoterConnections``.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from tidelog.model.ids import NodeId
from tidelog.model.settings.config_def import split_list
from tidelog.model.settings.security_protocol import SecurityProtocol

HTTP: Final = "HTTP"
HTTPS: Final = "HTTPS"
"""Names that ``http.listener`` may have."""
LOOPBACK: Final = "127.0.0.1"
_LISTENER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)://(\[[0-9A-Fa-f:.%]+\]|[^\[\]/@:\s]*):(-?\d{1,6})")
_VOTER: Final = re.compile(r"(\d{1,10})@(\[[0-9A-Fa-f:.%]+\]|[^\[\]/@:\s]+):(\d{1,6})")


class Listener(NamedTuple):
    """A named listener. ``host`` has no brackets; ``port`` 0 asks for a free one."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed(self.host)}:{self.port}"

    @property
    def wildcard(self) -> bool:
        """Whether it binds to every address, so that its host cannot be advertised."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def loopback(self) -> bool:
        """Whether it is reachable only from this machine."""
        return is_this_machine(self.host)


class Voter(NamedTuple):
    """A controller of the quorum."""

    node_id: NodeId
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}@{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """Return an IPv6 address in brackets, anything else as it is."""
    return f"[{host}]" if ":" in host else host


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine's loopback. A name other than localhost may resolve to anything."""
    try:
        return ipaddress.ip_address(plain_address(host)).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def plain_address(host: str) -> str:
    """Return one spelling for each address: IPv4-mapped IPv6 as IPv4, no zone. A name stays as it is."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def parse_listener(text: str) -> Listener:
    """Read ``NAME://host:port``. An empty host is the loopback address (Kafka: the default interface).
    Raises ``ValueError``."""
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise ValueError(f"expected NAME://host:port, found {text[:80]!r}")
    return Listener(match[1].upper(), match[2].strip("[]") or LOOPBACK, _port(match[3], text))


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read a list of listeners with names and, but for 0, ports that differ. Raises ``ValueError``."""
    found = tuple(parse_listener(item) for item in split_list(text))
    names = [listener.name for listener in found]
    if len(set(names)) != len(names):
        raise ValueError(f"expected listeners of different names, found {text[:80]!r}")
    addresses = [(listener.host, listener.port) for listener in found if listener.port]
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"expected listeners with different ports, found {text[:120]!r}")
    return found


def parse_optional_listener(text: str) -> Listener | None:
    return parse_listener(text) if text else None


def format_optional_listener(listener: Listener | None) -> str:
    return "" if listener is None else str(listener)


def parse_voters(text: str) -> tuple[Voter, ...]:
    """Read ``id@host:port,…`` with different ids. Raises ``ValueError``."""
    found: list[Voter] = []
    for item in split_list(text):
        match = _VOTER.fullmatch(item)
        if match is None:
            raise ValueError(f"expected id@host:port, found {item[:80]!r}")
        found.append(Voter(NodeId(int(match[1])), match[2].strip("[]"), _port(match[3], item)))
    if len({voter.node_id for voter in found}) != len(found):
        raise ValueError(f"expected voters of different ids, found {text[:120]!r}")
    return tuple(found)


def parse_connection_counts(text: str) -> tuple[tuple[str, int], ...]:
    """Read ``host:count,…``, each host once. Raises ``ValueError``."""
    found: dict[str, int] = {}
    for item in split_list(text):
        host, _, count = item.rpartition(":")
        host = host.strip("[]")
        if not host or not count.isdecimal() or not count.isascii() or len(count) > 9:
            raise ValueError(f"expected host:count, found {item[:80]!r}")
        if host in found:
            raise ValueError(f"expected each host once, found {host[:80]!r} twice")
        found[host] = int(count)
    return tuple(found.items())


def format_connection_counts(counts: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{host}:{count}" for host, count in counts)


def format_items(items: tuple[object, ...]) -> str:
    return ",".join(str(item) for item in items)


def parse_protocol_map(text: str) -> tuple[tuple[str, SecurityProtocol], ...]:
    """Read ``NAME:PROTOCOL,…``. Raises ``ValueError``."""
    found: dict[str, SecurityProtocol] = {}
    for item in split_list(text):
        name, _, written = (part.strip() for part in item.partition(":"))
        protocol = SecurityProtocol.__members__.get(written.upper())
        if not name or protocol is None:
            names = ", ".join(SecurityProtocol.__members__)
            raise ValueError(f"expected NAME:PROTOCOL with one of {names}, found {item[:80]!r}")
        if name.upper() in found:
            raise ValueError(f"expected each listener once, found {name.upper()} twice")
        found[name.upper()] = protocol
    return tuple(found.items())


def format_protocol_map(value: tuple[tuple[str, SecurityProtocol], ...]) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in value)


def _port(text: str, whole: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(f"expected a port between 0 and 65535, found {whole[:80]!r}")
    return port
