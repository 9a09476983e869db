"""A schedule's acts on nodes' disks and clocks (:mod:`tidelog.chaos.disk`), and how each is undone.

A node with a failed log directory ends, as Kafka's does, and is restarted when the disk is repaired, as its operator
would do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.chaos.disk.damage import damage_tail
from tidelog.chaos.disk.faults import DiskFaults
from tidelog.chaos.laboratory.faults.schedule import Step
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.cli.failure import CommandFailed

STEADY_S: Final = 0.5
"""A node that reports good health for this long after its disk was repaired has not noticed the fault, or has recovered
from it."""
ENDS_S: Final = 20.0
"""How long a node with a failed disk may take to end."""
_POLL_S: Final = 0.05

Act = Callable[[Step, int], None]


class DiskActs:
    """Performs the acts that concern disks and clocks. On the main thread."""

    def __init__(self, laboratory: Laboratory, topics: tuple[str, ...], history: HistoryFile) -> None:
        self._laboratory = laboratory
        self._topics = topics
        self._history = history
        self._hit: set[int] = set()
        """Nodes that may end by themselves because of faults on their disks."""

    @property
    def acts(self) -> Mapping[str, Act]:
        return {
            "disk-full": self._spoil(lambda disk, step: disk.full(int(step.options["room"]))),
            "disk-slow": self._spoil(lambda disk, step: disk.slow(**step.options)),
            "disk-fails": self._spoil(lambda disk, step: disk.fail(**{str(step.options["call"]): True})),
            "disk-stall": self._spoil(lambda disk, step: disk.stall()),
            "disk-mend": lambda step, node: self._mend(self._meant(step, node)),
            "damage": self._damage,
            "clock": self._move_clock,
            "clock-mend": self._move_clock,
        }

    def mend(self) -> None:
        """Undo everything, and start nodes that have ended because of it. Raises :class:`CommandFailed`."""
        for faults in self._laboratory.faults.values():
            faults.set_clock(0.0)
        self._mend(sorted(self._hit))

    def _meant(self, step: Step, node: int) -> list[int]:
        """Return the target nodes: a step without a target means all nodes."""
        return [node] if step.target else [*self._laboratory.node_ids]

    def _spoil(self, spoil: Callable[[DiskFaults, Step], None]) -> Act:
        def act(step: Step, node: int) -> None:
            for each in self._meant(step, node):
                spoil(self._faults(each), step)
                self._hit.add(each)

        return act

    def _move_clock(self, step: Step, node: int) -> None:
        for each in self._meant(step, node):
            self._faults(each).set_clock(float(step.options.get("ahead_s", 0.0)))

    def _faults(self, node: int) -> DiskFaults:
        try:
            return self._laboratory.faults[node]
        except KeyError:
            raise CommandFailed(f"node {node} was started without the means for it") from None

    def _mend(self, nodes: list[int]) -> None:
        for node in nodes:
            faults = self._faults(node)
            faults.mend()
            self._history.note(f"node {node}: its disk is mended, {faults.hits}")
        for node in nodes:
            if node in self._hit:
                self._hit.discard(node)
                self._bring_back(node)

    def _bring_back(self, node: int) -> None:
        """Wait until it is clear whether a node ends because of its disk; if so, start it."""
        deadline = time.monotonic() + ENDS_S
        process = self._laboratory.cluster.node(node)
        well_since: float | None = None
        while process.mark is not None:
            now = time.monotonic()
            if not _well(process.get):
                well_since = None
            elif well_since is None:
                well_since = now
            elif now > well_since + STEADY_S:
                return
            if now > deadline:
                raise CommandFailed(f"node {node} neither serves nor ends, {ENDS_S:g} s after its disk was mended")
            time.sleep(_POLL_S)
        self._history.note(f"node {node} has ended for its disk: {process.last_words()}")
        self._laboratory.cluster.start([node])

    def _damage(self, step: Step, node: int) -> None:
        process = self._laboratory.cluster.node(node)
        if process.mark is not None:
            raise CommandFailed(f"node {node} runs: bytes are flipped under a node that does not")
        found = damage_tail(process.data_dir, self._topics, random.Random(f"damage-{step.options['seed']}"))
        if found is None:
            raise CommandFailed(f"node {node}: nothing lies behind a recovery point")
        self._history.note(f"node {node}: {found}")


def _well(get: Callable[[str], tuple[int, bytes]]) -> bool:
    try:
        return get("/health")[0] == 200
    except OSError:
        return False
