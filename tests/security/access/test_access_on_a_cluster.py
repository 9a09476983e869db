"""Clients of both protocols on a cluster with access control: they see Kafka's errors, and only what they may see.

The clients are ``User:ANONYMOUS``, and have the rights that a test gives them, by the controller itself.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import broker_of
from tests.kafka.wire_client import WireClient
from tidelog.broker.access.access import Access
from tidelog.broker.access.guard import GuardedReplicas
from tidelog.client.errors import ErrorCode, TidelogError
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, BrokerEpoch, Offset, TopicId, TopicPartition
from tidelog.proto.calls.acl_api import CreateAclsRequest, DeleteAclsRequest, entry_of, filter_entry_of
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, LENGTH_OVERHEAD
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
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
from tidelog.security.authorizer import Who
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ME = "User:ANONYMOUS"
T = 20.0
_numbers = itertools.count()


class Secured:
    """A node, and the rights of those that come to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def allow(self, *said: str, denies: bool = False) -> None:
        """``read topic t``, ``describe cluster``; ``orders-*`` for a prefix."""
        permission = PermissionType.DENY if denies else PermissionType.ALLOW
        self._ask(CreateAclsRequest(tuple(entry_of(_entry(each, permission)) for each in said)))

    def take_all_back(self) -> None:
        self._ask(DeleteAclsRequest((filter_entry_of(AclFilter()),)))

    def topic(self, what: str = "t") -> str:
        """A new topic that nobody may see."""
        name = f"{what}-{next(_numbers)}"
        self.allow("create cluster")
        self.cluster.create_topic(name, partitions=1)
        self.take_all_back()
        return name

    def replicas(self, topic: str) -> tuple[GuardedReplicas, TopicId]:
        """As a stream of ours sees them, and the topic's id."""
        broker, image = broker_of(self.cluster.node(1)), self.cluster.node(1).view.image
        authorizer = broker.access.authorizer
        assert authorizer is not None
        who = Who(ME, "127.0.0.1")
        return GuardedReplicas(broker.replicas, Access(authorizer, who), lambda: image), image.topic_ids[topic]

    def loop_s(self) -> float:
        """Processor time of the node's event loop so far."""

        async def used() -> float:
            return time.thread_time()

        return self.cluster._run(used())

    def _ask(self, request: Any) -> None:
        node = self.cluster.node(1)
        controller = node.controller
        assert controller is not None

        async def done() -> Any:
            return await controller.handle(request, CallContext("local", "local"))

        answer = self.cluster._run(done())
        assert all(each.error is ErrorCode.NONE for each in answer.results), answer


def _entry(said: str, permission: PermissionType) -> AclBinding:
    operation, kind, *name = said.split()
    named = name[0] if name else CLUSTER_NAME
    prefixed = named.endswith("*") and len(named) > 1
    return AclBinding(
        ResourceType[kind.upper()],
        named[:-1] if prefixed else named,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        ME,
        "*",
        AclOperation[operation.upper()],
        permission,
    )


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    config = {
        "authorizer.class.name": STANDARD,
        "super.users": "User:root",
        "auto.create.topics.enable": "true",
    }
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        yield cluster


@pytest.fixture
def secured(node: Cluster) -> Iterator[Secured]:
    made = Secured(node)
    yield made
    made.take_all_back()


def refused(code: ErrorCode, call: Callable[[], Any]) -> None:
    with pytest.raises(TidelogError) as caught:
        call()
    assert caught.value.code is code, caught.value


# --- The SDK ------------------------------------------------------------------------------------------


def test_a_producer_of_the_sdk_needs_to_write(secured: Secured) -> None:
    topic = secured.topic()

    def send() -> None:
        with secured.cluster.producer(
            max_block_ms=5_000, delivery_timeout_ms=6_000, request_timeout_ms=3_000
        ) as producer:
            producer.send(topic, b"v").result(T)

    secured.allow("idempotent_write cluster")
    refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, send)
    secured.allow(f"describe topic {topic}")
    refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, send)
    secured.allow(f"write topic {topic}")
    send()
    secured.allow(f"write topic {topic[:3]}*", denies=True)
    refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, send)


