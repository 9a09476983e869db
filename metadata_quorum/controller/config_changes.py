"""Changes of settings at run time: set, delete, append, subtract.

Source: KIP-339 and Kafka's ``ConfigurationControlManager``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from immutables import Map

from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates
from tidelog.metadata_quorum.controller.topic_changes import settings_fault
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.config_view import MIN_ISR, UNCLEAN_ELECTION, ConfigView
from tidelog.metadata_quorum.image.image import BROKER, CLIENT_METRICS, GROUP, TOPIC, MetadataImage, TopicImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.model.names import topic_name_fault
from tidelog.model.settings.broker_config import NODE_CONFIG_DEF
from tidelog.model.settings.client_metrics_config import CLIENT_METRICS_CONFIG_DEF
from tidelog.model.settings.config_def import ConfigDef, ConfigError, Setting, Update, ValueType, split_list
from tidelog.model.settings.group_config import GROUP_CONFIG_DEF, group_fault
from tidelog.model.settings.node.replication_settings import CORDONED
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, TOPIC_CONFIG_DEF
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterResource,
    ConfigChange,
    ConfigResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.proto.logs.metadata_records import ConfigRecord, MetadataRecord, PartitionChangeRecord

_NONE: Final[Map[str, str]] = Map()
RESOURCE_NAME_BYTES_MAX: Final = 1_024
"""Longest name of a resource that exists only by its settings. Tidelog's own limit."""
_DEFINITIONS: Final[dict[str, ConfigDef]] = {
    TOPIC: TOPIC_CONFIG_DEF,
    BROKER: NODE_CONFIG_DEF,
    CLIENT_METRICS: CLIENT_METRICS_CONFIG_DEF,
    GROUP: GROUP_CONFIG_DEF,
}


def alter_configs(
    image: MetadataImage, configs: ConfigView, request: IncrementalAlterConfigsRequest
) -> Decision[IncrementalAlterConfigsResponse]:
    """Change each resource completely, or refuse it individually."""
    records: list[MetadataRecord] = []
    results: list[AlteredResource] = []
    asked = Counter(altered.resource for altered in request.resources)
    for altered in request.resources:
        resource = altered.resource
        if asked[resource] > 1:
            refused: Refusal | list[ConfigRecord] = Refusal(
                ErrorCode.INVALID_REQUEST, f"expected each resource once in a request, found {resource} twice"
            )
        else:
            refused = _alter_one(image, configs, altered)
        if isinstance(refused, Refusal):
            results.append(AlteredResource(resource, refused.code, refused.message))
            continue
        results.append(AlteredResource(resource, ErrorCode.NONE))
        records += refused
    consequences = _consequences(image, configs, records) if records else []
    # An ELR that a lower min ISR makes unsafe must be cleared before any leader learns of the lower one.
    return Decision(
        () if request.validate_only else (*consequences, *records), IncrementalAlterConfigsResponse(tuple(results))
    )


def _alter_one(image: MetadataImage, configs: ConfigView, altered: AlterResource) -> Refusal | list[ConfigRecord]:
    resource = altered.resource
    topic: TopicImage | None = None
    if resource.resource_type == TOPIC:
        name_fault = topic_name_fault(resource.name)
        if name_fault is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, name_fault)
        topic = image.topic(resource.name)
        if topic is None:
            return Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected a topic that exists, found {resource.name!r}"
            )
    elif resource.resource_type == BROKER:
        refusal = _unknown_broker(image, resource.name)
        if refusal is not None:
            return refusal
    elif resource.resource_type not in _DEFINITIONS:
        *others, last = _DEFINITIONS
        text = f"expected a resource of type {', '.join(others)} or {last}, found {resource.resource_type!r}"
        return Refusal(ErrorCode.INVALID_REQUEST, text)
    elif not 0 < len(resource.name.encode()) <= RESOURCE_NAME_BYTES_MAX:
        text = f"expected a {resource.resource_type} resource named by 1 to {RESOURCE_NAME_BYTES_MAX} bytes"
        return Refusal(ErrorCode.INVALID_REQUEST, f"{text}, found {len(resource.name.encode())}")
    before = image.configs.get(resource, _NONE)
    after: dict[str, str] = {} if altered.replace else dict(before)
    touched: set[str] = set()
    for change in altered.changes:
        if change.name in touched:
            return Refusal(ErrorCode.INVALID_REQUEST, f"expected each setting once, found {change.name!r} twice")
        touched.add(change.name)
        try:
            refusal = _apply_change(resource, after, change)
        except ConfigError as error:
            return Refusal(ErrorCode.INVALID_CONFIG, str(error))
        if refusal is not None:
            return refusal
    if resource.resource_type == GROUP and (fault := group_fault(configs.of_groups, after)) is not None:
        return Refusal(ErrorCode.INVALID_CONFIG, fault)
    if topic is not None:
        fault = settings_fault(configs, image, topic.name, after, topic.replication_factor)
        if fault is not None:
            return Refusal(ErrorCode.INVALID_CONFIG, fault)
    return [
        ConfigRecord(resource.resource_type, resource.name, name, after.get(name))
        for name in sorted(touched.union(before) if altered.replace else touched)
        if before.get(name) != after.get(name)
    ]


