"""The transactions of one partition's mover: the records that it delivers, and its mark, become visible together.

A mover is a client of its own cluster, under the transactional id ``__delay.<topic id>.<partition>``. The next leader
asks for that id's next epoch: that ends what this one has open, and fences it. Only then is the mark read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tidelog.broker.coordinators.delays.pending import START, Mark
from tidelog.broker.coordinators.delays.surroundings import Surroundings
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId, ProducerEpoch, ProducerId, TopicId, TopicPartition, id_text
from tidelog.model.names import DELAY_PREFIX, GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.proto.calls.group_api import (
    GroupPartition,
    OffsetCommitPartition,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.transaction_api import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tidelog.proto.records.batches import set_producer_state
from tidelog.proto.transport.frames import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.network import (
    BadFrame,
    CallContext,
    CallTimeout,
    ConnectionLost,
)

R = TypeVar("R", bound=Response)
CALL_TIMEOUT_S: Final = 10.0
TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After so long the coordinator aborts what a dead leader has left open, if no other one has come."""
_HERE: Final = CallContext("", "this node")


class Unsettled(Exception):
    """A transaction did not go as it should, and may be committed, aborted or open. The mark tells, once the next
    identity was had."""


class Beginning(Unsettled):
    """The coordinators' topics are being created: the cluster's first transaction."""


