"""UpdateFeatures, translated. The answer to ApiVersions contains current and supported levels."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import outcome
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.model.features import SAFE_DOWNGRADE, UPGRADE, UPGRADE_TYPES
from tidelog.proto.calls.api import FeatureUpdate, UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.proto.kafka.messages import field

_NO_RESULTS: Final = 2
"""From this version on, there is one error for all features (KIP-1022): all are updated, or none."""


async def update_features(request: Any, version: int, context: KafkaContext) -> Answer:
    """Change all levels, or none. As in Kafka, features have their own results only if all were changed."""
    updates = tuple(
        FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(each)) for each in request.feature_updates
    )
    answer: UpdateFeaturesResponse = await context.call(
        UpdateFeaturesRequest(updates, field(request, "validate_only", False))
    )
    done = outcome(answer)
    if version >= _NO_RESULTS:
        return done
    results = updates if answer.error is ErrorCode.NONE else ()
    return {
        **done,
        "results": [{"feature": each.name, "error_code": ErrorCode.NONE, "error_message": None} for each in results],
    }


def _upgrade_type(update: Any) -> str:
    number = field(update, "upgrade_type", None)
    if number is None:  # version 0 has a flag instead
        return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    return UPGRADE_TYPES[number - 1] if 1 <= number <= len(UPGRADE_TYPES) else str(number)


APIS: Final = (Api(57, 0, 2, update_features),)
