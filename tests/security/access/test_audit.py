"""The audit log: what it says, what it never says, and its bounds."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import errno
import json
import time
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.conftest import Certificates
from tidelog import Admin, NewTopic, Producer, errors
from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.changes import CHANGES, audited
from tidelog.broker.access.nodes import NodeGuard
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.node.audit_file import AuditFile, AuditWriter
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, ProducerEpoch, ProducerId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls import (
    api,
    audit_api,
    consumer_group_api,
    group_api,
    reassignment_api,
    sink_api,
    transaction_api,
    user_api,
)
from tidelog.proto.calls.controller_api import FetchMetadataSnapshotRequest
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.network import CallContext
from tidelog.security.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.audit import TEXT_MAX, TOUCHED_MAX, Audit, AuditEvent, AuditKind, Touched
from tidelog.security.principal import Principal
from tidelog.security.session import Session
from tidelog.storage.disk.files import FILE_MODE, SystemFile, SystemFiles
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SECRET = "a value that nobody may see"
ALL = tuple(AuditKind)


class Still:
    """A clock that stands."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    monotonic_ms = now_ms


def audit(most: int = 100, kinds: tuple[AuditKind, ...] = ALL) -> Audit:
    return Audit(kinds, most, Still(), 7)


def denial(name: str, principal: str = "User:mallory") -> AuditEvent:
    touched = (Touched("topic", name),)
    return AuditEvent(AuditKind.DENIED, principal, "10.0.0.9", "KAFKA", False, "Fetch", "read", touched)


def lines(found: Audit) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in found.take()]


# --- What it keeps ------------------------------------------------------------------------------------------


def test_a_denial_says_who_what_from_where_and_why() -> None:
    found = audit()
    found.note(denial("orders"), lambda: "DefaultDeny")
    (line,) = lines(found)
    assert line == {
        "time": 1_700_000_000_000,
        "class_uid": 6003,
        "class_name": "API Activity",
        "category_uid": 6,
        "activity_id": 2,
        "type_uid": 600302,
        "severity_id": 3,
        "status": "Failure",
        "status_id": 2,
        "count": 1,
        "message": "DefaultDeny",
        "src_endpoint": {"ip": "10.0.0.9"},
        "metadata": {
            "version": "1.3.0",
            "product": {"name": "Tidelog", "vendor_name": "Tidelog"},
            "log_name": "denied",
            "uid": "7-1700000000000-1",
        },
        "unmapped": {"node": 7, "listener": "KAFKA"},
        "actor": {
            "user": {"name": "User:mallory", "type": "User"},
            "authorizations": [{"decision": "DENY", "policy": {"name": "read", "desc": "DefaultDeny"}}],
        },
        "api": {"operation": "Fetch"},
        "resources": [{"type": "topic", "name": "orders"}],
    }


def test_a_login_is_of_its_own_class() -> None:
    found = audit()
    found.note(AuditEvent(AuditKind.AUTHENTICATION, "User:alice", "::1", "CLIENT", True, "SSL"))
    (line,) = lines(found)
    assert (line["class_uid"], line["type_uid"], line["auth_protocol"]) == (3002, 300201, "SSL")
    assert line["user"]["name"] == "User:alice"
    assert line["status"] == "Success"


def test_equal_events_are_one_line_with_a_count() -> None:
    found = audit()
    asked: list[str] = []

    def why() -> str:
        asked.append("why")
        return "why"

    for _ in range(50):
        found.note(denial("orders"), why)
        found.note(denial("bills"))
    assert sorted((line["resources"][0]["name"], line["count"]) for line in lines(found)) == [
        ("bills", 50),
        ("orders", 50),
    ]
    assert asked == ["why"], "the reason is looked for once"
    assert lines(found) == []


