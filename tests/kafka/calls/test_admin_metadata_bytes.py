"""The bytes of Metadata answers against the general encoder, for every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.kafka.calls.cluster.metadata_bytes import OPERATIONS_NOT_ASKED, response_bytes, topic_bytes
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ZERO_TOPIC_ID
from tidelog.proto.calls.api import BrokerEndpoint, MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.kafka.messages import decode_response, encode_response

METADATA = 3
numbers = st.integers(-1, 2**31 - 1)
nodes = st.lists(numbers, max_size=4).map(tuple)
partitions = st.builds(
    PartitionMetadata,
    st.sampled_from([ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE]),
    numbers,
    numbers,
    numbers,
    nodes,
    nodes,
    nodes,
    nodes,
)
topics = st.builds(
    TopicMetadata,
    st.sampled_from([ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
    st.text(min_size=1, max_size=200),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
    st.lists(partitions, max_size=4).map(tuple),
)
brokers = st.builds(BrokerEndpoint, numbers, st.text(max_size=20), numbers, st.none() | st.text(max_size=5))
answers = st.builds(
    MetadataResponse,
    st.text(max_size=22),
    numbers,
    st.lists(brokers, max_size=3).map(tuple),
    st.lists(topics, max_size=3).map(tuple),
)


def fields(answer: MetadataResponse, version: int, operations: int, about_cluster: int) -> dict[str, Any]:
    return {
        "brokers": [{"node_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in answer.brokers],
        "cluster_id": answer.cluster_id,
        "controller_id": answer.controller_id,
        "cluster_authorized_operations": about_cluster,
        "topics": [
            {
                "error_code": t.error,
                "name": None if t.error is ErrorCode.UNKNOWN_TOPIC_ID and version >= 12 else t.name,
                "topic_id": t.topic_id,
                "is_internal": t.is_internal,
                "topic_authorized_operations": operations,
                "partitions": [
                    {
                        "error_code": p.error,
                        "partition_index": p.partition,
                        "leader_id": p.leader,
                        "leader_epoch": p.leader_epoch,
                        "replica_nodes": p.replicas,
                        "isr_nodes": p.isr,
                        "offline_replicas": p.offline_replicas,
                    }
                    for p in t.partitions
                ],
            }
            for t in answer.topics
        ],
    }


@pytest.mark.parametrize("version", range(14))
@settings(max_examples=20)
@given(answer=answers, operations=st.sampled_from([OPERATIONS_NOT_ASKED, 3576]))
def test_equal_to_the_general_encoder(version: int, answer: MetadataResponse, operations: int) -> None:
    made = response_bytes(
        answer,
        [topic_bytes(topic, version, operations) for topic in answer.topics],
        version,
        controller_id=answer.controller_id,
        cluster_operations=8096,
    )
    assert made == encode_response(METADATA, version, fields(answer, version, operations, 8096))


@pytest.mark.parametrize(("version", "error"), [(5, 5), (6, 72), (13, 72)])
def test_a_leader_without_this_listener_in_the_words_of_the_version(version: int, error: int) -> None:
    lost = PartitionMetadata(ErrorCode.LISTENER_NOT_FOUND, 0, -1, 2, (1,), (1,), (), ())  # type: ignore[arg-type]
    found = TopicMetadata(ErrorCode.NONE, "t", bytes(16), False, (lost,))  # type: ignore[arg-type]
    answer = MetadataResponse("c", 1, (), (found,))  # type: ignore[arg-type]
    made = response_bytes(
        answer, [topic_bytes(found, version, 0)], version, controller_id=answer.controller_id, cluster_operations=0
    )
    assert decode_response(METADATA, version, made).topics[0].partitions[0].error_code == error


def test_a_topic_of_an_unknown_id_has_no_name() -> None:
    unknown = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_ID, "", ZERO_TOPIC_ID, False, ())
    answer = MetadataResponse("c", 1, (), (unknown,))  # type: ignore[arg-type]
    made = response_bytes(
        answer, [topic_bytes(unknown, 12, 0)], 12, controller_id=answer.controller_id, cluster_operations=0
    )
    assert made == encode_response(METADATA, 12, fields(answer, 12, 0, 0))


def test_a_topic_with_many_partitions_has_a_longer_length() -> None:
    many = tuple(PartitionMetadata(ErrorCode.NONE, n, 1, 2, (1, 2), (1,), (), (2,)) for n in range(1_000))  # type: ignore[arg-type]
    answer = MetadataResponse("c", 1, (), (TopicMetadata(ErrorCode.NONE, "t", bytes(16), False, many),))  # type: ignore[arg-type]
    for version in (8, 9):
        made = response_bytes(
            answer,
            [topic_bytes(answer.topics[0], version, 0)],
            version,
            controller_id=answer.controller_id,
            cluster_operations=0,
        )
        assert made == encode_response(METADATA, version, fields(answer, version, 0, 0))
