"""A controller tells the active one which levels of the features it knows, until the metadata log has it.

Source: Kafka's ``ControllerRegistrationManager`` (KIP-919). Brokers say so with their own registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.metadata_quorum.controller.features import supported_features
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.controller_api import RegisterControllerRequest

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""Longest wait for one answer; then ask again, while the node lives."""
PAUSE_S: Final = 0.5
AGAIN_S: Final = 2.0
"""The level in use may have no record for it. Then only the active controller knows, and another may follow it."""


class ControllerRefused(Exception):
    """This node does not know a level in use; the text says which."""


async def register_controller(
    channel: ControllerChannel, cluster_id: str, node_id: NodeId, image: Callable[[], MetadataImage]
) -> None:
    """Return once ``image``, this node's, has the registration. Raises :class:`ControllerRefused`."""
    request = RegisterControllerRequest(cluster_id, node_id, supported_features())
    while True:
        try:
            answer = await channel.call(request, timeout_s=TIMEOUT_S, patient=True)
        except ControllerUnavailable as error:
            log.debug("%s", error)
            await asyncio.sleep(PAUSE_S)
            continue
        if answer.error is ErrorCode.NONE:
            known = image().controllers.get(node_id)
            if known is not None and known.features == request.features:
                return
            await asyncio.sleep(AGAIN_S)
            continue
        if answer.error in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INCONSISTENT_CLUSTER_ID):
            raise ControllerRefused(f"controller {node_id} was refused: {answer.error_message}")
        await asyncio.sleep(PAUSE_S)
