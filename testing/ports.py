"""TCP loopback ports for nodes, which need the same ports again after a restart."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.model.settings.listeners import LOOPBACK as LOOPBACK

_LOWEST: Final = 20_000
_TRIES_MAX: Final = 2_000


def taken(ports: Sequence[int]) -> list[int]:
    """Return the ports that cannot be bound now."""
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
    """Return ``count`` different ports that can be bound now and that no outgoing connection will get.

    Ask once for all ports that you need together: a second call may choose one of the first again. Each pytest-xdist
    worker has its own ports, or it could take those of a node that another worker has stopped. Raises ``OSError``.
    """
    rng = rng or random.Random()
    lowest, highest = _share(_LOWEST, max(_ephemeral_low() - 1, _LOWEST + 1_000))
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = rng.randint(lowest, highest)
        if port not in found and not taken([port]):
            found.append(port)
    raise OSError(f"expected {count} free ports between {lowest} and {highest}, found {len(found)}")


def _share(lowest: int, highest: int) -> tuple[int, int]:
    """Return this process's part of the range if it is one of several pytest-xdist workers."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if not (worker.isdecimal() and workers.isdecimal()):
        return lowest, highest
    size = (highest + 1 - lowest) // max(int(workers), 1)
    first = lowest + int(worker) % max(int(workers), 1) * size
    return first, first + size - 1


def _ephemeral_low() -> int:
    """Return the lowest port that the system gives to outgoing connections, one of which could take a node's port while
    it is down."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
