"""A drill's access to the nodes: by their processes on this machine, by the operator's commands, or by asking the
operator.

Everything runs on the main thread, with times in seconds of :func:`time.monotonic`.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Final, Protocol

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.proto.transport.network import Address

STOP_S: Final = 30.0
"""How long a controlled shutdown may take before the node is killed."""
SERVING_S: Final = 60.0
"""How long a started node may take to serve."""
COMMAND_S: Final = 120.0
HAND_S: Final = 600.0
"""How long an operator may take for a step."""
ROOM_BYTES: Final = 256 * 1024
"""The free space of a full disk for the metadata log; a drill adds a few hundred bytes a second."""
_POLL_S: Final = 0.02
_CONNECT_S: Final = 0.3

Say = Callable[[str], None]


class Reach(Protocol):
    """The acts on nodes. :meth:`restore` undoes all of them, in any state."""

    can_fill: bool
    """Whether disks can be filled."""

    def kill(self, nodes: Sequence[int]) -> float:
        """Kill these nodes immediately; return when it began. They are gone on return."""

    def stop(self, node: int) -> None:
        """Shut a node down gracefully; it is gone on return."""

    def start(self, nodes: Sequence[int]) -> float:
        """Start these nodes; return when it began."""

    def go_over(self) -> None:
        """Let nodes that are started from now on run the release that the drill changes to."""

    def wait_serving(self, nodes: Sequence[int]) -> None:
        """Wait until these nodes serve. Raises :class:`CommandFailed` if they do not."""

    def running(self, node: int) -> bool:
        """Return whether the node is running, as far as known."""

    def fill(self, node: int) -> float:
        """Let the node's disk accept no more data; return when."""

    def free(self, node: int) -> None:
        """Free the disk again."""

    def restore(self) -> None:
        """Undo everything that is not undone yet. Raises :class:`CommandFailed` with what is left to do."""


# --- By process -------------------------------------------------------------------------------------------------------


class ProcessReach:
    """Nodes of a cluster of ``tidelog cluster`` on this machine."""

    can_fill = hasattr(resource, "prlimit")

    def __init__(self, cluster: LocalCluster, to: str = sys.executable) -> None:
        """``to``: the Python of the release for :meth:`go_over`."""
        self.cluster = cluster
        self._to = to
        self._stopped: set[int] = set()
        self._ending: set[int] = set()
        """Nodes that were asked to shut down and may still be running: a start would find them so."""
        self._filled: set[int] = set()

    def kill(self, nodes: Sequence[int]) -> float:
        self._stopped.update(nodes)
        began = time.monotonic()
        for node in nodes:
            self.cluster.node(node).send_signal(signal.SIGKILL)
        for node in nodes:
            self.cluster.kill(node)
        return began

    def stop(self, node: int) -> None:
        self._stopped.add(node)
        self._ending.add(node)
        killed = self.cluster.stop([node], timeout_s=STOP_S)
        self._ending.discard(node)
        if killed:
            raise CommandFailed(f"node {node} did not shut down within {STOP_S:g} s, so it was killed")

    def start(self, nodes: Sequence[int]) -> float:
        began = time.monotonic()
        self.cluster.start(nodes)
        return began

    def go_over(self) -> None:
        for node in self.cluster.nodes.values():
            node.interpreter = self._to

    def wait_serving(self, nodes: Sequence[int]) -> None:
        self.cluster.wait_ready(nodes, SERVING_S)
        self._stopped.difference_update(nodes)

    def running(self, node: int) -> bool:
        return self.cluster.node(node).mark is not None

    def fill(self, node: int) -> float:
        """Limit the file size of the process to slightly more than its metadata log: the kernel refuses the write, as
        on a full disk, with EFBIG for ENOSPC. The node treats all I/O errors alike (docs/storage.md)."""
        mark = self.cluster.node(node).mark
        if mark is None:
            raise CommandFailed(f"node {node} does not run")
        self._filled.add(node)
        began = time.monotonic()
        _limit_files(mark.pid, _longest(self.cluster.node(node).data_dir / "__cluster_metadata-0") + ROOM_BYTES)
        return began

    def free(self, node: int) -> None:
        mark = self.cluster.node(node).mark
        if mark is not None:
            _limit_files(mark.pid, None)
        self._filled.discard(node)

    def restore(self) -> None:
        for node in sorted(self._filled):
            self.free(node)
            self._ending.add(node)  # a failed directory is accepted again after a restart
            self._stopped.add(node)
        self.cluster.stop(sorted(self._ending), timeout_s=STOP_S)
        self._ending.clear()
        if away := sorted(self._stopped):
            self.start(away)
            self.wait_serving(away)


