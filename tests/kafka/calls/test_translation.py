"""Fields of Kafka's messages become those of our calls by their names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidelog.broker.kafka.calls.common.translation import answered, asked, partitions_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse, IdAssignment, TopicIdPartitions
from tidelog.proto.calls.group_api import GroupPartition, GroupProtocol, JoinGroupRequest, SyncGroupRequest
from tidelog.proto.calls.reassignment_api import NamedPartition

ID = TopicId(bytes(range(16)))


def test_fields_that_a_version_lacks_have_our_default() -> None:
    oldest = SimpleNamespace(group_id="g", generation_id=3, member_id="m", assignments=())
    assert asked(SyncGroupRequest, oldest) == SyncGroupRequest("g", 3, "m")


def test_nulls_are_kept_where_we_have_them_and_our_default_otherwise() -> None:
    nulls = SimpleNamespace(
        group_id="g", generation_id=3, member_id="m", group_instance_id=None, protocol_type=None, assignments=None
    )
    assert asked(SyncGroupRequest, nulls) == SyncGroupRequest("g", 3, "m", None, "", "", ())


def test_a_field_that_we_need_is_missed() -> None:
    with pytest.raises(TypeError, match="generation_id"):
        asked(SyncGroupRequest, SimpleNamespace(group_id="g", member_id="m"))


def test_parts_lose_their_unit_and_given_fields_win() -> None:
    message = SimpleNamespace(
        group_id="g",
        session_timeout=10,
        rebalance_timeout=20,
        member_id="",
        protocol_type="consumer",
        protocols=(SimpleNamespace(name="range", metadata=b"data"),),
        client_id="the message's",
    )
    protocols = (GroupProtocol("range", b"data"),)
    expected = JoinGroupRequest("g", 10, 20, "", None, "consumer", protocols, client_id="ours")
    assert asked(JoinGroupRequest, message, client_id="ours") == expected


def test_an_answer_has_kafkas_names_at_any_depth() -> None:
    assignment = IdAssignment((TopicIdPartitions(ID, (1, 2)),))
    answer = ConsumerGroupHeartbeatResponse(ErrorCode.NONE, "", "m", 4, 5_000, assignment)
    assert answered(answer, topics="topic_partitions") == {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "member_id": "m",
        "member_epoch": 4,
        "heartbeat_interval": 5_000,
        "assignment": {"topic_partitions": [{"topic_id": ID, "partitions": (1, 2)}]},
    }


def test_no_assignment_stays_none() -> None:
    assert answered(ConsumerGroupHeartbeatResponse(ErrorCode.NONE))["assignment"] is None


def test_partitions_by_topic_become_a_list() -> None:
    topics = [SimpleNamespace(name="a", partitions=(2, 0)), SimpleNamespace(name="b", partitions=())]
    assert partitions_of(GroupPartition, topics) == (GroupPartition("a", 2), GroupPartition("a", 0))
    assert partitions_of(NamedPartition, None, "partition_indexes") == ()
