"""What only nodes may ask, and who may speak as which node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tidelog.broker.access import access
from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.nodes import NodeGuard
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, NodeId, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.calls.api import DescribeClusterRequest
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    FetchMetadataRequest,
    FetchMetadataSnapshotRequest,
)
from tidelog.proto.transport.frames import FetchRequest, encode_fetch_request
from tidelog.proto.transport.network import BadFrame, CallContext, Service, StreamKind
from tidelog.security.authorizer import Who
from tidelog.security.principal import Principal
from tidelog.security.session import Session
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PATTERN = "User:CN=node-{id}.example"
HEARTBEAT = BrokerHeartbeatRequest(NodeId(2), BrokerEpoch(1), Offset(1), want_fence=False, want_shut_down=False)


def config(**settings: str) -> NodeConfig:
    return NodeConfig.parse({"node.id": "1"} | {name.replace("_", "."): text for name, text in settings.items()})


def context(principal: str) -> CallContext:
    return CallContext("CONTROLLER", "127.0.0.1:5", Session(Principal.parse(principal)))


def asked(guard: NodeGuard, request: Any, principal: str) -> tuple[Any, bool]:
    """The answer, and whether the handler was reached."""
    reached = []

    async def handle(request: object, _: CallContext) -> BrokerHeartbeatResponse:
        reached.append(request)
        return BrokerHeartbeatResponse(ErrorCode.NONE)

    calls = guard.service(Service({type(request): handle}, {})).calls
    return asyncio.run(calls[type(request)](request, context(principal))), bool(reached)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "request_",
    [
        HEARTBEAT,
        FetchMetadataRequest(NodeId(2), Offset(0), ControllerEpoch(0), 0),
        FetchMetadataSnapshotRequest(NodeId(2), Offset(0), ControllerEpoch(0), 0),
        DescribeClusterRequest(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_controller_answers_nodes_alone(request_: object) -> None:
    made = config(authorizer_class_name=STANDARD, super_users="User:node;User:admin")
    guard = NodeGuard(AccessControl(made), None)
    answer, reached = asked(guard, request_, "User:alice")
    assert (answer.error, reached) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, False)
    assert asked(guard, request_, "User:node") == (BrokerHeartbeatResponse(ErrorCode.NONE), True)


def test_a_nodes_principal_speaks_for_that_node_alone() -> None:
    made = config(
        authorizer_class_name=STANDARD,
        super_users="User:CN=node-1.example;User:CN=node-2.example",
        node_principal_pattern=PATTERN,
    )
    guard = NodeGuard(AccessControl(made), made.node_principal_pattern)
    assert asked(guard, HEARTBEAT, "User:CN=node-2.example")[1]
    answer, reached = asked(guard, HEARTBEAT, "User:CN=node-1.example")
    assert (answer.error, reached) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, False)
    assert "expected User:CN=node-2.example to speak as node 2" in answer.error_message


def test_a_machines_principal_speaks_for_its_workers_alone() -> None:
    made = config(node_principal_pattern="User:CN=node-{machine}.example")
    guard = NodeGuard(AccessControl(made), made.node_principal_pattern)
    for node, machine, admitted in ((2, 2, True), (1002, 2, True), (3002, 2, True), (1003, 2, False), (1002, 1, False)):
        request = replace(HEARTBEAT, node_id=NodeId(node))
        assert asked(guard, request, f"User:CN=node-{machine}.example")[1] is admitted, (node, machine)


class Follower:
    """A session that counts its frames."""

    def __init__(self) -> None:
        self.frames = 0
        self.closed = False

    def on_frame(self, frame: memoryview) -> None:
        self.frames += 1

    def on_close(self) -> None:
        self.closed = True

    def hold(self) -> None:
        """It is a paced session."""

    def on_written(self, frame: object) -> None:
        """It is a paced session."""


def test_a_follower_fetches_as_itself_alone() -> None:
    guard = NodeGuard(AccessControl(config()), PATTERN)
    frame = memoryview(b"".join(encode_fetch_request(1, FetchRequest(NodeId(2), BrokerEpoch(1), 0, 0, 1, False, []))))
    inner = Follower()
    factory = guard.streams(StreamKind.REPLICA_FETCH, lambda _: inner)
    with pytest.raises(BadFrame, match="to speak as node 2"):
        factory(context("User:CN=node-1.example")).on_frame(frame)
    session: Any = factory(context("User:CN=node-2.example"))
    session.on_frame(frame)
    session.on_frame(frame)
    session.hold()
    session.on_close()
    assert (inner.frames, inner.closed) == (2, True)


def test_without_access_control_nothing_is_asked() -> None:
    guard = NodeGuard(AccessControl(config()), None)
    service = Service({}, {StreamKind.RAFT: lambda _: Follower()})
    assert guard.service(service).calls is service.calls
    assert guard.service(service).streams == service.streams


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer"}, "StandardAuthorizer"),
        ({"authorizer_class_name": STANDARD}, "super.users"),
        ({"super_users": "User:admin"}, "authorizer.class.name"),
        ({"allow_everyone_if_no_acl_found": "true"}, "authorizer.class.name"),
        ({"authorizer_class_name": STANDARD, "super_users": "admin"}, "User:admin"),
        ({"node_principal_pattern": "User:node"}, "{id}"),
        ({"node_principal_pattern": "node-{id}"}, "TYPE:NAME"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        config(**settings)
    assert said in str(wrong.value)


def test_an_empty_name_of_an_authorizer_is_none_as_in_kafka() -> None:
    assert config(authorizer_class_name="") == config()


def test_nodes_that_are_super_users_make_a_cluster() -> None:
    """As with a PLAINTEXT listener between nodes in Kafka: everybody on it is a super user."""
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with Cluster(nodes=3, transport="grpc", config=settings) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        with cluster.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"v")
        with cluster.admin() as admin:
            assert admin.describe_acls() == []


def test_nodes_without_the_right_cannot_register() -> None:
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:somebody"}
    made = Cluster(nodes=2, controllers=1, config={**settings, "initial.broker.registration.timeout.ms": "2000"})
    with pytest.raises(Exception, match=r"CLUSTER_AUTHORIZATION_FAILED|admitted node 2"):
        made.start()


def test_callers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CALLERS_MAX", 2)
    control = AccessControl(config())
    session = Session(Principal.parse("User:a"))
    for port in range(5):
        who = control.who(CallContext("CLIENT", f"10.0.0.1:{port}", session))
        assert who == Who("User:a", "10.0.0.1")
        assert len(control._callers) <= 2
