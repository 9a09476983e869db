"""The permission that each request needs, one row a request. A request without a row cannot be served.

Operations, resources and errors are Kafka's (``KafkaApis``, ``ControllerApis``). A topic that the sender may not
describe cannot be told from one that is not there: by name, both are TOPIC_AUTHORIZATION_FAILED, by id both are
UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.access.nodes import cluster_refused
from tidelog.broker.access.rules import TEXTS, Rule, Serve, both, each, free, on_cluster, shown, whole, woven
from tidelog.metadata_quorum.controller.refusals import refuse as refuse_change
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, ZERO_TOPIC_ID, TopicId
from tidelog.model.names import is_internal
from tidelog.model.sinks import is_sinks, sink_attempt, sink_key
from tidelog.proto.calls.acl_api import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResult,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribedResource,
    DescribeFeaturesRequest,
    DescribeFeaturesResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    EpochEnd,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListOffsetsRequest,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    TopicMetadata,
    TopicResult,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.audit_api import AppendAuditRequest, AppendAuditResponse
from tidelog.proto.calls.backup_api import (
    AdvanceProducerIdsRequest,
    HoldTransactionsRequest,
    HoldTransactionsResponse,
    ImportRecordsRequest,
    ImportRecordsResponse,
)
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.group_api import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    CommittedOffset,
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.calls.quota_api import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    AbortJobResponse,
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    DeleteSinkRequest,
    DeleteSinkResponse,
    DescribedSink,
    DescribeSinksRequest,
    ListSinksRequest,
)
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    AddedTransaction,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    PartitionProducers,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
)
from tidelog.security.acls import AclOperation
from tidelog.security.delegation_tokens import is_of

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
NONE: Final = ErrorCode.NONE
NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_TOPIC_ID: Final = ErrorCode.UNKNOWN_TOPIC_ID
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# --- Resources ----------------------------------------------------------------------------------------


def transaction_name(transactional_id: str) -> str:
    """The resource that a transactional id is. The transactions of a sink are all one: ``__sink/<name>``."""
    attempt = sink_attempt(transactional_id)
    return transactional_id if attempt is None else sink_key(attempt.sink)


def topic_by_id(image: MetadataImage, topic_id: TopicId, access: Access, operation: AclOperation) -> ErrorCode:
    """Whether ``operation`` on the topic of this id may be done; a topic that may not be described is unknown."""
    topic = image.topics.get(topic_id)
    if topic is None or access.topic(operation, topic.name):
        return NONE
    return NO_TOPIC if access.quiet.topic(DESCRIBE, topic.name) else NO_TOPIC_ID


def _topic(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """Of an item with a ``topic``."""
    return lambda _, item, access, __: NONE if access.topic(operation, item.topic) else NO_TOPIC


def _named(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """Of a topic with a ``name``."""
    return lambda _, item, access, __: NONE if access.topic(operation, item.name) else NO_TOPIC


def _group(operation: AclOperation) -> Callable[[Any, Access], ErrorCode]:
    return lambda request, access: NONE if access.group(operation, request.group_id) else NO_GROUP


def _transaction(request: Any, access: Access) -> ErrorCode:
    return NONE if access.transaction(WRITE, transaction_name(request.transactional_id)) else NO_TRANSACTION


def _sink(operation: AclOperation) -> Callable[[Any, Access], ErrorCode]:
    return lambda request, access: NONE if access.transaction(operation, sink_key(request.sink)) else NO_TRANSACTION


def _failed(answer: Callable[..., Any]) -> Callable[[Any, ErrorCode, str], Any]:
    """Refuse a request by an answer of this type, which has one error for all of it."""
    return lambda _, error, text: answer(error=error, error_message=text)


# --- Topics, settings, the cluster ----------------------------------------------------------------------


async def _metadata(request: MetadataRequest, access: Access, image: MetadataImage, serve: Serve) -> MetadataResponse:
    """Of all topics, those that the sender may see; of those named, the others are refused one by one, and so are
    those that are not there and that it may not make."""
    if request.all_topics:
        answer: MetadataResponse = await serve(request)
        seen = access.quiet
        return replace(answer, topics=tuple(found for found in answer.topics if seen.topic(DESCRIBE, found.name)))
    if request.topic_ids:
        answer = await serve(request)
        return replace(answer, topics=tuple(_seen_by_id(found, access) for found in answer.topics))
    faults = {name: _metadata_fault(name, request, access, image) for name in request.topics}
    kept = tuple(name for name, fault in faults.items() if not fault)
    answer = await serve(replace(request, topics=kept))
    text = TEXTS[NO_TOPIC]
    refused = (
        TopicMetadata(NO_TOPIC, name, ZERO_TOPIC_ID, False, (), text) if fault else None
        for name, fault in faults.items()
    )
    return replace(answer, topics=woven(refused, answer.topics))


def _metadata_fault(name: str, request: MetadataRequest, access: Access, image: MetadataImage) -> bool:
    if not access.topic(DESCRIBE, name):
        return True
    makes = request.allow_auto_topic_creation and image.topic(name) is None
    return makes and not (access.quiet.cluster(CREATE) or access.topic(CREATE, name))


def _seen_by_id(found: TopicMetadata, access: Access) -> TopicMetadata:
    if found.error is NO_TOPIC_ID or access.topic(DESCRIBE, found.name):
        return found
    return TopicMetadata(NO_TOPIC_ID, "", found.topic_id, False, (), TEXTS[NO_TOPIC_ID])


def _create_fault(_: Any, topic: Any, access: Access, __: MetadataImage) -> ErrorCode:
    return NONE if access.quiet.cluster(CREATE) or access.topic(CREATE, topic.name) else NO_TOPIC


async def _delete_topics(request: DeleteTopicsRequest, access: Access, image: MetadataImage, serve: Serve) -> Any:
    def may(name: str) -> bool:
        return access.topic(DESCRIBE, name) and access.topic(DELETE, name)

    faults = [NONE if may(name) else NO_TOPIC for name in request.names]
    faults += [topic_by_id(image, topic_id, access, DELETE) for topic_id in request.topic_ids]
    if not any(faults):
        return await serve(request)
    names = tuple(name for name, error in zip(request.names, faults, strict=False) if not error)
    ids = tuple(each for each, error in zip(request.topic_ids, faults[len(request.names) :], strict=True) if not error)
    answer = await serve(replace(request, names=names, topic_ids=ids))
    asked = [(name, ZERO_TOPIC_ID) for name in request.names] + [("", topic_id) for topic_id in request.topic_ids]
    refused = (
        TopicResult(name, error, TEXTS[error], topic_id) if error else None
        for (name, topic_id), error in zip(asked, faults, strict=True)
    )
    return replace(answer, topics=woven(refused, answer.topics))


def _configs(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """A topic's or group's settings need ``operation`` on it, all others on the cluster."""

    def fault(_: Any, item: Any, access: Access, __: MetadataImage) -> ErrorCode:
        resource = getattr(item, "resource", item)
        if resource.resource_type == "topic":
            return NONE if access.topic(operation, resource.name) else NO_TOPIC
        if resource.resource_type == "group":
            return NONE if access.group(operation, resource.name) else NO_GROUP
        return NONE if access.cluster(operation) else NO_CLUSTER

    return fault


def _epoch_fault(_: Any, item: Any, access: Access, image: MetadataImage) -> ErrorCode:
    return NONE if access.quiet.cluster(CLUSTER_ACTION) else topic_by_id(image, item.topic_id, access, DESCRIBE)


def _token_fault(request: CreateDelegationTokenRequest, access: Access) -> ErrorCode:
    """Whoever may log in may have tokens of its own (KIP-373)."""
    owner = request.owner
    own = owner is None or owner == access.who.principal
    may = own or access.user(AclOperation.CREATE_TOKENS, owner or "")
    return NONE if may else ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


async def _seen_tokens(
    request: DescribeDelegationTokenRequest, access: Access, image: MetadataImage, serve: Serve
) -> Any:
    """Names the tokens that the caller may see, so that nobody computes the secrets of others.

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
    return await serve(replace(request, token_ids=named, by_id=True))