class Refused(Unsettled):
    """Some partitions did not take their records."""

    def __init__(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        super().__init__(", ".join(f"{at}: {error.name}" for at, error in sorted(errors.items())[:5]))
        self.errors = errors


class Batch(NamedTuple):
    """Records for one partition, ready but for the producer's identity."""

    to: TopicPartition
    records: int
    data: bytearray


class DelayTransactions:
    """One after the other; see the module."""

    def __init__(self, node: Surroundings, source: TopicPartition, topic_id: TopicId) -> None:
        self._node = node
        self._source = source
        self.group_id = f"{DELAY_PREFIX}{id_text(topic_id)}"
        self.transactional_id = f"{self.group_id}.{source.partition}"
        self._identity = ProducerId(-1), ProducerEpoch(-1)

    async def take_over(self) -> None:
        """End what a former leader, or this one, has open, and fence former leaders. Raises :class:`Unsettled`."""
        request = InitProducerIdRequest(self.transactional_id, TRANSACTION_TIMEOUT_MS)
        answer = await self._coordinated(TRANSACTION_STATE_TOPIC, request)
        self._expect(answer.error, "InitProducerId")
        self._identity = answer.producer_id, answer.producer_epoch

    async def mark(self) -> Mark:
        """The one that is committed. Raises :class:`Unsettled`."""
        at = GroupPartition(*self._source)
        asked = (OffsetFetchGroup(self.group_id, (at,)),)
        request = OffsetFetchRequest(asked, require_stable=True)
        group = (await self._coordinated(GROUP_OFFSETS_TOPIC, request)).groups[0]
        self._expect(group.error, "OffsetFetch")
        found = group.offsets[0]
        self._expect(found.error, "OffsetFetch")
        if found.offset < 0:
            return START
        mark = Mark.read(found.offset, found.metadata)
        if mark is None:
            raise Unsettled(f"expected a mark in the metadata of {self.group_id}, found {found.metadata[:80]!r}")
        return mark

    async def commit(self, batches: Sequence[Batch], mark: Mark) -> None:
        """Write the batches, in order, and the mark. Raises :class:`Unsettled`."""
        producer_id, epoch = self._identity
        by_leader: dict[NodeId, list[Batch]] = {}
        for batch in batches:
            by_leader.setdefault(self._leader_of(batch.to), []).append(batch)
        item = OffsetCommitPartition(*self._source, offset=mark.position, metadata=mark.text)
        commit = TxnOffsetCommitRequest(self.transactional_id, self.group_id, producer_id, epoch, -1, "", None, (item,))
        written = [self._produce(leader, of_leader) for leader, of_leader in by_leader.items()]
        committed, produced = await asyncio.gather(
            self._coordinated(GROUP_OFFSETS_TOPIC, commit), asyncio.gather(*written), return_exceptions=True
        )
        if isinstance(produced, BaseException):
            raise produced
        errors = {at: error for found in produced for at, error in found.items()}
        if errors:
            raise Refused(errors)
        if isinstance(committed, BaseException):
            raise committed
        self._expect(committed.results[0].error, "TxnOffsetCommit")
        end = EndTxnRequest(self.transactional_id, producer_id, epoch, True)
        answer = await self._coordinated(TRANSACTION_STATE_TOPIC, end)
        self._expect(answer.error, "EndTxn")
        self._identity = answer.producer_id, answer.producer_epoch

    # --- Asking -------------------------------------------------------------------------------------

    def _expect(self, error: ErrorCode, what: str) -> None:
        if error is not ErrorCode.NONE:
            raise Unsettled(f"{what}: {error.name}")

    async def _coordinated(self, topic: str, request: Request[R]) -> R:
        node = self._node
        if node.view.image.topic(topic) is None:
            await node.create((topic,))
            raise Beginning(f"there was no topic {topic} yet")
        if topic == GROUP_OFFSETS_TOPIC:
            number = node.group_partition(self.group_id)
        else:
            number = node.transaction_partition(self.transactional_id)
        leader = self._leader_of(TopicPartition(topic, number))
        try:
            if leader == node.node_id:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    answer: R = await node.calls[type(request)](request, _HERE)
                    return answer
            connection = node.connection(leader)
            if connection is None:
                raise Unsettled(f"no connection to node {leader}")
            return await connection.call(request, timeout_s=CALL_TIMEOUT_S)
        except (ConnectionLost, CallTimeout, TimeoutError) as error:
            raise Unsettled(f"{type(request).__name__} to node {leader}: {error}") from None

    def _leader_of(self, at: TopicPartition) -> NodeId:
        topic = self._node.view.image.topic(at.topic)
        found = None if topic is None else topic.partitions.get(at.partition)
        if found is None:
            raise Refused({at: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        if found.leader == NO_NODE:
            raise Refused({at: ErrorCode.LEADER_NOT_AVAILABLE})
        return found.leader

    async def _produce(self, leader: NodeId, batches: Sequence[Batch]) -> dict[TopicPartition, ErrorCode]:
        """The errors of those partitions that took nothing, or perhaps something."""
        data: dict[TopicPartition, bytearray] = {}
        sequences: dict[TopicPartition, int] = {}
        for batch in batches:
            sequence = sequences.get(batch.to, 0)
            producer_id, epoch = self._identity
            set_producer_state(batch.data, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
            sequences[batch.to] = sequence + batch.records
            data[batch.to] = data.get(batch.to, bytearray()) + batch.data
        image = self._node.view.image
        parts = []
        for at, records in data.items():
            topic = image.topic(at.topic)
            if topic is None:
                return {at: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            parts.append(ProducePartition(topic.topic_id, at.partition, bytes(records)))
        request = ProduceRequest(-1, int(CALL_TIMEOUT_S * 1_000), parts, self.transactional_id)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S + 1.0):
                answers = await self._produced(leader, request)
        except (ConnectionLost, CallTimeout, TimeoutError, BadFrame):
            return dict.fromkeys(data, ErrorCode.REQUEST_TIMED_OUT)
        pairs = zip(data, answers, strict=True)
        return {at: answer.error for at, answer in pairs if answer.error is not ErrorCode.NONE}

    async def _produced(self, leader: NodeId, request: ProduceRequest) -> list[ProducedPartition]:
        if leader == self._node.node_id:
            produced = self._node.replicas.produce(request)
            return produced if isinstance(produced, list) else await produced
        caller = self._node.caller(leader)
        if caller is None:
            raise ConnectionLost(f"no address of node {leader}")
        answer = await caller.submit(partial(encode_produce_request, request=request))
        return decode_produce_response(answer)[1]
