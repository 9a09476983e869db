"""A controller registers its supported feature levels with the active one, until the metadata log has them.

Source: Kafka's ``ControllerRegistrationManager`` (KIP-919). Brokers report them with their own registration.
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
"""Timeout of one request; then it is repeated while the node lives."""
PAUSE_S: Final = 0.5
AGAIN_S: Final = 2.0
"""Repeat interval. The current level may have no record for it. Then only the active controller knows, and another may
succeed it."""


class ControllerRefused(Exception):
    """This node does not support a level in use; the text says which."""


async def register_controller(
    channel: ControllerChannel, cluster_id: str, node_id: NodeId, image: Callable[[], MetadataImage]
) -> None:
    """Return once this node's ``image`` has the registration. Raises :class:`ControllerRefused`."""
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
