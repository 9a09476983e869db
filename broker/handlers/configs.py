"""DescribeConfigs: answered here from the image and the node's own file; changes go to the controller."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.names import topic_name_fault
from tidelog.proto.calls.api import ConfigResource, DescribeConfigsRequest, DescribeConfigsResponse, DescribedResource
from tidelog.proto.transport.network import CallContext


class Configs:
    """``settings`` returns the settings in force on this node."""

    def __init__(self, node_id: NodeId, view: MetadataView, settings: Callable[[], Settings]) -> None:
        self._node_id = node_id
        self._view = view
        self._settings = settings

    async def describe(self, request: DescribeConfigsRequest, _: CallContext) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            tuple(self._one(resource, request.include_synonyms) for resource in request.resources)
        )

    def _one(self, resource: ConfigResource, synonyms: bool) -> DescribedResource:
        settings = self._settings()
        if resource.resource_type == "topic":
            fault = topic_name_fault(resource.name)
            if fault is not None:
                return DescribedResource(resource, ErrorCode.INVALID_TOPIC_EXCEPTION, (), fault)
            if self._view.image.topic(resource.name) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return DescribedResource(resource, code, (), f"there is no topic {resource.name!r}")
            values = self._view.image.config("topic", resource.name)
            return DescribedResource(resource, ErrorCode.NONE, settings.describe_topic(values, synonyms=synonyms))
        if resource.resource_type == "broker":
            if resource.name == "":
                return DescribedResource(resource, ErrorCode.NONE, settings.describe_all_brokers(synonyms=synonyms))
            if resource.name == str(self._node_id):
                return DescribedResource(resource, ErrorCode.NONE, settings.describe_broker(synonyms=synonyms))
            text = f"expected broker {self._node_id} (the one asked) or '' (all of them), found {resource.name!r}"
            return DescribedResource(resource, ErrorCode.INVALID_REQUEST, (), text)
        text = f"resource type: expected topic or broker, found {resource.resource_type!r}"
        return DescribedResource(resource, ErrorCode.INVALID_REQUEST, (), text)
