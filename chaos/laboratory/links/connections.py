"""Connections between processes of this machine, from the kernel's own tables: does anything bypass the proxies?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.chaos.proc import ESTABLISHED, sockets, tcp_sockets


class Link(NamedTuple):
    """One end of an established TCP connection, as seen by the process that owns it."""

    pid: int
    local_port: int
    remote_port: int


def connections(pids: Iterable[int]) -> list[Link]:
    """Return the current established IPv4 and IPv6 connections of processes (proc(5), net/tcp)."""
    by_inode = {one.inode: one for one in tcp_sockets() if one.state == ESTABLISHED}
    return [
        Link(pid, by_inode[inode].local_port, by_inode[inode].remote_port)
        for pid in pids
        for inode in sockets(pid) & by_inode.keys()
    ]


def past_proxies(nodes: Mapping[int, Iterable[int]]) -> list[Link]:
    """Return connections from a node to a port where another node listens; there must be none. ``nodes``: process id of
    each, and the ports on which it listens itself; only the proxy server, which is none of them, may dial those."""
    return [
        link
        for link in connections(nodes)
        for pid, ports in nodes.items()
        if pid != link.pid and link.remote_port in ports
    ]
