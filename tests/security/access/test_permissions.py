"""Every request has a row in the table of permissions; the table here says what each needs, and nothing less does."""

from __future__ import annotations

import asyncio
import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.broker.access.access import Access
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.access.rules import woven
from tidelog.metadata_quorum.controller.token_changes import described
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TopicId
from tidelog.model.settings.node.access_settings import STANDARD_AUTHORIZER
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.calls import controller_api as nodes
from tidelog.proto.calls.acl_api import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, filter_entry_of
from tidelog.proto.calls.api import (
    AlterReplicaLogDirsRequest,
    AlterResource,
    ConfigResource,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeFeaturesRequest,
    DescribeLogDirsRequest,
    EpochEndPartition,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
    OffsetForLeaderEpochRequest,
    PartitionGrowth,
    TopicMetadata,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.audit_api import AppendAuditRequest
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, HoldTransactionsRequest, ImportRecordsRequest
from tidelog.proto.calls.connection_api import CloseConnectionsRequest, DescribeConnectionsRequest
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicNames,
)
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.forwarded import Forwarded
from tidelog.proto.calls.group_api import (
    TRANSACTION_COORDINATOR,
    CommittedOffset,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupPartition,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
)
from tidelog.proto.calls.quota_api import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.calls.request import Change, Request
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    DescribeSinksRequest,
    ListedSink,
    ListSinksRequest,
    ListSinksResponse,
)
from tidelog.proto.calls.table import CALLS
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    AddedTransaction,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribedTransaction,
    DescribeLineageRequest,
    DescribeLineageResponse,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    LineageEdge,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PrepareTransactionRequest,
    TransactionMarker,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
)
from tidelog.proto.logs.metadata_records import DelegationTokenRecord, TopicRecord
from tidelog.proto.transport.network import CallContext
from tidelog.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.security.authorizer import StandardAuthorizer, Who
from tidelog.security.principal import Principal
from tidelog.security.session import Session
from tidelog.testing.cluster import Cluster

TOPIC_ID = TopicId(b"t" * 16)
PRODUCER, EPOCH = ProducerId(1), ProducerEpoch(0)
AT = GroupPartition("t", 0)
COMMIT = OffsetCommitPartition("t", 0, Offset(1))
NO_TOPIC, NO_TOPIC_ID = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID
NO_GROUP, NO_CLUSTER = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_TOKEN = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
EVERYTHING = AclFilter()

