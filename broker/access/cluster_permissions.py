"""Permissions for requests about the cluster, its settings, users, tokens and backups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.access.nodes import cluster_refused
from tidelog.broker.access.resources import (
    ALTER,
    CLUSTER_ACTION,
    DESCRIBE,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    NONE,
)
from tidelog.broker.access.rules import Rule, Serve, each, free, on_cluster, whole
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET
from tidelog.proto.calls.acl_api import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribedResource,
    DescribeFeaturesRequest,
    DescribeFeaturesResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.audit_api import AppendAuditRequest
from tidelog.proto.calls.backup_api import (
    AdvanceProducerIdsRequest,
    HoldTransactionsRequest,
    ImportRecordsRequest,
)
from tidelog.proto.calls.connection_api import CloseConnectionsRequest, DescribeConnectionsRequest
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.quota_api import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
)
from tidelog.security.acls import AclOperation
from tidelog.security.delegation_tokens import is_of


def _configs(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """Check ``operation``: settings of a topic or group need it on that, all others on the cluster."""

    def fault(_: object, item: Any, access: Access, __: MetadataImage) -> ErrorCode:
        resource = getattr(item, "resource", item)
        if resource.resource_type == "topic":
            return NONE if access.topic(operation, resource.name) else NO_TOPIC
        if resource.resource_type == "group":
            return NONE if access.group(operation, resource.name) else NO_GROUP
        return NONE if access.cluster(operation) else NO_CLUSTER

    return fault


def _token_fault(request: CreateDelegationTokenRequest, access: Access) -> ErrorCode:
    """Check who may create a token: any user may have its own tokens (KIP-373)."""
    owner = request.owner
    own = owner is None or owner == access.who.principal
    may = own or access.user(AclOperation.CREATE_TOKENS, owner or "")
    return NONE if may else ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


async def _seen_tokens(
    request: DescribeDelegationTokenRequest, access: Access, image: MetadataImage, serve: Serve
) -> DescribeDelegationTokenResponse:
    """Pass on only the tokens that the caller may see, so that nobody computes the secrets of others.

    Source: ``DelegationTokenManager.filterToken``.
    """
    quiet, principal = access.quiet, access.who.principal
    some = access.any_delegation_token(DESCRIBE)
    seen = (
        token_id
        for token_id, token in image.delegation_tokens.items()
        if is_of(token, principal)
        or quiet.user(AclOperation.DESCRIBE_TOKENS, token.owner)
        or (some and quiet.delegation_token(DESCRIBE, token_id))
    )
    asked = frozenset(request.token_ids)
    named = tuple(each for each in seen if not request.by_id or each in asked)
    answer: DescribeDelegationTokenResponse = await serve(replace(request, token_ids=named, by_id=True))
    return answer


CLUSTER: Final[dict[type[Request[Any]], Rule]] = {
    DescribeClusterRequest: on_cluster(DESCRIBE, cluster_refused),
    DescribeConfigsRequest: each(
        "resources",
        "resources",
        _configs(AclOperation.DESCRIBE_CONFIGS),
        lambda resource, error, text: DescribedResource(resource, error, (), text),
    ),
    ListConfigResourcesRequest: on_cluster(AclOperation.DESCRIBE_CONFIGS),
    IncrementalAlterConfigsRequest: each(
        "resources",
        "resources",
        _configs(AclOperation.ALTER_CONFIGS),
        lambda item, error, text: AlteredResource(item.resource, error, text),
    ),
    DescribeFeaturesRequest: on_cluster(
        DESCRIBE, lambda _, error, text: DescribeFeaturesResponse((), NO_OFFSET, (), (), error, text)
    ),
    UpdateFeaturesRequest: on_cluster(ALTER),
    UnregisterBrokerRequest: on_cluster(ALTER),
    DescribeLogDirsRequest: on_cluster(DESCRIBE, lambda _, error, text: DescribeLogDirsResponse((), error, text)),
    DescribeConnectionsRequest: on_cluster(DESCRIBE),
    CloseConnectionsRequest: on_cluster(ALTER),
    AlterReplicaLogDirsRequest: on_cluster(ALTER, lambda _, error, text: AlterReplicaLogDirsResponse((), error, text)),
    AlterPartitionReassignmentsRequest: on_cluster(ALTER),
    ListPartitionReassignmentsRequest: on_cluster(DESCRIBE),
    ElectLeadersRequest: on_cluster(ALTER),
    DescribeAclsRequest: on_cluster(DESCRIBE),
    CreateAclsRequest: on_cluster(ALTER),
    DeleteAclsRequest: on_cluster(ALTER),
    DescribeClientQuotasRequest: on_cluster(AclOperation.DESCRIBE_CONFIGS),
    AlterClientQuotasRequest: on_cluster(AclOperation.ALTER_CONFIGS),
    SaslAuthenticateRequest: free(),
    DescribeUserScramCredentialsRequest: on_cluster(DESCRIBE),
    AlterUserScramCredentialsRequest: on_cluster(ALTER),
    CreateDelegationTokenRequest: whole(_token_fault),
    RenewDelegationTokenRequest: free(),  # the controller checks that it is the caller's
    ExpireDelegationTokenRequest: free(),
    DescribeDelegationTokenRequest: _seen_tokens,
    AppendAuditRequest: whole(
        lambda _, access: NONE if access.denials_only.cluster(CLUSTER_ACTION) else NO_CLUSTER,
    ),
    HoldTransactionsRequest: on_cluster(ALTER),
    ImportRecordsRequest: on_cluster(ALTER),
    AdvanceProducerIdsRequest: on_cluster(ALTER),
}