def _unknown_broker(image: MetadataImage, name: str) -> Refusal | None:
    if name == "":
        return None
    if not (name.isascii() and name.isdigit() and len(name) < 11):
        return Refusal(ErrorCode.INVALID_REQUEST, f"expected a broker's id, or none for all brokers, found {name!r}")
    if image.broker(NodeId(int(name))) is None:
        return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"expected a registered broker, found {name}")
    return None


def _apply_change(resource: ConfigResource, values: dict[str, str], change: ConfigChange) -> Refusal | None:
    """Change ``values`` in place. Raises :class:`ConfigError` for a bad name or value."""
    if change.operation == "delete" and change.name in values:
        # A setting from a later version must be removable, even though this version does not know it.
        del values[change.name]
        return None
    setting = _DEFINITIONS[resource.resource_type].require(change.name)
    if resource.resource_type == BROKER and setting.update is Update.READ_ONLY:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{setting.name}: expected a setting that can change at run time, found one that cannot",
        )
    if (resource.resource_type, resource.name, setting.name) == (BROKER, "", CORDONED):
        text = f"{CORDONED}: expected the id of one broker, found all of them: new replicas would have no place"
        return Refusal(ErrorCode.INVALID_REQUEST, text)
    match change.operation:
        case "delete":
            return None
        case "set":
            if change.value is None:
                return Refusal(ErrorCode.INVALID_REQUEST, f"{setting.name}: expected a value to set, found none")
            setting.parse(change.value)
            values[setting.name] = change.value.strip()
        case "append" | "subtract":
            if setting.value_type is not ValueType.LIST:
                return Refusal(
                    ErrorCode.INVALID_CONFIG,
                    f"{setting.name}: expected a list for {change.operation}, found {setting.value_type.value}",
                )
            if change.value is None:
                return Refusal(
                    ErrorCode.INVALID_REQUEST, f"{setting.name}: expected a value to {change.operation}, found none"
                )
            values[setting.name] = _changed_list(setting, values.get(setting.name), change.operation, change.value)
            setting.parse(values[setting.name])
        case _:
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"{setting.name}: expected set, delete, append or subtract, found {change.operation!r}",
            )
    return None


def _changed_list(setting: Setting, present: str | None, operation: str, value: str) -> str:
    items = list(split_list(setting.format(setting.default) or "" if present is None else present))
    for item in split_list(value):
        if operation == "append" and item not in items:
            items.append(item)
        elif operation == "subtract" and item in items:
            items.remove(item)
    return ",".join(items)


def _consequences(
    image: MetadataImage, configs: ConfigView, records: list[MetadataRecord]
) -> list[PartitionChangeRecord]:
    """Return the effects of new settings on partitions: a lower min ISR ends an ELR, or a reassignment that waited for
    more in-sync replicas; an unclean election may happen."""
    after = apply_records(image, records, image.offset, image.epoch)[0]
    relevant = {MIN_ISR, UNCLEAN_ELECTION, BROKER_SYNONYMS[MIN_ISR], BROKER_SYNONYMS[UNCLEAN_ELECTION]}
    named = {record.resource_name for record in records if isinstance(record, ConfigRecord) and record.name in relevant}
    if not named:
        return []
    for_all = any(
        isinstance(record, ConfigRecord) and record.resource_type == BROKER and record.name in relevant
        for record in records
    )
    names = sorted(after.topic_ids) if for_all else sorted(name for name in named if name in after.topic_ids)
    updates = PartitionUpdates(after, configs)
    made: list[PartitionChangeRecord] = []
    for name in names:
        topic = after.topics[after.topic_ids[name]]
        for partition in topic.in_order():
            moving = partition.adding_replicas or partition.removing_replicas
            if moving or partition.eligible_leader_replicas or partition.last_known_elr or partition.leader < 0:
                change = updates.change(TopicIdPartition(topic.topic_id, partition.partition))
                if change is not None:
                    made.append(change)
    return made
