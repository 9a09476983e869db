"""Every version of the admin APIs, asked as it stands on the wire. Foreign clients speak one version each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.broker.kafka.calls.topics.config_kinds import TYPES
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import ValueType
from tidelog.proto.kafka.messages import field
from tidelog.testing.cluster import Cluster

LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, EPOCHS = 2, 3, 19, 20, 21, 23
DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_LOG_DIRS, LOG_DIRS, CREATE_PARTITIONS, INCREMENTAL = 32, 33, 34, 35, 37, 44
QUORUM, DESCRIBE_CLUSTER, CONFIG_RESOURCES, TOPIC_PARTITIONS = 55, 60, 74, 75
TOPIC, BROKER = 2, 4
NOT_ASKED = -(2**31)
NO_ID = bytes(16)


@pytest.fixture
def wire(kafka_cluster: Cluster) -> Iterator[WireClient]:
    with WireClient(kafka_cluster.kafka_bootstrap) as client:
        yield client


@pytest.fixture
def topic(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> str:
    """Three partitions, with four records in the first."""
    name = topic_name("versions")
    kafka_cluster.create_topic(name, partitions=3)
    with kafka_cluster.producer() as producer:
        for number in range(4):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=1_000 + 10 * number).result(20)
    return name


def topic_id(wire: WireClient, name: str) -> bytes:
    (found,) = wire.ask(METADATA, 12, topics=[{"name": name}]).topics
    assert found.topic_id != NO_ID
    found_id: bytes = found.topic_id
    return found_id


# --- Metadata, cluster ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_metadata(wire: WireClient, kafka_cluster: Cluster, topic: str, version: int) -> None:
    everything = wire.ask(METADATA, version, topics=None if version else ())
    assert topic in [found.name for found in everything.topics]
    answer = wire.ask(METADATA, version, topics=[{"name": topic}])
    again = wire.ask(METADATA, version, topics=[{"name": topic}])
    assert again == answer
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == kafka_cluster.kafka_bootstrap
    assert field(answer, "controller_id", 1) == broker.node_id
    assert field(answer, "cluster_id", kafka_cluster.cluster_id) == kafka_cluster.cluster_id
    (found,) = answer.topics
    assert (found.error_code, found.name, field(found, "is_internal", False)) == (0, topic, False)
    assert field(found, "topic_authorized_operations", NOT_ASKED) == NOT_ASKED
    assert field(answer, "cluster_authorized_operations", NOT_ASKED) == NOT_ASKED
    assert [part.partition_index for part in found.partitions] == [0, 1, 2]
    for part in found.partitions:
        assert (part.error_code, part.leader_id, part.replica_nodes, part.isr_nodes) == (0, 1, (1,), (1,))
        assert field(part, "leader_epoch", 0) == 0
        assert field(part, "offline_replicas", ()) == ()
    assert [found.name for found in wire.ask(METADATA, version, topics=()).topics] == (
        [] if version else [found.name for found in everything.topics]
    )


@pytest.mark.parametrize("version", range(8, 14))
def test_metadata_says_what_may_be_done_where_asked(wire: WireClient, topic: str, version: int) -> None:
    answer = wire.ask(
        METADATA,
        version,
        topics=[{"name": topic}],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    # What Apache Kafka answers without an authorizer.
    assert answer.topics[0].topic_authorized_operations == 3576
    assert field(answer, "cluster_authorized_operations", 8096) == 8096


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_of_what_is_not_there(wire: WireClient, topic_name: Callable[..., str], version: int) -> None:
    names = [topic_name("nobody"), "bad name"]
    answer = wire.ask(METADATA, version, topics=[{"name": name} for name in names], allow_auto_topic_creation=False)
    assert [(found.name, found.error_code, found.partitions) for found in answer.topics] == [
        (names[0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
        (names[1], ErrorCode.INVALID_TOPIC_EXCEPTION, ()),
    ]


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_metadata_makes_topics(wire: WireClient, topic_name: Callable[..., str], version: int) -> None:
    name = topic_name("auto")
    asked: dict[str, Any] = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    (made,) = wire.ask(METADATA, version, **asked).topics
    assert (made.error_code, len(made.partitions)) == (0, 1)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id(wire: WireClient, topic: str, version: int) -> None:
    found_id = topic_id(wire, topic)
    unknown = bytes(15) + b"\x77"
    answer = wire.ask(METADATA, version, topics=[{"topic_id": i, "name": None} for i in (found_id, unknown)])
    assert [(found.name, found.topic_id, found.error_code) for found in answer.topics] == [
        (topic, found_id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_where_kafka_does(wire: WireClient, topic: str, version: int) -> None:
    answer = wire.ask(METADATA, version, topics=[{"topic_id": topic_id(wire, topic), "name": topic}])
    assert [found.error_code for found in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_metadata_follows_what_changes(wire: WireClient, kafka_cluster: Cluster, topic: str) -> None:
    def partitions() -> int:
        return len(wire.ask(METADATA, 9, topics=[{"name": topic}]).topics[0].partitions)

    assert partitions() == partitions() == 3
    grown = wire.ask(CREATE_PARTITIONS, 3, topics=[{"name": topic, "count": 5, "assignments": None}], timeout=20_000)
    assert grown.results[0].error_code == 0
    assert partitions() == partitions() == 5


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(wire: WireClient, kafka_cluster: Cluster, version: int) -> None:
    answer = wire.ask(
        DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=version == 0, include_fenced_brokers=True
    )
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, kafka_cluster.cluster_id, 1)
    assert [f"{found.host}:{found.port}" for found in answer.brokers] == [kafka_cluster.kafka_bootstrap]
    assert answer.cluster_authorized_operations == (8096 if version == 0 else NOT_ASKED)


@pytest.mark.parametrize(("kind", "error"), [(2, 114), (3, 115)])
def test_describe_cluster_of_controllers_is_for_controllers(wire: WireClient, kind: int, error: int) -> None:
    answer = wire.ask(DESCRIBE_CLUSTER, 1, endpoint_type=kind, cluster_id="")
    assert (answer.error_code, answer.brokers) == (error, ())


def test_describe_topic_partitions_page_by_page(wire: WireClient, kafka_cluster: Cluster, topic: str) -> None:
    other = f"{topic}-other"
    kafka_cluster.create_topic(other, partitions=2)
    names = [{"name": name} for name in (other, topic, "zz-nobody")]
    seen: list[tuple[str, int, tuple[int, ...]]] = []
    cursor = None
    for _ in range(10):
        answer = wire.ask(TOPIC_PARTITIONS, 0, topics=names, response_partition_limit=2, cursor=cursor)
        seen += [
            (found.name, found.error_code, tuple(part.partition_index for part in found.partitions))
            for found in answer.topics
        ]
        if answer.next_cursor is None:
            break
        cursor = answer.next_cursor._asdict()
    assert seen == [
        (topic, 0, (0, 1)),
        (topic, 0, (2,)),
        (other, 0, (0,)),
        (other, 0, (1,)),
        ("zz-nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
    ]
    whole = wire.ask(TOPIC_PARTITIONS, 0, topics=())
    assert {topic, other} <= {found.name for found in whole.topics}
    part = next(found for found in whole.topics if found.name == topic).partitions[0]
    assert (part.eligible_leader_replicas, part.last_known_elr) == ((), ())


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum(wire: WireClient, version: int) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = wire.ask(QUORUM, version, topics=asked)
    (part,) = answer.topics[0].partitions
    assert (answer.error_code, part.error_code, part.leader_id) == (0, 0, 1)
    assert part.high_watermark > 0
    assert [(voter.replica_id, voter.log_end_offset > 0) for voter in part.current_voters] == [(1, True)]
    assert list(part.observers) == []
    assert [node.node_id for node in field(answer, "nodes", ())] == ([1] if version == 2 else [])
    asked = [{"topic_name": "t", "partitions": [{"partition_index": 0}]}]
    assert wire.ask(QUORUM, version, topics=asked).topics[0].partitions[0].error_code == 3


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs(wire: WireClient, topic: str, version: int) -> None:
    (found,) = wire.ask(LOG_DIRS, version, topics=[{"topic": topic, "partitions": [0, 1, 9]}]).results
    assert found.error_code == 0
    (shown,) = found.topics
    assert (shown.name, [part.partition_index for part in shown.partitions]) == (topic, [0, 1])
    assert (shown.partitions[0].partition_size > 0, shown.partitions[1].partition_size) == (True, 0)
    assert field(found, "total_bytes", 1) > 0
    assert not field(found, "is_cordoned", False)
    (whole,) = wire.ask(LOG_DIRS, version, topics=None).results
    assert topic in [shown.name for shown in whole.topics]


@pytest.mark.parametrize("version", range(1, 3))
def test_alter_replica_log_dirs(wire: WireClient, topic: str, version: int) -> None:
    (here,) = wire.ask(LOG_DIRS, 4, topics=None).results
    dirs = [
        {"path": here.log_dir, "topics": [{"name": topic, "partitions": [0]}]},
        {"path": "/nowhere", "topics": [{"name": topic, "partitions": [1]}]},
        {"path": here.log_dir, "topics": [{"name": "unknown", "partitions": [0, 7]}]},
    ]
    answer = wire.ask(ALTER_LOG_DIRS, version, dirs=dirs)
    assert {
        (found.topic_name, part.partition_index): part.error_code
        for found in answer.results
        for part in found.partitions
    } == {
        (topic, 0): 0,
        (topic, 1): ErrorCode.LOG_DIR_NOT_FOUND,
        ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("unknown", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


# --- Topics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(wire: WireClient, topic_name: Callable[..., str], version: int) -> None:
    plain, placed, checked = topic_name("plain"), topic_name("placed"), topic_name("checked")
    configs = [{"name": "retention.ms", "value": "777"}]
    answer = wire.ask(
        CREATE_TOPICS,
        version,
        topics=[
            {"name": plain, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": configs},
            {
                "name": placed,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [1]}],
                "configs": (),
            },
            {"name": "bad name", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()},
        ],
        timeout=20_000,
    )
    assert [(found.name, found.error_code) for found in answer.topics] == [
        (plain, 0),
        (placed, 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert [found.error_message is None for found in answer.topics] == [True, True, False]
    if version >= 5:
        made = answer.topics[0]
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        shown = {config.name: (config.value, config.config_source) for config in made.configs}
        assert shown["retention.ms"] == ("777", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert answer.topics[0].topic_id == topic_id(wire, plain)
    item = {"name": checked, "num_partitions": -1, "replication_factor": -1, "assignments": (), "configs": ()}
    (dry,) = wire.ask(CREATE_TOPICS, version, topics=[item], timeout=20_000, validate_only=True).topics
    assert dry.error_code == 0
    unknown = wire.ask(METADATA, 9, topics=[{"name": checked}], allow_auto_topic_creation=False)
    assert unknown.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(wire: WireClient, topic: str, version: int) -> None:
    names = ("nobody", topic)
    answer = wire.ask(
        DELETE_TOPICS,
        version,
        topic_names=names,
        topics=[{"name": name, "topic_id": NO_ID} for name in names],
        timeout=20_000,
    )
    assert [(found.name, found.error_code) for found in answer.responses] == [("nobody", 3), (topic, 0)]
    assert wire.ask(METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0].error_code == 3


def test_delete_topics_by_id_among_others(wire: WireClient, topic: str) -> None:
    known, unknown = topic_id(wire, topic), bytes(15) + b"\x77"
    items = [
        {"name": None, "topic_id": unknown},
        {"name": None, "topic_id": NO_ID},
        {"name": "nobody", "topic_id": NO_ID},
        {"name": topic, "topic_id": known},
        {"name": None, "topic_id": known},
    ]
    answer = wire.ask(DELETE_TOPICS, 6, topics=items, timeout=20_000)
    assert [(found.name, found.topic_id, found.error_code) for found in answer.responses] == [
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, NO_ID, ErrorCode.INVALID_REQUEST),
        ("nobody", NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, known, ErrorCode.INVALID_REQUEST),
        (topic, known, 0),
    ]


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(wire: WireClient, topic: str, version: int) -> None:
    def grow(count: int, assignments: list[list[int]] | None = None, *, dry: bool = False) -> int:
        given = None if assignments is None else [{"broker_ids": nodes} for nodes in assignments]
        item = {"name": topic, "count": count, "assignments": given}
        (found,) = wire.ask(CREATE_PARTITIONS, version, topics=[item], timeout=20_000, validate_only=dry).results
        assert found.name == topic
        error: int = found.error_code
        return error

    assert grow(9, dry=True) == 0
    assert grow(4) == 0
    assert grow(4) == ErrorCode.INVALID_PARTITIONS
    assert grow(6, [[1], [1]]) == 0
    assert grow(7, []) == grow(8, []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(8, [[1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(7, [[9]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert len(wire.ask(METADATA, 9, topics=[{"name": topic}]).topics[0].partitions) == 6


# --- Offsets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 11))
def test_list_offsets(wire: WireClient, topic: str, version: int) -> None:
    times = (-1, -2, 1_000, 1_011, 9_999, -3, -4, -5, -6)
    found = []
    for time in times:
        parts = [{"partition_index": 0, "timestamp": time, "current_leader_epoch": 0}]
        (answer,) = wire.ask(
            LIST_OFFSETS, version, replica_id=-1, isolation_level=1, topics=[{"name": topic, "partitions": parts}]
        ).topics
        (part,) = answer.partitions
        assert (answer.name, part.partition_index) == (topic, 0)
        found.append((part.error_code, part.timestamp, part.offset, field(part, "leader_epoch", None)))
    epoch, none = (0, -1) if version >= 4 else (None, None)
    unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, none)
    assert found == [
        (0, -1, 4, epoch),
        (0, -1, 0, epoch),
        (0, 1_000, 0, epoch),
        (0, 1_020, 2, epoch),
        (0, -1, -1, none),
        (0, 1_030, 3, epoch) if version >= 7 else unsupported,
        (0, -1, 0, epoch) if version >= 8 else unsupported,
        (0, -1, -1, none) if version >= 9 else unsupported,
        unsupported,
    ]


def test_list_offsets_refuses_by_partition(wire: WireClient, topic: str) -> None:
    parts = [
        {"partition_index": 0, "timestamp": -1, "current_leader_epoch": 7},
        {"partition_index": 1, "timestamp": -6, "current_leader_epoch": -1},
        {"partition_index": 77, "timestamp": -1, "current_leader_epoch": -1},
        {"partition_index": 2, "timestamp": -1, "current_leader_epoch": -1},
        {"partition_index": 2, "timestamp": -2, "current_leader_epoch": -1},
    ]
    answer = wire.ask(LIST_OFFSETS, 6, replica_id=-1, topics=[{"name": topic, "partitions": parts}])
    assert [(part.partition_index, part.error_code) for part in answer.topics[0].partitions] == [
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (1, ErrorCode.UNSUPPORTED_VERSION),
        (77, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, ErrorCode.INVALID_REQUEST),
        (2, ErrorCode.INVALID_REQUEST),
    ]


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(wire: WireClient, topic: str, version: int) -> None:
    def asked(name: str, *partitions: int) -> dict[str, Any]:
        parts = [{"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in partitions]
        return {"topic": name, "partitions": parts}

    answer = wire.ask(EPOCHS, version, topics=[asked("nobody", 0), asked(topic, 0, 77)])
    assert [
        (found.topic, [(p.partition, p.error_code, p.leader_epoch, p.end_offset) for p in found.partitions])
        for found in answer.topics
    ] == [("nobody", [(0, 3, -1, -1)]), (topic, [(0, 0, 0, 4), (77, 3, -1, -1)])]


@pytest.mark.parametrize("version", range(3))
def test_delete_records(wire: WireClient, topic: str, version: int) -> None:
    parts = [{"partition_index": number, "offset": offset} for number, offset in ((0, 2), (1, -1), (2, 5), (9, 0))]
    answer = wire.ask(DELETE_RECORDS, version, topics=[{"name": topic, "partitions": parts}], timeout=20_000)
    assert [(p.partition_index, p.error_code, p.low_watermark) for p in answer.topics[0].partitions] == [
        (0, 0, 2),
        (1, 0, 0),
        (2, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


# --- Settings ----------------------------------------------------------------------------------------------


def settings_of(wire: WireClient, name: str, kind: int = TOPIC, version: int = 4, **more: Any) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (found,) = wire.ask(DESCRIBE_CONFIGS, version, resources=[resource], **more).results
    assert (found.error_code, found.resource_type, found.resource_name) == (0, kind, name)
    return {config.name: config for config in found.configs}


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs(wire: WireClient, topic: str, version: int) -> None:
    own = [{"name": "cleanup.policy", "config_operation": 2, "value": "compact"}]
    item = {"resource_type": TOPIC, "resource_name": topic, "configs": own}
    assert wire.ask(INCREMENTAL, 1, resources=[item]).responses[0].error_code == 0
    found = settings_of(wire, topic, version=version, include_synonyms=True, include_documentation=True)
    policy = found["cleanup.policy"]
    assert (policy.value, policy.config_source, policy.read_only, policy.is_sensitive) == (
        "delete,compact",
        1,
        False,
        False,
    )
    assert [(one.name, one.value, one.source) for one in policy.synonyms] == [
        ("cleanup.policy", "delete,compact", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    assert field(policy, "config_type", 7) == 7
    assert field(policy, "documentation", "What") is not None
    assert found["flush.ms"].config_source == 5
    broker = settings_of(wire, "1", BROKER, version=version)
    assert (broker["node.id"].value, broker["node.id"].read_only, broker["node.id"].synonyms) == ("1", True, ())
    assert field(broker["node.id"], "documentation", None) is None
    assert field(broker["node.id"], "config_type", 3) == 3
    key = broker["ssl.keystore.key"]
    assert (key.value, key.is_sensitive, key.synonyms) == (None, True, ())
    assert field(key, "config_type", 9) == 9


def test_every_type_of_a_setting_has_a_number() -> None:
    assert TYPES.keys() == {one.value for one in ValueType}


def test_describe_some_configs_and_what_is_refused(wire: WireClient, topic: str) -> None:
    resources = [
        (TOPIC, topic, ["retention.ms", "nobody"]),
        (TOPIC, "nobody", None),
        (TOPIC, "bad name", None),
        (BROKER, "77", None),
        (BROKER, "x", None),
        (99, "x", None),
    ]
    answer = wire.ask(
        DESCRIBE_CONFIGS,
        4,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
        ],
    )
    assert [(found.resource_type, found.resource_name) for found in answer.results] == [
        (kind, name) for kind, name, _ in resources
    ]
    assert [found.error_code for found in answer.results] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [config.name for config in answer.results[0].configs] == ["retention.ms"]
    none_named = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ()}
    (whole,) = wire.ask(DESCRIBE_CONFIGS, 4, resources=[none_named]).results
    assert len(whole.configs) > 20


def own_settings(wire: WireClient, name: str) -> dict[str, str]:
    return {key: config.value for key, config in settings_of(wire, name).items() if config.config_source == 1}


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces(wire: WireClient, topic: str, version: int) -> None:
    def alter(values: dict[str, str | None], *, dry: bool = False) -> int:
        configs = [{"name": name, "value": value} for name, value in values.items()]
        item = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        (found,) = wire.ask(ALTER_CONFIGS, version, resources=[item], validate_only=dry).responses
        assert (found.resource_type, found.resource_name) == (TOPIC, topic)
        error: int = found.error_code
        return error

    assert alter({"retention.ms": "5", "flush.ms": "6"}) == 0
    assert own_settings(wire, topic) == {"retention.ms": "5", "flush.ms": "6"}
    assert alter({"retention.ms": "7"}, dry=True) == 0
    assert alter({"retention.ms": "x"}) == ErrorCode.INVALID_CONFIG
    assert alter({"retention.ms": None}) == ErrorCode.INVALID_REQUEST
    assert own_settings(wire, topic) == {"retention.ms": "5", "flush.ms": "6"}
    assert alter({"retention.bytes": "8"}) == 0
    assert own_settings(wire, topic) == {"retention.bytes": "8"}


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_configs(wire: WireClient, topic: str, version: int) -> None:
    def alter(*changes: tuple[str, int, str | None]) -> int:
        configs = [{"name": n, "config_operation": operation, "value": value} for n, operation, value in changes]
        item = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        error: int = wire.ask(INCREMENTAL, version, resources=[item]).responses[0].error_code
        return error

    assert alter(("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")) == 0
    assert own_settings(wire, topic) == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert alter(("retention.ms", 1, None), ("cleanup.policy", 3, "delete")) == 0
    assert own_settings(wire, topic) == {"cleanup.policy": "compact"}
    assert alter(("nobody", 0, "1")) == ErrorCode.INVALID_CONFIG
    assert alter(("retention.ms", 2, "1")) == ErrorCode.INVALID_CONFIG
    assert alter(("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
    assert alter(("retention.ms", 0, None)) == ErrorCode.INVALID_REQUEST


def test_list_config_resources(wire: WireClient, topic: str) -> None:
    assert wire.ask(CONFIG_RESOURCES, 0).config_resources == ()
    shown = [(found.resource_type, found.resource_name) for found in wire.ask(CONFIG_RESOURCES, 1).config_resources]
    assert (TOPIC, topic) in shown
    assert (BROKER, "1") in shown
    brokers = wire.ask(CONFIG_RESOURCES, 1, resource_types=[BROKER]).config_resources
    assert [found.resource_name for found in brokers] == ["1"]
    assert wire.ask(CONFIG_RESOURCES, 1, resource_types=[99]).error_code == ErrorCode.UNSUPPORTED_VERSION
