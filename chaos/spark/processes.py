"""The processes of a driver, found in ``/proc``: its JVM, its Python workers, and whose end of a connection is whose.

A driver is started in a session of its own, and none of its processes leaves it; so its members are those with its
session id, whatever process groups Spark gives them. Linux only.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_LOOPBACK: Final = "0100007F"
_V6_LOOPBACKS: Final = ("0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    """One letter, as ``ps`` shows it: T is stopped, Z ended."""
    command: str

    @property
    def is_jvm(self) -> bool:
        return "org.apache.spark.deploy.SparkSubmit" in self.command

    @property
    def is_daemon(self) -> bool:
        """What forks workers, and those that it forked: they have the same command."""
        return "pyspark.daemon" in self.command


def members(session: int) -> list[Process]:
    """The processes of a session that have not ended, by pid."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            stat = (entry / "stat").read_text()
            state, parent, _, sid = stat[stat.rindex(")") + 2 :].split()[:4]
            if int(sid) == session and state != "Z":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(Process(int(entry.name), int(parent), state, command))
    return sorted(found)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal; those that are gone are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def port_of(peer: str) -> int:
    """The port of gRPC's name of a peer, ``ipv4:127.0.0.1:40000``."""
    return int(peer.rpartition(":")[2])


def owner_of(port: int, session: int) -> int | None:
    """The process of a session whose end of a connection has this local port; None if none has."""
    sockets = {inode for inode, local, _ in _connections() if local == port}
    return next((one.pid for one in members(session) if sockets & _sockets(one.pid)), None)


def unread_bytes(pid: int) -> int:
    """Bytes that wait in the connections of a process."""
    waiting = {inode: queue for inode, _, queue in _connections() if queue}
    return sum(waiting[inode] for inode in _sockets(pid) if inode in waiting)


def _connections() -> list[tuple[str, int, int]]:
    """Inode, local port and bytes received but not read, of connections over the loopback address."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
            fields = line.split()
            host, _, port = fields[1].rpartition(":")
            if host == _LOOPBACK or host in _V6_LOOPBACKS:
                found.append((fields[9], int(port, 16), int(fields[4].rpartition(":")[2], 16)))
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
