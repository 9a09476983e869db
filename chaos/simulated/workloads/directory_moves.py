"""Replicas that move between the log directories of their brokers while a simulated cluster is working.

Judged, besides the checks of every run: once all is repaired, every move ends, the controller knows the directory of
every replica, and no leftover of a move is on any disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidelog.client.errors import TidelogError
from tidelog.metadata_quorum.image.image import directory_of
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

ASK_S: Final = 6.0


class DirectoryMoves:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        sim.injector.acts |= {"move-log": self._move, "move-logs": self._move_all, "end-moves": self._end_moves}

    async def begin(self) -> None:
        pass

    async def finish(self) -> None:
        pass

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return []

    # --- faults -------------------------------------------------------------------------------------

    def _move(self, target: str, partition: int) -> bool:
        """Let a node move its replica of a partition to its other directory."""
        return self._begin(target, lambda log: log.partition == partition)

    def _move_all(self, target: str) -> bool:
        return self._begin(target, lambda log: True)

    def _begin(self, target: str, wanted: Callable[[Log], bool]) -> bool:
        wishes: dict[tuple[str, int, int], str] = {}
        for node_id, logs, log in self._logs(target):
            others = [path for path in logs.directory_paths if path != logs.directory_path(log)]
            if others and wanted(log):
                wishes[log.topic, log.partition, node_id] = others[0]
        return self._ask(wishes)

    def _end_moves(self, target: str) -> bool:
        """Let a node cancel its moves, so that its replicas stay where they are."""
        return self._ask(
            {
                (log.topic, log.partition, node_id): logs.directory_path(log)
                for node_id, logs, log in self._logs(target)
                if log.moving
            },
            ends=True,
        )

    def _ask(self, wishes: Mapping[tuple[str, int, int], str], *, ends: bool = False) -> bool:
        if wishes:
            self.sim.injector.run(self._alter(wishes, ends=ends))
        return bool(wishes)

    async def _alter(self, wishes: Mapping[tuple[str, int, int], str], *, ends: bool) -> None:
        self.operations += 1
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.alter_replica_log_dirs(wishes, timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"{dict(wishes)}: {error}")
        else:
            self.events["move-ended" if ends else "move-begun"] += 1

    def _logs(self, target: str) -> Iterator[tuple[NodeId, LogManager, Log]]:
        """Yield a running node's logs of the topic."""
        node_id = self.sim.injector.resolve(target)
        node = None if node_id is None else self.sim.cluster.nodes.get(node_id)
        if node_id is None or node is None or node.broker is None:
            return
        for log in node.broker.logs.logs():
            if log.topic == self.sim.topic:
                yield node_id, node.broker.logs, log

    # --- the end ------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        await self.sim.cluster.wait_for(lambda: not self._unsettled(), "every move over and told", bound_s)

    def judge(self) -> None:
        for what in self._unsettled():
            self.sim.world.violated(f"directories: {what}")

    def _unsettled(self) -> list[str]:
        found = []
        for node_id, node in sorted(self.sim.cluster.nodes.items()):
            if node.broker is None:
                continue
            logs = node.broker.logs
            found += [
                f"node {node_id} has something left of a move of {at.partition}" for at in logs.moves.partitions()
            ]
            found += [
                f"node {node_id} has {log.name} elsewhere than the controller knows"
                for log in logs.logs()
                if self._told(node_id, log) != logs.directory_of(TopicIdPartition(log.topic_id, log.partition))
            ]
        return found

    def _told(self, node_id: NodeId, log: Log) -> bytes | None:
        partition = self.sim.cluster.image.partition(log.topic_id, log.partition)
        if partition is None or node_id not in partition.replicas:
            return None
        return directory_of(partition, node_id)