# --- Groups -------------------------------------------------------------------------------------------------


def _coordinator_fault(request: FindCoordinatorRequest, key: str, access: Access, _: MetadataImage) -> ErrorCode:
    if request.key_type == GROUP_COORDINATOR:
        return NONE if access.group(DESCRIBE, key) else NO_GROUP
    if request.key_type == TRANSACTION_COORDINATOR:
        return NONE if access.transaction(DESCRIBE, transaction_name(key)) else NO_TRANSACTION
    return NONE


def _none_committed(request: Any, error: ErrorCode, text: str) -> tuple[OffsetCommitResult, ...]:
    return tuple(OffsetCommitResult(item.topic, item.partition, error, text) for item in request.partitions)


def _commit_result(item: Any, error: ErrorCode, text: str) -> OffsetCommitResult:
    return OffsetCommitResult(item.topic, item.partition, error, text)


async def _fetched_topics(request: OffsetFetchRequest, access: Access, _: MetadataImage, serve: Serve) -> Any:
    """If the request asks for all of a group's offsets, leave out topics that the client may not describe; if it names
    topics, refuse those."""

    def may(item: Any) -> bool:
        return access.topic(DESCRIBE, item.topic)

    def seen(item: Any) -> bool:
        return quiet.topic(DESCRIBE, item.topic)

    quiet = access.quiet
    groups = tuple(replace(group, partitions=tuple(filter(may, group.partitions))) for group in request.groups)
    answer: OffsetFetchResponse = await serve(replace(request, groups=groups))
    pairs = zip(request.groups, answer.groups, strict=True)
    return replace(answer, groups=tuple(_fetched_of(group, found, seen) for group, found in pairs))


