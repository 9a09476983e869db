"""Controllers judge the changes that brokers pass on, for the client that the broker names."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.forwarded import judged
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.acl_api import CreateAclsRequest, CreateAclsResponse
from tidelog.proto.calls.api import CreateTopicsRequest, CreateTopicsResponse, NewTopic
from tidelog.proto.calls.forwarded import Forwarded
from tidelog.proto.transport.network import CallContext
from tidelog.security.acls import CLUSTER_NAME, AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.audit import Audit, AuditKind
from tidelog.security.principal import Principal
from tidelog.security.session import Session

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NODE = CallContext("CONTROLLER", "10.0.0.7:5", Session(Principal("User", "node")))
BY_ALICE = Forwarded("User:alice", "10.0.0.1", "CLIENT")
ACLS = CreateAclsRequest(())
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Still:
    """A clock that stands."""

    def now_ms(self) -> int:
        return 1

    monotonic_ms = now_ms


def audit(*kinds: AuditKind) -> Audit:
    return Audit(kinds, 100, Still(), 7)


def lines(found: Audit) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in found.take()]


def control(super_user: str, *allowed: tuple[str, AclOperation], log: Audit | None = None) -> AccessControl:
    made = AccessControl(
        NodeConfig.parse({"node.id": "1", "authorizer.class.name": STANDARD, "super.users": super_user}), log
    )
    assert made.authorizer is not None
    for number, (principal, operation) in enumerate(allowed):
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        made.authorizer.add(
            bytes([number]), AclBinding(*cluster, principal, "10.0.0.1", operation, PermissionType.ALLOW)
        )
    return made


def asked(
    found: AccessControl, request: Any, *, local: bool = False, active: bool = True, sender: CallContext = NODE
) -> Any:
    async def create(request: CreateAclsRequest, _: CallContext) -> CreateAclsResponse:
        return CreateAclsResponse(ErrorCode.NONE if active else ErrorCode.NOT_CONTROLLER)

    async def create_topics(request: CreateTopicsRequest, _: CallContext) -> CreateTopicsResponse:
        return CreateTopicsResponse(())

    calls: Calls = {CreateAclsRequest: create, CreateTopicsRequest: create_topics}
    made = judged(calls, found, MetadataImage, lambda: active, local=local)
    return asyncio.run(made[type(request)](request, sender))  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [False, True])
def test_the_client_is_judged_and_not_the_node_that_passes_its_request_on(local: bool) -> None:
    by_alice = dataclasses.replace(ACLS, forwarded=BY_ALICE)
    assert asked(control("User:node"), by_alice, local=local).error is DENIED
    allowed = control("User:node", ("User:alice", AclOperation.ALTER))
    assert asked(allowed, by_alice, local=local).error is ErrorCode.NONE
    elsewhere = dataclasses.replace(ACLS, forwarded=Forwarded("User:alice", "10.0.0.2", "CLIENT"))
    assert asked(allowed, elsewhere, local=local).error is DENIED


def test_a_node_that_names_nobody_is_judged_itself() -> None:
    assert asked(control("User:node"), ACLS).error is ErrorCode.NONE
    from_broker = dataclasses.replace(NODE, peer="10.0.0.1:5")
    mere_node = control("User:admin", ("User:node", AclOperation.CLUSTER_ACTION))
    assert asked(mere_node, ACLS, sender=from_broker).error is DENIED
    own = CreateTopicsRequest((NewTopic(GROUP_OFFSETS_TOPIC),))
    assert asked(mere_node, own, sender=from_broker).topics == ()
    other = CreateTopicsRequest((NewTopic(GROUP_OFFSETS_TOPIC), NewTopic("t")))
    assert {topic.error for topic in asked(mere_node, other, sender=from_broker).topics} == {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }


def test_a_controller_that_is_not_the_active_one_says_so_and_judges_nothing() -> None:
    """Its image may be old: what it denied might be allowed."""
    by_alice = dataclasses.replace(ACLS, forwarded=BY_ALICE)
    assert asked(control("User:node"), by_alice, active=False).error is ErrorCode.NOT_CONTROLLER


def test_the_controllers_audit_log_names_the_client_and_the_node() -> None:
    log = audit(AuditKind.CHANGE, AuditKind.DENIED)
    topics = CreateTopicsRequest((NewTopic("t"),), forwarded=BY_ALICE)
    asked(control("User:node", ("User:alice", AclOperation.CREATE), log=log), topics)
    (line,) = lines(log)
    assert line["actor"]["user"]["name"] == "User:alice"
    assert line["src_endpoint"]["ip"] == "10.0.0.1"
    assert line["unmapped"] == {"listener": "CLIENT", "node": 7, "forwarded_by": "User:node"}
    asked(control("User:node", log=log), topics)
    (line,) = (line for line in lines(log) if line["metadata"]["log_name"] == "denied")
    assert (line["actor"]["user"]["name"], line["unmapped"]["listener"]) == ("User:alice", "CLIENT")


def test_the_broker_of_the_same_node_tells_of_its_changes_itself() -> None:
    log = audit(AuditKind.CHANGE)
    topics = CreateTopicsRequest((NewTopic("t"),), forwarded=BY_ALICE)
    asked(control("User:node", ("User:alice", AclOperation.CREATE), log=log), topics, local=True)
    assert lines(log) == []