def test_what_is_too_much_is_dropped_and_counted_and_crowds_out_no_other_kind() -> None:
    found = audit(most=10)
    for number in range(1_000):
        found.note(denial(f"t{number}"))
    found.note(AuditEvent(AuditKind.CHANGE, "User:root", "::1", "CLIENT", True, "DeleteTopics", "", ()))
    assert found.dropped == 995
    assert found.noted == {AuditKind.DENIED: 1_000, AuditKind.CHANGE: 1}
    *told, lost = lines(found)
    assert len(told) == 6
    assert (lost["class_uid"], lost["count"], lost["message"]) == (1008, 995, "more than audit.events.max")
    found.note(denial("later"))
    assert len(lines(found)) == 1, "the next second has room again"


def test_one_event_is_kept_however_large_and_is_cut() -> None:
    found = audit(most=5)
    touched = tuple(Touched("topic", "n" * 5_000, "c" * 5_000) for _ in range(TOUCHED_MAX + 3))
    found.note(AuditEvent(AuditKind.CHANGE, "p" * 5_000, "::1", "CLIENT", True, "CreateTopics", "", touched))
    (line,) = lines(found)
    assert len(line["resources"]) == TOUCHED_MAX
    assert line["unmapped"]["resources_left_off"] == 3
    assert len(json.dumps(line)) < (TOUCHED_MAX + 2) * 2 * (TEXT_MAX + 100)


def test_kinds_that_are_not_wanted_are_not_kept() -> None:
    found = audit(kinds=(AuditKind.CHANGE,))
    found.note(denial("orders"))
    assert (lines(found), found.noted) == ([], {})


# --- The file -----------------------------------------------------------------------------------------------


def test_files_rotate_and_are_their_owners(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.log"
    file = AuditFile(SystemFiles(), str(path), 100, 3)
    for number in range(10):
        file.append(f"{number:049d}\n".encode())
    found = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert sorted(found) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert [int(line) for name in sorted(found, reverse=True) for line in found[name].split()] == [4, 5, 6, 7, 8, 9]
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {FILE_MODE}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_torn_line_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"torn"')
    AuditFile(SystemFiles(), str(path), 1_000, 3).append(b"whole\n")
    assert path.read_bytes() == b'{"torn"\nwhole\n'


class FullDisk(SystemFiles):
    """Writes a part, then has no room."""

    full = True

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        disk, file = self, super().open(path, create=create, exclusive=exclusive)

        class Full(SystemFile):
            def pwritev(self, buffers: Any, offset: int) -> int:
                if not disk.full:
                    return super().pwritev(buffers, offset)
                super().pwritev((b"half a li",), offset)
                raise OSError(errno.ENOSPC, "no room")

        return Full(file.fileno())


def test_a_full_disk_loses_lines_says_so_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"before\n")
    disk, found = FullDisk(), audit()

    async def inline(action: Callable[[], None]) -> None:
        action()

    async def lose_and_go_on() -> int:
        writer = AuditWriter(found, AuditFile(disk, str(path), 10_000, 3), inline)
        for _ in range(3):
            found.note(denial("lost"))
            found.note(denial("lost"))
            await writer.flush()
        assert path.read_bytes() == b"before\n", "no half of a line"
        disk.full = False
        found.note(denial("written"))
        await writer.flush()
        return writer.dropped

    assert asyncio.run(lose_and_go_on()) == 6
    assert len(caplog.records) == 1
    assert "no room" in caplog.text
    told, written = map(json.loads, path.read_bytes().splitlines()[1:])
    assert (told["class_uid"], told["count"]) == (1008, 6)
    assert written["resources"][0]["name"] == "written"


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    found = audit(most=10)

    async def hang() -> None:
        entered, never = asyncio.Event(), asyncio.Event()

        async def stuck(_: Callable[[], None]) -> None:
            entered.set()
            await never.wait()

        writer = AuditWriter(found, AuditFile(SystemFiles(), str(tmp_path / "a"), 10_000, 3), stuck)
        running = asyncio.create_task(writer.run())
        found.note(denial("first"))
        await entered.wait()
        for number in range(1_000):
            found.note(denial(f"t{number}"))
        assert len(found._folded) == 5
        assert found.dropped == 995
        never.set()
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(hang())


# --- What calls tell ----------------------------------------------------------------------------------------

