"""A whole cluster in virtual time: production nodes and clients over simulated network, disks and clocks.

Use it through :func:`tidelog.chaos.sim.world.simulate`. Calls that act (kill, cut, …) take effect at
once; calls that wait are coroutines and take virtual time.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from tidelog.aio import Admin, Consumer, Producer
from tidelog.broker.node import Node, NodeRefused
from tidelog.chaos.sim.clocks import SimulatedClock
from tidelog.chaos.sim.fabric import SimulatedFabric
from tidelog.chaos.sim.loop import Process, SimulatedLoop
from tidelog.model.broker_config import NodeConfig
from tidelog.model.config_def import LONG_MAX
from tidelog.model.ids import NodeId, id_text, random_id
from tidelog.proto.memory_transport import Wire
from tidelog.proto.network import Address
from tidelog.storage.memory_files import Disk, Faults, Killed, MemoryFiles
from tidelog.testing.watched_cluster import READY_TIMEOUT_S, WatchedCluster

T = TypeVar("T")

POLL_S: Final = 0.02
_DEFAULTS: Final[Mapping[str, str]] = {
    # Clocks jump by hours, and what clients send may then be of a far future.
    "log.message.timestamp.after.max.ms": str(LONG_MAX),
    "http.listener": "",
    "log.segment.delete.delay.ms": "0",
    "log.roll.ms": "5000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "1",
}


class SimulatedFaults(Faults):
    """What goes wrong with one process's disk; tells when the process ends in the midst of a call."""

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
        self.power_goes_too = False
        """Whether the host loses its power when its process ends in the midst of a disk call."""
        self.starting: asyncio.Task[Node] | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None

    def new_disk(self) -> Disk:
        """A disk with the host's directory on it, and nothing in that."""
        disk = Disk()
        disk.names_in_order = False
        files = MemoryFiles(disk)
        files.makedirs(f"/{self.name}")
        files.sync_filesystem("/")
        return disk


