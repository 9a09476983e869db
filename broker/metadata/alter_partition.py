"""ISR changes on their way to the active controller (KIP-497).

Gathering, repeating and judging the answers is :mod:`tidelog.replication.isr_changes`'s; here is only
the way there. A try whose outcome is unknown is not repeated here but reported, since a leader must
know of it: the change may yet take effect.
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
    """Return what asks the active controller for other ISRs. It raises ``ConnectionLost``: outcome unknown."""

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
