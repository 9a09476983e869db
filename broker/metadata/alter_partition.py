"""Sends ISR changes to the active controller (KIP-497).

:mod:`tidelog.replication.isr_changes` collects and repeats them and interprets the answers; this module only delivers.
A try with an unknown outcome is reported instead of repeated, because a leader must know that the change may yet take
effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId
from tidelog.proto.calls.controller_api import AlterPartitionItem, AlterPartitionRequest, AlterPartitionResponse
from tidelog.proto.transport.network import ConnectionLost

TRY_TIMEOUT_S: Final = 5.0


def alter_partition(
    node_id: NodeId, channel: ControllerChannel, broker_epoch: Callable[[], BrokerEpoch]
) -> Callable[[tuple[AlterPartitionItem, ...]], Awaitable[AlterPartitionResponse]]:
    """Return a function that asks the active controller for ISR changes. It raises ``ConnectionLost`` for an unknown
    outcome."""

    async def ask(items: tuple[AlterPartitionItem, ...]) -> AlterPartitionResponse:
        epoch = broker_epoch()
        if epoch < 0:
            return AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH)
        request = AlterPartitionRequest(node_id, epoch, items)
        try:
            return await channel.call(request, timeout_s=TRY_TIMEOUT_S, retry_unknown=False)
        except ControllerUnavailable as error:
            if not error.unknown:
                return AlterPartitionResponse(ErrorCode.NOT_CONTROLLER)
            raise ConnectionLost(str(error)) from None

    return ask