def _fetched_of(group: OffsetFetchGroup, found: OffsetFetchResult, may: Callable[[Any], bool]) -> OffsetFetchResult:
    if found.error is not NONE:
        return found
    if group.all_partitions:
        return replace(found, offsets=tuple(filter(may, found.offsets)))
    refused = (
        None if may(item) else CommittedOffset(item.topic, item.partition, NO_TOPIC) for item in group.partitions
    )
    return replace(found, offsets=woven(refused, found.offsets))


def _heartbeat_fault(request: ConsumerGroupHeartbeatRequest, access: Access) -> ErrorCode:
    """All topics that a member names must be ones that it may describe."""
    if not access.group(READ, request.group_id):
        return NO_GROUP
    names = () if request.topics is None else request.topics.names
    return NONE if all(access.topic(DESCRIBE, name) for name in names) else NO_TOPIC


async def _described_members(
    request: ConsumerGroupDescribeRequest, access: Access, _: MetadataImage, serve: Serve
) -> Any:
    """A group is not shown if it has topics that the sender may not describe."""

    def shown(group: DescribedConsumerGroup) -> DescribedConsumerGroup:
        names = {part.topic for member in group.members for part in (*member.assignment, *member.target)}
        names.update(name for member in group.members for name in member.topics)
        if all(access.topic(DESCRIBE, name) for name in sorted(names)):
            return group
        return DescribedConsumerGroup(group.group_id, NO_TOPIC, TEXTS[NO_TOPIC])

    answer = await serve(request)
    return replace(answer, groups=tuple(map(shown, answer.groups)))


# --- Transactions -------------------------------------------------------------------------------------------


def _init_fault(request: InitProducerIdRequest, access: Access) -> ErrorCode:
    """An idempotent producer needs no more than to be able to write somewhere (KIP-679). One whose transactions may
    be prepared can pin a log for ever (KIP-939)."""
    if request.transactional_id is not None:
        prepares = request.enable_two_phase_commit
        may = not prepares or access.transaction(AclOperation.TWO_PHASE_COMMIT, request.transactional_id)
        return _transaction(request, access) if may else NO_TRANSACTION
    # By type, every entry is looked at: the question about the cluster comes first, and again so that a denial is told.
    may = access.quiet.cluster(AclOperation.IDEMPOTENT_WRITE) or access.any_topic(WRITE)
    return NONE if may or access.cluster(AclOperation.IDEMPOTENT_WRITE) else NO_CLUSTER


