"""Follows transactions in a simulated cluster: the identities handed out, the last stable offsets, the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.chaos.checkers.transactions import Fences, Identified, LogEntry, StableEnds, StableProgress, stable
from tidelog.chaos.simulated.faults.cluster_faults import FaultInjector
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.log_reading import Undisturbed, batches_of
from tidelog.chaos.simulated.world.world import World
from tidelog.groups.routing import partition_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.api import LATEST_TIMESTAMP, ListOffsetsRequest, ListOffsetsResponse
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.decoder import decode_records
from tidelog.replication.partition.partition import Partition

STATE_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"
SAMPLE_S: Final = 0.05
Identity = (
    AddPartitionsTransaction
    | AddOffsetsToTxnRequest
    | TxnOffsetCommitRequest
    | PrepareTransactionRequest
    | EndTxnRequest
)
"""What names a transaction, and a producer's id and epoch."""


class TransactionWatch:
    """Judges transactions. ``places``: topics that transactions write to, and their partitions; ``bounds_s``: how long
    one may be open in each, without topics that have no bound; ``quiet_since_s`` as :attr:`Observer.quiet_since_s`."""

    def __init__(
        self,
        world: World,
        places: Mapping[str, int],
        bounds_s: Mapping[str, float],
        quiet_since_s: Callable[[], float | None],
    ) -> None:
        self._progress = StableProgress(bounds_s)
        self._quiet_since_s = quiet_since_s
        self.identified: list[Identified] = []
        self._world = world
        self._cluster = world.cluster
        self._places = places
        self._told: dict[str, None] = {}
        self.committing: dict[str, None] = {}
        """Transactional ids whose producers have asked for a commit, until somebody removes them."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called for each of them before the request is sent."""
        world.cluster.fabric.answered.append(self._answered)
        world.cluster.fabric.sent.append(self._sent)
        world.cluster.fabric.arrived.append(self._arrived)
        self.reached: dict[str, str] = {}
        """Request kind → the node that it reached last, until somebody removes it."""
        self._fences = Fences()
        self._stable_ends = StableEnds()
        self._misled: dict[str, None] = {}
        self._prepared_s: dict[str, float] = {}
        self._taken_over_s: dict[str, float] = {}

    def begin(self) -> None:
        """Judge partitions from now on."""
        self._sample()

    def coordinator(self, transactional_id: str) -> NodeId | None:
        """Return the node that leads the id's partition of the state topic."""
        return self._leader(STATE_TOPIC, transactional_id)

    def group_coordinator(self, group: str) -> NodeId | None:
        return self._leader(OFFSETS_TOPIC, group)

    def is_up_to_date(self, server: str, transactional_id: str) -> bool:
        """Return whether a node coordinates an id, and knows that it does, under the newest epoch."""
        topic = self._cluster.image.topic(STATE_TOPIC)
        node = self._cluster.nodes.get(NodeId(int(server.removeprefix("node"))))
        if topic is None or node is None or node.broker is None:
            return False
        number = partition_for(transactional_id, len(topic.partitions))
        return any(
            key.partition == number
            and replica.partition.state.topic == STATE_TOPIC
            and replica.partition.leading is not None
            and replica.partition.leader_epoch == topic.partitions[number].leader_epoch
            for key, replica in node.broker.replicas.replicas.items()
        )

    def _leader(self, topic: str, key: str) -> NodeId | None:
        found = self._cluster.image.topic(topic)
        return None if found is None else self._cluster.leader_of(topic, partition_for(key, len(found.partitions)))

    def at_step(self, injector: FaultInjector, step: str, messages: int, within_s: float, *acts: str | float) -> bool:
        """Wait until a request of some kind reaches a node, ``u``, and then for that many further messages anywhere;
        then act on the node."""
        self.reached.pop(step, None)
        passed = 0

        def involved() -> dict[str, NodeId | None]:
            nonlocal passed
            server = self.reached.get(step)
            passed += server is not None
            return {} if server is None or passed <= messages else {"u": NodeId(int(server.removeprefix("node")))}

        injector.wait_for("at-step", involved, within_s, acts)
        return True

    # --- while it runs ----------------------------------------------------------------------------------

    def _sent(self, client: str, request: object) -> None:
        if isinstance(request, EndTxnRequest) and request.committed:
            self.committing[request.transactional_id] = None
            self.on_commit()
        if isinstance(request, PrepareTransactionRequest):
            self._prepared_s[request.transactional_id] = self._cluster.loop.now

    def _arrived(self, server: str, request: object) -> None:
        self.reached[type(request).__name__] = server
        if isinstance(request, InitProducerIdRequest) and not request.keep_prepared_transaction:
            self._taken_over_s[request.transactional_id or ""] = self._cluster.loop.now

    def taken_over(self, transactional_id: str) -> bool:
        """Return whether anybody initialised the id since one of its transactions was to be prepared. A late duplicate
        of such a request cannot be told apart from that of a new producer, and aborts what is prepared."""
        return self._taken_over_s.get(transactional_id, -1.0) >= self._prepared_s.get(transactional_id, 0.0)

    def misled(self, transactional_id: str) -> bool:
        """Return whether the last request to end a transaction of the id was refused by a replaced coordinator that
        does not know it yet: its answer was right before."""
        return transactional_id in self._misled

    def _coordinates(self, server: str, transactional_id: str) -> bool:
        return server == f"node{self.coordinator(transactional_id)}"

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        if isinstance(request, EndTxnRequest) and isinstance(response, EndTxnResponse):
            self._misled.pop(request.transactional_id, None)
            if response.error is not ErrorCode.NONE and not self._coordinates(server, request.transactional_id):
                self._misled[request.transactional_id] = None
            if response.error is ErrorCode.NONE:
                self._fences.told(request.transactional_id, response.producer_id, response.producer_epoch)
        match request, response:
            case InitProducerIdRequest(), InitProducerIdResponse() if (
                request.transactional_id is not None
                and response.error is ErrorCode.NONE
                and response.ongoing_producer_id < 0
            ):
                name, identity = request.transactional_id, (response.producer_id, response.producer_epoch)
                self.identified.append(Identified(name, *identity, self._ends()))
                now_s = self._cluster.loop.now
                self._tell_all(self._fences.given(name, *identity, now_s, anew=request.producer_id < 0))
            case AddPartitionsToTxnRequest(), AddPartitionsToTxnResponse():
                for each, told in zip(request.transactions, response.transactions, strict=False):
                    if any(result.error is ErrorCode.NONE for result in told.results):
                        self._taken_in(server, request, each, asked_s)
            case TxnOffsetCommitRequest(), TxnOffsetCommitResponse():
                if any(result.error is ErrorCode.NONE for result in response.results):
                    self._taken_in(server, request, request, asked_s)
            case (
                EndTxnRequest() | PrepareTransactionRequest() | AddOffsetsToTxnRequest(),
                EndTxnResponse() | PrepareTransactionResponse() | AddOffsetsToTxnResponse(),
            ) if response.error is ErrorCode.NONE:
                self._taken_in(server, request, request, asked_s)
            case ListOffsetsRequest(read_committed=True), ListOffsetsResponse():
                self._told_ends(server, request, response, asked_s)

    def _told_ends(
        self, server: str, request: ListOffsetsRequest, response: ListOffsetsResponse, asked_s: float
    ) -> None:
        """Judge the ends that a leader returned. The answer of a deposed leader was right before."""
        for asked, told in zip(request.partitions, response.results, strict=True):
            if asked.timestamp != LATEST_TIMESTAMP or told.error is not ErrorCode.NONE:
                continue
            topic = self._cluster.image.topic(told.topic)
            if topic is not None and told.leader_epoch == topic.partitions[told.partition].leader_epoch:
                at = TopicPartition(told.topic, told.partition)
                self._tell_all(self._stable_ends.told(server, at, told.offset, asked_s))

    def _taken_in(self, server: str, request: object, of: Identity, asked_s: float) -> None:
        """Judge an accepted request. A deposed coordinator that repeats an earlier decision is no breach; the logs show
        the effect."""
        if isinstance(request, TxnOffsetCommitRequest) or self._coordinates(server, of.transactional_id):
            what = type(request).__name__.removesuffix("Request")
            identity = (of.producer_id, of.producer_epoch)
            self._tell_all(self._fences.taken_in(what, of.transactional_id, *identity, asked_s))

    def _ends(self) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        for _, partition in self._partitions():
            at = TopicPartition(partition.state.topic, partition.state.partition)
            ends[at] = max(ends.get(at, 0), partition.log.log_end_offset)
        return ends

    def _partitions(self) -> Iterable[tuple[NodeId, Partition]]:
        for node_id, node in self._cluster.nodes.items():
            if node.broker is None:
                continue
            for replica in node.broker.replicas.replicas.values():
                if replica.partition.offline or replica.partition.log.closed:
                    continue
                if replica.partition.state.topic in self._places:
                    yield node_id, replica.partition

    def _sample(self) -> None:
        loop = self._cluster.loop
        loop.at(loop.now + SAMPLE_S, self._sample)
        for node_id, partition in self._partitions():
            at = TopicPartition(partition.state.topic, partition.state.partition)
            begun = [each.transaction_offset for each in partition.log.producers.all() if each.transaction_offset >= 0]
            last_stable, mark = partition.last_stable_offset, partition.high_watermark
            self._tell_all(stable(f"node {node_id}", at, last_stable, mark, min(begun, default=None)))
            self._stable_ends.known(loop.now, at, last_stable)
        self._tell_all(self._progress.observe(loop.now, self._quiet_since_s(), self.marks()))

    def _tell_all(self, found: Iterable[str]) -> None:
        for text in found:
            if text not in self._told:
                self._told[text] = None
                self._world.violated(text)

    # --- the end ----------------------------------------------------------------------------------------

    def marks(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the last stable offset and high watermark of each partition at its leader."""
        return {
            TopicPartition(partition.state.topic, partition.state.partition): (
                partition.last_stable_offset,
                partition.high_watermark,
            )
            for node_id, partition in self._partitions()
            if partition.leading is not None
        }

    def undecided(self) -> bool:
        marks = self.marks()
        return len(marks) < sum(self._places.values()) or any(low != high for low, high in marks.values())

    def logs(self, topics: Iterable[str]) -> dict[TopicPartition, list[LogEntry]]:
        return led_logs(self._cluster, topics)


def led_logs(cluster: SimulatedCluster, topics: Iterable[str]) -> dict[TopicPartition, list[LogEntry]]:
    """Return the logs of topics, batch by batch, as their leaders hold them."""
    wanted = frozenset(topics)
    found: dict[TopicPartition, list[LogEntry]] = {}
    for node_id, node in cluster.nodes.items():
        if node.broker is None:
            continue
        for replica in node.broker.replicas.replicas.values():
            partition = replica.partition
            if partition.state.topic not in wanted or partition.leading is None:
                continue
            at = TopicPartition(partition.state.topic, partition.state.partition)
            log = partition.log
            with Undisturbed(cluster.hosts[node_id].files):
                batches = batches_of(log, log.log_start_offset, log.log_end_offset)
                # The cleaner keeps a producer's last batch, even a marker, without its records: it says nothing.
                found[at] = [entry_of(batch) for batch in batches if batch.record_count]
    return found


def entry_of(batch: Batch) -> LogEntry:
    """Return the facts about a batch that a judge needs."""
    if not batch.is_control:
        records = [(record.offset, record.value or b"") for record in decode_records(batch)]
        return LogEntry(
            batch.base_offset, batch.producer_id, batch.producer_epoch, batch.is_transactional, None, records
        )
    marker = decode_control(batch)
    return LogEntry(
        batch.base_offset,
        batch.producer_id,
        batch.producer_epoch,
        True,
        marker.kind is ControlKind.COMMIT,
        (),
        marker.coordinator_epoch,
    )