READS = {
    api.MetadataRequest,
    api.DescribeClusterRequest,
    api.DescribeConfigsRequest,
    api.DescribeLogDirsRequest,
    api.ListOffsetsRequest,
    api.OffsetForLeaderEpochRequest,
    reassignment_api.ListPartitionReassignmentsRequest,
    group_api.OffsetFetchRequest,
    group_api.ListGroupsRequest,
    group_api.DescribeGroupsRequest,
    consumer_group_api.ConsumerGroupDescribeRequest,
    transaction_api.DescribeTransactionsRequest,
    api.ListConfigResourcesRequest,
    transaction_api.ListTransactionsRequest,
    transaction_api.DescribeLineageRequest,
    transaction_api.DescribeProducersRequest,
    sink_api.DescribeSinksRequest,
    sink_api.ListSinksRequest,
}
DATA = {
    user_api.SaslAuthenticateRequest,
    group_api.JoinGroupRequest,
    group_api.SyncGroupRequest,
    group_api.HeartbeatRequest,
    group_api.LeaveGroupRequest,
    consumer_group_api.ConsumerGroupHeartbeatRequest,
    transaction_api.InitProducerIdRequest,
    transaction_api.AddPartitionsToTxnRequest,
    transaction_api.AddOffsetsToTxnRequest,
    transaction_api.EndTxnRequest,
    transaction_api.TxnOffsetCommitRequest,
    sink_api.BeginSinkTransactionRequest,
    sink_api.CommitBatchRequest,
    audit_api.AppendAuditRequest,
}


def test_every_call_is_a_change_or_known_to_be_none() -> None:
    named = {request.__name__ for request in PERMISSIONS if request not in CHANGES and request not in READS | DATA}
    left = {name for name in named if not name.startswith(("Describe", "FindCoordinator"))}
    assert left == set(), "a request that changes the cluster needs a row in broker/access/changes.py"


NAMES = {
    *("name", "names", "topic", "topics", "group_id", "group_ids", "resource_type", "resource_name", "pattern_type"),
    *("principal", "host", "operation", "permission", "sink", "election", "entity_type", "entity_name", "key"),
    *("user", "owner", "token_id", "transactional_id"),
}
"""Fields of requests and answers whose text may be told. All others hold the secret."""


def values_of(kind: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Values of a type of messages; the secret wherever a field is not named in :data:`NAMES`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(each, field) for each in inner])
    if origin is tuple:
        return st.lists(values_of(inner[0], field), max_size=3).map(tuple)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(
            kind,
            **{each.name: values_of(hints[each.name], each.name) for each in dataclasses.fields(kind) if each.init},
        )
    if kind is type(None):
        return st.none()
    base = getattr(kind, "__supertype__", kind)
    while hasattr(base, "__supertype__"):
        base = base.__supertype__
    if base is str:
        return st.sampled_from(["orders", "bills"]) if field in NAMES else st.just(SECRET)
    if base is bytes:
        return st.just(SECRET.encode()[:16])
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return st.sampled_from(base)
    return st.from_type(base).filter(lambda value: value == value)


def told(request: Request[Any], answer: object, listener: str = "CLIENT") -> str:
    """The lines about a call; ``answer`` ``None``: it was cancelled."""

    async def handle(_: object, __: CallContext) -> Any:
        if answer is None:
            raise asyncio.CancelledError
        return answer

    found = audit(kinds=(AuditKind.CHANGE,))
    control = AccessControl(NodeConfig.parse({"node.id": "1"}), found)
    control.node_listeners = frozenset({"REPLICATION"})
    calls = audited({type(request): handle}, control, MetadataImage)
    context = CallContext(listener, "ipv4:10.0.0.1:5", Session(Principal("User", "root")))

    async def ask() -> None:
        try:
            await calls[type(request)](request, context)
        except asyncio.CancelledError:
            assert answer is None

    asyncio.run(ask())
    return "".join(line.text.decode() for line in found.take())


