"""Names as long as Kafka can say them, of everything that has one: answers repeat them, and the node lives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.proto.kafka import wire
from tidelog.testing.cluster import Cluster

LONGEST = 32_767
NAMES = {"letters": "x" * LONGEST, "signs that are shown longer": "\x01" * LONGEST, "wide": "日" * (LONGEST // 3)}


def requests(name: str) -> list[tuple[int, int, dict[str, Any]]]:
    """API, version and fields of each kind of request that names something."""
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    short = {**topic, "name": "short"}
    change = {"name": name, "config_operation": 0, "value": name}
    resource = {"resource_type": 2, "resource_name": name, "configs": [change, change], "configuration_keys": [name]}
    broker = {**resource, "resource_type": 4}
    everyone = {"resource_type": 4, "resource_name": "", "configs": [change]}
    at = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1, "offset": 0}
    placed = {"name": name, "partitions": [at, at]}
    return [
        (19, 7, {"topics": [topic], "timeout": 5_000}),
        (19, 7, {"topics": [topic, topic], "timeout": 5_000}),
        (19, 7, {"topics": [{**short, "configs": [{"name": name, "value": name}]}], "timeout": 5_000}),
        (19, 7, {"topics": [{**short, "configs": [{"name": "retention.ms", "value": name}]}], "timeout": 5_000}),
        (19, 7, {"topics": [{**short, "configs": [{"name": "cleanup.policy", "value": name}]}], "timeout": 5_000}),
        (20, 5, {"topic_names": [name], "timeout": 5_000}),
        (20, 6, {"topics": [{"name": name}, {"name": name}], "timeout": 5_000}),
        (37, 3, {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout": 5_000}),
        (44, 1, {"resources": [resource, broker, everyone]}),
        (44, 1, {"resources": [resource, resource, broker, broker, everyone, everyone]}),
        (33, 2, {"resources": [resource, broker, everyone]}),
        (32, 4, {"resources": [resource, broker]}),
        (3, 12, {"topics": [{"name": name}]}),
        (75, 0, {"topics": [{"name": name}]}),
        (2, 7, {"replica_id": -1, "topics": [placed]}),
        (21, 2, {"topics": [placed], "timeout": 1_000}),
        (23, 4, {"topics": [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]}]}),
        (55, 2, {"topics": [{"topic_name": name, "partitions": [at]}]}),
        (35, 4, {"topics": [{"topic": name, "partitions": [0]}]}),
        (10, 4, {"key_type": 0, "coordinator_keys": [name]}),
        (10, 4, {"key_type": 9, "coordinator_keys": [name]}),
        (15, 5, {"groups": [name]}),
        (16, 5, {"states_filter": [name], "types_filter": [name]}),
        (42, 2, {"groups_names": [name]}),
        (47, 0, {"group_id": name, "topics": [{"name": name, "partitions": [at]}]}),
        (22, 4, {"transactional_id": name, "transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1}),
        (61, 0, {"topics": [{"name": name, "partition_indexes": [0]}]}),
        (65, 0, {"transactional_ids": [name]}),
        (66, 0, {"state_filters": [name]}),
    ]


@pytest.mark.parametrize("kind", NAMES)
def test_the_longest_names_are_answered(kafka_cluster: Cluster, kind: str) -> None:
    with WireClient(kafka_cluster.kafka_bootstrap) as wire_client:
        for api_key, version, fields in requests(NAMES[kind]):
            wire_client.ask(api_key, version, **fields)
        assert wire_client.ask(60, 0).error_code == 0


@pytest.mark.parametrize("write", [wire.write_string, wire.write_compact_string])
def test_what_is_too_long_is_cut_between_characters(write: Any) -> None:
    read = wire.read_string if write is wire.write_string else wire.read_compact_string
    for value, shown in (
        ("x" * LONGEST, "x" * LONGEST),
        ("x" * (LONGEST + 1), "x" * LONGEST),
        ("ü" * LONGEST, "ü" * (LONGEST // 2)),
        ("日" * LONGEST, "日" * (LONGEST // 3)),
    ):
        out = bytearray()
        write(out, value)
        assert read(bytes(out), 0) == (shown, len(out))
