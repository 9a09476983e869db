"""Refuses a request as a whole, in its own response type: per item if errors are per item."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.acl_api import CreateAclsRequest, DeleteAclsRequest
from tidelog.proto.calls.api import (
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
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest
from tidelog.proto.calls.controller_api import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisterControllerRequest,
    ReportLogEndsRequest,
)
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest, AlterClientQuotasResponse, AlteredQuotas
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.table import CALLS
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest

ControllerRequest = (
    RegisterBrokerRequest
    | RegisterControllerRequest
    | BrokerHeartbeatRequest
    | AlterPartitionRequest
    | AssignReplicasToDirsRequest
    | ReportLogEndsRequest
    | AllocateProducerIdsRequest
    | AdvanceProducerIdsRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | IncrementalAlterConfigsRequest
    | UpdateFeaturesRequest
    | UnregisterBrokerRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | ElectLeadersRequest
    | CreateAclsRequest
    | DeleteAclsRequest
    | AlterClientQuotasRequest
    | AlterUserScramCredentialsRequest
    | CreateDelegationTokenRequest
    | RenewDelegationTokenRequest
    | ExpireDelegationTokenRequest
)
"""Every request that only the active controller decides."""


R = TypeVar("R", bound=Response)


def refuse(request: Request[R], error: ErrorCode, text: str) -> R:
    """Return the response of ``request``'s type with ``error`` for all of it."""
    answer: R = _refused(request, error, text)
    return answer


def _refused(request: Request[Any], error: ErrorCode, text: str) -> Any:
    match request:
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
        case AlterClientQuotasRequest():
            return AlterClientQuotasResponse(
                tuple(AlteredQuotas(entry.entity, error, text) for entry in request.entries)
            )
        case _:
            answer: Any = CALLS[type(request)]
            has_text = "error_message" in {field.name for field in fields(answer)}
            return answer(error=error, error_message=text) if has_text else answer(error=error)
