"""A small broker for the SDK's tests: it keeps Kafka's rules for producers and consumers in memory, over
the real frames of a :class:`MemoryNetwork`, and misbehaves as a test tells it to.

One :class:`ScriptedCluster` holds the partitions (there is no replication: a leader is whoever the
script says, and all brokers see one log), several nodes serve them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from tests.virtual_time import run_virtual
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TopicId
from tidelog.proto.calls.api import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    BrokerEndpoint,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    EpochEnd,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    PartitionMetadata,
    TopicMetadata,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidelog.proto.calls.transaction_api import InitProducerIdRequest, InitProducerIdResponse
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    decode_fetch_request,
    decode_produce_request,
    encode_fetch_response,
    encode_produce_response,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Frame, Server, Service, StreamKind

from .scripted_groups import ScriptedGroups
from .scripted_transactions import ScriptedTransactions, marker

Judge = Callable[[int, str, int, Batch], ErrorCode | Awaitable[ErrorCode] | None]
"""(node, topic, partition, batch) -> an error instead of an append; None to do the usual thing.

``AFTER_APPEND`` codes: see :class:`Partition`. An awaitable delays the answer, not the append order."""


@dataclass
class Partition:
    leader: int
    leader_epoch: int = 0
    log_start: int = 0
    batches: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)
    """producer id → epoch, the last five (base sequence, last sequence, base offset)."""
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer ids with an open transaction: its epoch and first offset."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first and last offset."""

    def append(self, batch: Batch) -> tuple[ErrorCode, int]:
        """Kafka's rules for sequences (``ProducerAppendInfo``, ``ProducerStateEntry``)."""
        if not batch.crc_ok():
            return ErrorCode.CORRUPT_MESSAGE, -1
        if batch.has_producer_id and not batch.is_control:
            epoch, last = self.producers.get(batch.producer_id, (-1, []))
            if batch.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if batch.producer_epoch == epoch:
                for base, end, offset in last:
                    if (base, end) == (batch.base_sequence, batch.last_sequence):
                        return ErrorCode.NONE, offset
                expected = (last[-1][1] + 1) & 0x7FFFFFFF if last else 0
            else:
                last = []
                expected = 0
            if batch.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            kept = [*last, (batch.base_sequence, batch.last_sequence, self.next_offset)][-5:]
            self.producers[batch.producer_id] = (batch.producer_epoch, kept)
            if batch.is_transactional:
                self.open.setdefault(batch.producer_id, (batch.producer_epoch, self.next_offset))
        base = self.next_offset
        data = bytearray(batch.view)
        patch_batch(data, 0, base_offset=base, leader_epoch=self.leader_epoch)
        self.batches.append(bytes(data))
        self.next_offset = base + batch.record_count
        return ErrorCode.NONE, base

    def mark(self, producer_id: int, epoch: int, *, committed: bool) -> None:
        """The producer's transaction ends here; ``epoch`` is that of its next one."""
        _, first = self.open.pop(producer_id, (0, -1))
        if first >= 0 and not committed:
            self.aborted.append((producer_id, first, self.next_offset))
        self.producers[producer_id] = (epoch, [])
        self.append(Batch(memoryview(marker(producer_id, epoch, committed=committed))))

    @property
    def last_stable_offset(self) -> int:
        return min((first for _, first in self.open.values()), default=self.next_offset)

    def values(self) -> list[bytes | None]:
        batches = [Batch(memoryview(data)) for data in self.batches]
        return [r.value for batch in batches if not batch.is_control for r in decode_records(batch)]

    def committed(self) -> list[bytes | None]:
        """The records that a reader of committed records sees."""
        out = []
        for batch in (Batch(memoryview(data)) for data in self.batches):
            aborted = any(
                batch.producer_id == producer and first <= batch.base_offset <= last
                for producer, first, last in self.aborted
            )
            if not batch.is_control and not aborted and batch.base_offset < self.last_stable_offset:
                out += [r.value for r in decode_records(batch)]
        return out


