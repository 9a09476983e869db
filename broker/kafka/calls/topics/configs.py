"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources, translated."""

from __future__ import annotations

from typing import Any

from tidelog.broker.kafka.calls.common.translation import answered, outcome
from tidelog.broker.kafka.calls.topics.config_kinds import (
    CLIENT_METRICS,
    LISTED,
    OPERATIONS,
    RESOURCES,
    SET,
    SOURCES,
    TYPES,
    resource_type,
)
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterResource,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from tidelog.proto.kafka.messages import field


async def describe_configs(request: Any, version: int, context: KafkaContext) -> Answer:
    """Describe settings. From version 1 on the answer has a value's source, from version 3 on its type (KIP-226,
    KIP-569)."""
    items = {(item.resource_type, item.resource_name): item for item in request.resources}.values()
    resources = tuple(ConfigResource(resource_type(item.resource_type), item.resource_name) for item in items)
    synonyms = request.include_synonyms
    documented = field(request, "include_documentation", False)
    answer = await context.call(DescribeConfigsRequest(resources, synonyms))
    results = []
    for item, found in zip(items, answer.resources, strict=True):
        wanted = frozenset(item.configuration_keys or ())  # none named means all
        results.append(
            {
                **_about(item, found),
                "configs": [
                    _described(config, documented) for config in found.configs if not wanted or config.name in wanted
                ],
            }
        )
    return {"results": results}


def _described(config: DescribedConfig, documented: bool) -> dict[str, Any]:
    return {
        **shown(config),
        "synonyms": [{**answered(synonym), "source": SOURCES[synonym.source]} for synonym in config.synonyms],
        "config_type": TYPES[config.value_type],
        "documentation": config.documentation if documented else None,
    }


def shown(config: DescribedConfig) -> dict[str, Any]:
    return {**answered(config, sensitive="is_sensitive"), "config_source": SOURCES[config.source]}


def _about(item: Any, found: DescribedResource | AlteredResource) -> dict[str, Any]:
    return {**outcome(found), "resource_type": item.resource_type, "resource_name": item.resource_name}


async def alter_configs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Replace all of a resource's settings: settings that are not named return to their defaults."""
    return await _altered(request, context, replace=True)


async def incremental_alter_configs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Change the named settings only (KIP-339)."""
    return await _altered(request, context, replace=False)


async def _altered(request: Any, context: KafkaContext, *, replace: bool) -> Answer:
    resources = tuple(
        AlterResource(
            ConfigResource(resource_type(item.resource_type), item.resource_name),
            tuple(ConfigChange(config.name, _operation(config), config.value) for config in item.configs),
            replace,
        )
        for item in request.resources
    )
    answer = await context.call(IncrementalAlterConfigsRequest(resources, request.validate_only))
    pairs = zip(request.resources, answer.resources, strict=True)
    return {"responses": [_about(item, done) for item, done in pairs]}


def _operation(config: Any) -> str:
    """Return what happens to a setting. AlterConfigs sets each."""
    number = field(config, "config_operation", SET)
    return OPERATIONS.get(number, str(number))


async def list_config_resources(request: Any, version: int, context: KafkaContext) -> Answer:
    """List resources. Version 0 asks for those of client metrics (KIP-714, KIP-1142)."""
    asked = tuple(dict.fromkeys(field(request, "resource_types", ())))
    if version == 0:
        asked = (CLIENT_METRICS,)
    if not set(asked) <= RESOURCES.keys():
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    answer = await context.call(ListConfigResourcesRequest(tuple(RESOURCES[each] for each in asked or LISTED)))
    numbers = {name: number for number, name in RESOURCES.items()}
    return {
        "error_code": answer.error,
        "config_resources": [
            {"resource_name": found.name, "resource_type": numbers[found.resource_type]} for found in answer.resources
        ],
    }


APIS = (
    Api(32, 1, 4, describe_configs),
    Api(33, 0, 2, alter_configs),
    Api(44, 0, 1, incremental_alter_configs),
    Api(74, 0, 1, list_config_resources),
)