def test_an_idempotent_producer_needs_to_write_somewhere(secured: Secured) -> None:
    topic = secured.topic()
    secured.allow(f"describe topic {topic}")

    def send() -> None:
        with secured.cluster.producer(
            max_block_ms=5_000, delivery_timeout_ms=6_000, request_timeout_ms=3_000
        ) as producer:
            producer.send(topic, b"v").result(T)

    refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, send)
    secured.allow(f"write topic {topic}")
    send()


def test_a_right_that_is_taken_back_ends_on_an_open_stream(secured: Secured) -> None:
    topic = secured.topic()
    secured.allow(f"write topic {topic}")
    with secured.cluster.producer(delivery_timeout_ms=6_000, request_timeout_ms=3_000) as producer:
        producer.send(topic, b"v").result(T)
        secured.take_all_back()
        secured.allow(f"describe topic {topic}")
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, lambda: producer.send(topic, b"v").result(T))


def test_a_consumer_of_the_sdk_needs_to_read_topic_and_group(secured: Secured) -> None:
    topic = secured.topic()

    def read(group: str | None = None) -> int:
        with secured.cluster.consumer(group_id=group, auto_offset_reset="earliest") as consumer:
            if group is None:
                consumer.assign([TopicPartition(topic, 0)])
            else:
                consumer.subscribe([topic])
            for _ in range(20):
                if found := consumer.poll(0.5):
                    return len(found)
        return 0

    secured.allow(f"write topic {topic}")
    with secured.cluster.producer() as producer:
        producer.send(topic, b"v").result(T)
    refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, read)
    refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, lambda: read("g"))
    secured.allow(f"read topic {topic}", "read group g")
    assert read() == 1
    assert read("g") == 1


def test_a_transaction_of_the_sdk_needs_its_id(secured: Secured) -> None:
    topic = secured.topic()
    secured.allow(f"write topic {topic}")

    def commit() -> None:
        with secured.cluster.producer(transactional_id="tx-1", max_block_ms=5_000) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send(topic, b"v")

    refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, commit)
    secured.allow("write transactional_id tx-*")
    commit()


def test_an_administrator_of_the_sdk_sees_and_changes_what_it_may(secured: Secured) -> None:
    topic, hidden = secured.topic(), secured.topic("hidden")
    with secured.cluster.admin(default_api_timeout_ms=5_000) as admin:
        assert admin.list_topics() == []
        refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, admin.describe_cluster)
        refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, admin.describe_log_dirs)
        refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, admin.describe_acls)
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, lambda: admin.describe_topics([hidden]))
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, lambda: admin.delete_topics([hidden]))
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, lambda: admin.create_partitions({hidden: 2}))
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, lambda: admin.describe_configs([ConfigResource("topic", hidden)]))
        secured.allow(f"delete topic {topic}", "describe cluster")
        assert [found.name for found in admin.list_topics()] == [topic]
        assert len(admin.describe_cluster().brokers) == 1
        admin.delete_topics([topic])
        assert len(admin.describe_acls()) == 2
        mine = AclFilter(operation=AclOperation.DELETE)
        refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, lambda: admin.delete_acls([mine]))
        secured.allow("alter cluster")
        assert [acl.resource_name for acl in admin.delete_acls([mine])] == [topic]
        again = AclBinding(
            ResourceType.GROUP, "g", PatternType.LITERAL, ME, "*", AclOperation.READ, PermissionType.ALLOW
        )
        admin.create_acls([again, again])
        assert admin.describe_acls(AclFilter(resource_type=ResourceType.GROUP)) == [again]


# --- librdkafka -----------------------------------------------------------------------------------------


def librdkafka_code(call: Callable[[], Any]) -> int:
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException) as caught:
        call()
    return int(caught.value.args[0].code())


def test_librdkafka_sees_kafkas_errors(secured: Secured) -> None:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import Producer as Librdkafka

    topic, other = secured.topic(), secured.topic()
    secured.allow("idempotent_write cluster", f"describe topic {topic}", f"write topic {other}")
    bootstrap = secured.cluster.kafka_bootstrap
    producer = Librdkafka({"bootstrap.servers": bootstrap})
    said: dict[str | None, Any] = {}
    for name in (topic, other):
        producer.produce(name, b"v", on_delivery=lambda error, message: said.update({message.topic(): error}))
    assert producer.flush(T) == 0
    assert said[other] is None
    assert said[topic].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    def consumed(group: str, name: str) -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([name])
            while True:
                message = consumer.poll(T)
                assert message is not None
                error = message.error()
                return 0 if error is None else int(error.code())
        finally:
            consumer.close()

    assert consumed("g", other) == KafkaError.GROUP_AUTHORIZATION_FAILED
    secured.allow("read group g")
    assert consumed("g", other) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    secured.allow(f"read topic {other}")
    assert consumed("g", other) == 0

    transactional = Librdkafka({"bootstrap.servers": bootstrap, "transactional.id": "tx-9"})
    code = librdkafka_code(lambda: transactional.init_transactions(T))
    assert code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
