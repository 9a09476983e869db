"""The audit log in a topic: what reaches it, who may see it, what is dropped, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    Consumer,
    NewTopic,
    PatternType,
    PermissionType,
    Producer,
    ResourceType,
    errors,
)
from tidelog.broker.access.access import Access, Trail
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.node.audit_topic import AuditQueue
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.names import AUDIT_TOPIC
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.audit_api import AppendAuditRequest, AppendAuditResponse
from tidelog.security.acls import CLUSTER_NAME
from tidelog.security.audit import Audit, AuditEvent, AuditKind, AuditLine, Touched
from tidelog.security.authorizer import StandardAuthorizer, Who
from tidelog.testing.cluster import Cluster

from .test_audit import Still, audit, lines

ALICE = Who("User:alice", "10.0.0.1")
DEADLINE_S = 60


# --- The queue --------------------------------------------------------------------------------------------------


def line(number: int, size: int = 100, events: int = 1) -> AuditLine:
    return AuditLine(f"{number}".encode().ljust(size - 1) + b"\n", events)


def told(found: list[AuditLine]) -> list[int]:
    """What lines stand for: their numbers, and below 0 how many events are lost."""
    return [-each.events if each.counted else int(each.text) for each in found]


def test_what_is_too_much_is_dropped_counted_and_told_by_the_next_line() -> None:
    queue = AuditQueue(audit(), 1_000)
    queue.put([line(number, events=2) for number in range(15)])
    assert queue.bytes <= 1_000
    head = queue.head(10_000)
    assert told(head) == [*range(10)]
    assert queue.dropped == 10
    queue.settle(head)
    assert told(queue.head(10_000)) == [-10]
    queue.put([line(15)])
    assert told(queue.head(10_000)) == [-10, 15]
    text = json.loads(queue.head(1)[0].text)
    assert (text["class_uid"], text["count"], text["message"]) == (1008, 10, "more than audit.topic.queue.bytes")


def test_a_line_that_is_larger_than_a_batch_goes_alone() -> None:
    queue = AuditQueue(audit(), 10_000)
    queue.put([line(0), line(1, size=5_000), line(2), line(3)])
    taken = []
    while head := queue.head(250):
        taken.append(told(head))
        queue.settle(head)
    assert taken == [[0], [1], [2, 3]]
    assert queue.empty.is_set()
    assert not queue.waiting.is_set()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1_500), st.integers(1, 5)), max_size=60))
def test_every_event_is_in_the_topic_or_told_as_lost(steps: list[tuple[bool, int, int]]) -> None:
    """Whatever comes and goes, in order, and however large the lines are."""
    queue, arrived, given_events = AuditQueue(audit(), 4_000), list[AuditLine](), 0
    for number, (puts, size, events) in enumerate(steps):
        if puts:
            queue.put([line(number, max(size, 10), events)])
            given_events += events
        else:
            head = queue.head(size)
            arrived += head
            queue.settle(head)
        assert 0 <= queue.bytes <= 4_000
    while head := queue.head(500):
        arrived += head
        queue.settle(head)
    assert sum(each.events for each in arrived) == given_events
    numbers = [int(each.text) for each in arrived if not each.counted]
    assert numbers == sorted(set(numbers))
    assert queue.dropped == sum(each.events for each in arrived if each.counted)


def test_what_waits_at_the_end_is_counted() -> None:
    queue = AuditQueue(audit(), 1_000)
    queue.put([line(0, events=3), line(1)])
    assert queue.close() == 4
    assert (queue.dropped, queue.bytes) == (4, 0)


# --- Rights, and no loop ----------------------------------------------------------------------------------------


def access_of(found: Audit, *allowed: tuple[AclOperation, ResourceType, str]) -> Access:
    made = StandardAuthorizer()
    for number, (operation, kind, name) in enumerate(allowed):
        acl = AclBinding(kind, name, PatternType.LITERAL, ALICE.principal, "*", operation, PermissionType.ALLOW)
        made.add(bytes([number]), acl)
    return Access(made, ALICE, Trail(found, "CLIENT", "Fetch", allowed=True, denied=True))


ON_TOPICS = (AclOperation.ALL, ResourceType.TOPIC, "*")


def on_cluster(operation: AclOperation) -> tuple[AclOperation, ResourceType, str]:
    return operation, ResourceType.CLUSTER, CLUSTER_NAME


def test_a_right_on_all_topics_gives_no_audit_log() -> None:
    reads = {AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}
    every = reads | {AclOperation.WRITE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.DELETE}
    for held, expected in (
        ((ON_TOPICS,), set[AclOperation]()),
        ((ON_TOPICS, on_cluster(AclOperation.DESCRIBE)), reads),
        ((ON_TOPICS, on_cluster(AclOperation.ALTER)), every),
        ((on_cluster(AclOperation.ALTER),), set[AclOperation]()),
    ):
        access = access_of(audit(), *held)
        assert {each for each in every if access.topic(each, AUDIT_TOPIC)} == expected, held
        shown = access.operations(ResourceType.TOPIC, AUDIT_TOPIC)
        assert {each for each in every if shown >> each & 1} == expected, held
        assert access.topic(AclOperation.READ, "orders") is (ON_TOPICS in held)


def test_reading_and_writing_the_topic_makes_no_lines_of_it() -> None:
    """Else each line would make the next one, where what is allowed is told."""
    found = audit()
    rights = (ON_TOPICS, on_cluster(AclOperation.DESCRIBE), on_cluster(AclOperation.CLUSTER_ACTION))
    access = access_of(found, *rights)

    async def serve(_: object) -> AppendAuditResponse:
        return AppendAuditResponse(ErrorCode.NONE)

    def append(access: Access) -> ErrorCode:
        rule = PERMISSIONS[AppendAuditRequest](AppendAuditRequest((b"{}",)), access, MetadataImage(), serve)
        error: ErrorCode = asyncio.run(rule).error  # type: ignore[arg-type]
        return error

    assert append(access) is ErrorCode.NONE
    assert access.topic(AclOperation.READ, AUDIT_TOPIC)
    assert lines(found) == []
    assert access.topic(AclOperation.READ, "orders")
    assert len(lines(found)) == 1, "of other topics it is told"
    stranger = access_of(found)
    assert append(stranger) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not stranger.topic(AclOperation.READ, AUDIT_TOPIC)
    assert [each["status"] for each in lines(found)] == ["Failure"] * 2, "attempts are told"


def test_lines_are_numbered_for_a_nodes_life() -> None:
    found = Audit(tuple(AuditKind), 1, Still(), 3)
    for name in "abc":
        found.note(
            AuditEvent(AuditKind.DENIED, "User:m", "::1", "K", False, "Fetch", "read", (Touched("topic", name),))
        )
    found.note(AuditEvent(AuditKind.CHANGE, "User:m", "::1", "K", True, "DeleteTopics"))
    numbers = [each["metadata"]["uid"] for each in lines(found) + lines(found)]
    assert numbers == [f"3-1700000000000-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, False),
        ({"audit.topic.enable": "true"}, True),
        ({"audit.topic.enable": "true", "audit.kinds": ""}, False),
    ],
)
def test_which_nodes_write_to_it(more: dict[str, str], expected: bool) -> None:
    assert NodeConfig.parse({"node.id": "1"} | more).audits_to_topic is expected


# --- On a cluster -----------------------------------------------------------------------------------------------

SECRET = "a value that nobody may see"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, security="scram", config={"audit.topic.enable": "true"}) as found:
        for name in ("alice", "mallory"):
            found.add_user(name)
        with Admin(found.bootstrap, **found.client_settings("admin")) as admin:
            right = AclOperation.ALL, PermissionType.ALLOW
            admin.create_acls([AclBinding(ResourceType.TOPIC, "*", PatternType.LITERAL, "User:mallory", "*", *right)])
        yield found


def read_until(cluster: Cluster, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """All lines of the topic from its beginning, once they are as wanted; each line once."""
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + DEADLINE_S
    settings = cluster.client_settings("admin")
    with Consumer(cluster.bootstrap, **settings, group_id=None, auto_offset_reset="earliest") as consumer:
        consumer.assign([(AUDIT_TOPIC, 0)])
        while not wanted([*found.values()]):
            assert time.monotonic() < deadline, [*found]
            for record in consumer.poll(timeout=0.2):
                assert record.value is not None
                each = json.loads(record.value)
                found.setdefault(each["metadata"]["uid"], each)
    return [*found.values()]


def consume_something(cluster: Cluster, settings: Any) -> None:
    """Raises what keeps a user from it."""
    with Consumer(cluster.bootstrap, **settings, group_id=None, auto_offset_reset="earliest") as consumer:
        consumer.assign([(AUDIT_TOPIC, 0)])
        for _ in range(DEADLINE_S):
            assert consumer.poll(timeout=1.0) == []


def about(name: str) -> Callable[[list[dict[str, Any]]], bool]:
    """Whether the creation of a topic is told."""
    return lambda found: any(
        resource["name"] == name for each in found for resource in each.get("resources", ()) if "api" in each
    )


def complete(found: list[dict[str, Any]]) -> bool:
    """Whether no line lacks between the first and the last one of each node's life."""
    numbers: dict[str, list[int]] = {}
    for each in found:
        life, _, number = each["metadata"]["uid"].rpartition("-")
        numbers.setdefault(life, []).append(int(number))
    return all(sorted(of) == [*range(1, max(of) + 1)] for of in numbers.values())


