"""Translation of the node's answers into Kafka's APIs of groups and transactions, in every version that is served."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.kafka.calls.coordination import (
    coordinators,
    group_admin,
    group_offsets,
    groups,
    transaction_admin,
    transactions,
)
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.broker.kafka.wire.pending import CloseConnection
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TopicId
from tidelog.proto.calls.group_api import (
    CommittedOffset,
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupMember,
    GroupPartition,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
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
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionProducers,
    ProducerDescription,
    TransactionMarker,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.kafka.messages import decode_request, decode_response, encode_request, encode_response
from tidelog.proto.kafka.schemas import schema_of
from tidelog.proto.transport.network import CallContext

from .test_every_field import DEFAULTED, left_to_default

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
TOPIC_ID = TopicId(bytes(range(16)))
GONE_ID = TopicId(bytes(range(1, 17)))
IMAGE = SimpleNamespace(topics={TOPIC_ID: SimpleNamespace(name="t")}, topic_ids={"t": TOPIC_ID})
VIEW: Any = SimpleNamespace(image=IMAGE)
ALL: list[Api] = [
    *coordinators.APIS,
    *groups.APIS,
    *group_offsets.apis(VIEW),
    *group_admin.APIS,
    *transactions.APIS,
    *transaction_admin.APIS,
]
EVERY_VERSION = [pytest.param(api, v, id=f"{api.key}-v{v}") for api in ALL for v in range(api.least, api.most + 1)]

ANSWERS: dict[type[Any], Any] = {
    FindCoordinatorRequest: FindCoordinatorResponse((Coordinator("k", NONE, NodeId(4), "host", 9092),)),
    JoinGroupRequest: JoinGroupResponse(
        NONE, 3, "consumer", "range", "m-1", False, "m-1", (JoinedMember("m-1", "i", b"\1"),)
    ),
    SyncGroupRequest: SyncGroupResponse(NONE, "consumer", "range", b"\2"),
    HeartbeatRequest: HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS),
    LeaveGroupRequest: LeaveGroupResponse(NONE, (LeftMember("m-1", "i", ErrorCode.UNKNOWN_MEMBER_ID),)),
    OffsetCommitRequest: OffsetCommitResponse((OffsetCommitResult("t", 0, NONE), OffsetCommitResult("t", 2, NONE))),
    OffsetFetchRequest: OffsetFetchResponse(
        (OffsetFetchResult("g", NONE, (CommittedOffset("t", 2, NONE, Offset(77), LeaderEpoch(5), "meta"),)),)
    ),
    OffsetDeleteRequest: OffsetDeleteResponse(NONE, (OffsetDeleteResult("t", 1, NONE),)),
    DescribeGroupsRequest: DescribeGroupsResponse(
        (DescribedGroup("g", NONE, "Stable", "consumer", "range", (GroupMember("m", None, "c", "/h", b"\1", b"\2"),)),)
    ),
    ListGroupsRequest: ListGroupsResponse(NONE, (ListedGroup("g", "consumer", "Stable", "classic"),)),
    DeleteGroupsRequest: DeleteGroupsResponse((DeletedGroup("g", ErrorCode.NON_EMPTY_GROUP),)),
    InitProducerIdRequest: InitProducerIdResponse(NONE, ProducerId(9_000), ProducerEpoch(7)),
    AddPartitionsToTxnRequest: AddPartitionsToTxnResponse(
        NONE, (AddedTransaction("x", (AddedPartition("t", 0, NONE), AddedPartition("t", 1, FENCED))),)
    ),
    AddOffsetsToTxnRequest: AddOffsetsToTxnResponse(FENCED),
    EndTxnRequest: EndTxnResponse(NONE, ProducerId(9_000), ProducerEpoch(8)),
    TxnOffsetCommitRequest: TxnOffsetCommitResponse((OffsetCommitResult("t", 0, ErrorCode.ILLEGAL_GENERATION),)),
    DescribeTransactionsRequest: DescribeTransactionsResponse(
        (
            DescribedTransaction(
                "x", NONE, "Ongoing", ProducerId(9_000), ProducerEpoch(8), 60_000, 1_700, (GroupPartition("t", 3),)
            ),
        )
    ),
    ListTransactionsRequest: ListTransactionsResponse(NONE, (ListedTransaction("x", ProducerId(9_000), "Ongoing"),)),
    DescribeProducersRequest: DescribeProducersResponse(
        (
            PartitionProducers(
                "t",
                0,
                NONE,
                NodeId(1),
                (ProducerDescription(ProducerId(9_000), ProducerEpoch(8), 41, 1_700, 2, Offset(30)),),
            ),
        )
    ),
    WriteTxnMarkersRequest: WriteTxnMarkersResponse(
        (WrittenMarker(ProducerId(9_000), (AddedPartition("t", 0, NONE),)),)
    ),
}
TOPICS = [
    {
        "name": "t",
        "topic_id": TOPIC_ID,
        "partitions": [{"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 2}],
        "partition_indexes": [2],
    }
]
ASKED: dict[int, dict[str, Any]] = {
    8: {"topics": TOPICS},
    9: {"group_id": "g", "topics": TOPICS, "groups": [{"group_id": "g", "topics": TOPICS}]},
    10: {"key": "k", "coordinator_keys": ["k"]},
    13: {"members": [{"member_id": "m-1"}]},
    14: {"protocol_type": "consumer", "protocol_name": "range"},
    24: {"transactions": [{"transactional_id": "x"}]},
    26: {"committed": True},
    28: {"topics": TOPICS},
}


class Node:
    """Answers the node's own calls, and keeps them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.contexts: list[CallContext] = []
        self.answers = dict(ANSWERS)

    async def _serve(self, request: object, context: CallContext) -> Any:
        self.asked.append(request)
        self.contexts.append(context)
        return self.answers[type(request)]

    def ask(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        """The answer as a client of this version reads it."""
        answer = self.raw(api, version, values)
        return decode_response(api.key, version, encode_response(api.key, version, answer))

    def raw(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        context = KafkaContext(
            "KAFKA",
            "127.0.0.1:1",
            17,
            dict.fromkeys(ANSWERS, self._serve),
            CallContext("KAFKA", "127.0.0.1:1", client_id="client"),
        )
        body = encode_request(api.key, version, values)

        async def handled() -> Any:
            return await api.handle(decode_request(api.key, version, body), version, context)

        return asyncio.run(handled())


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_every_version_is_read_and_every_field_answered(api: Api, version: int) -> None:
    node = Node()
    values = ASKED.get(api.key, {})
    assert node.ask(api, version, values) is not None
    assert len(node.asked) == 1
    schema = schema_of(api.key, version, "response")
    assert left_to_default(schema, node.raw(api, version, values)) - DEFAULTED[None] == set()


def api(key: int) -> Api:
    (found,) = [each for each in ALL if each.key == key]
    return found


def test_a_member_is_asked_to_come_back_with_an_id_from_version_4_on() -> None:
    node = Node()
    for version in range(2, 10):
        node.ask(api(11), version, {"group_id": "g", "session_timeout": 9_000, "rebalance_timeout": 8_000})
    assert [asked.admit_unknown for asked in node.asked] == [True, True, *[False] * 6]
    assert {(asked.session_timeout_ms, asked.rebalance_timeout_ms, asked.client_id) for asked in node.asked} == {
        (9_000, 8_000, "client")
    }


def test_a_leader_that_need_not_assign_is_told_so_or_is_none() -> None:
    node = Node()
    joined = ANSWERS[JoinGroupRequest]
    node.answers[JoinGroupRequest] = JoinGroupResponse(NONE, 3, "consumer", "range", "m-1", True, "m-1", joined.members)
    old, new = (node.ask(api(11), version, {}) for version in (8, 9))
    assert (new.leader, new.member_id, new.skip_assignment, len(new.members)) == ("m-1", "m-1", True, 1)
    assert (old.leader, old.member_id, len(old.members)) == ("", "m-1", 0)


def test_a_refused_join_has_no_protocol() -> None:
    node = Node()
    node.answers[JoinGroupRequest] = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
    old, new = (node.ask(api(11), version, {}) for version in (6, 7))
    assert (old.protocol_name, new.protocol_name, new.protocol_type) == ("", None, None)
    assert {old.error_code, new.error_code} == {79}


def test_one_member_that_leaves_is_told_its_own_error() -> None:
    node = Node()
    assert node.ask(api(13), 2, {"member_id": "m-1"}).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    several = node.ask(api(13), 3, {"members": [{"member_id": "m-1"}]})
    assert (several.error_code, several.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert node.asked[0].members[0].member_id == node.asked[1].members[0].member_id == "m-1"


def test_offsets_of_a_group_that_is_refused() -> None:
    node = Node()
    refused = ErrorCode.NOT_COORDINATOR
    node.answers[OffsetFetchRequest] = OffsetFetchResponse(
        (OffsetFetchResult("g", refused, (CommittedOffset("t", 2, refused),)),)
    )
    oldest, old, new = (node.ask(api(9), version, ASKED[9]) for version in (1, 7, 9))
    assert oldest.topics[0].partitions[0].error_code == refused
    assert oldest.topics[0].partitions[0].committed_offset == -1
    assert (old.error_code, old.topics) == (refused, ())
    assert (new.groups[0].error_code, new.groups[0].topics) == (refused, ())


def test_all_offsets_of_a_group_or_those_named() -> None:
    node = Node()
    node.ask(api(9), 7, {"group_id": "g", "topics": None, "require_stable": True})
    node.ask(api(9), 9, {"groups": [{"group_id": "a", "topics": None}], "require_stable": False})
    node.answers[OffsetFetchRequest] = OffsetFetchResponse((OffsetFetchResult("a", NONE), OffsetFetchResult("b", NONE)))
    answer = node.ask(api(9), 8, {"groups": [{"group_id": "a", "topics": []}, {"group_id": "b", "topics": TOPICS}]})
    assert [(asked.groups[0].all_partitions, asked.require_stable) for asked in node.asked] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert node.asked[2].groups[1].partitions == (GroupPartition("t", 2),)
    assert [group.group_id for group in answer.groups] == ["a", "b"]


def test_topics_named_by_id_are_answered_by_id() -> None:
    """A topic that is not there is refused by itself; among all offsets, those of a deleted topic are left out."""
    node = Node()
    lost = [{"partition_index": 7, "committed_offset": 1}]
    asked = [{"topic_id": GONE_ID, "partitions": lost, "partition_indexes": [7]}, *TOPICS]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    node.answers[OffsetCommitRequest] = OffsetCommitResponse((OffsetCommitResult("t", 0, NONE),))
    committed = node.ask(api(8), 10, {"group_id": "g", "topics": asked}).topics
    told = [(topic.topic_id, each.partition_index, each.error_code) for topic in committed for each in topic.partitions]
    assert told == [(GONE_ID, 7, unknown), (TOPIC_ID, 0, 0)]
    assert [each.topic for each in node.asked[0].partitions] == ["t"]
    (group,) = node.ask(api(9), 10, {"groups": [{"group_id": "g", "topics": asked}]}).groups
    found = [
        (each.topic_id, each.partitions[0].committed_offset, each.partitions[0].error_code) for each in group.topics
    ]
    assert found == [(GONE_ID, -1, unknown), (TOPIC_ID, 77, 0)]
    offsets = tuple(CommittedOffset(name, 2, NONE, Offset(77), LeaderEpoch(5), "") for name in ("t", "deleted"))
    node.answers[OffsetFetchRequest] = OffsetFetchResponse((OffsetFetchResult("g", NONE, offsets),))
    (every,) = node.ask(api(9), 10, {"groups": [{"group_id": "g", "topics": None}]}).groups
    assert [topic.topic_id for topic in every.topics] == [TOPIC_ID]


def test_a_group_that_is_not_there_is_dead_or_an_error() -> None:
    node = Node()
    gone = DescribedGroup("g", ErrorCode.GROUP_ID_NOT_FOUND, "Dead", error_message="none")
    node.answers[DescribeGroupsRequest] = DescribeGroupsResponse((gone,))
    old, new = (node.ask(api(15), version, {"groups": ["g"]}).groups[0] for version in (5, 6))
    assert (old.error_code, old.group_state) == (0, "Dead")
    assert (new.error_code, new.group_state, new.error_message) == (69, "Dead", "none")


def test_the_protocol_of_transactions_shows_in_the_versions() -> None:
    node = Node()
    for version in range(6):
        node.ask(api(26), version, {"transactional_id": "x", "committed": True})
        node.ask(api(28), version, {"transactional_id": "x", "topics": TOPICS})
    ends = [asked for asked in node.asked if isinstance(asked, EndTxnRequest)]
    commits = [asked for asked in node.asked if isinstance(asked, TxnOffsetCommitRequest)]
    assert [asked.bump_epoch for asked in ends] == [False] * 5 + [True]
    assert [asked.verify_only for asked in commits] == [True] * 5 + [False]
    assert commits[2].partitions[0].leader_epoch == 2
    assert commits[1].partitions[0].leader_epoch == -1


def test_fenced_in_the_words_of_the_version() -> None:
    node = Node()
    node.answers[EndTxnRequest] = EndTxnResponse(FENCED)
    node.answers[InitProducerIdRequest] = InitProducerIdResponse(FENCED)
    epoch = ErrorCode.INVALID_PRODUCER_EPOCH
    assert [node.ask(api(26), v, {}).error_code for v in (1, 2, 5)] == [epoch, FENCED, FENCED]
    assert [node.ask(api(22), v, {}).error_code for v in (3, 4)] == [epoch, FENCED]
    assert [node.ask(api(25), v, {}).error_code for v in (1, 2)] == [epoch, FENCED]
    codes = [
        [
            each.partition_error_code
            for each in node.ask(api(24), v, {}).results_by_topic_v3_and_below[0].results_by_partition
        ]
        for v in (1, 3)
    ]
    assert codes == [[0, epoch], [0, FENCED]]


def test_what_can_only_be_aborted_in_the_words_of_the_version() -> None:
    node = Node()
    full = AddedTransaction("x", (AddedPartition("t", 0, ErrorCode.TRANSACTION_ABORTABLE),))
    node.answers[AddPartitionsToTxnRequest] = AddPartitionsToTxnResponse(NONE, (full,))
    old = node.ask(api(24), 3, {}).results_by_topic_v3_and_below[0].results_by_partition[0]
    new = node.ask(api(24), 5, ASKED[24]).results_by_transaction[0].topic_results[0].results_by_partition[0]
    assert (old.partition_error_code, new.partition_error_code) == (48, 120)


def test_requests_of_the_first_protocol_bring_their_connection() -> None:
    node = Node()
    for key in (22, 24, 25, 26):
        node.ask(api(key), 3, {})
    assert [context.connection for context in node.contexts] == [17] * 4


@pytest.mark.parametrize("key", [24, 25, 26])
def test_a_connection_that_its_client_has_left_is_closed_without_an_answer(key: int) -> None:
    node = Node()
    late = ErrorCode.NETWORK_EXCEPTION
    node.answers[AddPartitionsToTxnRequest] = AddPartitionsToTxnResponse(
        NONE, (AddedTransaction("x", (AddedPartition("t", 0, late),)),)
    )
    node.answers[AddOffsetsToTxnRequest] = AddOffsetsToTxnResponse(late)
    node.answers[EndTxnRequest] = EndTxnResponse(late)
    with pytest.raises(CloseConnection, match="newest connection"):
        node.ask(api(key), 3, {})


def test_brokers_add_and_verify_several_transactions_at_once() -> None:
    node = Node()
    topics = [{"name": "t", "partitions": [1, 2]}]
    node.ask(
        api(24),
        5,
        {
            "transactions": [
                {"transactional_id": "x", "producer_id": 1, "producer_epoch": 2, "verify_only": True, "topics": topics},
                {"transactional_id": "y", "producer_id": 3, "producer_epoch": 4, "topics": topics},
            ]
        },
    )
    at = (GroupPartition("t", 1), GroupPartition("t", 2))
    assert node.asked[0].transactions == (
        AddPartitionsTransaction("x", ProducerId(1), ProducerEpoch(2), at, True),
        AddPartitionsTransaction("y", ProducerId(3), ProducerEpoch(4), at, False),
    )


def test_markers_of_administrators_bear_the_epoch_of_the_transaction() -> None:
    node = Node()
    marker = {
        "producer_id": 1,
        "producer_epoch": 2,
        "transaction_result": False,
        "coordinator_epoch": 3,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    node.ask(api(27), 1, {"markers": [marker]})
    node.ask(api(27), 2, {"markers": [marker | {"transaction_version": 2}]})
    assert [asked.markers[0] for asked in node.asked] == [
        TransactionMarker(ProducerId(1), ProducerEpoch(2), False, 3, (GroupPartition("t", 0),), version)
        for version in (1, 2)
    ]


def test_states_that_do_not_exist_are_named() -> None:
    node = Node()
    answer = node.ask(api(66), 1, {"state_filters": ["Ongoing", "Odd"], "duration_filter": 5})
    assert answer.unknown_state_filters == ("Odd",)
    assert (node.asked[0].states, node.asked[0].duration_ms) == (("Ongoing", "Odd", "Prepared"), 5)


def test_what_is_prepared_is_ongoing_to_kafka() -> None:
    node = Node()
    node.answers[ListTransactionsRequest] = ListTransactionsResponse(
        NONE, (ListedTransaction("x", ProducerId(9_000), "Prepared"),)
    )
    node.answers[DescribeTransactionsRequest] = DescribeTransactionsResponse(
        (
            DescribedTransaction(
                "x", NONE, "Prepared", ProducerId(9_000), ProducerEpoch(8), -1, 1_700, (GroupPartition("t", 3),)
            ),
        )
    )
    assert node.ask(api(66), 1, {}).transaction_states[0].transaction_state == "Ongoing"
    assert node.ask(api(65), 0, {}).transaction_states[0].transaction_state == "Ongoing"
    assert node.asked[0].states == ()


def test_groups_of_one_kind_are_listed_in_the_names_of_kafka() -> None:
    node = Node()
    answer = node.ask(api(16), 5, {"states_filter": ["Stable"], "types_filter": ["classic"]})
    assert (answer.groups[0].group_state, answer.groups[0].group_type) == ("Stable", "Classic")
    assert (node.asked[0].states, node.asked[0].types) == (("Stable",), ("classic",))
