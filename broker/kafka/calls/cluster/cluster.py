"""DescribeCluster, AlterReplicaLogDirs, DescribeLogDirs, DescribeQuorum and UnregisterBroker, translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidelog.broker.kafka.calls.cluster.metadata import reachable_controller
from tidelog.broker.kafka.calls.cluster.metadata_bytes import OPERATIONS_NOT_ASKED
from tidelog.broker.kafka.calls.common.authorized_operations import operations_on_cluster
from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.calls.common.translation import answered, outcome
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.metadata.metadata_view import MetadataView
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
)
from tidelog.proto.kafka.messages import field

BROKERS: Final = 1
CONTROLLERS: Final = 2
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
"""Kafka error numbers that only this listener uses."""

_REPLICA: Final = partial(
    answered,
    node_id="replica_id",
    last_fetch_ms="last_fetch_timestamp",
    last_caught_up_ms="last_caught_up_timestamp",
)


def apis(config: NodeConfig, view: MetadataView) -> tuple[Api, ...]:
    return (
        Api(34, 1, 2, alter_replica_log_dirs),
        Api(35, 1, 5, describe_log_dirs),
        Api(55, 0, 2, partial(describe_quorum, config=config)),
        Api(60, 0, 2, partial(describe_cluster, node_id=config.node_id, view=view)),
        Api(64, 0, 0, unregister_broker),
    )


async def describe_cluster(request: Any, _: int, context: KafkaContext, node_id: NodeId, view: MetadataView) -> Answer:
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
            for _, broker in sorted(view.image.brokers.items())
            if (with_fenced or not broker.fenced) and (endpoint := broker.endpoint(context.listener)) is not None
        ],
        "cluster_authorized_operations": operations_on_cluster(context.access) if asked else OPERATIONS_NOT_ASKED,
    }


async def unregister_broker(request: Any, _: int, context: KafkaContext) -> Answer:
    """Unregister a broker. A live one is refused, whereas Kafka forgets it until its next heartbeat."""
    return answered(await context.call(UnregisterBrokerRequest(NodeId(request.broker_id))))


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
    return {"results": by_topic(results, topic="topic_name")}


async def describe_log_dirs(request: Any, _: int, context: KafkaContext) -> Answer:
    """Describe this broker's directories, with the requested replicas (KIP-113, KIP-827, KIP-1066)."""
    wanted = None if request.topics is None else {topic.topic: frozenset(topic.partitions) for topic in request.topics}
    answer = await context.call(DescribeLogDirsRequest())
    return {"error_code": answer.error, "results": [_log_dir(found, wanted) for found in answer.dirs]}


def _log_dir(found: LogDir, wanted: Mapping[str, frozenset[int]] | None) -> dict[str, Any]:
    replicas = tuple(
        replica for replica in found.replicas if wanted is None or replica.partition in wanted.get(replica.topic, ())
    )
    shown = partial(answered, size_bytes="partition_size", is_future="is_future_key")
    return answered(replace(found, replicas=()), path="log_dir") | {"topics": by_topic(replicas, shown)}


async def describe_quorum(request: Any, _: int, context: KafkaContext, config: NodeConfig) -> Answer:
    """Describe the controllers and their log ends, with non-voting brokers as observers (KIP-595, KIP-836)."""
    asked = [(topic.topic_name, [item.partition_index for item in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_LOG, [0])]:
        text = f"expected partition 0 of {METADATA_LOG} alone"
        return {"topics": _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)}
    found: DescribeClusterResponse = await context.call(DescribeClusterRequest())
    if found.error is not ErrorCode.NONE:
        return outcome(found)
    if not found.voters:
        text = "no active controller answered in time"
        return {"topics": _refused(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)}
    partition = {
        "partition_index": 0,
        "leader_id": found.controller_id,
        "leader_epoch": found.controller_epoch,
        "high_watermark": found.metadata_offset,
        "current_voters": list(map(_REPLICA, found.voters)),
        "observers": list(map(_REPLICA, found.observers)),
    }
    return {
        "topics": [{"topic_name": METADATA_LOG, "partitions": [partition]}],
        "nodes": [
            {
                "node_id": voter.node_id,
                "listeners": [{"name": config.controller_listener_names[0], "host": voter.host, "port": voter.port}],
            }
            for voter in config.voters
        ],
    }


def _refused(asked: Sequence[tuple[str, Sequence[int]]], error: ErrorCode, text: str) -> list[dict[str, Any]]:
    return [
        {
            "topic_name": name,
            "partitions": [{"partition_index": at, "error_code": error, "error_message": text} for at in numbers],
        }
        for name, numbers in asked
    ]