def librdkafka_admin(secured: Secured) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": secured.cluster.kafka_bootstrap})


def test_librdkafka_makes_finds_and_deletes_entries(secured: Secured, librdkafka_admin: AdminClient) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka import admin as a

    anything: Any = None  # the stubs ask for a text
    one = a.AclBinding(
        a.ResourceType.TOPIC, "orders", a.ResourcePatternType.PREFIXED, "User:bob", "*", a.AclOperation.READ,
        a.AclPermissionType.ALLOW,
    )  # fmt: skip
    matching = a.AclBindingFilter(
        a.ResourceType.TOPIC, "orders-eu", a.ResourcePatternType.MATCH, anything, anything, a.AclOperation.ANY,
        a.AclPermissionType.ANY,
    )  # fmt: skip
    (made,) = librdkafka_admin.create_acls([one]).values()
    assert librdkafka_code(lambda: made.result(T)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    secured.allow("alter cluster", "describe cluster")
    (made,) = librdkafka_admin.create_acls([one]).values()
    made.result(T)
    assert librdkafka_admin.describe_acls(matching).result(T) == [one]
    bad = a.AclBinding(
        a.ResourceType.BROKER, "not-the-cluster", a.ResourcePatternType.LITERAL, "User:bob", "*",
        a.AclOperation.ALTER, a.AclPermissionType.ALLOW,
    )  # fmt: skip
    (made,) = librdkafka_admin.create_acls([bad]).values()
    assert librdkafka_code(lambda: made.result(T)) == KafkaError.INVALID_REQUEST
    (deleted,) = librdkafka_admin.delete_acls([matching]).values()
    assert list(deleted.result(T)) == [one]
    assert librdkafka_admin.describe_acls(matching).result(T) == []


def test_librdkafka_lists_and_describes_what_it_may(secured: Secured, librdkafka_admin: AdminClient) -> None:
    from confluent_kafka import KafkaError, TopicCollection
    from confluent_kafka.admin import AclOperation as Operation
    from confluent_kafka.admin import NewTopic

    topic = secured.topic()
    hidden = secured.topic("hidden")
    secured.allow(f"read topic {topic}")
    assert set(librdkafka_admin.list_topics(timeout=T).topics) == {topic}
    described = librdkafka_admin.describe_topics(
        TopicCollection([topic, hidden]), include_authorized_operations=True, request_timeout=T
    )
    found = described[topic].result(T)
    assert set(found.authorized_operations) == {Operation.READ, Operation.DESCRIBE}
    assert librdkafka_code(lambda: described[hidden].result(T)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    (made,) = librdkafka_admin.create_topics([NewTopic("mine-1", 1, 1)]).values()
    assert librdkafka_code(lambda: made.result(T)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    secured.allow("create topic mine-*")
    (made,) = librdkafka_admin.create_topics([NewTopic("mine-1", 1, 1)]).values()
    made.result(T)
    cluster = librdkafka_admin.describe_cluster(include_authorized_operations=True, request_timeout=T).result(T)
    assert not cluster.authorized_operations
    secured.allow("describe cluster")
    cluster = librdkafka_admin.describe_cluster(include_authorized_operations=True, request_timeout=T).result(T)
    assert set(cluster.authorized_operations) == {Operation.DESCRIBE}


# --- aiokafka, kafka-python, and bytes ----------------------------------------------------------------------


def test_aiokafka_sees_kafkas_errors(secured: Secured) -> None:
    import aiokafka.errors as errors
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = secured.topic()
    bootstrap = secured.cluster.kafka_bootstrap

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        try:  # it must be stopped even if it did not start
            await producer.start()
            await producer.send_and_wait(topic, b"v")
        finally:
            await producer.stop()

    async def read() -> int:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            await consumer.start()
            return int((await asyncio.wait_for(consumer.getone(), T)).offset)
        finally:
            await consumer.stop()

    with pytest.raises(errors.TopicAuthorizationFailedError):
        asyncio.run(send())
    secured.allow(f"describe topic {topic}")
    with pytest.raises(errors.TopicAuthorizationFailedError):
        asyncio.run(send())
    secured.allow(f"write topic {topic}")
    asyncio.run(send())
    with pytest.raises(errors.GroupAuthorizationFailedError):
        asyncio.run(read())
    secured.allow("read group g")
    with pytest.raises(errors.TopicAuthorizationFailedError):
        asyncio.run(read())
    secured.allow(f"read topic {topic}")
    assert asyncio.run(read()) == 0


LIST_OFFSETS, EPOCHS = 2, 23
AT = {"partitions": [{"partition_index": 0}]}
TRANSACTION = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
OF_ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
NO_RIGHT = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    )
)
OF_SOMEBODY = {"owner_principal_type": "User", "owner_principal_name": "somebody"}


def asked_of_every_api(topic: str) -> dict[tuple[int, int], dict[str, Any]]:
    """API and version → a request that a stranger may not make."""
    named = {"name": topic, **AT}
    topic_config = {"resources": [{"resource_type": 2, "resource_name": topic, "configs": []}]}
    return {
        (0, 9): {"acks": -1, "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": b""}]}]},
        (1, 11): {"replica_id": -1, "topics": [{"topic": topic, "partitions": [{"partition": 0}]}]},
        (2, 10): {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
        (3, 13): {"topics": [{"name": topic}]},
        (8, 9): {"group_id": "g", "topics": [named]},
        (9, 9): {"groups": [{"group_id": "g", "topics": None}]},
        (10, 6): {"key_type": 0, "coordinator_keys": ["g"]},
        (11, 9): {"group_id": "g", "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]},
        (12, 4): {"group_id": "g", "member_id": "m"},
        (13, 5): {"group_id": "g", "members": [{"member_id": "m"}]},
        (14, 5): {"group_id": "g", "member_id": "m", "protocol_type": "consumer", "protocol_name": "range"},
        (15, 6): {"groups": ["g"], "include_authorized_operations": True},
        (19, 7): {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        (20, 6): {"topics": [{"name": topic}]},
        (21, 2): {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]},
        (22, 5): {"transactional_id": None},
        (23, 4): {"replica_id": -1, "topics": [{"topic": topic, "partitions": [{"partition": 0}]}]},
        (24, 3): {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
        },
        (25, 4): {**TRANSACTION, "group_id": "g"},
        (26, 5): {**TRANSACTION, "committed": True},
        (27, 2): {"markers": [{"producer_id": 1, "topics": [{"name": topic, "partition_indexes": [0]}]}]},
        (28, 5): {**TRANSACTION, "group_id": "g", "topics": [named]},
        (29, 3): OF_ANY,
        (30, 3): {"creations": [{"resource_type": 2, "resource_name": "t", "principal": ME, "host": "*"}]},
        (31, 3): {"filters": [OF_ANY]},
        (32, 4): {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]},
        (33, 2): topic_config,
        (34, 2): {"dirs": [{"path": "/d", "topics": [{"name": topic, "partitions": [0]}]}]},
        (35, 4): {"topics": None},
        (37, 3): {"topics": [{"name": topic, "count": 2, "assignments": None}]},
        (38, 3): {**OF_SOMEBODY, "renewers": [], "max_lifetime": -1},
        (39, 2): {"hmac": b"x", "renew_period": -1},
        (40, 2): {"hmac": b"x", "expiry_time_period": -1},
        (41, 3): {"owners": None},
        (42, 2): {"groups_names": ["g"]},
        (43, 2): {"topic_partitions": None},
        (44, 1): topic_config,
        (45, 1): {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        (46, 0): {"topics": None},
        (47, 0): {"group_id": "g", "topics": [named]},
        (48, 1): {"components": [], "strict": False},
        (49, 1): {"entries": [{"entity": [{"entity_type": "user", "entity_name": None}], "ops": []}]},
        (50, 0): {"users": []},
        (51, 0): {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []},
        (55, 2): {"topics": [{"topic_name": "__cluster_metadata", **AT}]},
        (57, 2): {"feature_updates": [{"feature": "metadata.version", "max_version_level": 1, "upgrade_type": 1}]},
        (61, 0): {"topics": [{"name": topic, "partition_indexes": [0]}]},
        (64, 0): {"broker_id": 1},
        (65, 0): {"transactional_ids": ["x"]},
        (68, 1): {
            "group_id": "g",
            "member_id": "m",
            "rebalance_timeout": 1_000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        },
        (69, 1): {"group_ids": ["g"]},
        (74, 1): {"resource_types": []},
        (75, 0): {"topics": [{"name": topic}], "response_partition_limit": 10, "cursor": None},
    }


LISTS = {(16, 5): "groups", (66, 1): "transaction_states"}
"""They refuse nothing, and show a stranger nothing."""
FREE = {17, 18, 36, 60, 71, 72}
"""The login's, ApiVersions, the brokers' addresses, which Metadata tells too, and clients' own metrics (KIP-714)."""


def codes(value: object) -> Iterator[int]:
    """Every error in an answer, wherever it stands."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        for each in value:
            yield from codes(each)
    for name in getattr(value, "_fields", ()):
        found = getattr(value, name)
        if name in ("error_code", "partition_error_code"):
            yield int(found)
        else:
            yield from codes(found)


def test_no_api_serves_a_stranger(secured: Secured) -> None:
    hidden = secured.topic("hidden")
    asked = asked_of_every_api(hidden)
    served = {key for key, _ in (*asked, *LISTS)} | FREE
    with WireClient(secured.cluster.kafka_bootstrap) as wire:
        assert served == {found.api_key for found in wire.ask(18, 2).api_keys}
        for (key, version), body in asked.items():
            found = set(codes(wire.ask(key, version, **body))) - {0}
            assert found, f"API {key} was served"
            assert found <= NO_RIGHT, (key, found)
        for (key, version), shown in LISTS.items():
            assert getattr(wire.ask(key, version), shown) == ()


def test_names_are_told_to_nobody_by_no_version(secured: Secured) -> None:
    """Topics that are there and topics that are not are refused alike."""
    hidden = secured.topic("hidden")
    with WireClient(secured.cluster.kafka_bootstrap) as wire:
        for name in (hidden, "nobody"):
            for version in (2, 4):
                (topic,) = wire.ask(
                    EPOCHS, version, topics=[{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
                ).topics
                assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            (topic,) = wire.ask(
                LIST_OFFSETS, 5, topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            ).topics
            assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_hidden_topic_is_unknown_by_its_id_on_a_stream(secured: Secured) -> None:
    topic = secured.topic("hidden")
    replicas, topic_id = secured.replicas(topic)

    async def asked() -> tuple[ErrorCode, ErrorCode]:
        part = FetchPartition(topic_id, 0, NO_LEADER_EPOCH, Offset(0), NO_LEADER_EPOCH, Offset(-1), 100)
        fetched = await replicas.fetch(FetchRequest(NO_NODE, BrokerEpoch(-1), 0, 0, 1000, False, [part]))
        produced = replicas.produce(ProduceRequest(-1, 1000, [ProducePartition(topic_id, 0, b"")]))
        assert isinstance(produced, list)
        return fetched.partitions[0].error, produced[0].error

    assert secured.cluster._run(asked()) == (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    secured.allow(f"describe topic {topic}")
    no_right = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert secured.cluster._run(asked()) == (no_right, no_right)


TINY = HEADER.pack(0, HEADER_SIZE - LENGTH_OVERHEAD, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 0)
LARGE = 12 * 2**20
HELD_S_MAX = 0.25
"""Each batch looked at, these records hold the loop for a second or more."""


@pytest.mark.parametrize("may", [False, True])
@pytest.mark.parametrize("records", [bytes(LARGE), TINY * (LARGE // len(TINY))], ids=["zeros", "tiny batches"])
def test_records_do_not_hold_the_loop_whether_their_sender_may_write_them_or_not(
    secured: Secured, records: bytes, may: bool
) -> None:
    topic = secured.topic("heavy")
    if may:
        secured.allow(f"write topic {topic}")
    expected = ErrorCode.INVALID_RECORD if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if may and records.startswith(TINY):
        expected = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # too many of them to tell
    with WireClient(secured.cluster.kafka_bootstrap) as wire:
        began_s = secured.loop_s()
        partition = {"index": 0, "records": records}
        topics = [{"name": topic, "partition_data": [partition]}]
        answer = wire.ask(0, 11, acks=1, timeout_ms=1000, topic_data=topics)
        held_s = secured.loop_s() - began_s
    assert answer.responses[0].partition_responses[0].error_code == expected
    assert held_s < HELD_S_MAX


@pytest.mark.parametrize("may", [False, True])
def test_records_on_a_stream_do_not_hold_the_loop(secured: Secured, may: bool) -> None:
    topic = secured.topic("heavy")
    secured.allow(f"{'write' if may else 'describe'} topic {topic}")
    replicas, topic_id = secured.replicas(topic)

    async def held() -> tuple[ErrorCode, float]:
        began_s = time.thread_time()
        request = ProduceRequest(-1, 1000, [ProducePartition(topic_id, 0, bytes(LARGE))])
        produced = replicas.produce(request)
        assert isinstance(produced, list)
        return produced[0].error, time.thread_time() - began_s

    error, held_s = secured.cluster._run(held())
    assert error is (ErrorCode.CORRUPT_MESSAGE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert held_s < HELD_S_MAX


def test_records_of_a_transaction_that_nobody_names_are_refused(secured: Secured) -> None:
    """CVE-2018-17196. Behind others, too, and with them whatever else is in the request."""
    topic = secured.topic("mine")
    secured.allow(f"write topic {topic}")
    replicas, topic_id = secured.replicas(topic)
    plain = encode_values([b"v"], 1)
    hidden = plain + encode_values([b"v"], 1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def produced(*records: bytes) -> list[ErrorCode]:
        parts = [ProducePartition(topic_id, 0, each) for each in records]
        answered = replicas.produce(ProduceRequest(1, 1000, parts))
        return [each.error for each in (answered if isinstance(answered, list) else await answered)]

    denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert secured.cluster._run(produced(bytes(plain))) == [ErrorCode.NONE]
    assert secured.cluster._run(produced(bytes(plain), bytes(hidden))) == [denied, denied]


@pytest.mark.parametrize("allowed", [(), ("seen",), ("seen", "hidden")], ids=["nothing", "some", "all"])
def test_what_is_named_twice_is_answered_and_ends_no_node(secured: Secured, allowed: tuple[str, ...]) -> None:
    """Answers leave out what was named before; those who put refusals between them must not miss it."""
    names = {what: secured.topic(what) for what in ("seen", "hidden")}
    secured.allow("all group g", *(f"all topic {names[what]}" for what in allowed))
    twice = [*names.values()] * 2
    indexes = [0, 0]
    with WireClient(secured.cluster.kafka_bootstrap) as wire:
        found = wire.ask(3, 12, topics=[{"topic_id": bytes(16), "name": name} for name in twice]).topics
        assert sorted(topic.name for topic in found) == sorted(names.values())
        offsets_of = [{"name": name, "partition_indexes": indexes} for name in twice]
        until = time.monotonic() + 30
        while (fetched := wire.ask(9, 7, group_id="g", topics=offsets_of)).error_code:
            assert time.monotonic() < until, fetched
            wire.ask(10, 6, key_type=0, coordinator_keys=["g"])  # makes the coordinators' topic
            time.sleep(0.1)
        assert {topic.name for topic in fetched.topics} == set(names.values())
        offsets = [{"partition_index": 0, "timestamp": -1}] * 2
        wire.ask(LIST_OFFSETS, 5, topics=[{"name": name, "partitions": offsets} for name in twice])
        epochs = [{"partition": 0, "leader_epoch": 0}] * 2
        wire.ask(EPOCHS, 4, topics=[{"topic": name, "partitions": epochs} for name in twice])
        records = [{"partition_index": 0, "offset": 0}] * 2
        wire.ask(21, 2, timeout=1000, topics=[{"name": name, "partitions": records} for name in twice])
        committed = [{"partition_index": 0, "committed_offset": 0}] * 2
        wire.ask(8, 8, group_id="g", topics=[{"name": name, "partitions": committed} for name in twice])
        resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in twice]
        wire.ask(32, 4, resources=resources)
        wire.ask(20, 6, timeout=1000, topics=[{"name": name, "topic_id": bytes(16)} for name in twice])