class SimulatedCluster(WatchedCluster):
    """Nodes 1 to ``nodes``; the first three form the quorum unless ``controllers`` says otherwise.

    ``config``: settings of every node by Kafka's names. ``heard``: told of each message that arrives.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        nodes: int = 3,
        *,
        controllers: int | None = None,
        config: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        drift: float = 0.0,
        heard: Callable[[Wire, bool], None] = lambda wire, to_server: None,
    ) -> None:
        super().__init__(range(1, nodes + 1), POLL_S)
        self.loop = loop
        self._rng = rng
        copies = min(nodes, 3)
        own = {
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
        }
        self.settings: Final[Mapping[str, str]] = {**_DEFAULTS, **own, **(config or {})}
        self._log_dirs = log_dirs
        self._drift = drift
        self.controller_ids = self.node_ids[: min(nodes, 3) if controllers is None else controllers]
        self.cluster_id = id_text(random_id(rng))
        self.fabric = SimulatedFabric(loop, random.Random(rng.random()), heard)
        self.hosts = {node_id: Host(node_id, loop) for node_id in self.node_ids}
        self.refused: list[tuple[NodeId, str]] = []
        """Nodes that refused to start, and why."""
        self.died: list[Callable[[NodeId], None]] = []
        """Told of each process that ends, before it is gone."""
        self.client_names: list[str] = []
        self.lost_data: set[NodeId] = set()
        """Nodes whose hosts lost data that was not synced, or their disks."""
        self.slow_disks: dict[NodeId, float] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # --- nodes --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every node and wait until all serve."""
        for node_id in self.node_ids:
            self.start_soon(node_id)
        await asyncio.gather(*(host.starting for host in self.hosts.values() if host.starting is not None))
        await self.wait_ready()

    def start_soon(self, node_id: int) -> None:
        """Begin to start a node that does not run; :meth:`started` waits for it."""
        host = self.hosts[self.known(node_id)]
        if host.node_id in self.nodes or host.starting is not None:
            raise ValueError(f"node {node_id} runs already")
        process = host.process = host.clock.process = Process(
            self.loop, host.name, 1.0 + self._rng.uniform(-self._drift, self._drift), self._rng.uniform(0, 1000)
        )
        host.starting = self.loop.create_task(self._boot(host), context=process.context)
        host.starting.add_done_callback(lambda task: self._booted(host, task))

    async def start_node(self, node_id: int) -> Node:
        """Start a node; returns once it serves. Raises what keeps it from starting."""
        self.start_soon(node_id)
        starting = self.hosts[NodeId(node_id)].starting
        assert starting is not None
        return await starting

    def kill(self, node_id: int) -> None:
        """End a node's process as kill -9 does."""
        self._die(self.hosts[self.known(node_id)])

    def kill_in(self, node_id: int, calls: int, *, what: str = "", power_goes_too: bool = False) -> bool:
        """Let a node's process end in the midst of its n-th disk call from now; whether it runs at all.

        ``what``: count calls of one kind only, such as ``rename``. ``power_goes_too``: it is its host's loss of
        power that ends it.
        """
        host = self.hosts[self.known(node_id)]
        files = host.files
        if files is None:
            return False
        host.power_goes_too = power_goes_too
        if what:
            files.faults.kill_in = (what, calls)
        else:
            files.faults.kill_at = files.faults.steps + calls
        return True

    def lose_power(self, node_id: int) -> None:
        """End a node's host: what was not on its disk is lost in whole or part, and its peers are not told."""
        host = self.hosts[self.known(node_id)]
        self._die(host, dark=True)
        host.disk.lose_power(random.Random(self._rng.random()))
        self.lost_data.add(host.node_id)

    async def stop_node(self, node_id: int) -> None:
        """Stop a node in good order (controlled shutdown); returns early where it is killed meanwhile."""
        host = self.hosts[self.known(node_id)]
        node = self.nodes[host.node_id]
        host.stopping = stopping = self.run_in(host.process, node.stop())
        try:
            await asyncio.wait([stopping])
            if stopping.cancelled():
                return
            stopping.result()
        except Killed:
            return
        if self.nodes.get(host.node_id) is node:
            del self.nodes[host.node_id]
            self._end_process(host)

    def pause(self, node_id: int) -> bool:
        """Stop a node's process as SIGSTOP does; whether it runs."""
        host = self.hosts[self.known(node_id)]
        if host.files is None or host.process.paused:
            return False
        self.loop.pause(host.process)
        return True

    def resume(self, node_id: int) -> None:
        """Let a paused process go on."""
        process = self.hosts[self.known(node_id)].process
        if process.paused:
            self.loop.resume(process)

    def replace_disk(self, node_id: int) -> None:
        """Give a host that does not run empty disks: everything that it stored is gone."""
        host = self.hosts[self.known(node_id)]
        if host.files is not None:
            raise ValueError(f"node {node_id} runs: kill it first")
        host.disk = host.new_disk()
        self.lost_data.add(host.node_id)

    def wipe_logs(self, node_id: int) -> None:
        """Give a host that does not run empty log directories; what its controller role keeps stays."""
        host = self.hosts[self.known(node_id)]
        if host.files is not None:
            raise ValueError(f"node {node_id} runs: kill it first")
        self.lost_data.add(host.node_id)
        files = MemoryFiles(host.disk)
        for number in range(self._log_dirs):
            files.remove_tree(self.log_directory(node_id, number))

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node that runs, or was told to start, serves and knows the others as live."""
        deadline = self.loop.now + timeout_s
        await self.wait_for(lambda: all(h.starting is None for h in self.hosts.values()), "nodes started", timeout_s)
        await super().wait_ready(max(deadline - self.loop.now, POLL_S))

    def is_up(self, node_id: int) -> bool:
        """Whether a node's process runs (it may be starting, or paused)."""
        return self.hosts[self.known(node_id)].files is not None

    # --- disks --------------------------------------------------------------------------------------

    def log_directory(self, node_id: int, number: int = 0) -> str:
        return f"/node{node_id}/data{number}"

    def break_log_dir(self, node_id: int, number: int = 0, error: int = errno.EIO) -> bool:
        """Let every access to one log directory of a running node fail until it is started again."""
        files = self.hosts[self.known(node_id)].files
        if files is None:
            return False
        files.faults.broken[self.log_directory(node_id, number)] = error
        return True

    def flip_unsynced(self, node_id: int, rng: random.Random) -> bool:
        """Flip a bit in a log of a host that does not run, behind what was ever synced; whether there was any."""
        files = MemoryFiles(self.hosts[self.known(node_id)].disk)
        found: list[tuple[str, int, int]] = []
        for number in range(self._log_dirs):
            directory = self.log_directory(node_id, number)
            for path in files.paths(directory) if files.exists(directory) else ():
                if path.endswith(".log"):
                    synced, size = files.synced_size(path), files.size(path)
                    if size > synced:
                        found.append((path, synced, size))
        if not found:
            return False
        self.lost_data.add(NodeId(node_id))
        path, synced, size = rng.choice(found)
        at = rng.randrange(synced, size)
        files.content(path)[at] ^= 1 << rng.randrange(8)
        return True

    def slow_disk(self, node_id: int, seconds: float) -> None:
        """Let each flush of a node's logs take about so long; 0 for as fast as can be."""
        self.slow_disks[self.known(node_id)] = seconds

    # --- network ------------------------------------------------------------------------------------

    def cut(self, sender: str | int, receiver: str | int) -> None:
        """Hold what one side sends to another, a node's id or a client's name."""
        self.fabric.cut(_side(sender), _side(receiver))

    def isolate(self, node_id: int) -> None:
        """Cut a node off from every other node."""
        for other in self.node_ids:
            if other != node_id:
                self.cut(node_id, other)
                self.cut(other, node_id)

    def heal(self) -> None:
        """Mend every link; what was held arrives."""
        self.fabric.heal()

    # --- clients ------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(f"node{n}:9092" for n in self.node_ids)

    def client_process(self, name: str) -> Process:
        """A process of its own for a client; run its coroutines by :meth:`run_in`."""
        self.client_names.append(name)
        return Process(self.loop, name, 1.0 + self._rng.uniform(-self._drift, self._drift))

    def run_in(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of a process."""
        task = self.loop.create_task(work, context=process.context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def producer(self, process: Process | None = None, **config: Any) -> Producer:
        """An asyncio producer; start it (``async with``)."""
        return Producer(self.bootstrap, **self._seams(process), **config)

    def consumer(self, process: Process | None = None, **config: Any) -> Consumer:
        """An asyncio consumer; start it (``async with``)."""
        return Consumer(self.bootstrap, **self._seams(process), **config)

    def admin(self, process: Process | None = None, **config: Any) -> Admin:
        """An asyncio admin client; start it (``async with``)."""
        return Admin(self.bootstrap, **self._seams(process), **config)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Make a topic and wait until every running node knows a leader of each partition."""
        connection = self.fabric.network("setup").connect(Address(f"node{min(self.nodes)}", 9092))
        await self.create_topic_by(connection, name, partitions, replication_factor, config)

    # --- inside -------------------------------------------------------------------------------------

    def _seams(self, process: Process | None) -> dict[str, Any]:
        process = process or self.client_process(f"client{len(self.client_names)}")
        return {
            "_network": self.fabric.network(process.name, context=process.context),
            "_clock": SimulatedClock(self.loop, process),
            "_rng": random.Random(self._rng.random()),
        }

    async def _boot(self, host: Host) -> Node:
        host.power_goes_too = False
        faults = SimulatedFaults(random.Random(self._rng.random()), lambda: self._ended_in_call(host))
        host.files = files = MemoryFiles(host.disk, faults)
        network = self.fabric.network(host.name, context=host.process.context)
        node = Node(
            self.node_config(host.node_id),
            network=network,
            files=files,
            clock=host.clock,
            rng=random.Random(self._rng.random()),
            cluster_id=self.cluster_id,
            on_fatal=lambda what, error: self._failed(host, faults, what, error),
            threaded=False,
            run_blocking=lambda work: self._disk_wait(host.node_id, work),
        )
        self.nodes[host.node_id] = node
        await node.start()
        return node

    def _booted(self, host: Host, task: asyncio.Task[Node]) -> None:
        if host.starting is not task:  # killed meanwhile
            if not task.cancelled():
                task.exception()
            return
        host.starting = None
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, Killed):
            return
        if isinstance(error, NodeRefused | OSError):
            self.refused.append((host.node_id, str(error)))
        else:
            self.failures.append((host.node_id, "its start", error))
        self._die(host)

    def _ended_in_call(self, host: Host) -> None:
        if host.power_goes_too:
            self.lose_power(host.node_id)
        else:
            self._die(host)

    def _die(self, host: Host, *, dark: bool = False) -> None:
        node = self.nodes.pop(host.node_id, None)
        if host.files is None:
            return
        for hear in self.died:
            hear(host.node_id)
        self._end_process(host, dark=dark)
        if host.starting is not None:
            host.starting.cancel()
            host.starting = None
        if host.stopping is not None:
            host.stopping.cancel()  # it would go by the clock of the next process
            host.stopping = None
        if node is not None:
            host.process.context.copy().run(node.drop)
            task = self.loop.create_task(node.kill(), context=host.process.context.copy())
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _end_process(self, host: Host, *, dark: bool = False) -> None:
        assert host.files is not None
        host.files.faults.end()
        host.files = None
        host.disk.end_process()
        (self.fabric.lose_host if dark else self.fabric.drop_node)(host.name)
        if host.process.paused:
            self.loop.resume(host.process)

    def _failed(self, host: Host, faults: SimulatedFaults, what: str, error: BaseException) -> None:
        if faults.dead:
            return
        if faults.broken:
            self._die(host)  # a node without a log directory, or without its metadata log, stops
        else:
            self.failures.append((host.node_id, what, error))

    async def _disk_wait(self, node_id: NodeId, work: Callable[[], None]) -> None:
        seconds = self.slow_disks.get(node_id, 0.0) or 0.0005
        share = self._rng.random()
        await asyncio.sleep(seconds * share)
        work()
        await asyncio.sleep(seconds * (1 - share))

    def node_config(self, node_id: int) -> NodeConfig:
        """The configuration that a node of this cluster has."""
        key = self.known(node_id)
        is_controller = key in self.controller_ids
        names = ["CLIENT", "REPLICATION"] + ["CONTROLLER"] * is_controller
        return NodeConfig.parse(
            {
                "node.id": str(key),
                "process.roles": "broker,controller" if is_controller else "broker",
                "listeners": ",".join(f"{name}://node{key}:{9092 + n}" for n, name in enumerate(names)),
                "controller.quorum.voters": ",".join(f"{n}@node{n}:9094" for n in self.controller_ids),
                "log.dirs": ",".join(self.log_directory(key, n) for n in range(self._log_dirs)),
                "metadata.log.dir": f"/node{key}/metadata",
                **self.settings,
            }
        )


def _side(side: str | int) -> str:
    return side if isinstance(side, str) else f"node{side}"