ROWS: list[tuple[Request[Any], str, ErrorCode]] = [
    (MetadataRequest(("t",)), "describe topic t", NO_TOPIC),
    (MetadataRequest(("new",), allow_auto_topic_creation=True), "create topic new; describe topic new", NO_TOPIC),
    (MetadataRequest(("new",), allow_auto_topic_creation=True), "create cluster; describe topic new", NO_TOPIC),
    (MetadataRequest(topic_ids=(TOPIC_ID,)), "describe topic t", NO_TOPIC_ID),
    (DescribeClusterRequest(), "describe cluster", NO_CLUSTER),
    (CreateTopicsRequest((NewTopic("t"),)), "create topic t", NO_TOPIC),
    (CreateTopicsRequest((NewTopic("t"),)), "create cluster", NO_TOPIC),
    (DeleteTopicsRequest(("t",)), "delete topic t", NO_TOPIC),
    (DeleteTopicsRequest(topic_ids=(TOPIC_ID,)), "delete topic t", NO_TOPIC_ID),
    (CreatePartitionsRequest((PartitionGrowth("t", 2),)), "alter topic t", NO_TOPIC),
    (DescribeConfigsRequest((ConfigResource("topic", "t"),)), "describe_configs topic t", NO_TOPIC),
    (DescribeConfigsRequest((ConfigResource("broker", "1"),)), "describe_configs cluster", NO_CLUSTER),
    (DescribeConfigsRequest((ConfigResource("client metrics", "m"),)), "describe_configs cluster", NO_CLUSTER),
    (DescribeConfigsRequest((ConfigResource("group", "g"),)), "describe_configs group g", NO_GROUP),
    (ListConfigResourcesRequest(("topic",)), "describe_configs cluster", NO_CLUSTER),
    (
        IncrementalAlterConfigsRequest((AlterResource(ConfigResource("topic", "t"), ()),)),
        "alter_configs topic t",
        NO_TOPIC,
    ),
    (
        IncrementalAlterConfigsRequest((AlterResource(ConfigResource("broker", ""), ()),)),
        "alter_configs cluster",
        NO_CLUSTER,
    ),
    (DescribeFeaturesRequest(), "describe cluster", NO_CLUSTER),
    (UnregisterBrokerRequest(NodeId(1)), "alter cluster", NO_CLUSTER),
    (HoldTransactionsRequest("h", 1), "alter cluster", NO_CLUSTER),
    (ImportRecordsRequest(TOPIC_ID, 0, LeaderEpoch(0), Offset(0), b""), "alter cluster", NO_CLUSTER),
    (AdvanceProducerIdsRequest(ProducerId(0)), "alter cluster", NO_CLUSTER),
    (UpdateFeaturesRequest(()), "alter cluster", NO_CLUSTER),
    (DescribeLogDirsRequest(), "describe cluster", NO_CLUSTER),
    (DescribeConnectionsRequest(), "describe cluster", NO_CLUSTER),
    (CloseConnectionsRequest("User:alice"), "alter cluster", NO_CLUSTER),
    (AlterReplicaLogDirsRequest(()), "alter cluster", NO_CLUSTER),
    (AlterPartitionReassignmentsRequest(()), "alter cluster", NO_CLUSTER),
    (ListPartitionReassignmentsRequest(), "describe cluster", NO_CLUSTER),
    (ElectLeadersRequest("preferred"), "alter cluster", NO_CLUSTER),
    (DescribeClientQuotasRequest(), "describe_configs cluster", NO_CLUSTER),
    (
        AlterClientQuotasRequest((QuotaAlteration((QuotaEntity("user", "a"),), ()),)),
        "alter_configs cluster",
        NO_CLUSTER,
    ),
    (DescribeAclsRequest(filter_entry_of(EVERYTHING)), "describe cluster", NO_CLUSTER),
    (CreateAclsRequest(()), "alter cluster", NO_CLUSTER),
    (DeleteAclsRequest(()), "alter cluster", NO_CLUSTER),
    (DescribeUserScramCredentialsRequest(), "describe cluster", NO_CLUSTER),
    (AlterUserScramCredentialsRequest(), "alter cluster", NO_CLUSTER),
    (CreateDelegationTokenRequest("User:bob"), "create_tokens user User:bob", NO_TOKEN),
    (ListOffsetsRequest((ListOffsetsPartition("t", 0, -1),)), "describe topic t", NO_TOPIC),
    (
        OffsetForLeaderEpochRequest((EpochEndPartition(TOPIC_ID, 0, LeaderEpoch(1)),)),
        "describe topic t",
        NO_TOPIC_ID,
    ),
    (DeleteRecordsRequest((DeleteRecordsPartition("t", 0, Offset(1)),)), "delete topic t", NO_TOPIC),
    (FindCoordinatorRequest(("g",)), "describe group g", NO_GROUP),
    (FindCoordinatorRequest(("x",), TRANSACTION_COORDINATOR), "describe transactional_id x", NO_TRANSACTION),
    (JoinGroupRequest("g", 1, 1, "", None, "consumer", ()), "read group g", NO_GROUP),
    (SyncGroupRequest("g", 1, "m"), "read group g", NO_GROUP),
    (HeartbeatRequest("g", 1, "m"), "read group g", NO_GROUP),
    (LeaveGroupRequest("g", ()), "read group g", NO_GROUP),
    (
        ConsumerGroupHeartbeatRequest("g", "m", 0, topics=TopicNames(("t",))),
        "describe topic t; read group g",
        NO_GROUP,
    ),
    (ConsumerGroupDescribeRequest(("g",)), "describe group g", NO_GROUP),
    (OffsetCommitRequest("g", 1, "m", None, (COMMIT,)), "read topic t; read group g", NO_GROUP),
    (OffsetFetchRequest((OffsetFetchGroup("g", (AT,)),)), "describe topic t; describe group g", NO_GROUP),
    (OffsetDeleteRequest("g", (AT,)), "read topic t; delete group g", NO_GROUP),
    (DescribeGroupsRequest(("g",)), "describe group g", NO_GROUP),
    (DeleteGroupsRequest(("g",)), "delete group g", NO_GROUP),
    (InitProducerIdRequest(), "idempotent_write cluster", NO_CLUSTER),
    (InitProducerIdRequest(), "write topic any", NO_CLUSTER),
    (InitProducerIdRequest("x"), "write transactional_id x", NO_TRANSACTION),
    (
        InitProducerIdRequest("x", enable_two_phase_commit=True),
        "write transactional_id x; two_phase_commit transactional_id x",
        NO_TRANSACTION,
    ),
    (
        AddPartitionsToTxnRequest((AddPartitionsTransaction("x", PRODUCER, EPOCH, (AT,)),)),
        "write topic t; write transactional_id x",
        NO_TRANSACTION,
    ),
    (
        AddPartitionsToTxnRequest((AddPartitionsTransaction("x", PRODUCER, EPOCH, (AT,)),)),
        "cluster_action cluster",
        NO_TRANSACTION,
    ),
    (
        AddOffsetsToTxnRequest("x", PRODUCER, EPOCH, "g"),
        "read group g; write transactional_id x",
        NO_TRANSACTION,
    ),
    (
        PrepareTransactionRequest("x", PRODUCER, EPOCH),
        "write transactional_id x; two_phase_commit transactional_id x",
        NO_TRANSACTION,
    ),
    (PrepareTransactionRequest("__sink/s/0/j/a", PRODUCER, EPOCH), "write transactional_id __sink/s", NO_TRANSACTION),
    (EndTxnRequest("x", PRODUCER, EPOCH, True), "write transactional_id x", NO_TRANSACTION),
    (
        TxnOffsetCommitRequest("x", "g", PRODUCER, EPOCH, 1, "m", None, (COMMIT,)),
        "read topic t; read group g; write transactional_id x",
        NO_TRANSACTION,
    ),
    (InitProducerIdRequest("__delay.t.0"), "cluster_action cluster", NO_TRANSACTION),
    (EndTxnRequest("__delay.t.0", PRODUCER, EPOCH, True), "cluster_action cluster", NO_TRANSACTION),
    (OffsetCommitRequest("__delay.t", 1, "m", None, (COMMIT,)), "read topic t; cluster_action cluster", NO_GROUP),
    (DeleteGroupsRequest(("__delay.t",)), "cluster_action cluster", NO_GROUP),
    (WriteTxnMarkersRequest((TransactionMarker(PRODUCER, EPOCH, True, 0, (AT,)),)), "alter cluster", NO_CLUSTER),
    (
        WriteTxnMarkersRequest((TransactionMarker(PRODUCER, EPOCH, True, 0, (AT,)),)),
        "cluster_action cluster",
        NO_CLUSTER,
    ),
    (AppendAuditRequest((b"{}",)), "cluster_action cluster", NO_CLUSTER),
    (DescribeTransactionsRequest(("x",)), "describe transactional_id x", NO_TRANSACTION),
    (DescribeProducersRequest((AT,)), "read topic t", NO_TOPIC),
    (BeginSinkTransactionRequest("s", 0, "j", "a"), "write transactional_id __sink/s", NO_TRANSACTION),
    (CommitBatchRequest("s", 0, "j"), "write transactional_id __sink/s", NO_TRANSACTION),
    (AbortJobRequest("s", 0, "j"), "write transactional_id __sink/s", NO_TRANSACTION),
    (DeleteSinkRequest("s"), "delete transactional_id __sink/s", NO_TRANSACTION),
    (DescribeSinksRequest(("s",)), "describe transactional_id __sink/s", NO_TRANSACTION),
]
"""A request, what is enough to be served, and the error without the last of it."""
LISTS = (
    ListGroupsRequest, ListTransactionsRequest, DescribeLineageRequest, ListSinksRequest, DescribeDelegationTokenRequest
)  # fmt: skip
"""They refuse nothing, but show only what may be seen."""
FREE = {SaslAuthenticateRequest, RenewDelegationTokenRequest, ExpireDelegationTokenRequest}
"""Whoever has no right yet asks for it; the controller knows whose a token is."""

