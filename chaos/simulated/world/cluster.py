"""A whole cluster in virtual time: production nodes and clients over simulated network, disks and clocks.

Use it through :func:`tidelog.chaos.simulated.world.world.simulate`. Calls that act (kill, cut, …) take effect
immediately; calls that wait are coroutines and take virtual time.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from tidelog.aio import Admin, Consumer, Producer
from tidelog.broker.node.node import Node, NodeRefused
from tidelog.chaos.simulated.former.node import FormerNode
from tidelog.chaos.simulated.world.clocks import SimulatedClock
from tidelog.chaos.simulated.world.fabric import SimulatedFabric
from tidelog.chaos.simulated.world.host import Host, SimulatedFaults
from tidelog.chaos.simulated.world.loop import Process, SimulatedLoop
from tidelog.chaos.simulated.world.sockets import Sockets
from tidelog.model.ids import NodeId, TopicIdPartition, id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.model.settings.node.replication_settings import TCP
from tidelog.proto.transport.memory_transport import Wire
from tidelog.proto.transport.network import Address
from tidelog.storage.disk.memory_files import Killed, MemoryFiles
from tidelog.testing.watched_cluster import READY_TIMEOUT_S, WatchedCluster

T = TypeVar("T")

POLL_S: Final = 0.02
KAFKA: Final = "KAFKA"
KAFKA_PORT: Final = 9095
TCP_PORT: Final = 9096
TCP_SHARE: Final = 0.7
"""With replication.transport=tcp: the share of starts that have it; the others are as if it were not set yet."""
_DEFAULTS: Final[Mapping[str, str]] = {
    # Clocks jump by hours, so timestamps from clients may be far in the future.
    "log.message.timestamp.after.max.ms": str(LONG_MAX),
    "http.listener": "",
    "log.segment.delete.delay.ms": "0",
    "log.roll.ms": "5000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "1",
}


class SimulatedCluster(WatchedCluster):
    """Nodes 1 to ``nodes``; the first three form the quorum unless ``controllers`` says otherwise.

    ``config``: settings of every node by Kafka's names. ``heard``: called for each message that arrives. ``beside``: a
    cluster on the same network; this cluster's node ids follow those of that one.
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
        beside: SimulatedCluster | None = None,
    ) -> None:
        first = 1 if beside is None else beside.node_ids[-1] + 1
        super().__init__(range(first, first + nodes), POLL_S)
        self.loop = loop
        self._rng = rng
        copies = min(nodes, 3)
        own = {
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "audit.topic.replication.factor": str(copies),
        }
        self.settings: Final[Mapping[str, str]] = {**_DEFAULTS, **own, **(config or {})}
        self.in_racks = "replica.selector.class" in self.settings
        """Each node is in a rack of its own."""
        self._for_kafka = "kafka.listener.names" in self.settings
        self._log_dirs = log_dirs
        self._drift = drift
        self.controller_ids = self.node_ids[: min(nodes, 3) if controllers is None else controllers]
        self.cluster_id = id_text(random_id(rng))
        if beside is None:
            self.fabric = SimulatedFabric(loop, random.Random(rng.random()), heard)
            self.sockets = loop.sockets = Sockets(loop, self.fabric)
        else:
            self.fabric, self.sockets = beside.fabric, beside.sockets
        self.hosts = {node_id: Host(node_id, loop) for node_id in self.node_ids}
        self.former: dict[NodeId, FormerNode] = {}
        """The running nodes of release 0.1; nothing can look into these."""
        self._former_offset = -1
        self.refused: list[tuple[NodeId, str]] = []
        """Nodes that refused to start, and why."""
        self.died: list[Callable[[NodeId], None]] = []
        """Called for each process that ends, before it is gone."""
        self.client_names: list[str] = []
        self.lost_data: set[NodeId] = set()
        """Nodes whose hosts lost unsynced data, or their disks."""
        self.rotten: set[NodeId] = set()
        """Nodes whose synced bytes were flipped, and may not be repaired yet: their stored data is not compared."""
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
        """Begin to start a node that is down; :meth:`started` waits for it."""
        host = self.hosts[self.known(node_id)]
        if host.node_id in self.running or host.starting is not None:
            raise ValueError(f"node {node_id} runs already")
        process = host.process = host.clock.process = Process(
            self.loop, host.name, 1.0 + self._rng.uniform(-self._drift, self._drift), self._rng.uniform(0, 1000)
        )
        host.starting = self.loop.create_task(self._boot(host), context=process.context)
        host.starting.add_done_callback(lambda task: self._booted(host, task))

    @property
    def running(self) -> list[NodeId]:
        """Return the running nodes of either release."""
        return [*self.nodes, *self.former]

    async def start_node(self, node_id: int) -> Node | FormerNode:
        """Start a node; return once it serves. Raises what prevents its start."""
        self.start_soon(node_id)
        starting = self.hosts[NodeId(node_id)].starting
        assert starting is not None
        return await starting

    def kill(self, node_id: int) -> None:
        """End a node's process like kill -9."""
        self._die(self.hosts[self.known(node_id)])

    def kill_in(
        self, node_id: int, calls: int, *, what: str = "", since: str = "", power_goes_too: bool = False
    ) -> bool:
        """Let a node's process end in the middle of its n-th disk call from now; return whether the process is running.

        ``what``: count calls of one kind only, such as ``rename``; ``since``: count from the first such call on a path
        with this suffix. ``power_goes_too``: the host loses power with the process.
        """
        host = self.hosts[self.known(node_id)]
        files = host.files
        if files is None:
            return False
        host.power_goes_too = power_goes_too
        if what:
            files.faults.kill_in, files.faults.kill_in_from = (what, calls), since
        else:
            files.faults.kill_at = files.faults.steps + calls
        return True

    def lose_power(self, node_id: int) -> None:
        """Cut the power of a node's host: unsynced data is lost in whole or part, and its peers get no notice."""
        host = self.hosts[self.known(node_id)]
        self._die(host, dark=True)
        host.disk.lose_power(random.Random(self._rng.random()))
        self.lost_data.add(host.node_id)

    async def stop_node(self, node_id: int) -> None:
        """Stop a node gracefully (controlled shutdown), once; return early if it is killed meanwhile."""
        host = self.hosts[self.known(node_id)]
        node = self._running(host.node_id)
        assert node is not None
        stopping = host.stopping
        if stopping is None or stopping.done():
            host.stopping = stopping = self.run_in(host.process, node.stop())
        try:
            await asyncio.wait([stopping])
            if stopping.cancelled():
                return
            stopping.result()
        except Killed:
            return
        if self._running(host.node_id) is node:
            self._forget(host)
            self._end_process(host)

    def pause(self, node_id: int) -> bool:
        """Stop a node's process like SIGSTOP; return whether it is running."""
        host = self.hosts[self.known(node_id)]
        if host.files is None or host.process.paused:
            return False
        self.loop.pause(host.process)
        return True

    def resume(self, node_id: int) -> None:
        """Let a paused process continue."""
        process = self.hosts[self.known(node_id)].process
        if process.paused:
            self.loop.resume(process)

    def replace_disk(self, node_id: int) -> None:
        """Replace the disks of a host that is down by empty ones: all its data is gone."""
        host = self.hosts[self.known(node_id)]
        if host.files is not None:
            raise ValueError(f"node {node_id} runs: kill it first")
        host.disk = host.new_disk()
        self.lost_data.add(host.node_id)

    def wipe_logs(self, node_id: int) -> None:
        """Empty the log directories of a host that is down; the data of its controller role stays."""
        host = self.hosts[self.known(node_id)]
        if host.files is not None:
            raise ValueError(f"node {node_id} runs: kill it first")
        self.lost_data.add(host.node_id)
        files = MemoryFiles(host.disk)
        for number in range(self._log_dirs):
            files.remove_tree(self.log_directory(node_id, number))

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node that runs or is starting serves, and sees the others as live."""
        deadline = self.loop.now + timeout_s
        await self.wait_for(lambda: all(h.starting is None for h in self.hosts.values()), "nodes started", timeout_s)
        await super().wait_ready(max(deadline - self.loop.now, POLL_S))
        left_s = max(deadline - self.loop.now, POLL_S)
        await self.wait_for(lambda: all(n.serves for n in self.former.values()), "nodes of release 0.1 serve", left_s)

    def is_up(self, node_id: int) -> bool:
        """Return whether a node's process runs (it may be starting, or paused)."""
        return self.hosts[self.known(node_id)].files is not None

    # --- disks --------------------------------------------------------------------------------------

    def log_directory(self, node_id: int, number: int = 0) -> str:
        return f"/node{node_id}/data{number}"

    def break_log_dir(self, node_id: int, number: int = 0, error: int = errno.EIO) -> bool:
        """Let every access to one log directory of a running node fail until the node is restarted."""
        files = self.hosts[self.known(node_id)].files
        if files is None:
            return False
        files.faults.broken[self.log_directory(node_id, number)] = error
        return True

    def flip_unsynced(self, node_id: int, rng: random.Random) -> bool:
        """Flip a bit in the unsynced part of a log, on a host that is down; return whether there was such a part."""
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

    def rot(self, node_id: int, path: str, position: int, mask: int) -> None:
        """Flip bits of a synced byte, whether the host runs or not."""
        host = self.hosts[self.known(node_id)]
        self.rotten.add(host.node_id)
        # A start may truncate the log there, if the stored recovery point is older.
        self.lost_data.add(host.node_id)
        (host.files or MemoryFiles(host.disk)).flip(path, position, mask)

    def slow_disk(self, node_id: int, seconds: float) -> None:
        """Make each flush of a node's logs take about this long; 0 for as fast as possible."""
        self.slow_disks[self.known(node_id)] = seconds

    # --- clocks -------------------------------------------------------------------------------------

    def jump_clock(self, node_id: int, seconds: float) -> None:
        """Let a node's wall clock jump forward, or back if negative, until the next jump."""
        self.hosts[self.known(node_id)].clock.jump(round(seconds * 1000))

    @property
    def clock_spread_ms(self) -> int:
        """Return the largest difference that the nodes' wall clocks, each at its own time, ever had; 0 if none ever
        jumped."""
        seen = [host.clock.off_ms for host in self.hosts.values()]
        return max(high for _, high in seen) - min(low for low, _ in seen)

    @property
    def furthest_clock_ms(self) -> int:
        """Return the latest time that the wall clock of any node ever showed."""
        return max(host.clock.furthest_ms for host in self.hosts.values())

    # --- network ------------------------------------------------------------------------------------

    def cut(self, sender: str | int, receiver: str | int) -> None:
        """Hold messages from one side to the other; a side is a node's id or a client's name."""
        self.fabric.cut(_side(sender), _side(receiver))

    def isolate(self, node_id: int) -> None:
        """Cut a node off from every other node."""
        for other in self.node_ids:
            if other != node_id:
                self.cut(node_id, other)
                self.cut(other, node_id)

    def heal(self) -> None:
        """Restore every link; held messages arrive."""
        self.fabric.heal()

    # --- everything ---------------------------------------------------------------------------------

    def mend(self) -> None:
        """Undo everything that was done to nodes, disks, clocks and links: paused processes continue; nodes that are
        down, have a failed directory or run release 0.1 are restarted; and the network delivers everything once,
        unchanged and in time."""
        self.fabric.mend()
        self.slow_disks.clear()
        for node_id, host in self.hosts.items():
            host.clock.jump(-host.clock.jumped_ms)
            self.resume(node_id)
            if host.files is not None and (host.files.faults.broken or host.is_former):
                self.kill(node_id)
            host.is_former = False
            if not self.is_up(node_id) and host.starting is None:
                self.start_soon(node_id)

    def offline_replicas(self) -> list[TopicIdPartition]:
        """Return the replicas that running nodes should have and cannot serve."""
        brokers = (node.broker for node in self.nodes.values())
        return [key for broker in brokers if broker is not None for key in broker.replicas.offline_partitions()]

    # --- clients ------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Return the clients' bootstrap addresses."""
        return ",".join(f"node{n}:9092" for n in self.node_ids)

    @property
    def kafka_bootstrap(self) -> str:
        """Return the addresses for Kafka's protocol, if ``kafka.listener.names`` is :data:`KAFKA`."""
        return ",".join(f"node{n}:{KAFKA_PORT}" for n in self.node_ids)

    def client_process(self, name: str) -> Process:
        """Make a new process for a client; run its coroutines with :meth:`run_in`."""
        self.client_names.append(name)
        return Process(self.loop, name, 1.0 + self._rng.uniform(-self._drift, self._drift))

    def run_in(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of a process."""
        task = self.loop.create_task(work, context=process.context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def seams(self, process: Process | None) -> dict[str, Any]:
        """Return the arguments that bind an SDK client to a process; by default to a new one."""
        process = process or self.client_process(f"client{len(self.client_names)}")
        return {
            "_network": self.fabric.network(process.name, context=process.context),
            "_clock": SimulatedClock(self.loop, process),
            "_rng": random.Random(self._rng.random()),
        }

    def producer(self, process: Process | None = None, **config: Any) -> Producer:
        """Make an asyncio producer; start it (``async with``)."""
        return Producer(self.bootstrap, **self.seams(process), **config)

    def consumer(self, process: Process | None = None, **config: Any) -> Consumer:
        """Make an asyncio consumer; start it (``async with``)."""
        return Consumer(self.bootstrap, **self.seams(process), **config)

    def admin(self, process: Process | None = None, **config: Any) -> Admin:
        """Make an asyncio admin client; start it (``async with``)."""
        return Admin(self.bootstrap, **self.seams(process), **config)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every running node knows a leader of each partition."""
        connection = self.fabric.network("setup").connect(Address(f"node{min(self.running)}", 9092))
        await self._create_topic_by(connection, name, partitions, replication_factor, config)

    # --- inside -------------------------------------------------------------------------------------

    def _running(self, node_id: NodeId) -> Node | FormerNode | None:
        return self.nodes.get(node_id) or self.former.get(node_id)

    @property
    def former_offset(self) -> int:
        """Return how far nodes of release 0.1 have ever known the metadata log to be committed; -1 without any."""
        offsets = (node.metadata_offset for node in self.former.values())
        self._former_offset = max((self._former_offset, *offsets))
        return self._former_offset

    def _forget(self, host: Host) -> Node | FormerNode | None:
        _ = self.former_offset
        return self.nodes.pop(host.node_id, None) or self.former.pop(host.node_id, None)

    async def _boot(self, host: Host) -> Node | FormerNode:
        host.boots += 1
        host.power_goes_too = host.ends_in_call = False
        faults = SimulatedFaults(random.Random(self._rng.random()), lambda: self._ended_in_call(host))
        host.files = files = MemoryFiles(host.disk, faults)
        network = self.fabric.network(host.name, context=host.process.context)
        if self.settings.get("replication.transport") == TCP and self._rng.random() < TCP_SHARE:
            network.bind_tcp = partial(self.sockets.serve_streams, network, Address(host.name, TCP_PORT))
        seams: dict[str, Any] = {
            "network": network,
            "files": files,
            "clock": host.clock,
            "rng": random.Random(self._rng.random()),
            "cluster_id": self.cluster_id,
            "on_fatal": lambda what, error: self._failed(host, faults, what, error),
            "run_blocking": lambda work: self._disk_wait(host.node_id, work),
        }
        if self._for_kafka:
            seams["serve_kafka"] = partial(self.sockets.serve, network)
        if host.is_former:
            former = self.former[host.node_id] = FormerNode(self.node_settings(host.node_id), **seams)
            await former.start()
            return former
        node = self.nodes[host.node_id] = Node(self.node_config(host.node_id), threaded=False, **seams)
        await node.start()
        return node

    def _booted(self, host: Host, task: asyncio.Task[Node | FormerNode]) -> None:
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
        host.ends_in_call = True
        if host.power_goes_too:
            self.lose_power(host.node_id)
        else:
            self._die(host)

    def _die(self, host: Host, *, dark: bool = False) -> None:
        if host.files is None:
            self._forget(host)
            return
        for hear in self.died:
            hear(host.node_id)
        node = self._forget(host)
        self._end_process(host, dark=dark)
        if host.starting is not None:
            host.starting.cancel()
            host.starting = None
        if host.stopping is not None:
            host.stopping.cancel()  # it would follow the clock of the next process
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

    @staticmethod
    def rack_of(node_id: int) -> str:
        return f"rack-{node_id}"

    def node_config(self, node_id: int) -> NodeConfig:
        """Return the configuration of a node of this cluster."""
        return NodeConfig.parse(self.node_settings(node_id))

    def node_settings(self, node_id: int) -> dict[str, str]:
        key = self.known(node_id)
        is_controller = key in self.controller_ids
        names = ["CLIENT", "REPLICATION"] + ["CONTROLLER"] * is_controller
        ports = {name: 9092 + n for n, name in enumerate(names)} | ({KAFKA: KAFKA_PORT} if self._for_kafka else {})
        return {
            "node.id": str(key),
            "process.roles": "broker,controller" if is_controller else "broker",
            "listeners": ",".join(f"{name}://node{key}:{port}" for name, port in ports.items()),
            "controller.quorum.voters": ",".join(f"{n}@node{n}:9094" for n in self.controller_ids),
            "log.dirs": ",".join(self.log_directory(key, n) for n in range(self._log_dirs)),
            "metadata.log.dir": f"/node{key}/metadata",
            **self.settings,
            **({"broker.rack": self.rack_of(key)} if self.in_racks else {}),
        }


def _side(side: str | int) -> str:
    return side if isinstance(side, str) else f"node{side}"
