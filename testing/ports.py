"""TCP ports of the loopback address for nodes, which must find them again after a restart."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.model.listeners import LOOPBACK as LOOPBACK

_LOWEST: Final = 20_000
_TRIES_MAX: Final = 2_000


def taken(ports: Sequence[int]) -> list[int]:
    """Return those ports that cannot be bound now."""
    found = []
    for port in ports:
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                found.append(port)
    return found


def free_ports(count: int, rng: random.Random | None = None) -> list[int]:
    """Return ``count`` different ports that can be bound now and that no outgoing connection will be given.

    Ask once for all that are needed together: a second call may choose one of the first again. Raises ``OSError``.
    """
    rng = rng or random.Random()
    highest = max(_ephemeral_low() - 1, _LOWEST + 1_000)
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = rng.randint(_LOWEST, highest)
        if port not in found and not taken([port]):
            found.append(port)
    raise OSError(f"expected {count} free ports between {_LOWEST} and {highest}, found {len(found)}")


def _ephemeral_low() -> int:
    """The lowest port that the system hands to outgoing connections: one of those could take the port of a
    node while it is down."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