ALICE = Who("User:alice", "10.0.0.1")
TOKENS = (
    DelegationTokenRecord("theirs", "User:bob", "User:bob", (), 1, 2, 2),
    DelegationTokenRecord("ours", "User:bob", "User:bob", (ALICE.principal,), 1, 2, 2),
)
IMAGE = apply_records(MetadataImage(), [TopicRecord("t", TOPIC_ID), *TOKENS], Offset(0), ControllerEpoch(1))[0]


def permitted(needs: list[str]) -> Access:
    made = StandardAuthorizer()
    for number, need in enumerate(needs):
        operation, kind, *name = need.split()
        acl = AclBinding(
            ResourceType[kind.upper()],
            name[0] if name else CLUSTER_NAME,
            PatternType.LITERAL,
            ALICE.principal,
            "*",
            AclOperation[operation.upper()],
            PermissionType.ALLOW,
        )
        made.add(bytes([number]), acl)
    return Access(made, ALICE)


class Handler:
    """Answers as if everything that it is asked about were well, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def __call__(self, request: Request[Any]) -> Any:
        self.asked.append(request)
        match request:
            case MetadataRequest():
                names = [*request.topics, *("t" for _ in request.topic_ids)]
                topics = (TopicMetadata(ErrorCode.NONE, name, TOPIC_ID, False, ()) for name in names)
                return dataclasses.replace(blank(MetadataResponse), topics=tuple(topics))
            case OffsetFetchRequest():
                return OffsetFetchResponse(tuple(fetched(group) for group in request.groups))
            case AddPartitionsToTxnRequest():
                added = (AddedTransaction(each.transactional_id, ()) for each in request.transactions)
                return AddPartitionsToTxnResponse(ErrorCode.NONE, tuple(added))
            case ListGroupsRequest():
                return ListGroupsResponse(ErrorCode.NONE, (ListedGroup("g", "", "", ""),))
            case ListTransactionsRequest():
                return ListTransactionsResponse(ErrorCode.NONE, (ListedTransaction("x", PRODUCER, ""),))
            case DescribeLineageRequest():
                seen = (LineageEdge("x", "t", reads, "g" * reads, "", 1, 0, 0) for reads in (True, False))
                return DescribeLineageResponse(ErrorCode.NONE, tuple(seen))
            case ListSinksRequest():
                return ListSinksResponse(ErrorCode.NONE, (ListedSink("s", 0, 0, 0),))
            case DescribeDelegationTokenRequest():
                named = request.token_ids or ()
                tokens = (described(IMAGE.delegation_tokens[token_id], "key") for token_id in named)
                return DescribeDelegationTokenResponse(ErrorCode.NONE, tuple(tokens))
            case DescribeTransactionsRequest():
                found = (DescribedTransaction(x, ErrorCode.NONE, partitions=(AT,)) for x in request.transactional_ids)
                return DescribeTransactionsResponse(tuple(found))
        return blank(CALLS[type(request)])


def fetched(group: OffsetFetchGroup) -> OffsetFetchResult:
    offsets = (CommittedOffset(at.topic, at.partition, ErrorCode.NONE) for at in group.partitions)
    return OffsetFetchResult(group.group_id, ErrorCode.NONE, tuple(offsets))


def blank(cls: type[Any]) -> Any:
    """An answer that says nothing."""
    hints = typing.get_type_hints(cls)
    given: dict[str, Any] = {}
    for found in dataclasses.fields(cls):
        if found.default is dataclasses.MISSING:
            hint = hints[found.name]
            empty = () if typing.get_origin(hint) is tuple else "" if hint is str else 0
            given[found.name] = ErrorCode.NONE if hint is ErrorCode else empty
    return cls(**given)


def serve(request: Request[Any], needs: list[str]) -> tuple[Any, list[Any]]:
    """The answer, and what came through to the handler."""
    handler = Handler()

    async def served() -> Any:
        return await PERMISSIONS[type(request)](request, permitted(needs), IMAGE, handler)

    return asyncio.run(served()), handler.asked


def errors(value: object) -> Iterator[ErrorCode]:
    """Every error that an answer says, wherever it stands."""
    if isinstance(value, ErrorCode):
        yield value
    elif dataclasses.is_dataclass(value):
        for found in dataclasses.fields(value):
            yield from errors(getattr(value, found.name))
    elif isinstance(value, tuple):
        for each in value:
            yield from errors(each)


def is_about_nothing(request: Any) -> bool:
    """Whether nothing is asked any more: its items are gone."""
    items = [value for found in dataclasses.fields(request) if isinstance(value := getattr(request, found.name), tuple)]
    return bool(items) and not any(items)


def test_every_request_has_a_row() -> None:
    asked_of_controllers = {request for request in CALLS if request.__module__ == nodes.__name__}
    assert set(PERMISSIONS) == set(CALLS) - asked_of_controllers
    assert {type(row[0]) for row in ROWS} | set(LISTS) | FREE == set(PERMISSIONS)


@pytest.mark.parametrize(("request_", "needs", "error"), ROWS, ids=lambda value: type(value).__name__)
def test_what_a_request_needs_is_enough(request_: Request[Any], needs: str, error: ErrorCode) -> None:
    answer, asked = serve(request_, needs.split("; "))
    assert asked == [request_]
    assert error not in set(errors(answer)) - {ErrorCode.NONE}


@pytest.mark.parametrize(("request_", "needs", "error"), ROWS, ids=lambda value: type(value).__name__)
def test_less_is_not_enough(request_: Request[Any], needs: str, error: ErrorCode) -> None:
    all_of_it = needs.split("; ")
    for missing in all_of_it:
        answer, asked = serve(request_, [need for need in all_of_it if need != missing])
        said = set(errors(answer)) - {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}
        assert len(said) == 1, (missing, answer)
        if missing == all_of_it[-1]:
            assert said == {error}, missing
        for passed in asked:
            if isinstance(passed, MetadataRequest) and passed.topic_ids:
                continue  # what is known of ids is left out of the answer
            assert passed != request_
            assert is_about_nothing(passed) or isinstance(passed, OffsetCommitRequest | OffsetFetchRequest), passed
        assert from_proto(type(answer), to_proto(answer)) == answer


def test_a_stranger_learns_nothing_of_names() -> None:
    """One answer for topics that are there and for those that are not."""
    for names in (("t",), ("nobody",)):
        answer, _ = serve(MetadataRequest(names), [])
        (found,) = answer.topics
        assert (found.error, found.topic_id, found.partitions) == (NO_TOPIC, TopicId(bytes(16)), ())
    by_id, _ = serve(MetadataRequest(topic_ids=(TOPIC_ID,)), [])
    assert [(found.error, found.name) for found in by_id.topics] == [(NO_TOPIC_ID, "")]
    listed, _ = serve(MetadataRequest(all_topics=True), [])
    assert listed.topics == ()


def test_items_are_judged_one_by_one_in_their_order() -> None:
    answer, (asked,) = serve(MetadataRequest(("nobody", "t", "other")), ["describe topic t"])
    assert asked.topics == ("t",)
    assert [(found.name, found.error) for found in answer.topics] == [
        ("nobody", NO_TOPIC),
        ("t", ErrorCode.NONE),
        ("other", NO_TOPIC),
    ]


@pytest.mark.parametrize(
    ("request_", "need", "field"),
    [
        (ListGroupsRequest(), "describe group g", "groups"),
        (ListGroupsRequest(), "describe cluster", "groups"),
        (ListTransactionsRequest(), "describe transactional_id x", "transactions"),
        (ListSinksRequest(), "describe transactional_id __sink/s", "sinks"),
    ],
)
def test_lists_show_what_may_be_seen(request_: Request[Any], need: str, field: str) -> None:
    assert getattr(serve(request_, [])[0], field) == ()
    assert len(getattr(serve(request_, [need])[0], field)) == 1


def test_lineage_shows_edges_whose_ends_may_all_be_seen() -> None:
    needs = ["describe transactional_id x", "describe topic t", "describe group g"]
    for count, expected in ((0, []), (1, []), (2, [False]), (3, [True, False])):
        answer, _ = serve(DescribeLineageRequest(), needs[:count])
        assert [edge.reads for edge in answer.edges] == expected


def test_tokens_of_ones_own_need_no_right() -> None:
    for request in (CreateDelegationTokenRequest(), CreateDelegationTokenRequest(ALICE.principal)):
        assert serve(request, [])[1] == [request]
    assert tokens_seen() == {"ours"}


def tokens_seen(*needs: str, asked: tuple[str, ...] = ()) -> set[str]:
    request = DescribeDelegationTokenRequest(all_owners=True, token_ids=asked, by_id=bool(asked))
    answer, _ = serve(request, list(needs))
    return {each.token_id for each in answer.tokens}


def test_of_all_delegation_tokens_those_that_may_be_seen_are_served() -> None:
    needs = ("describe delegation_token theirs", "alter delegation_token theirs", "describe_tokens user User:bob")
    for need in needs:
        assert tokens_seen(need) == {"ours", "theirs"}
        assert tokens_seen(need, asked=("theirs", "none")) == {"theirs"}
    assert tokens_seen("describe delegation_token other", "describe_tokens user User:carol") == {"ours"}
    assert tokens_seen(asked=("theirs",)) == set(), "naming a token gives no right to see it"


def test_the_topics_of_a_transaction_are_those_that_may_be_described() -> None:
    asked = DescribeTransactionsRequest(("x",))
    (hidden,) = serve(asked, ["describe transactional_id x"])[0].transactions
    (seen,) = serve(asked, ["describe transactional_id x", "describe topic t"])[0].transactions
    assert (hidden.partitions, seen.partitions) == ((), (AT,))


def test_of_all_offsets_of_a_group_those_of_described_topics_are_shown() -> None:
    asked = OffsetFetchRequest((OffsetFetchGroup("g", (AT, GroupPartition("secret", 0))),))
    (group,) = serve(asked, ["describe group g", "describe topic t"])[0].groups
    assert [(found.topic, found.error) for found in group.offsets] == [("t", ErrorCode.NONE), ("secret", NO_TOPIC)]


def test_a_transaction_takes_all_its_partitions_or_none() -> None:
    asked = AddPartitionsToTxnRequest(
        (AddPartitionsTransaction("x", PRODUCER, EPOCH, (AT, GroupPartition("secret", 0))),)
    )
    answer, through = serve(asked, ["write transactional_id x", "write topic t"])
    assert through == []
    assert answer.transactions[0].results == (
        AddedPartition("t", 0, ErrorCode.OPERATION_NOT_ATTEMPTED),
        AddedPartition("secret", 0, NO_TOPIC),
    )


CHANGES = [(request, error) for request, _, error in ROWS if isinstance(request, Change)]


def test_every_change_that_a_broker_passes_on_names_its_client() -> None:
    """A broker that lets everything through, as one with an old image might: the controller does not."""
    tls = Session(Principal("User", "mallory"), SecurityProtocol.SSL)
    # What a client says about itself counts for nothing.
    forged = Forwarded("User:ANONYMOUS", "127.0.0.1", "CLIENT")
    with Cluster(
        nodes=1, config={"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    ) as cluster:
        cluster.create_topic("t")
        broker = cluster.node(1).broker
        assert broker is not None
        calls = broker._calls()
        assert {kind for kind in calls if issubclass(kind, Change)} == {type(request) for request, _ in CHANGES} | {
            kind for kind in FREE if issubclass(kind, Change)
        }
        for request, error in CHANGES:
            sent = dataclasses.replace(request, forwarded=forged)

            async def ask(sent: Any = sent) -> Any:
                return await calls[type(sent)](sent, CallContext("CLIENT", "10.0.0.9:5", tls))

            answer = cluster._run(ask())
            expected = error
            if getattr(request, "topic_ids", ()):  # an id that is no topic's
                expected = ErrorCode.UNKNOWN_TOPIC_ID
            assert expected in set(errors(answer)), (request, answer)


def test_items_that_are_named_twice_may_be_served_once() -> None:
    """Then there are fewer results than allowed items, and none of the others is lost."""
    assert woven([None, "refused", None], ["served"]) == ("served", "refused")
