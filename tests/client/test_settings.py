"""Settings: Kafka's names and defaults, and errors that say what was expected and found."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from tidelog.client.config.admin import AdminConfig, AdminSettings
from tidelog.client.config.assignment import rebalance_protocol
from tidelog.client.config.consumer import ConsumerConfig, ConsumerSettings, OffsetReset
from tidelog.client.config.producer import ProducerConfig, ProducerSettings
from tidelog.client.config.security import KAFKA_NAMES, OF_PASSWORDS, OF_TOKENS, OTHER_SPELLINGS
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.errors import ConfigError
from tidelog.model.assignors import RangeAssignor, RebalanceProtocol, RoundRobinAssignor
from tidelog.proto.transport.network import Address


class OnlyCooperative(RangeAssignor):
    """An assignor for cooperative members alone."""

    name = "only-cooperative"
    protocols = (RebalanceProtocol.COOPERATIVE,)


# Apache Kafka 4: ProducerConfig, ConsumerConfig and AdminClientConfig.
SECURITY_DEFAULTS = {
    "security_protocol": "PLAINTEXT",
    **dict.fromkeys(("ssl_cafile", "ssl_certfile", "ssl_keyfile")),
    **dict.fromkeys(("sasl_mechanism", *OF_PASSWORDS, *OF_TOKENS)),
    "sasl_tokenauth": False,
}
PRODUCER_DEFAULTS = {
    **SECURITY_DEFAULTS,
    "acks": "all",
    "batch_size": 16_384,
    "buffer_memory": 33_554_432,
    "client_id": "",
    "compression_type": "none",
    "delivery_timeout_ms": 120_000,
    "enable_idempotence": True,
    "linger_ms": 5,
    "max_block_ms": 60_000,
    "max_in_flight_requests_per_connection": 5,
    "max_request_size": 1_048_576,
    "metadata_max_age_ms": 300_000,
    "metadata_max_idle_ms": 300_000,
    "partitioner_adaptive_partitioning_enable": True,
    "partitioner_ignore_keys": False,
    "reconnect_backoff_max_ms": 1_000,
    "reconnect_backoff_ms": 50,
    "request_timeout_ms": 30_000,
    "retries": 2_147_483_647,
    "retry_backoff_max_ms": 1_000,
    "retry_backoff_ms": 100,
    "transaction_timeout_ms": 60_000,
    "transaction_two_phase_commit_enable": False,
    "transactional_id": None,
}
CONSUMER_DEFAULTS = {
    **SECURITY_DEFAULTS,
    "allow_auto_create_topics": True,
    "auto_commit_interval_ms": 5_000,
    "auto_offset_reset": "latest",
    "check_crcs": True,
    "client_id": "",
    "client_rack": "",
    "default_api_timeout_ms": 60_000,
    "enable_auto_commit": True,
    "exclude_internal_topics": True,
    "fetch_max_bytes": 52_428_800,
    "fetch_max_wait_ms": 500,
    "fetch_min_bytes": 1,
    "group_id": None,
    "group_instance_id": None,
    "group_protocol": "classic",
    "group_remote_assignor": None,
    "heartbeat_interval_ms": 3_000,
    "isolation_level": "read_uncommitted",
    "max_partition_fetch_bytes": 1_048_576,
    "max_poll_interval_ms": 300_000,
    "max_poll_records": 500,
    "metadata_max_age_ms": 300_000,
    "reconnect_backoff_max_ms": 1_000,
    "reconnect_backoff_ms": 50,
    "partition_assignment_strategy": ("range", "cooperative-sticky"),
    "request_timeout_ms": 30_000,
    "retry_backoff_max_ms": 1_000,
    "retry_backoff_ms": 100,
    "session_timeout_ms": 45_000,
}


@pytest.mark.parametrize(
    ("config", "defaults", "own"),
    [
        (
            ProducerConfig,
            PRODUCER_DEFAULTS,
            {
                "batch_size_max",
                "bulk_batch_size",
                "partitioner_class",
                "key_serializer",
                "value_serializer",
                "interceptor_classes",
            },
        ),
        (
            ConsumerConfig,
            CONSUMER_DEFAULTS,
            {"key_deserializer", "value_deserializer", "interceptor_classes", "priority_weights", "header_filter"},
        ),
    ],
)
def test_defaults_are_kafkas(config: Any, defaults: dict[str, Any], own: set[str]) -> None:
    found = dataclasses.asdict(config.of({}))
    assert {name: value for name, value in found.items() if name not in own} == defaults


@pytest.mark.parametrize(
    ("config", "keywords"),
    [(ProducerConfig, ProducerSettings), (ConsumerConfig, ConsumerSettings), (AdminConfig, AdminSettings)],
)
def test_the_typed_keywords_are_the_settings(config: Any, keywords: Any) -> None:
    fields = {field.name for field in dataclasses.fields(config)}
    assert set(keywords.__annotations__) == fields | set(OTHER_SPELLINGS)
    if config is AdminConfig:
        hints = get_type_hints(keywords)
        assert all(hints[name] == kind for name, kind in get_type_hints(config).items() if name != "DEFINITION")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"session_timeout_ms": 45_000}, "session_timeout_ms: expected none with group_protocol=consumer, found 45000"),
        ({"heartbeat.interval.ms": "5"}, "use group.consumer.heartbeat.interval.ms of the broker"),
        ({"partition_assignment_strategy": "range"}, "use group_remote_assignor"),
        ({"group_protocol": "classic", "group_remote_assignor": "uniform"}, "use partition_assignment_strategy"),
        ({"group_protocol": "share"}, "group_protocol: expected classic"),
    ],
)
def test_a_setting_of_the_other_group_protocol_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.of({"group_id": "g", "group_protocol": "consumer"} | settings)


@pytest.mark.parametrize("spelling", sorted({*OTHER_SPELLINGS, *KAFKA_NAMES}))
def test_what_secures_a_client_may_have_the_names_of_other_clients(spelling: str) -> None:
    ours = OTHER_SPELLINGS[spelling.replace(".", "_")]
    value = "PLAIN" if ours == "sasl_mechanism" else "a value"
    found = AdminConfig.of({spelling: value})
    assert getattr(found, ours) == value
    with pytest.raises(ConfigError, match=f"expected one name for it, found {ours} too"):
        AdminConfig.of({ours: value, spelling: value})


def test_values_may_be_text_and_names_may_have_dots() -> None:
    config = ProducerConfig.of({"batch.size": "100", "enable_idempotence": "false", "acks": 1, "linger.ms": 0})
    assert (config.batch_size, config.enable_idempotence, config.acks_number, config.linger_ms) == (100, False, 1, 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_sise": 1}, "unknown setting 'batch_sise'; did you mean batch_size?"),
        ({"linger": 1}, "unknown setting 'linger'; did you mean linger_ms?"),
        ({"batch_size": "many"}, "batch_size: expected a whole number between 0 and 1073741824, found 'many'"),
        ({"batch_size": 1.5}, "batch_size: expected a whole number between 0 and 1073741824, found 1.5"),
        ({"batch_size": True}, "found True"),
        ({"batch_size": -1}, "found '-1'"),
        ({"batch_size": None}, "found None"),
        ({"enable_idempotence": 1}, "enable_idempotence: expected true or false, found 1"),
        ({"acks": 2}, "acks: expected all | -1 | 0 | 1, found '2'"),
        (
            {"compression_type": "brotli"},
            "compression_type: expected none | gzip | snappy | lz4 | zstd, found 'brotli'",
        ),
        (
            {"delivery_timeout_ms": 1_000},
            "delivery_timeout_ms: expected at least linger_ms \\+ request_timeout_ms = 30005, found 1000",
        ),
        ({"enable_idempotence": True, "acks": 1}, "enable_idempotence: expected acks=all with it, found acks=1"),
        (
            {"enable_idempotence": True, "max_in_flight_requests_per_connection": 6},
            "max_in_flight_requests_per_connection of at most 5 with it, found 6",
        ),
        ({"enable_idempotence": True, "retries": 0}, "retries over 0"),
    ],
)
def test_a_wrong_producer_setting(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("|", r"\|")):
        ProducerConfig.of(settings)


@pytest.mark.parametrize("settings", [{"acks": 1}, {"max_in_flight_requests_per_connection": 6}, {"retries": 0}])
def test_idempotence_gives_way_unless_it_was_asked_for(settings: dict[str, Any]) -> None:
    assert not ProducerConfig.of(settings).enable_idempotence


def test_the_delivery_timeout_grows_with_what_it_must_cover_unless_it_was_given() -> None:
    assert ProducerConfig.of({"request_timeout_ms": 200_000}).delivery_timeout_ms == 200_005


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 262_144),
        ({"batch_size": 1_000}, 16_000),
        ({"batch_size": 1_000, "batch_size_max": 5_000}, 5_000),
        ({"batch_size": 500_000}, 262_144),
    ],
)
def test_how_far_batches_grow(given: dict[str, Any], expected: int) -> None:
    assert ProducerConfig.of(given).batch_size_max == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetReset("earliest")),
        ("by_duration:PT1H", OffsetReset("by_duration", 3_600_000)),
        ("by_duration:P1DT2H3M4.5S", OffsetReset("by_duration", (86_400 + 7_200 + 180 + 4) * 1_000 + 500)),
        ("by_duration:P2D", OffsetReset("by_duration", 172_800_000)),
    ],
)
def test_auto_offset_reset(text: str, expected: OffsetReset) -> None:
    assert ConsumerConfig.of({"auto_offset_reset": text}).reset == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "by_duration",
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:1H",
        "by_duration:-PT1H",
    ],
)
def test_a_wrong_auto_offset_reset(text: str) -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset: expected earliest, latest, none or by_duration"):
        ConsumerConfig.of({"auto_offset_reset": text})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1,b:2", (Address("a", 1), Address("b", 2))),
        (["a:1", " b "], (Address("a", 1), Address("b", 9092))),
        ("[::1]:7", (Address("::1", 7),)),
        ("[::1]", (Address("::1", 9092),)),
    ],
)
def test_bootstrap_servers(given: Any, expected: tuple[Address, ...]) -> None:
    assert parse_bootstrap(given) == expected


@pytest.mark.parametrize("given", ["", " , ", "a:b", "a:0", "a:70000", ":5", "::1:5", []])
def test_wrong_bootstrap_servers(given: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers: expected"):
        parse_bootstrap(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group_id": ""}, "group_id: expected a non-empty name, found ''"),
        ({"group_id": "g", "group_instance_id": " "}, "group_instance_id: expected a non-empty name"),
        ({"enable_auto_commit": True}, "expected false without a group_id, found true"),
        ({"heartbeat_interval_ms": 45_000}, r"expected less than session_timeout_ms \(45000\), found 45000"),
        ({"session_timeout_ms": 0}, "session_timeout_ms: expected a whole number of at least 1, found '0'"),
        ({"partition_assignment_strategy": "rnge"}, "expected range, .* or an assignor, found 'rnge'"),
        ({"partition_assignment_strategy": []}, "expected one or several assignors of different names, found \\[\\]"),
        ({"partition_assignment_strategy": "range,range"}, "different names, found \\['range', 'range'\\]"),
        ({"partition_assignment_strategy": [object]}, "its class or an instance, found <class 'object'>"),
        (
            {"partition_assignment_strategy": [OnlyCooperative, "range"]},
            "common to all, found .*: COOPERATIVE; range: EAGER",
        ),
    ],
)
def test_group_settings_that_cannot_be_taken(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerConfig.of(given)


def test_assignors_by_name_class_and_instance() -> None:
    own = RangeAssignor()
    for given, names in (
        ("sticky", ["sticky"]),
        ("roundrobin, range", ["roundrobin", "range"]),
        (RoundRobinAssignor, ["roundrobin"]),
        ([own, "cooperative-sticky"], ["range", "cooperative-sticky"]),
    ):
        config = ConsumerConfig.of({"group_id": "g", "partition_assignment_strategy": given})
        assert [assignor.name for assignor in config.assignors()] == names
    assert ConsumerConfig.of({"partition_assignment_strategy": own}).assignors() == (own,)
    assert ConsumerConfig.of({"group_id": "g"}).effective_client_id == "consumer-g"
    assert ConsumerConfig.of({"group_id": "g", "group_instance_id": "a"}).effective_client_id == "consumer-g-a"
    assert not ConsumerConfig.of({}).auto_commits
    assert ConsumerConfig.of({"group_id": "g"}).auto_commits


def test_the_protocol_is_the_highest_common_one() -> None:
    for given, protocol in (
        (("range", "cooperative-sticky"), RebalanceProtocol.EAGER),
        ("cooperative-sticky", RebalanceProtocol.COOPERATIVE),
        ("sticky", RebalanceProtocol.EAGER),
    ):
        assignors = ConsumerConfig.of({"partition_assignment_strategy": given}).assignors()
        assert rebalance_protocol(assignors) is protocol
