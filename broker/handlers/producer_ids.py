"""InitProducerId: an identity for an idempotent producer, or its next epoch (KIP-98, KIP-360)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_PRODUCER_ID, BrokerEpoch, NodeId, ProducerEpoch
from tidelog.proto.calls.controller_api import AllocateProducerIdsRequest
from tidelog.proto.calls.transaction_api import InitProducerIdRequest, InitProducerIdResponse
from tidelog.proto.transport.network import CallContext
from tidelog.transactions.producer_ids import ProducerIdBlock, ProducerIds

ALLOCATE_TIMEOUT_S: Final = 10.0


def allocator(
    channel: ControllerChannel, node_id: NodeId, broker_epoch: Callable[[], BrokerEpoch]
) -> Callable[[], Awaitable[ProducerIdBlock | None]]:
    """Return a function that requests a block of ids from the active controller."""

    async def allocate() -> ProducerIdBlock | None:
        try:
            answer = await channel.call(
                AllocateProducerIdsRequest(node_id, broker_epoch()), timeout_s=ALLOCATE_TIMEOUT_S
            )
        except ControllerUnavailable:
            return None
        if answer.error is not ErrorCode.NONE:
            return None
        return ProducerIdBlock(answer.first_producer_id, answer.count)

    return allocate


class InitProducerId:
    """For producers without a transactional id. Every call gets a fresh producer id with epoch 0.

    A producer that asks for its next epoch gets a fresh id as well; the state of the old one expires. Kafka does the
    same for merely idempotent producers.
    """

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids

    async def handle(self, request: InitProducerIdRequest, _: CallContext) -> InitProducerIdResponse:
        found = await self._ids.next()
        if found is None:
            return InitProducerIdResponse(
                ErrorCode.REQUEST_TIMED_OUT,
                NO_PRODUCER_ID,
                error_message="no active controller handed out a block of producer ids in time",
            )
        return InitProducerIdResponse(ErrorCode.NONE, found, ProducerEpoch(0))
