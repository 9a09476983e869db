"""Feature levels: which versions of the cluster's own formats are in use.

Source: KIP-584 and Kafka's ``FeatureControlManager``. ``metadata.version`` stands for the metadata
records and calls of :mod:`tidelog.proto`; its levels are this project's own. A later feature (such as
``transaction.version``) is one more line of :data:`tidelog.model.features.SUPPORTED_FEATURES`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.metadata_quorum.decision import Decision
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.proto.api import UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.proto.controller_api import SupportedFeature
from tidelog.proto.metadata import FeatureLevelRecord


def bootstrap_features(image: MetadataImage) -> list[FeatureLevelRecord]:
    """The levels that a new cluster begins with: the highest supported ones."""
    return [
        FeatureLevelRecord(name, levels[1])
        for name, levels in sorted(SUPPORTED_FEATURES.items())
        if levels[1] > 0 and name not in image.features
    ]


def registration_fault(image: MetadataImage, supported: Sequence[SupportedFeature]) -> str | None:
    """Say which level in use a broker does not support. A broker that does not mention ``metadata.version``
    knows its first level; one that does not mention another feature does not have it."""
    known = {feature.name: (feature.level_min, feature.level_max) for feature in supported}
    for name, level in sorted(image.features.items()):
        low, high = known.get(name, (0, 1) if name == METADATA_VERSION else (0, 0))
        if not low <= level <= high:
            return f"expected a broker that supports {name} level {level}, found one for {low} to {high}"
    return None


def update_features(image: MetadataImage, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
    """Set levels, all of them or none."""
    records: list[FeatureLevelRecord] = []
    for feature in request.features:
        fault = _update_fault(image, feature.name, feature.level)
        if fault is not None:
            return Decision((), UpdateFeaturesResponse(ErrorCode.FEATURE_UPDATE_FAILED, fault))
        if image.features.get(feature.name, 0) != feature.level:
            records.append(FeatureLevelRecord(feature.name, feature.level))
    if len({record.name for record in records}) != len(records):
        return Decision((), UpdateFeaturesResponse(ErrorCode.INVALID_REQUEST, "expected each feature once"))
    return Decision(() if request.validate_only else tuple(records), UpdateFeaturesResponse(ErrorCode.NONE))


def _update_fault(image: MetadataImage, name: str, level: int) -> str | None:
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        return f"expected one of {', '.join(sorted(SUPPORTED_FEATURES))}, found {name!r}"
    low, high = supported
    if not low <= level <= high:
        return f"{name}: expected a level of {low} to {high}, found {level}"
    if name == METADATA_VERSION and level < image.features.get(name, 0):
        return f"{name}: expected at least the level in use, {image.features[name]}, found {level}"
    for node_id in sorted(image.brokers):
        known = {feature.name: feature for feature in image.brokers[node_id].record.features}
        mine = known.get(name)
        top = mine.level_max if mine is not None else int(name == METADATA_VERSION)
        bottom = mine.level_min if mine is not None else 0
        if not bottom <= level <= top:
            return f"{name}: expected a level that broker {node_id} supports, {bottom} to {top}, found {level}"
    return None
