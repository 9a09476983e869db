"""A simulated machine: what outlives the processes of a node, and the faults of its disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.former.node import FormerNode
from tidelog.chaos.simulated.world.clocks import SimulatedClock
from tidelog.chaos.simulated.world.loop import Process, SimulatedLoop
from tidelog.model.ids import NodeId
from tidelog.storage.disk.memory_files import Disk, Faults, Killed, MemoryFiles


class SimulatedFaults(Faults):
    """The faults of one process's disk; reports when the process ends in the middle of a call."""

    def __init__(self, rng: random.Random, ended: Callable[[], None]) -> None:
        super().__init__(rng)
        self._ended = ended
        self.dead = False

    def step(self, action: str, path: str) -> BaseException | None:
        trouble = super().step(action, path)
        if isinstance(trouble, Killed) and not self.dead:
            self.dead = True
            self._ended()
        return trouble

    def end(self) -> None:
        self.dead = True
        super().end()


class Host:
    """One node's machine: what outlives its process."""

    def __init__(self, node_id: NodeId, loop: SimulatedLoop) -> None:
        self.node_id = node_id
        self.name = f"node{node_id}"
        self.disk = self.new_disk()
        self.process = Process(loop, self.name)
        self.clock = SimulatedClock(loop, self.process)
        self.files: MemoryFiles | None = None
        self.boots = 0
        """How many processes the node has had."""
        self.is_former = False
        """Whether release 0.1 is installed here."""
        self.power_goes_too = False
        """Whether the host loses its power when its process ends in the middle of a disk call."""
        self.ends_in_call = False
        """Whether the process ends in the middle of a disk call: its knowledge may differ from what it did."""
        self.starting: asyncio.Task[Node | FormerNode] | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None

    def new_disk(self) -> Disk:
        """Return a disk that has the host's directory, empty."""
        disk = Disk()
        disk.names_in_order = False
        files = MemoryFiles(disk)
        files.makedirs(f"/{self.name}")
        files.sync_filesystem("/")
        return disk