@settings(max_examples=40, deadline=None)
@given(st.data())
@pytest.mark.parametrize("request_type", CHANGES, ids=lambda found: found.__name__)
def test_no_secret_of_a_change_is_told(request_type: type[Request[Any]], data: st.DataObject) -> None:
    (answer_type,) = typing.get_args(request_type.__orig_bases__[0])  # type: ignore[attr-defined]
    module = __import__(request_type.__module__, fromlist=["x"])
    if isinstance(answer_type, typing.ForwardRef):
        answer_type = getattr(module, answer_type.__forward_arg__)
    elif isinstance(answer_type, str):
        answer_type = getattr(module, answer_type)
    request = data.draw(values_of(request_type))
    answer = data.draw(st.none() | values_of(answer_type))
    assert SECRET[:16] not in told(request, answer)


def test_a_change_tells_names_and_errors_item_by_item() -> None:
    resource = api.ConfigResource("topic", "orders")
    changes = (api.ConfigChange("retention.ms", "set", SECRET), api.ConfigChange("segment.ms", "delete"))
    request = api.IncrementalAlterConfigsRequest((api.AlterResource(resource, changes),))
    failed = api.AlteredResource(resource, errors.ErrorCode.INVALID_CONFIG, SECRET)
    line = json.loads(told(request, api.IncrementalAlterConfigsResponse((failed,))))
    data = {"change": "set retention.ms, delete segment.ms", "error": "INVALID_CONFIG"}
    assert line["resources"] == [{"type": "topic", "name": "orders", "data": data}]
    assert (line["api"]["operation"], line["status"]) == ("IncrementalAlterConfigs", "Failure")
    assert line["actor"]["user"]["name"] == "User:root"


def test_a_call_that_was_given_up_has_an_unknown_outcome() -> None:
    line = json.loads(told(api.DeleteTopicsRequest(names=("orders",)), None))
    assert line["resources"] == [{"type": "topic", "name": "orders", "data": {"error": "OUTCOME_UNKNOWN"}}]
    assert line["status"] == "Failure"


def test_what_only_looks_like_a_change_is_not_told() -> None:
    topic = api.NewTopic("orders")
    made = api.CreateTopicsResponse((api.CreatedTopic("orders", errors.ErrorCode.NONE),))
    assert told(api.CreateTopicsRequest((topic,), validate_only=True), made) == ""
    commit = group_api.OffsetCommitRequest("g", 5, "member", None, ())
    assert told(commit, group_api.OffsetCommitResponse(())) == ""


def test_a_stolen_nodes_key_is_told() -> None:
    found = audit()
    pattern = "User:CN=node-{id}"
    made = NodeConfig.parse({"node.id": "1", "node.principal.pattern": pattern})

    async def handle(_: object, __: CallContext) -> Any:
        raise AssertionError

    guard = NodeGuard(AccessControl(made, found), pattern)
    request = FetchMetadataSnapshotRequest(NodeId(2), *[0] * 3)  # type: ignore[arg-type]
    calls: Any = guard.calls({type(request): handle})
    asyncio.run(calls[type(request)](request, CallContext("C", "10.0.0.3:4", Session(Principal("User", "CN=node-3")))))
    login, line = lines(found)
    assert login["user"]["name"] == "User:CN=node-3"
    assert line["api"]["operation"] == "FetchMetadataSnapshot"
    assert line["message"].startswith("expected User:CN=node-2 to speak as node 2")


# --- On a node ----------------------------------------------------------------------------------------------