def test_the_topic_holds_what_every_node_saw_from_its_start_on(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap, **cluster.client_settings("admin")) as admin:
        admin.create_topics([NewTopic("orders", 1, configs={"retention.ms": "12345678"})])
        (described,) = admin.describe_topics([AUDIT_TOPIC])
    assert described.is_internal
    assert [len(each.replicas) for each in described.partitions] == [3]

    def all_there(found: list[dict[str, Any]]) -> bool:
        return {each["unmapped"]["node"] for each in found} == {1, 2, 3} and about("orders")(found) and complete(found)

    found = read_until(cluster, all_there)
    (made,) = [each for each in found if about("orders")([each])]
    assert (made["actor"]["user"]["name"], made["api"]["operation"]) == ("User:admin", "CreateTopics")
    text = json.dumps(found)
    secrets = [str(cluster.client_settings(user)["sasl_password"]) for user in ("admin", "alice", "mallory")]
    assert [each for each in (*secrets, "12345678") if each in text] == []


def test_who_may_read_write_change_and_delete_it(cluster: Cluster) -> None:
    read_until(cluster, bool)
    mallorys = cluster.client_settings("mallory")
    with Admin(cluster.bootstrap, **mallorys) as admin:
        assert AUDIT_TOPIC not in {topic.name for topic in admin.list_topics(internal=True)}
        with pytest.raises(errors.TidelogError) as caught:
            admin.delete_topics([AUDIT_TOPIC])
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(errors.TidelogError) as caught:
            admin.alter_topic_configs(AUDIT_TOPIC, {"retention.ms": "1"})
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(errors.TidelogError) as caught:
        consume_something(cluster, mallorys)
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for user, code in (
        ("mallory", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("admin", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        with Producer(cluster.bootstrap, **cluster.client_settings(user)) as producer:
            with pytest.raises(errors.TidelogError) as caught:
                producer.send(AUDIT_TOPIC, b"{}").result(30)
            assert caught.value.code is code
    denied = read_until(
        cluster, lambda found: any(each.get("api", {}).get("operation") == "DeleteTopics" for each in found)
    )
    assert SECRET not in json.dumps(denied)


def test_a_dead_leader_costs_no_line_of_the_others(cluster: Cluster) -> None:
    read_until(cluster, bool)
    names = (f"after-{number}" for number in itertools.count())
    leader = cluster.leader_of(AUDIT_TOPIC, 0)
    assert leader is not None
    cluster.kill(leader)
    with Admin(cluster.bootstrap, **cluster.client_settings("admin")) as admin:
        made = [next(names) for _ in range(5)]
        for name in made:
            admin.create_topics([NewTopic(name, 1)])
    cluster.start_node(leader)
    found = read_until(cluster, lambda found: all(about(name)(found) for name in made) and complete(found))
    assert [each for each in found if each["class_uid"] == 1008] == []


def test_a_stop_of_a_node_takes_along_what_it_saw() -> None:
    with Cluster(nodes=1, transport="grpc", config={"audit.topic.enable": "true"}) as cluster:
        cluster.create_topic("last", partitions=1)
        cluster.stop_node(1)
        cluster.start_node(1)
        with Consumer(cluster.bootstrap, group_id=None, auto_offset_reset="earliest") as consumer:
            consumer.assign([(AUDIT_TOPIC, 0)])
            deadline, text = time.monotonic() + DEADLINE_S, b""
            while b'"last"' not in text:
                assert time.monotonic() < deadline, text
                text += b"".join(record.value or b"" for record in consumer.poll(timeout=0.2))
