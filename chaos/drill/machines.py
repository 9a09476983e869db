"""A drill's access to machines with workers (``tidelog server --workers``) whose processes are on this host.

A supervisor would start a dead worker again at once, so while a worker is meant to be away, its supervisor is halted
(SIGSTOP); it starts the worker once it goes on. If all workers of a machine are meant to be away, the supervisor dies
first, and is later started with its own command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidelog.chaos.drill.reach import SERVING_S, STOP_S, RemoteReach
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.process import ProcessMark, alive, command_of, mark_of, pids, send_signal, stat_of
from tidelog.proto.transport.network import Address

_POLL_S = 0.02


@dataclass
class Machine:
    """A supervisor, and what it takes to start it again."""

    supervisor: ProcessMark
    nodes: tuple[int, ...]
    command: list[str]
    directory: str
    environment: dict[str, str]
    output: str
    """Where its lines go; /dev/null if that is no file."""
    child: subprocess.Popen[bytes] | None = None
    """The supervisor, if the drill has started it."""

    def start(self) -> None:
        with open(self.output, "ab") as out:
            self.child = subprocess.Popen(
                self.command, cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
        mark = mark_of(self.child.pid)
        if mark is None:
            raise CommandFailed(f"`{' '.join(self.command)}` ended at once: {self.output} may say why")
        self.supervisor = mark


def find_machines(cluster_id: str) -> list[Machine]:
    """Return the machines of a cluster whose processes are on this host, as far as /proc shows them (Linux)."""
    by_supervisor: dict[int, dict[int, list[str]]] = {}
    for node, pid, words in _workers():
        if (fields := stat_of(pid)) is not None:
            by_supervisor.setdefault(int(fields[1]), {})[node] = words
    found = []
    for pid, workers in sorted(by_supervisor.items()):
        mark = mark_of(pid)
        if mark is not None and any(cluster_id in words for words in workers.values()):
            with suppress(OSError):
                found.append(_machine(mark, tuple(sorted(workers))))
    return found


def _machine(mark: ProcessMark, nodes: tuple[int, ...]) -> Machine:
    here = Path("/proc") / str(mark.pid)
    pairs = (here / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    output = os.readlink(here / "fd/2")
    return Machine(
        mark, nodes, command_of(mark.pid), os.readlink(here / "cwd"),
        dict(pair.split("=", 1) for pair in pairs if "=" in pair), output if os.path.isfile(output) else os.devnull,
    )  # fmt: skip


def _workers() -> list[tuple[int, int, list[str]]]:
    """Return node id, pid and command of every worker on this host."""
    found = []
    for pid in sorted(pids()):
        with suppress(OSError):
            words = command_of(pid)
            ids = [word.removeprefix("node.id=") for word in words if word.startswith("node.id=")]
            if "--supervised" in words and ids and mark_of(pid) is not None:
                found.append((int(ids[-1]), pid, words))
    return found


class MachineReach(RemoteReach):
    """The workers of machines, one by one or a machine as a whole."""

    can_fill = False

    def __init__(self, brokers: Mapping[int, Address], machines: Sequence[Machine]) -> None:
        super().__init__(brokers)
        self._machines = machines

    def kill(self, nodes: Sequence[int]) -> float:
        self._stopped.update(nodes)
        began = time.monotonic()
        marks = self._held(nodes)
        marks += [one.supervisor for one in self._of(nodes) if self._stopped.issuperset(one.nodes)]
        for mark in marks:
            send_signal(mark, signal.SIGKILL)
        _wait_gone(marks)
        return began

    def stop(self, node: int) -> None:
        self._stopped.add(node)
        marks = self._held([node])
        for mark in marks:
            send_signal(mark, signal.SIGTERM)
        try:
            _wait_gone(marks)
        except CommandFailed:
            for mark in marks:
                send_signal(mark, signal.SIGKILL)
            raise CommandFailed(f"node {node} did not shut down within {STOP_S:g} s, so it was killed") from None

    def start(self, nodes: Sequence[int]) -> float:
        began = time.monotonic()
        for machine in self._of(nodes):
            if alive(machine.supervisor):
                send_signal(machine.supervisor, signal.SIGCONT)
            else:
                machine.start()
        return began

    def wait_serving(self, nodes: Sequence[int]) -> None:
        self._wait_until(nodes, True, SERVING_S)
        self._stopped.difference_update(nodes)

    def fill(self, node: int) -> float:
        raise CommandFailed("expected --fill-command and --free-command for the disk of a worker, found none")

    def free(self, node: int) -> None:
        """Do nothing: nothing was filled."""

    def restore(self) -> None:
        if away := sorted(self._stopped):
            self.start(away)
            self.wait_serving(away)

    def _of(self, nodes: Collection[int]) -> list[Machine]:
        return [machine for machine in self._machines if not set(nodes).isdisjoint(machine.nodes)]

    def _held(self, nodes: Collection[int]) -> list[ProcessMark]:
        """Halt the supervisors of these workers, and return the workers' present processes."""
        supervisors = {machine.supervisor.pid for machine in self._of(nodes)}
        for machine in self._of(nodes):
            send_signal(machine.supervisor, signal.SIGSTOP)
        marks = []
        for node, pid, _ in _workers():
            fields, mark = stat_of(pid), mark_of(pid)
            if node in nodes and fields is not None and int(fields[1]) in supervisors and mark is not None:
                marks.append(mark)
        return marks


def _wait_gone(marks: Collection[ProcessMark]) -> None:
    deadline = time.monotonic() + STOP_S
    while late := [mark for mark in marks if alive(mark)]:
        if time.monotonic() > deadline:
            raise CommandFailed(f"waited {STOP_S:g} s: process {late[0].pid} does not end")
        time.sleep(_POLL_S)
