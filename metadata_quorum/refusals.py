"""How a request is refused as a whole, in the answer that its type has: by items where errors are per item."""

from __future__ import annotations

from typing import Any, assert_never

from tidelog.model.errors import ErrorCode
from tidelog.proto.api import (
    AlteredResource,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    TopicResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.proto.controller_api import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)
from tidelog.proto.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

ControllerRequest = (
    RegisterBrokerRequest
    | BrokerHeartbeatRequest
    | AlterPartitionRequest
    | AssignReplicasToDirsRequest
    | ReportLogEndsRequest
    | AllocateProducerIdsRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | IncrementalAlterConfigsRequest
    | UpdateFeaturesRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | ElectLeadersRequest
)
"""Every request that only the active controller decides."""


def refuse(request: ControllerRequest, error: ErrorCode, text: str) -> Any:
    """Return the response of ``request``'s type that says ``error`` for all of it."""
    match request:
        case RegisterBrokerRequest():
            return RegisterBrokerResponse(error, error_message=text)
        case BrokerHeartbeatRequest():
            return BrokerHeartbeatResponse(error, error_message=text)
        case AlterPartitionRequest():
            return AlterPartitionResponse(error)
        case AssignReplicasToDirsRequest():
            return AssignReplicasToDirsResponse(error)
        case ReportLogEndsRequest():
            return ReportLogEndsResponse(error)
        case AllocateProducerIdsRequest():
            return AllocateProducerIdsResponse(error)
        case CreateTopicsRequest():
            return CreateTopicsResponse(tuple(CreatedTopic(topic.name, error, text) for topic in request.topics))
        case DeleteTopicsRequest():
            by_name = [TopicResult(name, error, text) for name in request.names]
            by_id = [TopicResult("", error, text, topic_id) for topic_id in request.topic_ids]
            return DeleteTopicsResponse((*by_name, *by_id))
        case CreatePartitionsRequest():
            return CreatePartitionsResponse(tuple(TopicResult(topic.name, error, text) for topic in request.topics))
        case IncrementalAlterConfigsRequest():
            return IncrementalAlterConfigsResponse(
                tuple(AlteredResource(altered.resource, error, text) for altered in request.resources)
            )
        case UpdateFeaturesRequest():
            return UpdateFeaturesResponse(error, text)
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse(error, error_message=text)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse(error, error_message=text)
        case ElectLeadersRequest():
            return ElectLeadersResponse(error, error_message=text)
        case _:
            assert_never(request)
