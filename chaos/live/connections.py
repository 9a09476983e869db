"""Which processes of this machine are connected, by the kernel's own tables: does anything go round the proxies?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_ESTABLISHED = "01"


class Link(NamedTuple):
    """One end of an established TCP connection, as the process that has it sees it."""

    pid: int
    local_port: int
    remote_port: int


def connections(pids: Iterable[int]) -> list[Link]:
    """The established IPv4 and IPv6 connections of processes, at the moment (proc(5), net/tcp)."""
    by_inode: dict[str, tuple[int, int]] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                by_inode[fields[9]] = _port(fields[1]), _port(fields[2])
    return [Link(pid, *by_inode[inode]) for pid in pids for inode in _sockets(pid) if inode in by_inode]


def past_proxies(nodes: Mapping[int, Iterable[int]]) -> list[Link]:
    """Connections that a node made to where another one listens; there must be none. ``nodes``: process id of each,
    and the ports on which it listens itself; only the proxy server, which is none of them, may dial those."""
    return [
        link
        for link in connections(nodes)
        for pid, ports in nodes.items()
        if pid != link.pid and link.remote_port in ports
    ]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _sockets(pid: int) -> list[str]:
    found = []
    try:
        names = os.listdir(_PROC / str(pid) / "fd")
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(_PROC / str(pid) / "fd" / name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(target[8:-1])
    return found
