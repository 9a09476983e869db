"""Refuses a request as a whole, in its own response type: per item if errors are per item."""

from __future__ import annotations

from typing import Any, assert_never

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.acl_api import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse
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
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, AdvanceProducerIdsResponse
from tidelog.proto.calls.controller_api import (
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
    RegisterControllerRequest,
    RegisterControllerResponse,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest, AlterClientQuotasResponse, AlteredQuotas
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

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


def refuse(request: ControllerRequest, error: ErrorCode, text: str) -> Any:
    """Return the response of ``request``'s type with ``error`` for all of it."""
    match request:
        case RegisterBrokerRequest():
            return RegisterBrokerResponse(error, error_message=text)
        case RegisterControllerRequest():
            return RegisterControllerResponse(error, text)
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
        case AdvanceProducerIdsRequest():
            return AdvanceProducerIdsResponse(error, error_message=text)
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
        case UnregisterBrokerRequest():
            return UnregisterBrokerResponse(error, text)
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse(error, error_message=text)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse(error, error_message=text)
        case ElectLeadersRequest():
            return ElectLeadersResponse(error, error_message=text)
        case CreateAclsRequest():
            return CreateAclsResponse(error, error_message=text)
        case DeleteAclsRequest():
            return DeleteAclsResponse(error, error_message=text)
        case AlterClientQuotasRequest():
            return AlterClientQuotasResponse(
                tuple(AlteredQuotas(entry.entity, error, text) for entry in request.entries)
            )
        case AlterUserScramCredentialsRequest():
            return AlterUserScramCredentialsResponse(error, error_message=text)
        case CreateDelegationTokenRequest():
            return CreateDelegationTokenResponse(error, error_message=text)
        case RenewDelegationTokenRequest():
            return RenewDelegationTokenResponse(error, error_message=text)
        case ExpireDelegationTokenRequest():
            return ExpireDelegationTokenResponse(error, error_message=text)
        case _:
            assert_never(request)
