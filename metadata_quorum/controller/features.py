"""Feature levels: the versions of the cluster's own formats in use.

Source: KIP-584, KIP-778, KIP-1022 and Kafka's ``FeatureControlManager``. This version's features and levels are in
:data:`tidelog.model.features.SUPPORTED_FEATURES`. The levels of ``metadata.version`` are specific to this project.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from immutables import Map

from tidelog.metadata_quorum.controller.decision import Decision
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION, SUPPORTED_FEATURES, UPGRADE, UPGRADE_TYPES
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import FeatureUpdate, UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.proto.calls.controller_api import (
    RegisterControllerRequest,
    RegisterControllerResponse,
    SupportedFeature,
    range_of,
)
from tidelog.proto.logs.metadata_records import FeatureLevelRecord, MetadataRecord, RegisterControllerRecord
from tidelog.proto.logs.record_levels import kinds_above, level_of, too_low


def supported_features() -> tuple[SupportedFeature, ...]:
    """Return the features that a node of this version registers, as a broker or as a controller."""
    return tuple(SupportedFeature(name, low, high) for name, (low, high) in sorted(SUPPORTED_FEATURES.items()))


def bootstrap_features(image: MetadataImage) -> list[FeatureLevelRecord]:
    """Return a new cluster's first levels: the highest supported ones. An existing cluster keeps its levels, even if
    its nodes learn new ones: finalising those is a separate step."""
    if METADATA_VERSION in image.features:
        return []
    return [FeatureLevelRecord(name, high) for name, (_, high) in sorted(SUPPORTED_FEATURES.items()) if high > 0]


def gate_fault(image: MetadataImage, records: Sequence[MetadataRecord]) -> str | None:
    """Say why the current ``metadata.version`` does not allow these records."""
    return too_low(level_of(records), image.features)


def registration_fault(image: MetadataImage, kind: str, supported: Sequence[SupportedFeature]) -> str | None:
    """Say which current level a node that registers as a "broker" or "controller" does not support."""
    for name, level in sorted(image.features.items()):
        low, high = range_of(name, supported)
        if not low <= level <= high:
            return f"expected a {kind} that supports {name} level {level}, found one for {low} to {high}"
    return None


class ControllerRegistrations:
    """The levels that controllers report, and level changes based on them.

    ``voters``: the current voters. ``up_to_date``: the connected controllers with a release later than 0.1. If the
    current level has no records for registrations, only the active controller holds them: each controller repeats its
    registration, and one that was downgraded to release 0.1, or is not connected, counts as unregistered.
    """

    def __init__(
        self,
        cluster_id: str,
        voters: Callable[[], Collection[NodeId]],
        up_to_date: Callable[[], Collection[NodeId]],
    ) -> None:
        self._cluster_id = cluster_id
        self._voters = voters
        self._up_to_date = up_to_date
        self._said: dict[NodeId, RegisterControllerRecord] = {}

    def reset(self) -> None:
        """Forget everything after another controller was active."""
        self._said.clear()

    def register(
        self, image: MetadataImage, request: RegisterControllerRequest
    ) -> Decision[RegisterControllerResponse]:
        """Note the levels that a controller knows. One without a current level is refused: it would stop at the first
        record of that level. Source: Kafka's ``ClusterControlManager.registerController``."""
        if request.cluster_id != self._cluster_id:
            text = f"expected cluster id {self._cluster_id!r}, found {request.cluster_id!r}"
            return Decision((), RegisterControllerResponse(ErrorCode.INCONSISTENT_CLUSTER_ID, text))
        fault = registration_fault(image, "controller", request.features)
        if fault is not None:
            return Decision((), RegisterControllerResponse(ErrorCode.UNSUPPORTED_VERSION, fault))
        record = RegisterControllerRecord(request.node_id, request.features)
        self._said[record.node_id] = record
        unwritten = image.controllers.get(request.node_id) != record and gate_fault(image, (record,)) is None
        return Decision((record,) if unwritten else (), RegisterControllerResponse(ErrorCode.NONE))

    def _known(self, image: MetadataImage) -> dict[NodeId, RegisterControllerRecord]:
        in_touch = self._up_to_date()
        return dict(image.controllers) | {node_id: self._said[node_id] for node_id in self._said if node_id in in_touch}

    def update_features(self, image: MetadataImage, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
        """Set all the levels, or none. Every broker and every controller must know them.

        All voters must have registered. Registered controllers without a vote count as well: they follow the log, and
        would stop at the first record of an unknown level.
        """
        names = [feature.name for feature in request.features]
        if len(set(names)) != len(names):
            return Decision((), UpdateFeaturesResponse(ErrorCode.INVALID_REQUEST, "expected each feature once"))
        asked = dataclasses.replace(image, controllers=Map(self._known(image)))
        for feature in request.features:
            if not feature.upgrade_type:  # from a client of release 0.1, which knew only this type
                feature = dataclasses.replace(feature, upgrade_type=UPGRADE)
            fault = _update_fault(asked, self._voters(), feature)
            if fault is not None:
                text = f"{feature.name}: {fault}; no level was changed"
                return Decision((), UpdateFeaturesResponse(ErrorCode.INVALID_UPDATE_VERSION, text))
        records = tuple(
            FeatureLevelRecord(feature.name, feature.level)
            for feature in request.features
            if image.features.get(feature.name, 0) != feature.level
        )
        return Decision(() if request.validate_only else records, UpdateFeaturesResponse(ErrorCode.NONE))


def _update_fault(image: MetadataImage, voters: Collection[NodeId], feature: FeatureUpdate) -> str | None:
    name, level = feature.name, feature.level
    if feature.upgrade_type not in UPGRADE_TYPES:
        return f"expected a change of a kind among {', '.join(UPGRADE_TYPES)}, found {feature.upgrade_type!r}"
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        return f"expected one of {', '.join(sorted(SUPPORTED_FEATURES))}, found {name!r}"
    low, high = supported
    if not low <= level <= high:
        return f"expected a level of {low} to {high}, found {level}"
    current = image.features.get(name, 0)
    if level < current and feature.upgrade_type == UPGRADE:
        return f"expected at least the level in use, {current}, found {level}; a downgrade must be asked for as one"
    if level > current and feature.upgrade_type != UPGRADE:
        return f"expected at most the level in use, {current}, found {level}: that is no downgrade"
    if level == current:
        return None
    if name == METADATA_VERSION and level < image.level_used:
        return (
            f"expected at least level {image.level_used}, found {level}: the metadata log has had records that need "
            f"it (one of {', '.join(kinds_above(level))}), which nodes of level {level} cannot read"
        )
    return _ignorance(image, voters, name, level)


def _ignorance(image: MetadataImage, voters: Collection[NodeId], name: str, level: int) -> str | None:
    """Say which node does not know the level."""
    missing = sorted(set(voters) - set(image.controllers))
    if missing:
        return (
            f"expected every controller to be in touch and to have said which levels it knows, found none said by "
            f"{missing[0]}: it is down, or of release 0.1; start it, or upgrade it, first"
        )
    for kind, node_id, features in registered(image):
        low, high = range_of(name, features)
        if not low <= level <= high:
            hint = "; upgrade that node first" if level > high else ""
            if kind == "broker" and image.brokers[node_id].fenced:
                hint += f"; it is not live: if it is gone for good, run `tidelog brokers unregister {node_id}`"
            return f"expected a level that {kind} {node_id} supports, {low} to {high}, found {level}{hint}"
    return None


def registered(image: MetadataImage) -> Iterator[tuple[str, NodeId, tuple[SupportedFeature, ...]]]:
    """Yield each node that reported its features, as "broker" or "controller", with these features."""
    brokers: dict[NodeId, Any] = {node_id: found.record for node_id, found in image.brokers.items()}
    for kind, nodes in (("broker", brokers), ("controller", dict(image.controllers))):
        for node_id in sorted(nodes):
            yield kind, node_id, nodes[node_id].features