class Audited:
    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster = cluster
        self.path = path

    def found(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The lines of a sort, once there are some."""
        deadline = time.monotonic() + 60
        while True:
            text = self.path.read_text() if self.path.exists() else ""
            if found := [line for line in map(json.loads, text.splitlines()) if wanted(line)]:
                return found
            assert time.monotonic() < deadline, text
            time.sleep(0.02)


@pytest.fixture(scope="module")
def node(kept_certificates: Certificates) -> Iterator[Audited]:
    settings = kept_certificates.settings("KAFKA CLIENT REPLICATION CONTROLLER", "required")
    path = kept_certificates.directory / "log" / "audit.log"
    settings |= {
        "ssl.principal.mapping.rules": r"RULE:^CN=(.*)$/$1/",
        "authorizer.class.name": STANDARD,
        "super.users": "User:node;User:root",
        "audit.log.path": str(path),
    }
    with Cluster(nodes=1, transport="grpc", config=settings) as cluster:
        yield Audited(cluster, path)


def by(user: str, request: str) -> Callable[[dict[str, Any]], bool]:
    def wanted(line: dict[str, Any]) -> bool:
        asked: str = line.get("api", {}).get("operation", "")
        return asked == request and bool(line["actor"]["user"]["name"] == f"User:{user}")

    return wanted


def test_both_protocols_tell_of_denials(node: Audited, kept_certificates: Certificates) -> None:
    with Admin(node.cluster.bootstrap, **kept_certificates.client("root")) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        admin.create_acls(
            [
                AclBinding(
                    *(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:mallory", "*"),
                    *(AclOperation.DESCRIBE, PermissionType.ALLOW),
                )
            ]
        )
    with (
        Producer(node.cluster.bootstrap, enable_idempotence=False, **kept_certificates.client("mallory")) as producer,
        pytest.raises(errors.TidelogError),
    ):
        producer.send("orders", SECRET.encode(), key=SECRET.encode(), headers=[("h", SECRET.encode())]).result(20)
    (line, *_) = node.found(by("mallory", "Produce"))
    assert line["resources"] == [{"type": "topic", "name": "orders"}]
    assert line["actor"]["authorizations"][0]["policy"]["name"] == "write"
    assert line["src_endpoint"]["ip"] == "127.0.0.1"

    other = confluent_kafka.Consumer(
        kept_certificates.librdkafka(node.cluster.kafka_bootstrap, "mallory") | {"group.id": "mallory's"}
    )
    other.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    deadline, codes = time.monotonic() + 30, set[int]()
    while confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED not in codes:
        assert time.monotonic() < deadline, codes
        if (message := other.poll(1)) is not None and (error := message.error()) is not None:
            codes.add(error.code())
    other.close()
    (line, *_) = node.found(by("mallory", "Fetch"))
    assert line["message"] == "DefaultDeny"
    assert line["unmapped"]["listener"] == "KAFKA"


def test_changes_and_logins_are_told_and_no_secret_is(node: Audited, kept_certificates: Certificates) -> None:
    key = Path(kept_certificates.user("root")).read_text()
    with Admin(node.cluster.bootstrap, **kept_certificates.client("root")) as admin:
        admin.create_topics([NewTopic("bills", 1)])
        admin.alter_topic_configs("bills", {"retention.ms": "12345678"})
        with pytest.raises(errors.TidelogError):
            admin.alter_topic_configs("bills", {"retention.ms": SECRET})
    (line, *_) = node.found(by("root", "IncrementalAlterConfigs"))
    assert line["resources"][0]["data"] == {"change": "set retention.ms"}
    assert node.found(lambda line: line["class_uid"] == 3002 and line["user"]["name"] == "User:root")
    text = node.path.read_text()
    secrets = [SECRET, "12345678", *[row for row in key.splitlines() if len(row) > 40]]
    assert [each for each in secrets if each in text] == []


def test_a_topic_that_is_made_by_use_is_told(node: Audited, kept_certificates: Certificates) -> None:
    with Producer(node.cluster.bootstrap, **kept_certificates.client("root")) as producer:
        producer.send("used", b"v").result(30)
    said = {"type": "topic", "name": "used", "data": {"change": "by use"}}
    assert node.found(lambda line: by("root", "CreateTopics")(line) and line["resources"] == [said])


def test_markers_are_told_unless_a_coordinator_sends_them() -> None:
    marker = transaction_api.TransactionMarker(
        ProducerId(7), ProducerEpoch(0), False, 3, (group_api.GroupPartition("t", 2),)
    )
    request = transaction_api.WriteTxnMarkersRequest((marker,))
    result = transaction_api.AddedPartition("t", 2, ErrorCode.INVALID_PRODUCER_EPOCH)
    answer = transaction_api.WriteTxnMarkersResponse((transaction_api.WrittenMarker(ProducerId(7), (result,)),))
    (line,) = map(json.loads, told(request, answer).splitlines())
    assert line["resources"] == [
        {"type": "topic", "name": "t", "data": {"change": "partition 2: abort 7", "error": "INVALID_PRODUCER_EPOCH"}}
    ]
    assert told(request, answer, listener="REPLICATION") == ""


def test_what_a_client_prepares_is_told_and_what_a_sink_prepares_is_not() -> None:
    done = transaction_api.PrepareTransactionResponse(ErrorCode.NONE)
    prepare = transaction_api.PrepareTransactionRequest("x", ProducerId(1), ProducerEpoch(0))
    (line,) = map(json.loads, told(prepare, done).splitlines())
    assert line["resources"] == [{"type": "transactional_id", "name": "x", "data": {"change": "prepare"}}]
    sinks = transaction_api.PrepareTransactionRequest("__sink/s/0/j/a", ProducerId(1), ProducerEpoch(0))
    assert told(sinks, done) == ""


def test_a_failed_login_names_the_user_that_was_tried(tmp_path: Path) -> None:
    settings = {"audit.log.path": str(tmp_path / "audit.log")}
    with Cluster(nodes=1, transport="grpc", security="scram", config=settings) as cluster:
        cluster.add_user("alice", "right")
        audited_node = Audited(cluster, tmp_path / "audit.log")
        wrong = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "alice", "sasl_password": SECRET}
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            with (
                pytest.raises(errors.TidelogError),
                Admin(cluster.bootstrap, sasl_mechanism=mechanism, **wrong) as admin,  # type: ignore[arg-type]
            ):
                admin.describe_cluster()
        client = confluent_admin.AdminClient(
            {
                "bootstrap.servers": cluster.kafka_bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "bob",
                "sasl.password": SECRET,
            }
        )
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=3)
        for user in ("alice", "bob"):
            (line, *_) = audited_node.found(
                lambda line, user=user: line["class_uid"] == 3002 and line["user"]["name"] == f"User:{user}"  # type: ignore[misc]
            )
            assert (line["status"], line["src_endpoint"]["ip"]) == ("Failure", "127.0.0.1")
        assert SECRET not in audited_node.path.read_text()


def test_a_refused_certificate_is_told(node: Audited, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    roots = node.path.parent.parent / "ca.pem"
    client = confluent_admin.AdminClient(
        stranger.librdkafka(node.cluster.kafka_bootstrap, "alice") | {"ssl.ca.location": str(roots)}
    )
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=3)
    (line, *_) = node.found(lambda line: line["class_uid"] == 3002 and line["status"] == "Failure")
    assert "expected a client certificate from an authority in the truststore" in line["message"]
    assert line["unmapped"]["listener"] == "KAFKA"


def test_lists_that_are_made_shorter_deny_nothing(node: Audited, kept_certificates: Certificates) -> None:
    client = confluent_admin.AdminClient(kept_certificates.librdkafka(node.cluster.kafka_bootstrap, "nobody"))
    assert client.list_topics(timeout=20).topics == {}
    with pytest.raises(confluent_kafka.KafkaException):
        client.create_topics([confluent_admin.NewTopic("mine", 1)])["mine"].result(20)
    (line,) = node.found(by("nobody", "CreateTopics"))
    assert line["resources"] == [{"type": "topic", "name": "mine"}], "of two rights that would do, the last is told"
    denied = [line for line in map(json.loads, node.path.read_text().splitlines()) if by("nobody", "Metadata")(line)]
    assert denied == []


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({}, None),
        ({"audit.log.path": "/x/a.log"}, "/x/a.log"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:a"}, "data/audit.log"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:a", "audit.kinds": ""}, None),
    ],
)
def test_where_the_log_is(more: dict[str, str], path: str | None) -> None:
    assert NodeConfig.parse({"node.id": "1"} | more).audit_path == path


def test_a_cluster_without_access_control_tells_of_changes(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with Cluster(nodes=1, config={"audit.log.path": str(path)}) as cluster:
        cluster.create_topic("orders")
        (line,) = Audited(cluster, path).found(lambda _: True)
    assert (line["api"]["operation"], line["actor"]["user"]["name"]) == ("CreateTopics", "User:ANONYMOUS")
