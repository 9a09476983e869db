"""DescribeConfigs and ListConfigResources, answered from the image and the node's own file. Changes go to the
controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import BROKER, CLIENT_METRICS, GROUP, TOPIC
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.names import topic_name_fault
from tidelog.proto.calls.api import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.proto.transport.network import CallContext

RESOURCE_TYPES = (TOPIC, BROKER, CLIENT_METRICS, GROUP)


class Configs:
    """Return the APIs. ``settings`` returns the settings in force on this node."""

    def __init__(self, node_id: NodeId, view: MetadataView, settings: Callable[[], Settings]) -> None:
        self._node_id = node_id
        self._view = view
        self._settings = settings

    def calls(self) -> Calls:
        return {DescribeConfigsRequest: self.describe, ListConfigResourcesRequest: self.list_resources}

    async def list_resources(self, request: ListConfigResourcesRequest, _: CallContext) -> ListConfigResourcesResponse:
        for name in request.resource_types:
            if name not in RESOURCE_TYPES:
                text = f"expected resources of type {', '.join(RESOURCE_TYPES)}, found {name!r}"
                return ListConfigResourcesResponse(ErrorCode.INVALID_REQUEST, (), text)
        wanted = dict.fromkeys(request.resource_types)
        found = tuple(ConfigResource(kind, name) for kind in wanted for name in self._names(kind))
        return ListConfigResourcesResponse(ErrorCode.NONE, found)

    def _names(self, resource_type: str) -> Iterator[str]:
        """Yield resource names. Topics and brokers always have settings; other resources exist by having some."""
        image = self._view.image
        if resource_type == TOPIC:
            yield from sorted(image.topic_ids)
        elif resource_type == BROKER:
            yield from map(str, sorted(image.brokers))
        else:
            yield from sorted(found.name for found in image.configs if found.resource_type == resource_type)

    async def describe(self, request: DescribeConfigsRequest, _: CallContext) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            tuple(self._one(resource, request.include_synonyms) for resource in request.resources)
        )

    def _one(self, resource: ConfigResource, synonyms: bool) -> DescribedResource:
        settings = self._settings()
        if resource.resource_type == TOPIC:
            fault = topic_name_fault(resource.name)
            if fault is not None:
                return DescribedResource(resource, ErrorCode.INVALID_TOPIC_EXCEPTION, (), fault)
            if self._view.image.topic(resource.name) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return DescribedResource(resource, code, (), f"topic {resource.name!r} does not exist")
            values = self._view.image.config(TOPIC, resource.name)
            return DescribedResource(resource, ErrorCode.NONE, settings.describe_topic(values, synonyms=synonyms))
        if resource.resource_type == BROKER:
            if resource.name == "":
                return DescribedResource(resource, ErrorCode.NONE, settings.describe_all_brokers(synonyms=synonyms))
            if resource.name == str(self._node_id):
                return DescribedResource(resource, ErrorCode.NONE, settings.describe_broker(synonyms=synonyms))
            text = f"expected broker {self._node_id} (the one asked) or '' (all of them), found {resource.name!r}"
            return DescribedResource(resource, ErrorCode.INVALID_REQUEST, (), text)
        if resource.resource_type not in RESOURCE_TYPES:
            text = f"resource type: expected {', '.join(RESOURCE_TYPES)}, found {resource.resource_type!r}"
            return DescribedResource(resource, ErrorCode.INVALID_REQUEST, (), text)
        if not resource.name:
            text = f"expected the name of a {resource.resource_type} resource, found none"
            return DescribedResource(resource, ErrorCode.INVALID_REQUEST, (), text)
        values = self._view.image.config(resource.resource_type, resource.name)
        describe = settings.describe_group if resource.resource_type == GROUP else settings.describe_client_metrics
        return DescribedResource(resource, ErrorCode.NONE, describe(values, synonyms=synonyms))
