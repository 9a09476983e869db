"""DescribeCluster, AlterReplicaLogDirs, DescribeLogDirs, DescribeQuorum and UnregisterBroker, translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.broker.kafka.calls.cluster.metadata import reachable_controller
from tidelog.broker.kafka.calls.cluster.metadata_bytes import OPERATIONS_NOT_ASKED
from tidelog.broker.kafka.calls.common.authorized_operations import operations_on_cluster
from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.names import METADATA_LOG
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    AlteredReplicaLogDir,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    LogDir,
    MetadataRequest,
    MetadataResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidelog.proto.kafka.messages import field

BROKERS: Final = 1
CONTROLLERS: Final = 2
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
"""Kafka error numbers that only this listener uses."""


def apis(config: NodeConfig, view: MetadataView) -> tuple[Api, ...]:
    async def quorum(request: Any, version: int, context: KafkaContext) -> Answer:
        return await describe_quorum(request, version, context, config)

    async def cluster(request: Any, version: int, context: KafkaContext) -> Answer:
        return await describe_cluster(request, version, context, config.node_id, view.image)

    return (
        Api(34, 1, 2, alter_replica_log_dirs),
        Api(35, 1, 5, describe_log_dirs),
        Api(55, 0, 2, quorum),
        Api(60, 0, 2, cluster),
        Api(64, 0, 0, unregister_broker),
    )


async def describe_cluster(
    request: Any, _: int, context: KafkaContext, node_id: NodeId, image: MetadataImage
) -> Answer:
    """Describe the brokers at this listener (KIP-700); from version 2 on also fenced ones, if requested (KIP-1073)."""
    kind = field(request, "endpoint_type", BROKERS)
    if kind != BROKERS:
        known = kind == CONTROLLERS
        return {
            "error_code": MISMATCHED_ENDPOINT_TYPE if known else UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": f"expected the endpoint type {BROKERS} (brokers) on a broker, found {kind}",
            "endpoint_type": kind,
        }
    found: MetadataResponse = await context.call(MetadataRequest())
    with_fenced = field(request, "include_fenced_brokers", False)
    asked = request.include_cluster_authorized_operations
    return {
        "cluster_id": found.cluster_id,
        "controller_id": reachable_controller(found, node_id),
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for _, broker in sorted(image.brokers.items())
            if (with_fenced or not broker.fenced) and (endpoint := broker.endpoint(context.listener)) is not None
        ],
        "cluster_authorized_operations": operations_on_cluster(context.access) if asked else OPERATIONS_NOT_ASKED,
    }


async def unregister_broker(request: Any, _: int, context: KafkaContext) -> Answer:
    """Unregister a broker. A live one is refused, whereas Kafka forgets it until its next heartbeat."""
    answer: UnregisterBrokerResponse = await context.call(UnregisterBrokerRequest(NodeId(request.broker_id)))
    return {"error_code": answer.error, "error_message": answer.error_message or None}


async def alter_replica_log_dirs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Move replicas of this broker to others of its directories (KIP-113)."""
    wanted = AlterReplicaLogDirsRequest(
        tuple(
            AlterReplicaLogDir(topic.name, partition, directory.path)
            for directory in request.dirs
            for topic in directory.topics
            for partition in topic.partitions
        )
    )
    answer = await context.call(wanted)
    results = answer.replicas or tuple(
        AlteredReplicaLogDir(item.topic, item.partition, answer.error) for item in wanted.replicas
    )
    return {"results": by_topic(results, lambda found: {"error_code": found.error}, topic="topic_name")}


async def describe_log_dirs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Describe this broker's directories, with the requested replicas (KIP-113, KIP-827, KIP-1066)."""
    wanted = None if request.topics is None else {topic.topic: frozenset(topic.partitions) for topic in request.topics}
    answer = await context.call(DescribeLogDirsRequest())
    return {"error_code": answer.error, "results": [_log_dir(found, wanted) for found in answer.dirs]}


def _log_dir(found: LogDir, wanted: Mapping[str, frozenset[int]] | None) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for replica in found.replicas:
        if wanted is None or replica.partition in wanted.get(replica.topic, ()):
            topics.setdefault(replica.topic, []).append(
                {
                    "partition_index": replica.partition,
                    "partition_size": replica.size_bytes,
                    "offset_lag": replica.offset_lag,
                    "is_future_key": replica.is_future,
                }
            )
    return {
        "error_code": found.error,
        "log_dir": found.path,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": found.total_bytes,
        "usable_bytes": found.usable_bytes,
        "is_cordoned": found.is_cordoned,
    }


async def describe_quorum(request: Any, _: int, context: KafkaContext, config: NodeConfig) -> Answer:
    """Describe the controllers and their log ends, with non-voting brokers as observers (KIP-595, KIP-836)."""
    asked = [(topic.topic_name, [item.partition_index for item in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_LOG, [0])]:
        text = f"expected partition 0 of {METADATA_LOG} alone"
        return {"topics": _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)}
    found: DescribeClusterResponse = await context.call(DescribeClusterRequest())
    if found.error is not ErrorCode.NONE:
        return {"error_code": found.error, "error_message": found.error_message}
    if not found.voters:
        text = "no active controller answered in time"
        return {"topics": _refused(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)}
    partition = {
        "partition_index": 0,
        "leader_id": found.controller_id,
        "leader_epoch": found.controller_epoch,
        "high_watermark": found.metadata_offset,
        "current_voters": [
            {
                "replica_id": voter.node_id,
                "log_end_offset": voter.log_end_offset,
                "last_caught_up_timestamp": voter.last_caught_up_ms,
            }
            for voter in found.voters
        ],
        "observers": [
            {
                "replica_id": observer.node_id,
                "log_end_offset": observer.log_end_offset,
                "last_fetch_timestamp": observer.last_fetch_ms,
                "last_caught_up_timestamp": observer.last_caught_up_ms,
            }
            for observer in found.observers
        ],
    }
    return {
        "topics": [{"topic_name": METADATA_LOG, "partitions": [partition]}],
        "nodes": [
            {
                "node_id": voter.node_id,
                "listeners": [
                    {
                        "name": config.controller_listener_names[0],
                        "host": voter.host,
                        "port": voter.port,
                    }
                ],
            }
            for voter in config.voters
        ],
    }


def _refused(asked: Sequence[tuple[str, Sequence[int]]], error: ErrorCode, text: str) -> list[dict[str, Any]]:
    return [
        {
            "topic_name": name,
            "partitions": [
                {"partition_index": number, "error_code": error, "error_message": text} for number in numbers
            ],
        }
        for name, numbers in asked
    ]
