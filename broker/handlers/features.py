"""Feature levels: describes what this broker knows, and forwards changes to the active controller."""

from __future__ import annotations

from typing import Final

from tidelog.broker.handlers.forwarding import SETTING_VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.features import registered, supported_features
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    DescribeFeaturesRequest,
    DescribeFeaturesResponse,
    FeatureLevel,
    NodeFeatures,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.proto.transport.network import CallContext


class Features:
    def __init__(self, channel: ControllerChannel, view: MetadataView) -> None:
        self._channel: Final = channel
        self._view: Final = view

    def calls(self) -> Calls:
        return {DescribeFeaturesRequest: self.describe, UpdateFeaturesRequest: self.update}

    async def describe(self, _: DescribeFeaturesRequest, __: CallContext) -> DescribeFeaturesResponse:
        image = self._view.image
        return DescribeFeaturesResponse(
            tuple(FeatureLevel(name, level) for name, level in sorted(image.features.items())),
            image.offset,
            supported_features(),
            tuple(NodeFeatures(*found) for found in registered(image)),
        )

    async def update(self, request: UpdateFeaturesRequest, context: CallContext) -> UpdateFeaturesResponse:
        answer, _ = await forwarded(self._channel, request, context)
        if answer.error is ErrorCode.NONE and not request.validate_only:
            wanted = {feature.name: feature.level for feature in request.features}
            await self._view.wait_until(
                lambda image: all(image.features.get(name, 0) == level for name, level in wanted.items()),
                timeout_s=SETTING_VISIBLE_TIMEOUT_S,
            )
        return answer