def _prepare_fault(request: PrepareTransactionRequest, access: Access) -> ErrorCode:
    """As with :func:`_init_fault`. A sink's transactions are bounded in time."""
    name = request.transactional_id
    may = is_sinks(name) or access.transaction(AclOperation.TWO_PHASE_COMMIT, name)
    return _transaction(request, access) if may else NO_TRANSACTION


async def _add_partitions(
    request: AddPartitionsToTxnRequest, access: Access, _: MetadataImage, serve: Serve
) -> AddPartitionsToTxnResponse:
    """Leaders ask on behalf of their clients. Of a client's transaction all partitions are added, or none."""
    of_nodes = access.quiet.cluster(CLUSTER_ACTION)
    numbered = () if of_nodes else enumerate(request.transactions)
    refused = {number: found for number, each in numbered if (found := _not_added(each, access))}
    kept = tuple(each for number, each in enumerate(request.transactions) if number not in refused)
    nothing = AddPartitionsToTxnResponse(NONE)
    served: AddPartitionsToTxnResponse = await serve(replace(request, transactions=kept)) if kept else nothing
    if served.error is not NONE:
        return served
    every = map(refused.get, range(len(request.transactions)))
    return replace(served, transactions=woven(every, served.transactions))


def _not_added(asked: AddPartitionsTransaction, access: Access) -> AddedTransaction | None:
    def result(item: Any) -> ErrorCode:
        if not may_write:
            return NO_TRANSACTION
        return NONE if not is_internal(item.topic) and access.topic(WRITE, item.topic) else NO_TOPIC

    may_write = _transaction(asked, access) is NONE
    errors = [result(item) for item in asked.partitions]
    if may_write and not any(errors):
        return None
    return AddedTransaction(
        asked.transactional_id,
        tuple(
            AddedPartition(item.topic, item.partition, error or ErrorCode.OPERATION_NOT_ATTEMPTED)
            for item, error in zip(asked.partitions, errors, strict=True)
        ),
    )


def _transactional_group(request: Any, access: Access) -> ErrorCode:
    return _transaction(request, access) or _group(READ)(request, access)


def _not_written(request: WriteTxnMarkersRequest, error: ErrorCode, _: str) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        tuple(
            WrittenMarker(
                each.producer_id, tuple(AddedPartition(at.topic, at.partition, error) for at in each.partitions)
            )
            for each in request.markers
        )
    )


async def _described_topics(request: Any, access: Access, _: MetadataImage, serve: Serve) -> Any:
    answer: DescribeTransactionsResponse = await serve(request)

    quiet = access.quiet

    def seen(found: DescribedTransaction) -> DescribedTransaction:
        return replace(found, partitions=tuple(at for at in found.partitions if quiet.topic(DESCRIBE, at.topic)))

    return replace(answer, transactions=tuple(map(seen, answer.transactions)))


def _id_fault(_: Any, transactional_id: str, access: Access, __: MetadataImage) -> ErrorCode:
    return NONE if access.transaction(DESCRIBE, transaction_name(transactional_id)) else NO_TRANSACTION


# --- The table --------------------------------------------------------------------------------------------------

