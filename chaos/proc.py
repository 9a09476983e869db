"""Reads Linux's ``/proc`` (proc(5)) about processes and their sockets.

psutil does not report socket queues, so it would not suffice here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.cli.local.process import command_of, pids

_PROC: Final = Path("/proc")
ESTABLISHED: Final = "01"


class TcpSocket(NamedTuple):
    """One end of a connection, or a listener, in the kernel's table."""

    inode: str
    state: str
    """In the table's notation, e.g. :data:`ESTABLISHED`."""
    local_host: str
    """In hexadecimal, as in the table."""
    local_port: int
    remote_port: int
    unread_bytes: int
    """Received bytes that nobody has read."""


def commands() -> Iterator[list[str]]:
    """Yield the command line of every process, by pid; nothing on a system without ``/proc``."""
    for pid in sorted(pids()):
        with suppress(OSError):
            yield command_of(pid)


def descriptors(pid: int) -> list[str]:
    """Return the targets of a process's open descriptors. Raises ``OSError`` if it is gone."""
    found = []
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        with suppress(OSError):  # closed meanwhile
            found.append(os.readlink(entry.path))
    return found


def sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets of a process; none if it is gone."""
    with suppress(OSError):
        return {link[8:-1] for link in descriptors(pid) if link.startswith("socket:[")}
    return set()


def tcp_sockets() -> list[TcpSocket]:
    """Return the IPv4 and IPv6 sockets of this machine."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                host, _, port = fields[1].rpartition(":")
                remote, unread = fields[2].rpartition(":")[2], fields[4].rpartition(":")[2]
                found.append(TcpSocket(fields[9], fields[3], host, int(port, 16), int(remote, 16), int(unread, 16)))
    return found
