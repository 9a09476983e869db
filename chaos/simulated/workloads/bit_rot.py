"""Synced bytes that flip while a simulated cluster is working, and the judges of the effects.

A flip never destroys a batch's only copy: the batches are assigned to nodes by their offsets, and one that no other
disk holds durably is spared. Judged, besides the checks of every run: after the scrub's time, no replica returns
damaged data; and once all other faults are undone, every replica repairs itself within a bound, so that all are the
same again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.world.log_reading import Undisturbed
from tidelog.model.ids import NodeId, Offset, TopicPartition
from tidelog.proto.records.batches import HEADER_SIZE, split_batches
from tidelog.storage.disk.checkpoints import RECOVERY_POINTS, decode_offsets
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.memory_files import MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.segments.examination import OFFSET_MAX, Expected, PlacedBatch, Read, examine
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.log_read import LogRead

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

DEALT: Final = 16
"""Length of the runs of offsets that are assigned to one node each, where its copy may rot."""
SCRUB_S: Final = 4.0
"""The scrub's interval in these runs."""
FOUND_S: Final = 3 * SCRUB_S
"""A replica of a running node has found damage after this long."""
LOOK_S: Final = 1.0


class Rot(NamedTuple):
    """A batch of a node's replica with a flipped bit, since when."""

    node: NodeId
    path: str
    partition: int
    offset: int
    at_s: float


class Durable(NamedTuple):
    """A whole batch on a disk. ``identity``: the same on every replica."""

    partition: int
    path: str
    position: int
    size: int
    offset: int
    identity: tuple[int, ...]