PERMISSIONS: Final[dict[type[Request[Any]], Rule]] = {
    MetadataRequest: _metadata,
    DescribeClusterRequest: on_cluster(DESCRIBE, cluster_refused),
    CreateTopicsRequest: each(
        "topics", "topics", _create_fault, lambda topic, error, text: CreatedTopic(topic.name, error, text)
    ),
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: each(
        "topics", "topics", _named(ALTER), lambda topic, error, text: TopicResult(topic.name, error, text)
    ),
    DescribeConfigsRequest: each(
        "resources",
        "resources",
        _configs(AclOperation.DESCRIBE_CONFIGS),
        lambda resource, error, text: DescribedResource(resource, error, (), text),
    ),
    ListConfigResourcesRequest: on_cluster(
        AclOperation.DESCRIBE_CONFIGS, lambda _, error, text: ListConfigResourcesResponse(error, (), text)
    ),
    IncrementalAlterConfigsRequest: each(
        "resources",
        "resources",
        _configs(AclOperation.ALTER_CONFIGS),
        lambda item, error, text: AlteredResource(item.resource, error, text),
    ),
    DescribeFeaturesRequest: on_cluster(
        DESCRIBE, lambda _, error, text: DescribeFeaturesResponse((), NO_OFFSET, (), (), error, text)
    ),
    UpdateFeaturesRequest: on_cluster(ALTER, refuse_change),
    UnregisterBrokerRequest: on_cluster(ALTER, refuse_change),
    DescribeLogDirsRequest: on_cluster(DESCRIBE, lambda _, error, text: DescribeLogDirsResponse((), error, text)),
    AlterReplicaLogDirsRequest: on_cluster(ALTER, lambda _, error, text: AlterReplicaLogDirsResponse((), error, text)),
    AlterPartitionReassignmentsRequest: on_cluster(ALTER, refuse_change),
    ListPartitionReassignmentsRequest: on_cluster(DESCRIBE, refuse_change),
    ElectLeadersRequest: on_cluster(ALTER, refuse_change),
    DescribeAclsRequest: on_cluster(DESCRIBE, _failed(DescribeAclsResponse)),
    CreateAclsRequest: on_cluster(ALTER, refuse_change),
    DeleteAclsRequest: on_cluster(ALTER, refuse_change),
    DescribeClientQuotasRequest: on_cluster(AclOperation.DESCRIBE_CONFIGS, _failed(DescribeClientQuotasResponse)),
    AlterClientQuotasRequest: on_cluster(AclOperation.ALTER_CONFIGS, refuse_change),
    SaslAuthenticateRequest: free(),
    DescribeUserScramCredentialsRequest: on_cluster(DESCRIBE, _failed(DescribeUserScramCredentialsResponse)),
    AlterUserScramCredentialsRequest: on_cluster(ALTER, refuse_change),
    CreateDelegationTokenRequest: whole(_token_fault, refuse_change),
    RenewDelegationTokenRequest: free(),  # the controller asks whether it is the caller's
    ExpireDelegationTokenRequest: free(),
    DescribeDelegationTokenRequest: _seen_tokens,
    ListOffsetsRequest: each(
        "partitions",
        "results",
        _topic(DESCRIBE),
        lambda at, error, text: ListOffsetsResult(at.topic, at.partition, error, error_message=text),
    ),
    OffsetForLeaderEpochRequest: each(
        "partitions", "results", _epoch_fault, lambda at, error, _: EpochEnd(at.topic_id, at.partition, error)
    ),
    DeleteRecordsRequest: each(
        "partitions",
        "results",
        _topic(DELETE),
        lambda at, error, text: DeleteRecordsResult(at.topic, at.partition, error, error_message=text),
    ),
    FindCoordinatorRequest: each(
        "keys", "coordinators", _coordinator_fault, lambda key, error, text: Coordinator(key, error, error_message=text)
    ),
    JoinGroupRequest: whole(_group(READ), _failed(JoinGroupResponse)),
    SyncGroupRequest: whole(_group(READ), _failed(SyncGroupResponse)),
    HeartbeatRequest: whole(_group(READ), _failed(HeartbeatResponse)),
    LeaveGroupRequest: whole(_group(READ), _failed(LeaveGroupResponse)),
    ConsumerGroupHeartbeatRequest: whole(_heartbeat_fault, _failed(ConsumerGroupHeartbeatResponse)),
    ConsumerGroupDescribeRequest: both(
        each(
            "group_ids",
            "groups",
            lambda _, group_id, access, __: NONE if access.group(DESCRIBE, group_id) else NO_GROUP,
            lambda group_id, error, text: DescribedConsumerGroup(group_id, error, text),
        ),
        _described_members,
    ),
    OffsetCommitRequest: both(
        whole(_group(READ), lambda *refused: OffsetCommitResponse(_none_committed(*refused))),
        each("partitions", "results", _topic(READ), _commit_result),
    ),
    OffsetFetchRequest: both(
        each(
            "groups",
            "groups",
            lambda _, group, access, __: NONE if access.group(DESCRIBE, group.group_id) else NO_GROUP,
            lambda group, error, text: OffsetFetchResult(group.group_id, error, (), text),
        ),
        _fetched_topics,
    ),
    OffsetDeleteRequest: both(
        whole(_group(DELETE), _failed(OffsetDeleteResponse)),
        each(
            "partitions",
            "results",
            _topic(READ),
            lambda at, error, _: OffsetDeleteResult(at.topic, at.partition, error),
        ),
    ),
    ListGroupsRequest: shown(
        "groups", lambda group, access: access.cluster(DESCRIBE) or access.group(DESCRIBE, group.group_id)
    ),
    DescribeGroupsRequest: each(
        "group_ids",
        "groups",
        lambda _, group_id, access, __: NONE if access.group(DESCRIBE, group_id) else NO_GROUP,
        lambda group_id, error, text: DescribedGroup(group_id, error, error_message=text),
    ),
    DeleteGroupsRequest: each(
        "group_ids",
        "results",
        lambda _, group_id, access, __: NONE if access.group(DELETE, group_id) else NO_GROUP,
        lambda group_id, error, text: DeletedGroup(group_id, error, text),
    ),
    InitProducerIdRequest: whole(_init_fault, _failed(InitProducerIdResponse)),
    AddPartitionsToTxnRequest: _add_partitions,
    AddOffsetsToTxnRequest: whole(_transactional_group, _failed(AddOffsetsToTxnResponse)),
    PrepareTransactionRequest: whole(_prepare_fault, _failed(PrepareTransactionResponse)),
    EndTxnRequest: whole(_transaction, _failed(EndTxnResponse)),
    TxnOffsetCommitRequest: both(
        whole(_transactional_group, lambda *refused: TxnOffsetCommitResponse(_none_committed(*refused))),
        each("partitions", "results", _topic(READ), _commit_result),
    ),
    WriteTxnMarkersRequest: whole(
        lambda _, access: NONE if access.quiet.cluster(CLUSTER_ACTION) or access.cluster(ALTER) else NO_CLUSTER,
        _not_written,
    ),
    AppendAuditRequest: whole(
        lambda _, access: NONE if access.denials_only.cluster(CLUSTER_ACTION) else NO_CLUSTER,
        _failed(AppendAuditResponse),
    ),
    DescribeTransactionsRequest: both(
        each(
            "transactional_ids",
            "transactions",
            _id_fault,
            lambda name, error, text: DescribedTransaction(name, error, error_message=text),
        ),
        _described_topics,
    ),
    ListTransactionsRequest: shown(
        "transactions",
        lambda found, access: access.transaction(DESCRIBE, transaction_name(found.transactional_id)),
    ),
    DescribeProducersRequest: each(
        "partitions",
        "partitions",
        _topic(READ),
        lambda at, error, text: PartitionProducers(at.topic, at.partition, error, error_message=text),
    ),
    BeginSinkTransactionRequest: whole(_sink(WRITE), _failed(BeginSinkTransactionResponse)),
    CommitBatchRequest: whole(_sink(WRITE), _failed(CommitBatchResponse)),
    AbortJobRequest: whole(_sink(WRITE), _failed(AbortJobResponse)),
    DeleteSinkRequest: whole(_sink(DELETE), _failed(DeleteSinkResponse)),
    DescribeSinksRequest: each(
        "sinks",
        "sinks",
        lambda _, sink, access, __: NONE if access.transaction(DESCRIBE, sink_key(sink)) else NO_TRANSACTION,
        lambda sink, error, text: DescribedSink(sink, error, error_message=text),
    ),
    HoldTransactionsRequest: on_cluster(ALTER, _failed(HoldTransactionsResponse)),
    ImportRecordsRequest: on_cluster(ALTER, _failed(ImportRecordsResponse)),
    AdvanceProducerIdsRequest: on_cluster(ALTER, refuse_change),
    ListSinksRequest: shown("sinks", lambda found, access: access.transaction(DESCRIBE, sink_key(found.sink))),
}
"""What a broker's clients ask. What brokers ask of controllers is in :mod:`tidelog.broker.access.nodes`."""
