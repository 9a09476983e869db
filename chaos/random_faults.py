"""Random faults on a whole cluster in one process, under producers and consumers, and the judgement after them.

A run is made by its seed: which faults follow one another, when, and what is sent. Real time and real
tasks make two runs of one seed differ in detail; the log of faults in :class:`Report` says what happened.

What is judged at the end, with everything mended and every ISR whole again:

- each acknowledged record is in the log exactly once, no record is there twice, whatever became of it;
- the records of one producer stand in each partition in the order they were sent;
- what a consumer saw while the faults happened is what the log holds: no offset skipped, none seen twice;
- replicas are equal byte for byte;
- a record sent after the last fault is acknowledged within a bound, and nothing waits on a broker for ever.

Run it longer by hand: ``python -m tidelog.chaos.random_faults --seeds 1-20 --seconds 15``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.errors import TidelogError
from tidelog.model.ids import NO_NODE, NodeId, TopicPartition
from tidelog.testing.async_cluster import CLIENT, GRPC, MEMORY, AsyncCluster

if TYPE_CHECKING:
    from tidelog.aio import Consumer, Producer

log = logging.getLogger(__name__)

TOPICS: Final[Mapping[str, int]] = {"a": 3, "b": 2}
SETTLE_S: Final = 45.0
"""Bound of every single wait after the last fault."""
_CONFIG: Final[Mapping[str, str]] = {
    "min.insync.replicas": "2",
    "log.segment.bytes": "1048576",
    "replica.lag.time.max.ms": "3000",
    "controlled.shutdown.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "2",
}


@dataclass(slots=True)
class Report:
    """What a run found. ``violations`` is empty where everything held."""

    seed: int
    faults: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    settled_s: float = 0.0

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {len(self.faults)} faults, {self.sent} sent, {self.acknowledged} acknowledged, "
            f"{self.failed} failed, {self.read} in the log, settled in {self.settled_s:.1f} s: "
            f"{'held' if not self.violations else 'BROKEN'}"
        )
        return "\n".join([head, *(f"  {text}" for text in self.violations)])


class Sending:
    """One idempotent producer and what became of its records; a value is ``name:number``."""

    def __init__(self, name: str, cluster: AsyncCluster, rng: random.Random, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.acknowledged: dict[int, tuple[str, int, int]] = {}
        self.acknowledged_s: dict[int, float] = {}
        self.failed: dict[int, BaseException] = {}
        self.where: dict[int, tuple[str, int]] = {}
        self.partitions = dict(TOPICS)
        self.producer: Producer = cluster.producer(**settings)
        self.stop = False
        self._rng = rng

    @property
    def undecided(self) -> int:
        return len(self.where) - len(self.acknowledged) - len(self.failed)

    async def run(self) -> None:
        rng = self._rng
        number = 0
        while not self.stop:
            for _ in range(rng.randint(1, 30)):
                topic = rng.choice(list(self.partitions))
                partition = rng.randrange(self.partitions[topic])
                self.where[number] = (topic, partition)
                try:
                    await self.producer.send(
                        topic,
                        b"%s:%d:%s" % (self.name.encode(), number, b"x" * rng.randint(0, 200)),
                        partition=partition,
                        on_delivery=self._heard(number),
                    )
                except (TidelogError, ValueError) as error:
                    self.failed[number] = error
                number += 1
            await asyncio.sleep(rng.uniform(0.0, 0.03))

    def _heard(self, number: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if number in self.acknowledged or number in self.failed:
                raise AssertionError(f"{self.name}:{number} had its outcome already")
            if error is None:
                self.acknowledged[number] = (metadata.topic, metadata.partition, metadata.offset)
                self.acknowledged_s[number] = asyncio.get_running_loop().time()
            else:
                self.failed[number] = error

        return heard


class Watching:
    """One consumer that reads two topics from their beginning while the faults happen."""

    def __init__(self, cluster: AsyncCluster, partitions: Mapping[str, int]) -> None:
        self.consumer: Consumer = cluster.consumer(auto_offset_reset="none", fetch_max_wait_ms=200)
        self.seen: dict[tuple[str, int], list[bytes]] = {
            (topic, partition): [] for topic, count in partitions.items() for partition in range(count)
        }
        self.violations: list[str] = []

    async def run(self) -> None:
        from tidelog.client.errors import OffsetOutOfRangeError

        places = list(self.seen)
        self.consumer.assign(places)
        for topic, partition in places:
            self.consumer.seek(TopicPartition(topic, partition), 0)
        while True:
            try:
                records = await self.consumer.poll(0.5)
            except OffsetOutOfRangeError as error:
                self.violations.append(f"a consumer's position was refused: {error}")
                return
            for record in records:
                seen = self.seen[record.topic, record.partition]
                if record.offset != len(seen):
                    self.violations.append(
                        f"{record.topic}-{record.partition}: expected offset {len(seen)} next, found {record.offset}"
                    )
                    return
                seen.append(record.value or b"")


class Run:
    """One run on one cluster."""

    def __init__(self, seed: int, seconds: float, transport: str = MEMORY, trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seconds = seconds
        self.report = Report(seed)
        self.trace = trace
        self.cluster = AsyncCluster(3, transport=transport, config=_CONFIG, log_dirs=2, seed=seed)
        self._starting: dict[NodeId, asyncio.Future[Any]] = {}
        self.senders: list[Sending] = []
        self.watchers: list[Watching] = []
        self.began = 0.0
        self.loop_errors: list[str] = []
        self._lost_from: set[tuple[str, int]] = set()
        self._history: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._ends: dict[NodeId, dict[Any, int]] = {}
        self._impaired = False
        self._sizes: dict[tuple[NodeId, str, str], int] = {}

    # --- the run --------------------------------------------------------------------------------------

    async def run(self) -> Report:
        """Run it all. Raises only what is wrong with the run itself."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_error)
        async with self.cluster:
            self.began = loop.time()
            for topic, count in TOPICS.items():
                await self.cluster.create_topic(topic, count, 3)
            self._start_clients()
            tasks = [asyncio.ensure_future(s.run()) for s in self.senders]
            watch = [asyncio.ensure_future(w.run()) for w in self.watchers]
            watch.append(asyncio.ensure_future(self._keep_history()))
            try:
                for client in self.senders:
                    await client.producer.start()
                for watcher in self.watchers:
                    await watcher.consumer.start()
                await self._faults()
                await self._settle(tasks)
                await self._judge()
            finally:
                for task in (*tasks, *watch):
                    task.cancel()
                for result in await asyncio.gather(*tasks, *watch, return_exceptions=True):
                    if isinstance(result, Exception):
                        self._violated(f"a client's task raised {result!r}")
                for client in self.senders:
                    await client.producer.close(2.0)
                for watcher in self.watchers:
                    await watcher.consumer.close()
            await self._nothing_waits()
        gc.collect()
        await asyncio.sleep(0)
        for text in self.loop_errors:
            self._violated(f"the event loop reports: {text}")
        return self.report

    def _start_clients(self) -> None:
        rng = self.rng
        for number in range(3):
            settings: dict[str, Any] = {
                "compression_type": rng.choice(["none", "lz4", "none"]),
                "linger_ms": rng.choice([0, 5]),
                "batch_size": rng.choice([500, 16_384]),
                "request_timeout_ms": 2_000,
                "delivery_timeout_ms": rng.choice([2_500, 60_000]),
                "max_block_ms": 60_000,
            }
            self.senders.append(Sending(f"p{number}", self.cluster, random.Random(rng.random()), settings))
        self.watchers = [Watching(self.cluster, TOPICS) for _ in range(2)]

    async def _keep_history(self) -> None:
        """Who led what, with which ISR, when; two nodes never know one partition epoch differently."""
        seen: dict[tuple[str, int, int], tuple[Any, ...]] = {}
        offsets: dict[NodeId, int] = {}
        while True:
            for node_id, node in list(self.cluster.nodes.items()):
                image = node.view.image
                if offsets.get(node_id) == image.offset:
                    continue
                offsets[node_id] = image.offset
                for topic in image.topics.values():
                    for number, found in topic.partitions.items():
                        key = (topic.name, number, found.partition_epoch)
                        what = (found.leader, found.leader_epoch, found.isr, found.eligible_leader_replicas)
                        if key not in seen:
                            seen[key] = what
                            self._history[topic.name, number].append(
                                f"{asyncio.get_running_loop().time() - self.began:.3f} partition epoch "
                                f"{found.partition_epoch}: leader {found.leader} epoch {found.leader_epoch} "
                                f"isr {found.isr} elr {found.eligible_leader_replicas} last {found.last_known_elr}"
                            )
                        elif seen[key] != what:
                            self._violated(f"metadata of {key} is {what} on node {node_id}, was {seen[key]}")
            await asyncio.sleep(0.003)

    # --- faults ---------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, self._kill),
            (2, self._kill_leader),
            (2, self._kill_controller),
            (8, self._restart),
            (2, self._stop),
            (2, self._bounce),
            (2, self._alter_config),
            (1, self._stall),
            (2, self._lose_power),
            (1, self._grow),
        ]
        if self.cluster.transport == MEMORY:
            actions += [(4, self._cut), (3, self._isolate), (8, self._heal), (2, self._delay), (2, self._break)]
        weights = [weight for weight, _ in actions]
        await asyncio.sleep(0.3)
        while loop.time() < end:
            action = self.rng.choices(actions, weights)[0][1]
            try:
                async with asyncio.timeout(SETTLE_S):
                    await action()
            except TimeoutError:
                self._violated(f"{action.__name__[1:]} did not end within {SETTLE_S:g} s")
                return
            await asyncio.sleep(self.rng.choice([0.02, 0.1, 0.3, 0.8, 1.5]))

    def _note(self, text: str) -> None:
        line = f"{asyncio.get_running_loop().time() - self.began:6.2f} {text}"
        self.report.faults.append(line)
        if self.trace:
            print(line, flush=True)
        log.warning("fault: %s", text)

    def _violated(self, text: str) -> None:
        self.report.violations.append(text)
        if self.trace:
            print("VIOLATION", text, flush=True)

    def _up(self) -> list[NodeId]:
        return sorted(self.cluster.nodes)

    async def _kill_one(self, node: NodeId, why: str) -> None:
        if len(self._up()) <= 1 and self.rng.random() < 0.7:
            return
        self._note(f"kill {node} ({why})")
        self._count_truncations(node)
        await self._end(node)

    async def _end(self, node: NodeId) -> None:
        start = self._starting.pop(node, None)
        if start is None or start.done():
            await self.cluster.kill(node)
            return
        start.cancel()  # which ends the node as a kill does
        await asyncio.wait([start])
        if not start.cancelled() and (error := start.exception()) is not None:
            self._violated(f"node {node}, killed while it started, raised {error!r}")

    async def _kill(self) -> None:
        if up := self._up():
            await self._kill_one(self.rng.choice(up), "any")

    async def _kill_leader(self) -> None:
        if not self._up():
            return
        topic = self.rng.choice(list(TOPICS))
        leader = self.cluster.leader_of(topic, self.rng.randrange(TOPICS[topic]))
        if leader in self.cluster.nodes:
            await self._kill_one(leader, "leader")

    async def _kill_controller(self) -> None:
        leader = self.cluster.controller()
        if leader is not None:
            await self._kill_one(leader, "controller")

    async def _restart(self) -> None:
        down = [n for n in self.cluster.node_ids if n not in self.cluster.nodes]
        if not down:
            return
        node = self.rng.choice(down)
        self._note(f"start {node}")
        await self._start(node)

    async def _start(self, node: NodeId) -> None:
        """Start a node; one that cannot register yet (no quorum) is waited for at the end, not here."""
        self._note_sizes(node)
        task = self._starting[node] = asyncio.ensure_future(self.cluster.start_node(node))
        await asyncio.sleep(0)
        if node in self.cluster.nodes and (logs := self.cluster.nodes[node]._logs) is not None:
            for key, end in self._ends.pop(node, {}).items():
                found = logs.get(*key)
                if found is None or found.log_end_offset != end:
                    self._violated(
                        f"node {node} died with {key} at {end}, starts with {found and found.log_end_offset}"
                    )
        await asyncio.wait([task], timeout=self.rng.choice([0.05, 1.0, 5.0]))
        if task.done():
            task.result()
            del self._starting[node]

    async def _bounce(self) -> None:
        if up := self._up():
            node = self.rng.choice(up)
            self._note(f"bounce {node}")
            self._count_truncations(node)
            await self._end(node)
            await asyncio.sleep(self.rng.choice([0, 0, 0.05]))
            await self._start(node)

    async def _stall(self) -> None:
        seconds = self.rng.choice([0.3, 1.0])
        self._note(f"stall {seconds}")
        time.sleep(seconds)  # noqa: ASYNC251 - the event loop itself stands still

    async def _lose_power(self) -> None:
        """A node dies and what it wrote since its start and did not sync is gone, in part. Committed records
        survive that on one node at a time: nothing else may be amiss before, or until the ISRs are whole again."""
        if len(self._up()) < 3 or self._starting or not self._isr_whole() or self._impaired:
            return
        node = self.rng.choice(self._up())
        self._note(f"power loss {node}")
        self._count_truncations(node)
        await self._end(node)
        lost = 0
        for path in sorted(self.cluster.node_directory(node).parent.glob("data*/*-*/*.log")):
            before = self._sizes.get((node, path.parent.name, path.name), 0)
            size = path.stat().st_size
            if size > before and self.rng.random() < 0.8:
                kept = max(before, size - self.rng.choice([1, 100, 5_000, 1 << 30]))
                with path.open("rb+") as file:
                    file.truncate(kept)
                lost += size - kept
        self._ends.pop(node, None)
        await asyncio.sleep(self.rng.choice([0, 0.1, 1.0]))
        self._note(f"start {node}, which has lost {lost} bytes")
        await self._start(node)
        await self._expect(self.cluster.wait_for(self._isr_whole, "ISR whole after a loss of power", SETTLE_S), "power")

    def _note_sizes(self, node: NodeId) -> None:
        for path in self.cluster.node_directory(node).parent.glob("data*/*-*/*.log"):
            self._sizes[node, path.parent.name, path.name] = path.stat().st_size

    def _count_truncations(self, node: NodeId) -> None:
        broker = self.cluster.nodes[node].broker
        if broker is not None:
            self._ends[node] = {key: r.partition.log.log_end_offset for key, r in broker.replicas.replicas.items()}
        for key, replica in broker.replicas.replicas.items() if broker is not None else ():
            counts = replica.partition.counts
            if counts.truncations_below_high_watermark:
                self._violated(f"node {node} cut {key} below its high watermark")

    async def _stop(self) -> None:
        up = self._up()
        if len(up) < 2:
            return
        node = self.rng.choice(up)
        if node in self._starting and not self._starting[node].done():
            return
        self._note(f"stop {node}")
        await self.cluster.stop_node(node)
        self._note(f"stopped {node}")

    async def _cut(self) -> None:
        sides: list[int | str] = [*self.cluster.node_ids, CLIENT]
        a, b = self.rng.sample(sides, 2)
        one_way = self.rng.random() < 0.5
        self._note(f"cut {a} {'->' if one_way else '<->'} {b}")
        self.cluster.partition(a, b, one_way=one_way)
        self._impaired = True

    async def _isolate(self) -> None:
        node = self.rng.choice(self.cluster.node_ids)
        clients = self.rng.random() < 0.3
        self._note(f"isolate {node}{' from clients too' if clients else ''}")
        self.cluster.isolate(node, clients=clients)
        self._impaired = True

    async def _heal(self) -> None:
        self._note("heal")
        self.cluster.heal()
        self._impaired = False

    async def _delay(self) -> None:
        names = [f"node{n}" for n in self.cluster.node_ids] + [CLIENT]
        a, b = self.rng.sample(names, 2)
        seconds = self.rng.choice([0.0, 0.01, 0.1])
        self._note(f"delay {a} -> {b} {seconds}")
        self.cluster.fabric.delay(a, b, seconds)

    async def _break(self) -> None:
        names = [f"node{n}" for n in self.cluster.node_ids] + [CLIENT]
        a, b = self.rng.sample(names, 2)
        self._note(f"break {a} {b}")
        self.cluster.fabric.break_connections(a, b)

    async def _alter_config(self) -> None:
        value = self.rng.choice(["1048576", "131072"])
        await self._admin(
            f"segment.bytes {value}", lambda admin: admin.alter_topic_configs("a", {"segment.bytes": value}, timeout=3)
        )

    async def _grow(self) -> None:
        topic = self.rng.choice(list(TOPICS))
        count = self.senders[0].partitions[topic] + 1
        if count > TOPICS[topic] + 3:
            return
        if await self._admin(f"grow {topic} {count}", lambda admin: admin.create_partitions({topic: count}, timeout=3)):
            await asyncio.sleep(0.05)
            for sender in self.senders:
                sender.partitions[topic] = count

    async def _admin(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> bool:
        if not self._up():
            return False
        try:
            async with self.cluster.admin() as admin:
                await call(admin)
        except TidelogError as error:
            self._note(f"{what}: {type(error).__name__}")
            return False
        self._note(what)
        return True

    # --- the end --------------------------------------------------------------------------------------

    async def _settle(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        began = asyncio.get_running_loop().time()
        self._note("mend everything")
        if self.cluster.transport == MEMORY:
            self.cluster.heal()
            for link in self.cluster.fabric._links.values():
                link.delay_s = 0.0
        for node in self.cluster.node_ids:
            if node not in self.cluster.nodes:
                await self._start(node)
        if self._starting:
            done, late = await asyncio.wait(self._starting.values(), timeout=SETTLE_S)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._violated(f"a node did not start: {error!r}")
            if late:
                self._violated(f"{len(late)} nodes did not start within {SETTLE_S:g} s")
        await self._expect(self.cluster.wait_ready(SETTLE_S), "ready")
        self._note("ready")
        before = {sender.name: len(sender.acknowledged) for sender in self.senders}

        def progress() -> bool:
            return all(len(s.acknowledged) > before[s.name] for s in self.senders)

        await self._expect(self.cluster.wait_for(progress, "progress of every producer", SETTLE_S), "progress")
        self._note("progress")
        await self._expect(self.cluster.wait_for(self._isr_whole, "every ISR whole", SETTLE_S), "ISR")
        self._note("isr whole")
        for sender in self.senders:
            sender.stop = True
        await asyncio.wait(tasks, timeout=SETTLE_S)
        for sender in self.senders:
            await self._expect(sender.producer.flush(SETTLE_S), f"flush of {sender.name}")
            if sender.undecided:
                self._violated(f"{sender.name}: {sender.undecided} records have no outcome after flush")
        self._note("flushed")
        self.report.settled_s = asyncio.get_running_loop().time() - began

    async def _expect(self, work: Awaitable[Any], what: str) -> None:
        try:
            await work
        except (TimeoutError, TidelogError) as error:
            self._violated(f"{what}: {error}{self._standing()}")

    def _isr_whole(self) -> bool:
        return all(
            len(found.isr) == 3 and found.leader != NO_NODE
            for topic in self.cluster.image.topics.values()
            for found in topic.partitions.values()
        )

    def _standing(self) -> str:
        lines = []
        for topic in self.cluster.image.topics.values():
            for number, found in topic.partitions.items():
                if len(found.isr) < 3 or found.leader == NO_NODE:
                    lines.append(
                        f"{topic.name}-{number}: leader {found.leader} epoch {found.leader_epoch}/"
                        f"{found.partition_epoch} isr {found.isr} elr {found.eligible_leader_replicas}"
                    )
        for node_id, node in sorted(self.cluster.nodes.items()):
            lines.append(
                f"node {node_id}: {node.standing} controller {node.known_leader} image {node.view.image.offset} "
                f"active {node.is_active_controller}"
            )
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                partition = replica.partition
                what = f"node {node_id} {partition.state.topic}-{key.partition}: {partition.state.leader}/"
                what += f"{partition.leader_epoch} {partition.high_watermark} of {partition.log.log_end_offset}"
                if partition.leading is not None:
                    isr = partition.leading.isr
                    followers = {n: f.log_end_offset for n, f in partition.leading.followers.items()}
                    what += (
                        f" leads, isr {isr.committed} asks {isr.proposal} {followers} {len(replica.committing)} wait"
                    )
                lines.append(what)
        for sender in self.senders:
            core = sender.producer._core
            lines.append(f"{sender.name}: {sender.undecided} undecided, identity {core.sender._identity}")
            lines += [
                f"{sender.name} {queue.topic}-{queue.partition}: pending {len(queue.pending)} in flight "
                f"{len(queue.in_flight)} to {queue.node} (leader "
                f"{core.cluster.cache.leader_of(queue.topic, queue.partition)}) window {len(queue.window)} "
                f"needs epoch {queue.needs_epoch} recovering {queue.recovering} as {queue.producer}"
                for topic in core.accumulator.topics.values()
                for queue in topic.queues.values()
                if queue.pending or queue.in_flight
            ]
            lines += [f"{sender.name} to {n}: {len(k.sent)} sent" for n, k in core.sender._links.items()]
        return "".join(f"\n    {line}" for line in lines)

    # --- the judgement --------------------------------------------------------------------------------

    async def _judge(self) -> None:
        image = self.cluster.image
        place = {found.name: len(found.partitions) for found in image.topics.values()}
        held = await self._read_all(place)
        if held is None:
            return
        self.report.read = sum(map(len, held.values()))
        for sender in self.senders:
            self._judge_sender(sender, held)
        for watcher in self.watchers:
            for text in watcher.violations:
                self._violated(text)
            await self._judge_watcher(watcher, held)
        await self._expect(self.cluster.wait_for(self._replicas_level, "replicas level", SETTLE_S), "level")
        self._judge_replicas()
        for at in sorted(self._lost_from):
            self._violated(f"history of {at}:" + "".join(f"\n    {line}" for line in self._history[at]))
        for node in self._up():
            self._count_truncations(node)

    async def _read_all(self, place: Mapping[str, int]) -> dict[tuple[str, int], list[bytes]] | None:
        held: dict[tuple[str, int], list[bytes]] = {}
        async with self.cluster.consumer(auto_offset_reset="earliest") as consumer:
            where = [TopicPartition(topic, partition) for topic, count in place.items() for partition in range(count)]
            try:
                ends = await consumer.end_offsets(where)
                consumer.assign(where)
                async with asyncio.timeout(SETTLE_S):
                    held = {at: [] for at in where}
                    while any(len(held[at]) < end for at, end in ends.items()):
                        for record in await consumer.poll(1.0, max_records=100_000):
                            got = held[record.topic, record.partition]
                            if record.offset != len(got):
                                self._violated(f"read back: expected offset {len(got)}, found {record}")
                                return None
                            got.append(record.value or b"")
            except (TimeoutError, TidelogError) as error:
                self._violated(f"reading back: {error!r}{self._standing()}")
                return None
        return held

    def _judge_sender(self, sender: Sending, held: Mapping[tuple[str, int], list[bytes]]) -> None:
        report = self.report
        report.sent += len(sender.where)
        report.acknowledged += len(sender.acknowledged)
        report.failed += len(sender.failed)
        prefix = sender.name.encode() + b":"
        times: dict[int, int] = defaultdict(int)
        for at, values in held.items():
            last = -1
            for offset, value in enumerate(values):
                if not value.startswith(prefix):
                    continue
                number = int(value.split(b":")[1])
                times[number] += 1
                if sender.where[number] != at:
                    self._violated(f"{sender.name}:{number} is in {at}, was sent to {sender.where[number]}")
                if number <= last:
                    self._violated(f"{at} offset {offset}: {sender.name}:{number} stands after {last}")
                last = number
        doubled = [number for number, count in times.items() if count > 1]
        lost = [number for number in sender.acknowledged if number not in times]
        if doubled:
            self._violated(f"{sender.name}: {len(doubled)} records are doubled: {doubled[:5]}")
        if lost:
            for number in sorted(lost)[:5]:
                topic, partition, offset = sender.acknowledged[number]
                when = sender.acknowledged_s[number] - self.began
                self._violated(
                    f"{sender.name}:{number}, acknowledged at {topic}-{partition} {offset} at {when:.3f}, is lost"
                )
                self._lost_from.add((topic, partition))
            self._violated(f"{sender.name}: {len(lost)} acknowledged records are lost")
        for number, (topic, partition, offset) in sender.acknowledged.items():
            values = held[topic, partition]
            if offset >= 0 and number in times and not values[offset].startswith(prefix + b"%d:" % number):
                self._violated(
                    f"{sender.name}:{number} is not at {topic}-{partition} {offset}: {values[offset][:20]!r}"
                )
                break

    async def _judge_watcher(self, watcher: Watching, held: Mapping[tuple[str, int], list[bytes]]) -> None:
        def all_seen() -> bool:
            return bool(watcher.violations) or all(len(seen) >= len(held[at]) for at, seen in watcher.seen.items())

        await self._expect(self.cluster.wait_for(all_seen, "a consumer at the end", SETTLE_S), "consumer")
        for at, seen in watcher.seen.items():
            if seen != held[at][: len(seen)]:
                first = next(i for i, (a, b) in enumerate(zip(seen, held[at], strict=False)) if a != b)
                self._violated(
                    f"{at}: a consumer saw {seen[first][:20]!r} at {first}, the log holds {held[at][first][:20]!r}"
                )

    def _replicas_level(self) -> bool:
        ends: dict[Any, set[int]] = defaultdict(set)
        for node in self.cluster.nodes.values():
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                ends[key].add(replica.partition.log.log_end_offset)
                ends[key].add(replica.partition.high_watermark)
        return all(len(found) == 1 for found in ends.values())

    def _judge_replicas(self) -> None:
        contents: dict[Any, dict[bytes, list[NodeId]]] = defaultdict(lambda: defaultdict(list))
        for node_id, node in self.cluster.nodes.items():
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                partition = replica.partition
                offset, end = partition.log.log_start_offset, partition.high_watermark
                pieces = []
                while offset < end:
                    read = partition.log.read(offset, 1 << 20, offset_end=end)
                    assert not hasattr(read, "code"), read
                    pieces.append(bytes(read.records))
                    offset = read.next_offset
                contents[key][b"".join(pieces)].append(node_id)
        for key, found in contents.items():
            if len(found) > 1:
                self._violated(f"{key}: replicas differ: {[(len(data), nodes) for data, nodes in found.items()]}")

    async def _nothing_waits(self) -> None:
        """With the clients gone nothing of theirs may be left on a broker."""

        def left() -> list[str]:
            found = []
            for node_id, node in self.cluster.nodes.items():
                assert node.broker is not None
                consuming = node.broker.replicas.consuming
                if consuming.waiting or consuming.held_bytes:
                    found.append(f"node {node_id}: {consuming.waiting} fetches wait, hold {consuming.held_bytes} bytes")
                for key, replica in node.broker.replicas.replicas.items():
                    appends = len(replica.committing) + len(replica.vouching)
                    if appends or replica.consumers:
                        found.append(f"node {node_id} {key}: {appends} appends, {len(replica.consumers)} fetches")
            return found

        try:
            await self.cluster.wait_for(lambda: not left(), "nothing left", 10.0)
        except TimeoutError:
            for text in left():
                self._violated(f"left after the clients: {text}")

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context.get('message')}: {error!r} {context.get('task') or context.get('future') or ''}"
        if error is not None:
            log.error("event loop: %s", text, exc_info=error)
        self.loop_errors.append(text)


async def run(seed: int, seconds: float, transport: str = MEMORY, *, trace: bool = False) -> Report:
    """Run one seed with faults for ``seconds``; mending and judging come on top."""
    return await Run(seed, seconds, transport, trace).run()


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults on a cluster of three nodes in this process.")
    parser.add_argument("--seeds", default="1-5", help="first-last, or one seed")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--transport", choices=(MEMORY, GRPC), default=MEMORY)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--log", default="", help="level of the log on standard error")
    asked = parser.parse_args()
    if asked.log:
        logging.basicConfig(level=asked.log, format="%(relativeCreated)8d %(levelname)s %(name)s: %(message)s")
    first, _, last = asked.seeds.partition("-")
    broken = 0
    for seed in range(int(first), int(last or first) + 1):
        began = time.monotonic()
        report = asyncio.run(run(seed, asked.seconds, asked.transport, trace=asked.trace))
        print(report, f"({time.monotonic() - began:.1f} s)", flush=True)
        if report.violations:
            broken += 1
            print("\n".join(f"    {line}" for line in report.faults), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
