"""The processes of a driver, found in ``/proc``: its JVM, its Python workers, and the owners of connections.

A driver is started in its own session, and none of its processes leaves it; so its members are those with its session
id, whatever process groups Spark gives them. On a cluster others start its executors; they, and their Python workers,
have the session's id in their environment. Linux only.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.chaos import proc
from tidelog.cli.local.process import command_of, pids, stat_of

EXECUTES_FOR: Final = "TIDELOG_KILLS_DRIVER"
"""The variable in the environment of executors that has the session id of their driver."""
_LOOPBACKS: Final = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


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
    def is_executor(self) -> bool:
        return "CoarseGrainedExecutorBackend" in self.command

    @property
    def is_daemon(self) -> bool:
        """Return whether it is the daemon that forks workers, or a worker: they have the same command."""
        return "pyspark.daemon" in self.command


def members(session: int) -> list[Process]:
    """Return the processes of a session that have not ended, by pid."""
    found = []
    for pid in pids():
        stat = stat_of(pid)
        if stat is not None and stat[0] != "Z" and (int(stat[3]) == session or _executes_for(pid, session)):
            with suppress(OSError):
                found.append(Process(pid, int(stat[1]), stat[0], " ".join(command_of(pid))))
    return sorted(found)


def _executes_for(pid: int, session: int) -> bool:
    with suppress(OSError):
        return f"{EXECUTES_FOR}={session}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def executor_of(pid: int, session: int) -> int | None:
    """Return the executor that a process descends from; None if there is none."""
    there = {one.pid: one for one in members(session)}
    while (found := there.get(pid)) is not None and not found.is_executor:
        pid = found.parent
    return None if found is None else found.pid


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal; skip processes that are gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def port_of(peer: str) -> int:
    """Return the port in gRPC's name of a peer, ``ipv4:127.0.0.1:40000``."""
    return int(peer.rpartition(":")[2])


def owner_of(port: int, session: int) -> int | None:
    """Return the process of a session that owns the end of a connection with this local port; None if there is none."""
    ends = {one.inode for one in _on_loopback() if one.local_port == port}
    return next((one.pid for one in members(session) if ends & proc.sockets(one.pid)), None)


def unread_bytes(pid: int) -> int:
    """Return the number of unread bytes in the connections of a process."""
    own = proc.sockets(pid)
    return sum(one.unread_bytes for one in _on_loopback() if one.inode in own)


def _on_loopback() -> list[proc.TcpSocket]:
    return [one for one in proc.tcp_sockets() if one.local_host in _LOOPBACKS]
