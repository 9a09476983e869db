"""Settings: names, types, bounds, errors that name what was expected and found."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.links.definition import SETTING as LINKS
from tidelog.model.settings.broker_config import DEVIATIONS, NODE_CONFIG_DEF, OWN_SETTINGS, NodeConfig
from tidelog.model.settings.config_def import INT_MAX, LONG_MAX, ConfigDef, ConfigError, Setting, ValueType
from tidelog.model.settings.listeners import Listener, Voter
from tidelog.model.settings.node.kafka_only_settings import WITHOUT_COUNTERPART
from tidelog.model.settings.page import settings_page
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, TOPIC_CONFIG_DEF, TopicConfig

ONE = {"node.id": "1"}


def topic_error(**values: str) -> str:
    with pytest.raises(ConfigError) as caught:
        TopicConfig.parse({name.replace("_", "."): value for name, value in values.items()})
    return str(caught.value)


def node_error(**values: str) -> str:
    with pytest.raises(ConfigError) as caught:
        NodeConfig.parse(ONE | {name.replace("_", "."): value for name, value in values.items()})
    return str(caught.value)


# --- Topics ---

KAFKA_TOPIC_DEFAULTS = {
    # Kafka 4: LogConfig, TopicConfig
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    # Ours
    "delay.dead.letter.topic": "",
    "delay.enable": "false",
    "delay.pending.max": "10000000",
    "delay.sources": "",
    "delay.target": "",
    "delay.targets": "",
    "filter.header": "",
    "message.ttl.ms": "-1",
    "link.name": "",
    "link.source": "",
    "link.state": "active",
    # Kafka's
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_topic_defaults_are_kafkas() -> None:
    assert TopicConfig().describe() == KAFKA_TOPIC_DEFAULTS


def test_every_topic_setting_has_its_broker_default() -> None:
    own = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
    own |= {name for name in TOPIC_CONFIG_DEF.settings if name.startswith(("delay.", "link."))}
    own |= {"filter.header", "message.ttl.ms"}
    assert set(BROKER_SYNONYMS) | own == set(TOPIC_CONFIG_DEF.settings), "these make sense for their topic alone"
    assert set(BROKER_SYNONYMS.values()) <= set(NODE_CONFIG_DEF.settings)
    assert NodeConfig.parse(ONE).topic_defaults() == TopicConfig()


@pytest.mark.parametrize("topic_name", sorted(BROKER_SYNONYMS))
def test_broker_setting_is_the_default_of_its_topic_setting(topic_name: str) -> None:
    """And with the same type and bounds, so that a value good for one is good for the other."""
    broker_name = BROKER_SYNONYMS[topic_name]
    topic, broker = TOPIC_CONFIG_DEF.settings[topic_name], NODE_CONFIG_DEF.settings[broker_name]
    assert (topic.value_type, topic.minimum, topic.maximum, topic.choices) == (
        broker.value_type,
        broker.minimum,
        broker.maximum,
        broker.choices,
    )
    other = {
        "cleanup.policy": "compact",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.25",
        "preallocate": "true",
        "unclean.leader.election.enable": "true",
    }.get(topic_name, "2000000")
    assert NodeConfig.parse(ONE | {broker_name: other}).topic_defaults() == TopicConfig.parse({topic_name: other})


def test_names_of_the_migration_policy_are_valid_in_any_case() -> None:
    """As in Kafka. Those of most other settings are not."""
    name = "group.consumer.migration.policy"
    assert NodeConfig.parse(ONE | {name: "Upgrade"}).group_consumer_migration_policy == "upgrade"
    with pytest.raises(ConfigError, match=r"disabled \| downgrade \| upgrade \| bidirectional, found 'UP'"):
        NodeConfig.parse(ONE | {name: "UP"})
    with pytest.raises(ConfigError, match="compression"):
        NodeConfig.parse(ONE | {"compression.type": "ZSTD"})


def test_topic_values() -> None:
    config = TopicConfig.parse({"cleanup.policy": " compact , delete ", "retention.ms": "-1", "preallocate": "TRUE"})
    assert config.compacts
    assert config.deletes
    assert (config.retention_ms, config.preallocate) == (-1, True)
    assert not TopicConfig().compacts


def test_defaults_may_be_given() -> None:
    base = TopicConfig(retention_ms=5)
    assert TopicConfig.parse({"segment.ms": "7"}, base) == dataclasses.replace(base, segment_ms=7)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"retention_ms": "soon"}, "retention.ms: expected a whole number of at least -1, found 'soon'"),
        ({"retention_ms": "-2"}, "retention.ms: expected a whole number of at least -1, found '-2'"),
        ({"retention_ms": "1_000"}, "found '1_000'"),
        ({"retention_ms": "٣"}, "found '٣'"),
        ({"retention_ms": "1e3"}, "found '1e3'"),
        ({"retention_ms": str(LONG_MAX + 1)}, f"found '{LONG_MAX + 1}'"),
        ({"segment_bytes": str(INT_MAX + 1)}, "segment.bytes: expected a whole number of at least 1048576"),
        ({"segment_bytes": "1024"}, "segment.bytes: expected a whole number of at least 1048576, found '1024'"),
        ({"preallocate": "yes"}, "preallocate: expected true or false, found 'yes'"),
        ({"min_cleanable_dirty_ratio": "1.5"}, "expected a number between 0 and 1, found '1.5'"),
        ({"min_cleanable_dirty_ratio": "nan"}, "expected a number between 0 and 1, found 'nan'"),
        (
            {"compression_type": "brotli"},
            "expected uncompressed | zstd | lz4 | snappy | gzip | producer, found 'brotli'",
        ),
        ({"cleanup_policy": "compact,burn"}, "expected a list of compact | delete, found 'burn'"),
        ({"cleanup_policy": "compact,compact"}, "expected no item twice"),
        ({"retention_hours": "1"}, "unknown setting 'retention.hours'; did you mean retention.ms?"),
        ({"zzz": "1"}, "unknown setting 'zzz'"),
        ({"min_compaction_lag_ms": "9", "max_compaction_lag_ms": "5"}, "at most max.compaction.lag.ms (5), found 9"),
        ({"segment_jitter_ms": "9", "segment_ms": "5"}, "expected at most segment.ms (5), found 9"),
        ({"retention_ms": "1" * 40_000}, "retention.ms: expected at most 32767 characters, found 40000"),
    ],
)
def test_bad_topic_settings(values: dict[str, str], text: str) -> None:
    assert text in topic_error(**values)


@given(st.text(max_size=40), st.sampled_from(sorted(TOPIC_CONFIG_DEF.settings)))
def test_any_text_is_read_or_refused_by_name(value: str, name: str) -> None:
    try:
        read = TopicConfig.parse({name: value})
    except ConfigError as error:
        assert str(error).startswith(name)
    else:
        assert TopicConfig.parse({name: read.describe()[name] or ""}) == read


# --- Nodes ---


def test_every_setting_is_documented() -> None:
    for definition in (TOPIC_CONFIG_DEF, NODE_CONFIG_DEF):
        for setting in definition.settings.values():
            assert setting.doc.endswith("."), setting.name
    assert set(DEVIATIONS) <= set(NODE_CONFIG_DEF.settings)
    assert set(NODE_CONFIG_DEF.settings) >= OWN_SETTINGS


def test_described_settings_read_back_as_the_same() -> None:
    config = NodeConfig.parse(
        {
            "node.id": "3",
            "listeners": "CLIENT://0.0.0.0:19092,REPLICATION://[::1]:0,CONTROLLER://127.0.0.1:19094",
            "advertised.listeners": "CLIENT://broker.example:19092",
            "controller.quorum.voters": "1@127.0.0.1:1,3@[::1]:2",
            "listener.security.protocol.map": "client:plaintext,CONTROLLER:PLAINTEXT",
            "broker.rack": "west",
            "log.dirs": "/a, /b",
        }
    )
    text = {name: value for name, value in config.describe().items() if value is not None}
    assert NodeConfig.parse(text) == config
    assert config.directories == ("/a", "/b")
    assert config.metadata_directory == "/a"


def test_default_node_is_both_and_listens_on_loopback_only() -> None:
    config = NodeConfig.parse(ONE)
    assert config.is_broker
    assert config.is_controller
    assert {listener.host for listener in config.listeners} == {"127.0.0.1"}
    assert [listener.name for listener in config.broker_listeners] == ["KAFKA", "CLIENT", "REPLICATION"]
    assert [listener.name for listener in config.kafka_listeners] == ["KAFKA"]
    assert config.replication_listener == "REPLICATION"
    assert config.voters == (Voter(config.node_id, "127.0.0.1", 9094),)


def test_roles_decide_what_is_listened_on() -> None:
    broker = NodeConfig.parse(ONE | {"process.roles": "broker", "controller.quorum.voters": "9@h:1"})
    assert [found.name for found in broker.listeners] == ["KAFKA", "CLIENT", "REPLICATION"]
    controller = NodeConfig.parse(ONE | {"process.roles": "controller"})
    assert [found.name for found in controller.listeners] == ["CONTROLLER"]


def test_one_listener_for_clients_and_brokers() -> None:
    config = NodeConfig.parse(ONE | {"listeners": "CLIENT://:1,CONTROLLER://:2"})
    assert config.replication_listener == "CLIENT"
    assert config.listeners[0].host == "127.0.0.1"


def test_brokers_do_not_replicate_through_a_listener_that_speaks_kafkas_protocol() -> None:
    config = NodeConfig.parse(
        ONE | {"listeners": "old://:1,CLIENT://:2,CONTROLLER://:3", "kafka.listener.names": "OLD,none"}
    )
    assert [listener.name for listener in config.kafka_listeners] == ["OLD"]
    assert config.replication_listener == "CLIENT"
    with pytest.raises(ConfigError, match=r"inter.broker.listener.name: expected one of CLIENT, found KAFKA"):
        NodeConfig.parse(
            ONE | {"listeners": "KAFKA://:1,CLIENT://:2,CONTROLLER://:3", "inter.broker.listener.name": "KAFKA"}
        )
    with pytest.raises(ConfigError, match=r"listeners: expected one beside KAFKA \(kafka.listener.names\)"):
        NodeConfig.parse(ONE | {"listeners": "KAFKA://:1,CONTROLLER://:3"})


def test_brokers_replicate_from_further_listeners_that_are_named() -> None:
    listeners = {"listeners": "KAFKA://:1,CLIENT://:2,REPLICATION://:3,NEW://:4,CONTROLLER://:5"}
    config = NodeConfig.parse(ONE | listeners | {"replication.listener.names": "new"})
    assert config.replication_listener == "REPLICATION"
    assert config.replication_listeners == {"REPLICATION", "NEW"}
    assert NodeConfig.parse(ONE | listeners).replication_listeners == {"REPLICATION"}
    for wrong in ("KAFKA", "CONTROLLER", "OTHER"):
        with pytest.raises(ConfigError, match=rf"replication.listener.names: expected some of .*, found {wrong}"):
            NodeConfig.parse(ONE | listeners | {"replication.listener.names": wrong})
    with pytest.raises(ConfigError, match="expected NEW:SSL or NEW:PLAINTEXT, found NEW:SASL_PLAINTEXT: clients log"):
        NodeConfig.parse(
            ONE
            | listeners
            | {"replication.listener.names": "NEW", "listener.security.protocol.map": "NEW:SASL_PLAINTEXT"}
        )


def test_only_bound_listeners_are_advertised() -> None:
    config = NodeConfig.parse(ONE | {"listeners": "KAFKA://:1,CLIENT://:0,CONTROLLER://:3"})
    assert config.advertised({"CLIENT": 5001}) == (Listener("CLIENT", "127.0.0.1", 5001),)


def test_advertised_listeners_take_real_ports() -> None:
    config = NodeConfig.parse(
        ONE
        | {
            "listeners": "CLIENT://0.0.0.0:0,REPLICATION://127.0.0.1:0,CONTROLLER://127.0.0.1:3",
            "advertised.listeners": "CLIENT://outside:7000",
        }
    )
    assert config.advertised({"CLIENT": 5001, "REPLICATION": 5002}) == (
        Listener("CLIENT", "outside", 7000),
        Listener("REPLICATION", "127.0.0.1", 5002),
    )


def test_http_may_be_switched_off() -> None:
    assert NodeConfig.parse(ONE | {"http.listener": ""}).http_listener is None
    assert NodeConfig.parse(ONE).http_listener == Listener("HTTP", "127.0.0.1", 9095)


@pytest.mark.parametrize(
    ("values", "expected_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_by_the_finest_unit(values: dict[str, str], expected_ms: int) -> None:
    assert NodeConfig.parse(ONE | values).topic_defaults().retention_ms == expected_ms


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"node_id": "-1"}, "node.id: expected a whole number of at least 0, found '-1'"),
        ({"process_roles": "boss"}, "process.roles: expected a list of broker | controller, found 'boss'"),
        ({"process_roles": ""}, "process.roles: expected broker, controller or both, found none"),
        ({"listeners": "CLIENT"}, "listeners: expected NAME://host:port, found 'CLIENT'"),
        ({"listeners": "A://h:70000"}, "expected a port between 0 and 65535, found 'A://h:70000'"),
        ({"listeners": "A://h:1,A://h:2"}, "expected listeners of different names"),
        ({"listeners": "A://h:1,B://h:1"}, "expected listeners with different ports"),
        (
            {"listeners": "CLIENT://h:1"},
            "expected one named CONTROLLER (controller.listener.names), found CLIENT://h:1",
        ),
        ({"listeners": "CONTROLLER://h:1"}, "expected one for clients and brokers, found CONTROLLER://h:1"),
        ({"listeners": "CLIENT://0.0.0.0:1,CONTROLLER://h:2"}, "expected an entry for CLIENT://0.0.0.0:1"),
        (
            {"advertised_listeners": "OTHER://h:1"},
            "expected one of KAFKA, CLIENT, REPLICATION, CONTROLLER, ",
        ),
        ({"advertised_listeners": "CLIENT://0.0.0.0:1"}, "expected an address that others can reach"),
        ({"inter_broker_listener_name": "INSIDE"}, "expected one of CLIENT, REPLICATION, found INSIDE"),
        (
            {"listener_security_protocol_map": "CLIENT:QUIC"},
            "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, found 'CLI",
        ),
        (
            {"listener_security_protocol_map": "REPLICATION:SASL_PLAINTEXT"},
            "expected REPLICATION:SSL or REPLICATION:PLAIN",
        ),
        ({"listener_security_protocol_map": "CONTROLLER:SASL_SSL"}, "nodes prove who they are by certificates"),
        ({"listener_security_protocol_map": "KAFKA:SASL_PLAINTEXT", "sasl_enabled_mechanisms": ""}, "at least one"),
        ({"sasl_enabled_mechanisms": "GSSAPI"}, "expected a list of SCRAM-SHA-256 | SCRAM-SHA-512 | PLAIN"),
        ({"sasl_jaas_config": "x"}, "`tidelog users` makes them"),
        ({"controller_quorum_voters": "1:h:1"}, "controller.quorum.voters: expected id@host:port, found '1:h:1'"),
        ({"controller_quorum_voters": "1@h:1,1@h:2"}, "expected voters of different ids"),
        ({"controller_quorum_voters": "2@h:1"}, "expected node.id 1 among them, found 2@h:1"),
        ({"controller_quorum_voters": "1@h:0"}, "expected ports other than 0"),
        ({"process_roles": "broker"}, "controller.quorum.voters: expected id@host:port,…, found none"),
        (
            {"process_roles": "broker", "controller_quorum_voters": "1@h:1"},
            "expected them without 1, which is not a controller",
        ),
        (
            {"broker_heartbeat_interval_ms": "700"},
            "broker.heartbeat.interval.ms: expected less than broker.session.timeout.ms (700), found 700",
        ),
        (
            {"replica_lag_time_max_ms": "100"},
            "replica.fetch.wait.max.ms: expected at most replica.lag.time.max.ms (100), found 500",
        ),
        ({"sasl_kerberos_kinit_cmd": "x"}, "unknown setting 'sasl.kerberos.kinit.cmd': GSSAPI is not offered"),
        ({"zookeeper_connect": "x"}, "there is no ZooKeeper"),
        ({"broker_id": "x"}, "did you mean node.id?"),
        ({"num_partition": "x"}, "did you mean num.partitions?"),
    ],
)
def test_bad_node_settings(values: dict[str, str], text: str) -> None:
    assert text in node_error(**values)


def test_node_id_is_required() -> None:
    with pytest.raises(ConfigError, match=r"node\.id: expected a whole number of at least 0, found nothing"):
        NodeConfig.parse({})


def test_settings_are_checked_together_however_a_config_is_made() -> None:
    with pytest.raises(ConfigError, match=r"broker\.heartbeat\.interval\.ms"):
        dataclasses.replace(NodeConfig.parse(ONE), broker_heartbeat_interval_ms=10_000)


# --- Files ---


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# a comment\nnode.id = 7\n\nlog.dirs=/a,\\\n    /b\n", encoding="utf-8")
    config = NodeConfig.from_properties(path, {"num.partitions": "3"})
    assert (config.node_id, config.log_dirs, config.num_partitions) == (7, ("/a", "/b"), 3)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            "node.id=1\nlog.retention.sm=4\n",
            "line 2: unknown setting 'log.retention.sm'; did you mean log.retention.ms?",
        ),
        ("\n\nnode.id=one\n", "line 3: node.id: expected a whole number of at least 0, found 'one'"),
        ("node.id=1\nnode.id=2\n", "line 2: node.id is set already in line 1"),
        ("node.id=1\n=5\n", "line 2: expected name=value, found '=5'"),
        ("node.id=1\nlog.dir=\\u12\n", "line 2: expected \\u and four hexadecimal digits"),
        ("node.id=1\nprocess.roles=broker\n", "controller.quorum.voters: expected id@host:port"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        NodeConfig.from_properties(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)


def test_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"node.id=\xff\n")
    with pytest.raises(ConfigError, match="expected UTF-8 text, found byte 0xff"):
        NodeConfig.from_properties(path)


def test_a_setting_says_what_it_takes() -> None:
    def expectation(value_type: ValueType, **more: float) -> str:
        return Setting("x", value_type, None, "A doc.", **more).expectation()  # type: ignore[arg-type]

    assert expectation(ValueType.INT) == "a whole number"
    assert expectation(ValueType.INT, minimum=1, maximum=5) == "a whole number between 1 and 5"
    assert expectation(ValueType.DOUBLE, minimum=0) == "a number of at least 0"
    assert expectation(ValueType.STRING) == "text"
    assert expectation(ValueType.BOOLEAN) == "true or false"


def test_definition_of_another_class() -> None:
    definition = ConfigDef(TopicConfig)
    assert list(definition.settings) == list(TOPIC_CONFIG_DEF.settings)
    assert definition.field_name("retention.ms") == "retention_ms"


def test_settings_page_is_fresh() -> None:
    """Mend: ``python -m tidelog.model.settings.page docs/settings.md``."""
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_page()


def test_every_setting_acts() -> None:
    """A setting acts when code outside its definition reads its field from a configuration."""
    root = Path(__file__).parents[2]
    settings = root / "model" / "settings"
    definition = "".join((settings / f"{name}.py").read_text() for name in ("broker_config", "node/log_settings"))
    folders = ("broker", "cli", "metadata_quorum", "replication", "security", "storage", "testing", "transactions")
    elsewhere = "\n".join(
        path.read_text(encoding="utf-8") for folder in folders for path in sorted((root / folder).rglob("*.py"))
    )
    elsewhere += (settings / "group_config.py").read_text(encoding="utf-8")  # what bounds a group's own settings
    words = set(re.findall(r"(?:config|found|settings\(\))\.(\w+)", elsewhere)) | set(
        re.findall(r"self\.(\w+)", definition)
    )
    idle = {name for name in NODE_CONFIG_DEF.settings if NODE_CONFIG_DEF.field_name(name) not in words}
    of_one_value = {"ssl.keystore.type", "ssl.truststore.type", "ssl.endpoint.identification.algorithm"}
    assert idle == of_one_value | {LINKS}, "clients read links"


@pytest.mark.parametrize("name", ["num.io.threads", "max.request.partition.size.limit"])
def test_a_setting_that_nothing_could_obey_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: unknown setting '{name}': Kafka's has no counterpart here, as "):
        NodeConfig.from_properties(f"node.id=1\n{name}=5\n")


def test_no_setting_that_there_is_counts_as_kafkas_alone() -> None:
    assert not WITHOUT_COUNTERPART.keys() & NODE_CONFIG_DEF.settings.keys()


def test_an_empty_cleanup_policy_is_one() -> None:
    """Kafka 4.2 and later: neither deleted nor compacted, so everything is kept."""
    found = TopicConfig.parse({"cleanup.policy": ""})
    assert (found.cleanup_policy, found.deletes, found.compacts) == ((), False, False)
    assert found.describe()["cleanup.policy"] == ""
    assert NodeConfig.parse({**ONE, "log.cleanup.policy": ""}).log_cleanup_policy == ()


def test_a_batch_may_be_larger_than_a_request() -> None:
    """As in Kafka, which starts: the smaller of the two bounds decides."""
    found = NodeConfig.parse({**ONE, "message.max.bytes": "200000000"})
    assert found.message_max_bytes > found.socket_request_max_bytes
