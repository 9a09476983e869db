"""Drains of a node while other faults occur: the operator's own command, as a process beside the clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.chaos.laboratory.faults.move_acts import MoveActs
from tidelog.chaos.laboratory.faults.observer import ClusterStanding
from tidelog.chaos.laboratory.faults.schedule import Step
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import write_private
from tidelog.client.config.profiles import BOOTSTRAP, Profiles, format_profiles

NODES_MIN: Final = 4
"""One node more than there are replicas: otherwise no node could take those of the drained one."""
DRAINED_S: Final = 90.0
"""How long a drain may take, unthrottled, once its faults are over."""
FAST: Final = 100_000_000
_PROFILE: Final = "laboratory"


class DrainActs:
    """Performs drains. ``look`` returns the state of the cluster. Runs on the main thread, which alone may start
    processes."""

    def __init__(
        self, laboratory: Laboratory, moves: MoveActs, look: Callable[[], ClusterStanding], history: HistoryFile
    ) -> None:
        self._laboratory = laboratory
        self._moves = moves
        self._look = look
        self._history = history
        self._node = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def acts(self) -> dict[str, Callable[[Step, int], None]]:
        return {
            "drain": lambda step, node: self._begin(node, int(step.options["throttle"])),
            "undrain": lambda step, node: self._finish(),
        }

    def mend(self) -> None:
        """Stop a drain in progress, and let the node have its replicas again."""
        if self._process is not None:
            self._finish()

    def _begin(self, node: int, rate: int) -> None:
        if self._process is not None:
            raise CommandFailed(f"node {self._node} is being drained already")
        self._moves.learn()
        self._node = node
        self._process = self._drain(rate)

    def _finish(self) -> None:
        """Interrupt the command, restart it without a throttle, and check that it empties the node; then move
        everything back."""
        if self._process is None:
            raise CommandFailed("no node is being drained")
        done = self._process.poll() == 0
        self._history.note(f"node {self._node} is {'drained' if done else 'being drained'} when the faults are over")
        self._interrupt(self._process)
        self._process = again = self._drain(FAST)
        try:
            code: int | None = again.wait(DRAINED_S)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            self._interrupt(again)
            self._history.wrong(
                f"{DRAINED_S:g} s after its faults the drain of node {self._node} has not ended: {self._said()}"
            )
        elif left := [at for at, held in self._look().partitions.items() if self._node in held.replicas]:
            self._history.wrong(
                f"node {self._node} is said to be drained, and has replicas of {', '.join(map(str, left))}"
            )
        self._process = None
        self._moves.end_drain(self._node)

    def _drain(self, rate: int) -> subprocess.Popen[bytes]:
        home = self._laboratory.directory / "drain"
        profile = home / "tidelog" / "profiles.toml"
        profile.parent.mkdir(parents=True, exist_ok=True)
        settings = {BOOTSTRAP: self._laboratory.bootstrap, **{k: str(v) for k, v in self._laboratory.admin.items()}}
        write_private(profile, format_profiles(Profiles(_PROFILE, {_PROFILE: settings})))
        command = [sys.executable, "-P", "-m", "tidelog.chaos.laboratory.processes.parent_death", str(os.getpid())]
        command += [
            sys.executable,
            "-P",
            "-m",
            "tidelog.chaos.laboratory.processes.draining",
            str(self._node),
            str(rate),
        ]
        with (home / "said").open("ab") as said:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**_without_ours(os.environ), "XDG_CONFIG_HOME": str(home)},
                start_new_session=True,
            )

    def _interrupt(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _said(self) -> str:
        lines = (self._laboratory.directory / "drain" / "said").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


def _without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that may name another cluster."""
    return {name: value for name, value in environment.items() if not name.startswith("TIDELOG_")}
