"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources, translated."""

from __future__ import annotations

from typing import Any

from tidelog.broker.kafka.calls.topics.config_kinds import BROKER, OPERATIONS, SOURCES, TOPIC, TYPES, resource_type
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    AlterResource,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import AclOperation


async def describe_configs(request: Any, version: int, context: KafkaContext) -> Answer:
    """Version 1 and later say where a value comes from, version 3 and later what it is (KIP-226, KIP-569)."""
    items = {(item.resource_type, item.resource_name): item for item in request.resources}.values()
    resources = tuple(ConfigResource(resource_type(item.resource_type), item.resource_name) for item in items)
    synonyms = request.include_synonyms
    documented = field(request, "include_documentation", False)
    answer = await context.call(DescribeConfigsRequest(resources, synonyms))
    results = []
    for item, found in zip(items, answer.resources, strict=True):
        wanted = frozenset(item.configuration_keys or ())  # none named: all are
        results.append(
            {
                "error_code": found.error,
                "error_message": found.error_message or None,
                "resource_type": item.resource_type,
                "resource_name": item.resource_name,
                "configs": [
                    _described(config, documented) for config in found.configs if not wanted or config.name in wanted
                ],
            }
        )
    return {"results": results}


def _described(config: DescribedConfig, documented: bool) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": SOURCES[config.source],
        "is_sensitive": config.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": SOURCES[synonym.source]}
            for synonym in config.synonyms
        ],
        "config_type": TYPES[config.value_type],
        "documentation": config.documentation if documented else None,
    }


async def alter_configs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Replaces all of a resource's settings: those that are not named go back to their defaults."""
    return await _altered(
        request,
        tuple(
            AlterResource(
                ConfigResource(resource_type(item.resource_type), item.resource_name),
                tuple(ConfigChange(config.name, "set", config.value) for config in item.configs),
                replace=True,
            )
            for item in request.resources
        ),
        context,
    )


async def incremental_alter_configs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Settings that are not named stay (KIP-339)."""
    return await _altered(
        request,
        tuple(
            AlterResource(
                ConfigResource(resource_type(item.resource_type), item.resource_name),
                tuple(
                    ConfigChange(
                        config.name,
                        OPERATIONS.get(config.config_operation, str(config.config_operation)),
                        config.value,
                    )
                    for config in item.configs
                ),
            )
            for item in request.resources
        ),
        context,
    )


async def _altered(request: Any, resources: tuple[AlterResource, ...], context: KafkaContext) -> Answer:
    answer = await context.call(IncrementalAlterConfigsRequest(resources, request.validate_only))
    return {
        "responses": [
            {
                "error_code": done.error,
                "error_message": done.error_message or None,
                "resource_type": item.resource_type,
                "resource_name": item.resource_name,
            }
            for item, done in zip(request.resources, answer.resources, strict=True)
        ]
    }


async def list_config_resources(request: Any, version: int, context: KafkaContext) -> Answer:
    """Version 0 asks for the resources of client metrics, of which there are none (KIP-714, KIP-1142)."""
    if context.access is not None and not context.access.cluster(AclOperation.DESCRIBE_CONFIGS):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    wanted = frozenset(field(request, "resource_types", ())) or frozenset((TOPIC, BROKER))
    found: list[dict[str, Any]] = []
    if version == 0:
        return {"config_resources": found}
    if not wanted <= {TOPIC, BROKER, 8, 16, 32}:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    answer = await context.call(MetadataRequest(all_topics=TOPIC in wanted))
    if TOPIC in wanted:
        found += [{"resource_name": topic.name, "resource_type": TOPIC} for topic in answer.topics]
    if BROKER in wanted:
        found += [{"resource_name": str(broker.node_id), "resource_type": BROKER} for broker in answer.brokers]
    return {"config_resources": found}


APIS = (
    Api(32, 1, 4, describe_configs),
    Api(33, 0, 2, alter_configs),
    Api(44, 0, 1, incremental_alter_configs),
    Api(74, 0, 1, list_config_resources),
)