class ScriptedCluster:
    def __init__(self, nodes: int = 1) -> None:
        self.fabric = MemoryFabric()
        self.nodes = list(range(1, nodes + 1))
        self.ports = {node: 9000 + node for node in self.nodes}
        """The address of each broker from its next start on."""
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.topic_ids: dict[str, TopicId] = {}
        self.servers: dict[int, Server] = {}
        self.next_producer_id = 100
        self.judge: Judge | None = None
        self.after: Judge | None = None
        """Asked after the append; an error replaces the good answer."""
        self.fetch_judge: Callable[[int, str, FetchPartition], FetchedPartition | None] | None = None
        self.metadata_hidden: set[str] = set()
        self.known_only_to: dict[str, int] = {}
        """Topics that only the broker knows that made them; filled while ``others_lag``."""
        self.others_lag = False
        self.unnoticed: set[int] = set()
        """Brokers that metadata names even if they are dead."""
        self.busy: set[int] = set()
        """Brokers that reach no controller."""
        self.produce_frames = 0
        self.frame_sizes: list[int] = []
        self.in_flight: dict[tuple[str, int], int] = {}
        self.in_flight_most = 0
        self.epoch_ends: dict[tuple[str, int], tuple[int, int]] = {}
        self.grown = asyncio.Event()
        self.message_max = 1 << 30
        self.create_errors: dict[str, list[ErrorCode]] = {}
        """By topic: what the next attempts to create it get."""
        self.create_throttle_ms = 0
        self.creates: list[list[str]] = []
        """The topics of each request to create some."""
        self.groups = ScriptedGroups()
        self.transactions = ScriptedTransactions(self)

    # --- script -------------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int = 1) -> None:
        self.topic_ids[name] = TopicId(name.encode().ljust(16, b"."))
        for number in range(partitions):
            self.partitions[name, number] = Partition(self.nodes[number % len(self.nodes)])

    def move(self, topic: str, partition: int, leader: int) -> None:
        found = self.partitions[topic, partition]
        found.leader = leader
        found.leader_epoch += 1

    async def start(self) -> None:
        for node in self.nodes:
            await self.start_node(node)

    async def start_node(self, node: int) -> None:
        service = Service(
            {
                MetadataRequest: partial(self._metadata, node),
                ListOffsetsRequest: self._list_offsets,
                OffsetForLeaderEpochRequest: self._epoch_end,
                CreateTopicsRequest: partial(self._create, node),
                UnregisterBrokerRequest: partial(self._unregister, node),
                **self.groups.handlers(node),
                **self.transactions.handlers(node),
            },
            {StreamKind.PRODUCE: lambda _: _Produce(self, node), StreamKind.FETCH: lambda _: _Fetch(self, node)},
        )
        network = self.fabric.network(f"node{node}")
        self.servers[node] = await network.serve("CLIENT", Address("mem", self.ports[node]), service)

    async def stop(self) -> None:
        for node in list(self.servers):
            await self.kill(node)

    async def kill(self, node: int) -> None:
        server = self.servers.pop(node)
        self.fabric.drop_node(f"node{node}")
        await server.close(0)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"mem:{self.ports[node]}" for node in self.nodes)

    def network(self, name: str = "client") -> Any:
        return self.fabric.network(name)

    # --- calls --------------------------------------------------------------------------------------

    async def _metadata(self, node: int, request: MetadataRequest, _: CallContext) -> MetadataResponse:
        names = list(self.topic_ids) if request.all_topics else list(request.topics)
        topics = []
        named = [n for n in self.nodes if n in self.servers or n in self.unnoticed]
        for name in names:
            hidden = name in self.metadata_hidden or self.known_only_to.get(name, node) != node
            if name not in self.topic_ids or hidden:
                topics.append(
                    TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, TopicId(bytes(16)), False, (), "no such")
                )
                continue
            views = []
            for (topic, number), p in sorted(self.partitions.items()):
                if topic == name:
                    alive = p.leader in named
                    views.append(
                        PartitionMetadata(
                            ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
                            number,
                            NodeId(p.leader if alive else -1),
                            LeaderEpoch(p.leader_epoch),
                            (NodeId(p.leader),),
                            (NodeId(p.leader),),
                            (),
                            (),
                        )
                    )
            topics.append(TopicMetadata(ErrorCode.NONE, name, self.topic_ids[name], False, tuple(views)))
        brokers = tuple(BrokerEndpoint(NodeId(n), "mem", self.ports[n]) for n in named)
        return MetadataResponse("scripted", NodeId(self.nodes[0]), brokers, tuple(topics))

    async def idempotent_id(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.producer_id >= 0:
            epoch = ProducerEpoch(request.producer_epoch + 1)
            return InitProducerIdResponse(ErrorCode.NONE, request.producer_id, epoch)
        self.next_producer_id += 1
        return InitProducerIdResponse(ErrorCode.NONE, ProducerId(self.next_producer_id), ProducerEpoch(0))

    async def _list_offsets(self, request: ListOffsetsRequest, _: CallContext) -> ListOffsetsResponse:
        results = []
        for item in request.partitions:
            p = self.partitions[item.topic, item.partition]
            found = (-1, -1)
            if item.timestamp == EARLIEST_TIMESTAMP:
                found = (p.log_start, -1)
            elif item.timestamp == LATEST_TIMESTAMP:
                found = (p.next_offset, -1)
            else:
                for data in p.batches:
                    for record in decode_records(Batch(memoryview(data))):
                        if record.timestamp >= item.timestamp and found[0] < 0:
                            found = (record.offset, record.timestamp)
            results.append(
                ListOffsetsResult(
                    item.topic, item.partition, ErrorCode.NONE, found[1], Offset(found[0]), LeaderEpoch(p.leader_epoch)
                )
            )
        return ListOffsetsResponse(tuple(results))

    async def _epoch_end(self, request: OffsetForLeaderEpochRequest, _: CallContext) -> OffsetForLeaderEpochResponse:
        results = []
        for item in request.partitions:
            name = self._name(item.topic_id)
            p = self.partitions[name, item.partition]
            epoch, end = self.epoch_ends.get((name, item.partition), (item.leader_epoch, p.next_offset))
            results.append(EpochEnd(item.topic_id, item.partition, ErrorCode.NONE, LeaderEpoch(epoch), Offset(end)))
        return OffsetForLeaderEpochResponse(tuple(results))

    async def _create(self, node: int, request: CreateTopicsRequest, _: CallContext) -> CreateTopicsResponse:
        out = []
        self.creates.append([item.name for item in request.topics])
        for item in request.topics:
            if node in self.busy:
                out.append(CreatedTopic(item.name, ErrorCode.NOT_CONTROLLER, "not from here"))
                continue
            if errors := self.create_errors.get(item.name):
                out.append(CreatedTopic(item.name, errors.pop(0), "not now"))
                continue
            if item.name in self.topic_ids:
                out.append(CreatedTopic(item.name, ErrorCode.TOPIC_ALREADY_EXISTS, "it exists"))
                continue
            self.topic(item.name, max(1, item.num_partitions))
            if self.others_lag:
                self.known_only_to[item.name] = node
            out.append(CreatedTopic(item.name, ErrorCode.NONE, "", self.topic_ids[item.name], item.num_partitions, 1))
        return CreateTopicsResponse(tuple(out), self.create_throttle_ms)

    async def _unregister(self, node: int, _: UnregisterBrokerRequest, __: CallContext) -> UnregisterBrokerResponse:
        return UnregisterBrokerResponse(ErrorCode.NOT_CONTROLLER if node in self.busy else ErrorCode.NONE)

    def _name(self, topic_id: TopicId) -> str:
        return next(name for name, found in self.topic_ids.items() if found == topic_id)


class _Produce:
    def __init__(self, cluster: ScriptedCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        cluster = self.cluster
        cluster.produce_frames += 1
        cluster.frame_sizes.append(len(frame))
        correlation, request = decode_produce_request(frame)
        waits: list[ProducedPartition | Awaitable[ProducedPartition]] = []
        for item in request.partitions:
            name = cluster._name(item.topic_id)
            key = (name, item.partition)
            cluster.in_flight[key] = cluster.in_flight.get(key, 0) + 1
            cluster.in_flight_most = max(cluster.in_flight_most, cluster.in_flight[key])
            waits.append(self._one(name, item, request.transactional_id))

        async def answer() -> Frame:
            results = []
            for item, wait in zip(request.partitions, waits, strict=True):
                results.append(wait if isinstance(wait, ProducedPartition) else await wait)
                cluster.in_flight[cluster._name(item.topic_id), item.partition] -= 1
            return encode_produce_response(correlation, results)

        return answer()

    def _one(
        self, name: str, item: ProducePartition, transactional_id: str | None
    ) -> ProducedPartition | Awaitable[ProducedPartition]:
        cluster = self.cluster
        partition = cluster.partitions.get((name, item.partition))

        def result(code: ErrorCode, base: int = -1) -> ProducedPartition:
            return ProducedPartition(item.topic_id, item.partition, code, Offset(base), -1, Offset(0))

        if partition is None:
            return result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        batches = split_batches(item.records)
        assert len(batches) == 1
        (batch,) = batches
        assert batch.is_transactional == (transactional_id is not None)
        if cluster.judge is not None:
            verdict = cluster.judge(self.node, name, item.partition, batch)
            if isinstance(verdict, ErrorCode):
                return result(verdict)
            if verdict is not None:
                return self._later(verdict, result, name, item.partition, batch, transactional_id)
        return self._append(result, name, item.partition, batch, transactional_id)

    def _append(
        self,
        result: Callable[..., ProducedPartition],
        name: str,
        number: int,
        batch: Batch,
        transactional_id: str | None,
    ) -> ProducedPartition | Awaitable[ProducedPartition]:
        cluster = self.cluster
        partition = cluster.partitions[name, number]
        if partition.leader != self.node:
            return result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if batch.size > cluster.message_max:
            return result(ErrorCode.MESSAGE_TOO_LARGE)
        if batch.is_transactional and partition.open.get(batch.producer_id, (-1, 0))[0] != batch.producer_epoch:
            code = cluster.transactions.join(transactional_id, name, number, batch)
            if code is not ErrorCode.NONE:
                return result(code)
        code, base = partition.append(batch)
        cluster.grown.set()
        if code is ErrorCode.NONE and cluster.after is not None:
            verdict = cluster.after(self.node, name, number, batch)
            if isinstance(verdict, ErrorCode):
                return result(verdict)
            if verdict is not None:
                return self._answer_later(verdict, result, base)
        return result(code, base)

    async def _later(
        self,
        verdict: Awaitable[ErrorCode],
        result: Any,
        name: str,
        number: int,
        batch: Batch,
        transactional_id: str | None,
    ) -> ProducedPartition:
        code = await verdict
        if code is not ErrorCode.NONE:
            return result(code)  # type: ignore[no-any-return]
        found = self._append(result, name, number, batch, transactional_id)
        return found if isinstance(found, ProducedPartition) else await found

    async def _answer_later(self, verdict: Awaitable[ErrorCode], result: Any, base: int) -> ProducedPartition:
        code = await verdict
        return result(code, base)  # type: ignore[no-any-return]

    def on_close(self) -> None:
        pass


class _Fetch:
    def __init__(self, cluster: ScriptedCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node

    def on_frame(self, frame: memoryview) -> Awaitable[Frame]:
        correlation, request = decode_fetch_request(frame)

        async def answer() -> Frame:
            deadline = asyncio.get_running_loop().time() + request.wait_ms_max / 1_000
            while True:
                self.cluster.grown.clear()
                found = [self._one(item, read_committed=request.read_committed) for item in request.partitions]
                left = deadline - asyncio.get_running_loop().time()
                if left <= 1e-6 or any(f.records or f.error or f.diverging_epoch >= 0 for f in found):
                    return encode_fetch_response(correlation, FetchResponse(ErrorCode.NONE, found))
                try:
                    async with asyncio.timeout(left):
                        await self.cluster.grown.wait()
                except TimeoutError:
                    pass

        return answer()

    def _one(self, item: FetchPartition, *, read_committed: bool) -> FetchedPartition:
        cluster = self.cluster
        name = cluster._name(item.topic_id)
        partition = cluster.partitions[name, item.partition]

        def result(code: ErrorCode, **more: Any) -> FetchedPartition:
            return FetchedPartition(item.topic_id, item.partition, code, **more)

        if cluster.fetch_judge is not None:
            verdict = cluster.fetch_judge(self.node, name, item)
            if verdict is not None:
                return verdict
        if partition.leader != self.node:
            return result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if item.current_leader_epoch < partition.leader_epoch:
            return result(ErrorCode.FENCED_LEADER_EPOCH)
        if not partition.log_start <= item.fetch_offset <= partition.next_offset:
            return result(ErrorCode.OFFSET_OUT_OF_RANGE)
        records = []
        size = 0
        stable = partition.last_stable_offset
        reach = item.fetch_offset
        for data in partition.batches:
            batch = Batch(memoryview(data))
            if batch.next_offset <= item.fetch_offset:
                continue
            if (size and size + len(data) > item.bytes_max) or (read_committed and batch.base_offset >= stable):
                break
            records.append(data)
            size += len(data)
            reach = batch.next_offset
        end = Offset(partition.next_offset)
        aborted = [
            (ProducerId(producer), Offset(first))
            for producer, first, last in partition.aborted
            if read_committed and first < reach and last >= item.fetch_offset
        ]
        return result(
            ErrorCode.NONE,
            high_watermark=end,
            last_stable_offset=Offset(stable),
            aborted=aborted,
            log_start_offset=Offset(partition.log_start),
            records=records,
        )

    def on_close(self) -> None:
        pass


Test = Callable[[ScriptedCluster], Coroutine[Any, Any, None]]


def fill(cluster: ScriptedCluster, count: int, *, topic: str = "one", partition: int = 0, per_batch: int = 10) -> None:
    """Write records ``0`` … ``count - 1`` with timestamps of ten times their number."""
    log = cluster.partitions[topic, partition]
    first = log.next_offset
    for start in range(first, first + count, per_batch):
        builder = BatchBuilder()
        for number in range(start, min(start + per_batch, first + count)):
            builder.append(number * 10, b"k%d" % number, b"%d" % number)
        code, _ = log.append(Batch(memoryview(builder.build())))
        assert code is ErrorCode.NONE
    cluster.grown.set()


def on_a_virtual_cluster(nodes: int, **topics: int) -> Callable[[Test], Callable[[], None]]:
    """A decorator for a test in virtual time on a scripted cluster with these topics; each has so many partitions."""

    def virtually(test: Test) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            async def main() -> None:
                cluster = ScriptedCluster(nodes)
                for name, partitions in topics.items():
                    cluster.topic(name, partitions)
                await cluster.start()
                async with asyncio.timeout(3_600):
                    await test(cluster)
                await cluster.stop()

            run_virtual(main())

        del run.__wrapped__  # pytest would take the parameter for a fixture
        return run

    return virtually
