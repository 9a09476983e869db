"""Free TCP ports of the loopback address that stay ours over a restart of a node."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_LOWEST: Final = 20_000
_TRIES_MAX: Final = 2_000


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Return ``count`` ports that can be bound now and that no outgoing connection is given by itself."""
    try:
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    except (OSError, ValueError):
        highest = 32_767
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = rng.randint(_LOWEST, max(highest, _LOWEST + 1_000))
        if port not in found and _bindable(port):
            found.append(port)
    raise OSError(f"expected {count} free ports between {_LOWEST} and {highest}, found {len(found)}")


def _bindable(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