class BitRot:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        self._rot: list[Rot] = []
        self._stopping: set[NodeId] = set()
        self._running_s: Counter[NodeId] = Counter()
        """For how long each node has served without a break."""
        self._process: dict[NodeId, Node | None] = {}
        """The process of each node that was last looked at."""
        self._looking: asyncio.Task[None] | None = None
        sim.injector.acts |= {"rot": self._flip_in, "rot-stopped": self._flip_while_stopped}

    async def begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def settle(self, bound_s: float) -> None:
        await self.sim.cluster.wait_for(self._all_whole, "every replica mended", bound_s)
        self.sim.cluster.rotten.clear()

    def judge(self) -> None:
        for node in self.sim.cluster.nodes.values():
            assert node.broker is not None
            self.events["damage-found"] += node.broker.scrubbing.damage_found
            self.events["damage-mended"] += node.broker.mending.ranges_mended

    async def finish(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def failures(self) -> list[tuple[str, BaseException | None]]:
        looking = self._looking
        failed = looking is not None and looking.done() and not looking.cancelled()
        return [("bit rot's watch", looking.exception())] if failed and looking is not None else []

    # --- faults -------------------------------------------------------------------------------------

    def _flip_in(self, target: str, where: int) -> bool:
        node = self.sim.injector.resolve(target)
        return node is not None and self._flip(node, random.Random(where), last=False)

    def _flip_while_stopped(self, target: str, where: int, seconds: float) -> bool:
        """Stop a node gracefully, damage its last write, or any other, and restart it."""
        cluster, node = self.sim.cluster, self.sim.injector.resolve(target)
        if node is None or node not in cluster.nodes:
            return False
        host = cluster.hosts[node]
        if host.starting is not None or host.process.paused or node in self._stopping:
            return False
        self._stopping.add(node)

        async def stop_and_spoil() -> None:
            if node in cluster.nodes:  # it may have died at this very instant
                await cluster.stop_node(node)
            rng = random.Random(where)
            if not cluster.is_up(node) and self._flip(node, rng, last=rng.random() < 0.5):
                self.events["rot-while-stopped"] += 1
            await asyncio.sleep(seconds)
            self._stopping.discard(node)
            self.sim.injector.start(node)

        self.sim.injector.run(stop_and_spoil())
        return True

    def _flip(self, node: NodeId, rng: random.Random, *, last: bool) -> bool:
        cluster = self.sim.cluster
        elsewhere = {each.identity for other in cluster.node_ids if other != node for each in self._batches(other)}
        mine = [each for each in self._batches(node) if each.offset // DEALT % 3 == node % 3]
        if last:
            ends = {each.path: each.offset for each in mine}
            mine = [each for each in mine if each.offset == ends[each.path]]
        mine = [each for each in mine if each.identity in elsewhere]
        if not mine:
            return False
        partition, path, position, size, offset, _ = rng.choice(mine)
        at = rng.randrange(HEADER_SIZE if rng.random() < 0.5 else size)
        cluster.rot(node, path, position + at, 1 << rng.randrange(8))
        # A repaired batch may rot again.
        self._rot = [
            each for each in self._rot if (each.node, each.partition, each.offset) != (node, partition, offset)
        ]
        self._rot.append(Rot(node, path, partition, offset, cluster.loop.now))
        return True

    def _batches(self, node: NodeId) -> Iterator[Durable]:
        """Yield the whole batches of the topic's logs on a disk that a start accepts unread: those before the stored
        recovery point. Behind it a start truncates the log at damage."""
        files = MemoryFiles(self.sim.cluster.hosts[node].disk)
        directory = self.sim.cluster.log_directory(node)
        stored = f"{directory}/{RECOVERY_POINTS}"
        durable = decode_offsets(bytes(files.content(stored))) if files.exists(stored) else {}
        logs = {f"{directory}/{self.sim.topic}-{number}": number for number in range(self.sim.setting.partitions)}
        for path in files.paths(directory) if files.exists(directory) else ():
            partition = logs.get(path.rpartition("/")[0])
            if partition is None or not path.endswith(".log"):
                continue
            content, end = bytes(files.content(path)), min(files.synced_size(path), files.size(path))
            durable_end = durable.get(TopicPartition(self.sim.topic, partition), 0)
            expected = Expected(0, OFFSET_MAX, False, LeaderEpochs())
            for found in examine(_reader(content), 0, end, expected):
                if isinstance(found, PlacedBatch) and found.batch.next_offset <= durable_end:
                    batch = found.batch
                    identity = (partition, batch.base_offset, batch.leader_epoch, batch.crc)
                    yield Durable(partition, path, found.position, batch.size, batch.base_offset, identity)

    # --- judging ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Judge that a node that has run for long enough after a flip no longer returns the damaged batch."""
        cluster = self.sim.cluster
        while True:
            await asyncio.sleep(LOOK_S)
            for node_id, host in cluster.hosts.items():
                before, node = self._process.get(node_id), cluster.nodes.get(node_id)
                self._process[node_id] = node
                serves = node is before is not None and host.starting is None and not host.process.paused
                self._running_s[node_id] = self._running_s[node_id] + 1 if serves else 0
            for rot in self._rot:
                if min(cluster.loop.now - rot.at_s, self._running_s[rot.node] * LOOK_S) >= FOUND_S:
                    self._judge_refused(rot)

    def _judge_refused(self, rot: Rot) -> None:
        cluster = self.sim.cluster
        log = self._log(rot.node, rot.partition)
        if log is None or not log.log_start_offset <= rot.offset < log.log_end_offset:
            return
        self.operations += 1
        try:
            with Undisturbed(cluster.hosts[rot.node].files):
                read = log.read(rot.offset, 1, offset_end=log.log_end_offset)
        except LogDirFailed:
            return
        if isinstance(read, LogRead) and not all(batch.crc_ok() for batch in split_batches(bytes(read.records))):
            self.sim.world.violated(
                f"node {rot.node} hands out the damaged batch at offset {rot.offset} of {rot.path}, "
                f"{cluster.loop.now - rot.at_s:.1f} s after it rotted"
            )

    def _all_whole(self) -> bool:
        cluster = self.sim.cluster
        for node_id in cluster.node_ids:
            for partition in range(self.sim.setting.partitions):
                log = self._log(node_id, partition)
                if log is None or log.damage:
                    return False
                with Undisturbed(cluster.hosts[node_id].files):
                    if _damage_on_disk(log):
                        return False
        return True

    def _log(self, node_id: NodeId, partition: int) -> Log | None:
        node = self.sim.cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return None
        found = node.broker.replicas.partition_named(self.sim.topic, partition)
        return None if found is None or found.offline or found.log.closed else found.log


def _damage_on_disk(log: Log) -> bool:
    """Return whether a log has any damage on disk, known to the node or not."""
    offset = log.log_start_offset
    while (examination := log.begin_examination(offset)) is not None:
        while not examination.done:
            examination.step()
        if examination.found:
            return True
        offset = Offset(examination.next_offset)
    return False


def _reader(content: bytes) -> Read:
    return lambda size, position: content[position : position + size]