def _limit_files(pid: int, length: int | None) -> None:
    """Limit the length of the files that a process writes; ``None`` for no limit. Only the soft limit changes."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    if length is None:
        length = hard
    elif hard != resource.RLIM_INFINITY:
        length = min(length, hard)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (length, hard))


def _longest(directory: Path) -> int:
    return max((entry.stat().st_size for entry in os.scandir(directory) if entry.is_file()), default=0)


# --- By commands, and by hand -----------------------------------------------------------------------------------------


class RemoteReach:
    """Base for nodes whose processes are invisible: a node is running while its listener accepts connections."""

    def __init__(self, brokers: Mapping[int, Address]) -> None:
        self._brokers = brokers
        self._stopped: set[int] = set()
        self._ending: set[int] = set()
        self._filled: set[int] = set()

    def go_over(self) -> None:
        """Do nothing: whoever starts a node chooses its release."""

    def running(self, node: int) -> bool:
        """Return whether the node is running. One without a listener for clients (a controller alone) is assumed to be
        as it was left."""
        address = self._brokers.get(node)
        return node not in self._stopped if address is None else listens(address)

    def _wait_until(self, nodes: Collection[int], there: bool, bound_s: float) -> None:
        seen = [node for node in nodes if node in self._brokers]
        deadline = time.monotonic() + bound_s
        while late := [node for node in seen if self.running(node) is not there]:
            if time.monotonic() > deadline:
                state = "does not listen" if there else "still listens"
                raise CommandFailed(f"waited {bound_s:g} s: node {late[0]} {state} at {self._brokers[late[0]]}")
            time.sleep(_POLL_S)


def listens(address: Address) -> bool:
    """Return whether anything accepts connections there."""
    try:
        socket.create_connection((address.host, address.port), _CONNECT_S).close()
    except OSError:
        return False
    return True


class CommandReach(RemoteReach):
    """Nodes that are stopped and started by the operator's commands: templates with ``{node}`` and, for stopping,
    ``{signal}`` (KILL or TERM). They run without a shell."""

    def __init__(
        self, brokers: Mapping[int, Address], stop: str, start: str, fill: str = "", free: str = "", say: Say = print
    ) -> None:
        super().__init__(brokers)
        self._stop = checked_template("--stop-command", stop, {"node", "signal"})
        self._start = checked_template("--start-command", start, {"node"})
        if bool(fill) != bool(free):
            raise CommandFailed("expected --fill-command and --free-command together, found one of them")
        self._fill = checked_template("--fill-command", fill, {"node"}) if fill else ""
        self._free = checked_template("--free-command", free, {"node"}) if free else ""
        self.can_fill = bool(fill)
        self._say = say

    def kill(self, nodes: Sequence[int]) -> float:
        """Kill nodes by command. The start is when the first of them was seen to be gone, since a command takes its
        time; if that is invisible, when the first command had ended."""
        self._stopped.update(nodes)
        gone = [self._run(self._stop, node, watch=True, signal="KILL") for node in nodes]
        self._wait_until(nodes, False, STOP_S)
        return min(gone)

    def stop(self, node: int) -> None:
        self._stopped.add(node)
        self._ending.add(node)
        self._run(self._stop, node, signal="TERM")
        self._wait_until([node], False, STOP_S)
        self._ending.discard(node)

    def start(self, nodes: Sequence[int]) -> float:
        began = time.monotonic()
        for node in nodes:
            self._run(self._start, node)
        return began

    def wait_serving(self, nodes: Sequence[int]) -> None:
        self._wait_until(nodes, True, SERVING_S)
        self._stopped.difference_update(nodes)

    def fill(self, node: int) -> float:
        self._filled.add(node)
        began = time.monotonic()
        self._run(self._fill, node)
        return began

    def free(self, node: int) -> None:
        self._run(self._free, node)
        self._filled.discard(node)

    def restore(self) -> None:
        for node in sorted(self._filled):
            self.free(node)
            self.stop(node)
        if self._ending:
            self._wait_until(self._ending, False, STOP_S)
        if away := [node for node in sorted(self._stopped) if node not in self._brokers or not self.running(node)]:
            self.start(away)
            self.wait_serving(away)

    def _run(self, template: str, node: int, *, watch: bool = False, **more: str) -> float:
        """Run a command for a node; return when it ended, or with ``watch`` when the node was seen to be gone if that
        was earlier."""
        command = [word.format(node=node, **more) for word in shlex.split(template)]
        shown = f"`{shlex.join(command)}`"
        self._say(f"$ {shlex.join(command)}")
        gone = None
        with tempfile.TemporaryFile("w+") as output:
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            except OSError as trouble:
                raise CommandFailed(f"{shown} cannot be run: {trouble.strerror or trouble}") from None
            try:
                deadline = time.monotonic() + COMMAND_S
                while child.poll() is None:
                    if time.monotonic() > deadline:
                        raise CommandFailed(f"{shown} has not ended after {COMMAND_S:g} s")
                    if watch and gone is None and node in self._brokers and not self.running(node):
                        gone = time.monotonic()
                    time.sleep(_POLL_S)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            output.seek(0)
            said = output.read().strip().splitlines()[-1:] or ["it said nothing"]
        if child.returncode:
            raise CommandFailed(f"{shown} ended with exit code {child.returncode}: {said[0]}")
        return gone or time.monotonic()


def checked_template(option: str, template: str, fields: Collection[str]) -> str:
    """Raise :class:`CommandFailed` for a template that cannot be filled in, or that has no node."""
    names = ", ".join(f"{{{name}}}" for name in sorted(fields))
    try:
        found = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        words = shlex.split(template)
    except ValueError as wrong:
        raise CommandFailed(f"{option}: expected a command with {names}, found {template!r} ({wrong})") from None
    if not words or "node" not in found or not found <= set(fields):
        raise CommandFailed(f"{option}: expected a command with {names}, found {template!r}")
    if shutil.which(words[0]) is None:
        raise CommandFailed(f"{option}: expected a program, found {words[0]!r}, which is not on PATH")
    return template


class HandReach(RemoteReach):
    """Nodes that the operator stops and starts when asked, while the drill watches."""

    can_fill = True

    def __init__(
        self, brokers: Mapping[int, Address], say: Say = print, enter: Callable[[], None] | None = None
    ) -> None:
        super().__init__(brokers)
        self._say = say
        self._enter = enter or _wait_for_enter

    def kill(self, nodes: Sequence[int]) -> float:
        self._stopped.update(nodes)
        self._ask(f"kill {_named(nodes)} now, at once and without warning (kill -9)", nodes)
        self._wait_until(nodes[:1], False, HAND_S)
        began = time.monotonic()
        self._wait_until(nodes, False, HAND_S)
        return began

    def stop(self, node: int) -> None:
        self._stopped.add(node)
        self._ask(f"shut {_named([node])} down in order now (SIGTERM)", [node])
        self._wait_until([node], False, HAND_S)

    def start(self, nodes: Sequence[int]) -> float:
        self._ask(f"start {_named(nodes)} now", nodes)
        self._wait_until(nodes, True, HAND_S)
        return time.monotonic()

    def wait_serving(self, nodes: Sequence[int]) -> None:
        self._wait_until(nodes, True, SERVING_S)
        self._stopped.difference_update(nodes)

    def fill(self, node: int) -> float:
        self._filled.add(node)
        self._ask(f"fill the disk of {_named([node])} now, so that its log directory takes nothing more", [])
        self._enter()
        return time.monotonic()

    def free(self, node: int) -> None:
        self._ask(f"make room on the disk of {_named([node])} now", [])
        self._enter()
        self._filled.discard(node)

    def restore(self) -> None:
        """Do nothing: the operator is needed, and may have caused the interrupt."""
        left = [f"make room on the disk of {_named([node])} and start it again" for node in sorted(self._filled)]
        if away := [node for node in sorted(self._stopped - self._filled) if not self.running(node)]:
            left.append(f"start {_named(away)}")
        if left:
            raise CommandFailed(f"left to do by hand: {'; '.join(left)}")

    def _ask(self, what: str, nodes: Sequence[int]) -> None:
        self._say(f">>> {what}")
        if any(node not in self._brokers for node in nodes):
            self._enter()


def _named(nodes: Sequence[int]) -> str:
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _wait_for_enter() -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("expected a terminal, to wait for Enter: the effect there is not visible from here")
    sys.stderr.write("    then press Enter: ")
    sys.stderr.flush()
    sys.stdin.readline()
