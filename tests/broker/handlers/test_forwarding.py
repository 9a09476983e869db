"""Admin calls on their way to the controller: an unknown outcome is said as such, never as a failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.handlers.delegation_tokens import DelegationTokens
from tidelog.broker.handlers.forwarding import Forwarding
from tidelog.broker.handlers.users import Users
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterResource,
    ConfigChange,
    ConfigResource,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    NewTopic,
    PartitionGrowth,
    TopicResult,
)
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.proto.calls.user_api import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramDeletion,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Service
from tidelog.security.principal import Principal
from tidelog.security.scram import ScramMechanism
from tidelog.security.session import Session

CLIENT = CallContext("CLIENT", "test")
CREATE = CreateTopicsRequest((NewTopic("t", 1, 1),), timeout_ms=2_000)
DELETE = DeleteTopicsRequest(("t",), timeout_ms=2_000)
GROW = CreatePartitionsRequest((PartitionGrowth("t", 3),), timeout_ms=2_000)


def created(code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse((CreatedTopic("t", code, "said so"),))


def deleted(code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse((TopicResult("t", code, "said so"),))


def grown(code: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse((TopicResult("t", code, "said so"),))


class World:
    """A controller that takes a request and dies, and one that answers the repetition."""

    def __init__(self, request_type: type[Any], answer: Callable[[], Any], *, first_dies: bool = True) -> None:
        self.fabric = MemoryFabric()
        self.answer = answer
        self.request_type = request_type
        self.taken: list[int] = []
        self.first_dies = first_dies
        addresses = {NodeId(n): Address("c", 100 + n) for n in (1, 2)}
        self.addresses = addresses
        self.channel = ControllerChannel(NodeId(9), addresses, self.fabric.network("broker").connect, random.Random(0))
        self.forwarding = Forwarding(self.channel, MetadataView())

    async def start(self) -> World:
        for n, address in self.addresses.items():
            await self.fabric.network(f"c{n}").serve(
                "CONTROLLER", address, Service({self.request_type: self.handler(n)}, {})
            )
        self.channel.leader_is(NodeId(1), 1)
        return self

    def handler(self, node: int) -> Callable[[Any, CallContext], Any]:
        async def handle(_: object, __: CallContext) -> Any:
            self.taken.append(node)
            if self.first_dies and len(self.taken) == 1:
                self.fabric.drop_node(f"c{node}")
                await asyncio.Event().wait()
            return self.answer()

        return handle


CASES = [
    ("create_topics", CREATE, CreateTopicsRequest, created, ErrorCode.TOPIC_ALREADY_EXISTS),
    ("delete_topics", DELETE, DeleteTopicsRequest, deleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("create_partitions", GROW, CreatePartitionsRequest, grown, ErrorCode.INVALID_PARTITIONS),
]


@pytest.mark.parametrize(("method", "request_", "kind", "make", "code"), CASES)
async def test_what_looks_refused_after_an_unknown_first_try_is_unknown(
    method: str, request_: object, kind: type[Any], make: Callable[[ErrorCode], Any], code: ErrorCode
) -> None:
    world = await World(kind, lambda: make(code)).start()
    answer = await getattr(world.forwarding, method)(request_, CLIENT)
    assert world.taken == [1, 2]
    assert answer.topics[0].error is ErrorCode.REQUEST_TIMED_OUT
    assert "unknown" in answer.topics[0].error_message


@pytest.mark.parametrize(("method", "request_", "kind", "make", "code"), CASES)
async def test_a_refusal_at_the_first_try_is_a_refusal(
    method: str, request_: object, kind: type[Any], make: Callable[[ErrorCode], Any], code: ErrorCode
) -> None:
    world = await World(kind, lambda: make(code), first_dies=False).start()
    answer = await getattr(world.forwarding, method)(request_, CLIENT)
    assert answer.topics[0].error is code


@pytest.mark.parametrize(("method", "request_", "kind", "make"), [case[:4] for case in CASES])
async def test_without_a_controller_it_is_said_whether_anything_changed(
    method: str, request_: object, kind: type[Any], make: Callable[[ErrorCode], Any]
) -> None:
    refusing = await World(kind, lambda: make(ErrorCode.NOT_CONTROLLER), first_dies=False).start()
    answer = await getattr(refusing.forwarding, method)(_hasty(request_), CLIENT)
    assert answer.topics[0].error is ErrorCode.REQUEST_TIMED_OUT
    assert "nothing was changed" in answer.topics[0].error_message
    gone = await World(kind, lambda: make(ErrorCode.NONE)).start()
    gone.fabric.drop_node("c2")
    answer = await getattr(gone.forwarding, method)(_hasty(request_), CLIENT)
    assert answer.topics[0].error is ErrorCode.REQUEST_TIMED_OUT
    assert "may or may not have taken effect" in answer.topics[0].error_message


@pytest.mark.parametrize(("operation", "tries"), [("set", [1, 2]), ("append", [1])])
async def test_only_what_may_be_repeated_is_repeated(operation: str, tries: list[int]) -> None:
    resource = ConfigResource("topic", "t")
    done = IncrementalAlterConfigsResponse((AlteredResource(resource, ErrorCode.NONE),))
    world = await World(IncrementalAlterConfigsRequest, lambda: done).start()
    change = ConfigChange("cleanup.policy", operation, "compact")
    answer = await world.forwarding.alter_configs(
        IncrementalAlterConfigsRequest((AlterResource(resource, (change,)),)), CLIENT
    )
    assert world.taken == tries
    expected = ErrorCode.NONE if operation == "set" else ErrorCode.REQUEST_TIMED_OUT
    assert answer.resources[0].error is expected


def _hasty(request: Any) -> Any:
    from dataclasses import replace

    return replace(request, timeout_ms=100)


async def test_a_call_ends_when_it_is_cancelled_just_as_a_leader_is_heard_of() -> None:
    """A cancelled call stays cancelled; a node that was killed while it registered went on (found by the
    simulation)."""
    nobody = {NodeId(n): Address("nobody", 100 + n) for n in (1, 2)}
    channel = ControllerChannel(NodeId(9), nobody, MemoryFabric().network("broker").connect, random.Random(0))
    for _ in range(20):
        call = asyncio.ensure_future(channel.forward(CREATE, None, timeout_s=60.0))
        while not channel._changed._waiters:  # it waits to hear of a leader
            await asyncio.sleep(0)
        channel.leader_is(NodeId(1), 5)
        call.cancel()
        async with asyncio.timeout(5.0):
            await asyncio.wait([call])
        assert call.cancelled()
        channel.leader_is(None, 5)


DROP_USER = AlterUserScramCredentialsRequest((ScramDeletion("alice", ScramMechanism.SCRAM_SHA_512),), ())


@pytest.mark.parametrize(("first_dies", "told"), [(True, ErrorCode.NONE), (False, ErrorCode.RESOURCE_NOT_FOUND)])
async def test_a_user_that_an_unknown_first_try_may_have_deleted_is_gone(first_dies: bool, told: ErrorCode) -> None:
    missing = AlterUserScramCredentialsResponse(
        ErrorCode.NONE, (AlteredUser("alice", ErrorCode.RESOURCE_NOT_FOUND, "said so"),)
    )
    world = await World(AlterUserScramCredentialsRequest, lambda: missing, first_dies=first_dies).start()
    answer = await Users(world.channel, MetadataView()).alter(DROP_USER, CLIENT)
    assert world.taken == ([1, 2] if first_dies else [1])
    assert [result.error for result in answer.results] == [told]


ALICE = Principal("User", "alice")
TOKEN_CALLS: list[tuple[str, Any, Callable[[ErrorCode], Any], bool]] = [
    ("create", CreateDelegationTokenRequest(), CreateDelegationTokenResponse, False),
    ("renew", RenewDelegationTokenRequest(b"x"), RenewDelegationTokenResponse, True),
    ("expire", ExpireDelegationTokenRequest(b"x"), ExpireDelegationTokenResponse, False),
]


def tokens(world: World) -> DelegationTokens:
    config = NodeConfig.parse({"node.id": "1", "delegation.token.secret.key": "a key"})
    return DelegationTokens(config, world.channel, MetadataView())


@pytest.mark.parametrize(("method", "request_", "answer", "again"), TOKEN_CALLS)
async def test_a_token_is_made_and_removed_once(
    method: str, request_: object, answer: Callable[[ErrorCode], Any], again: bool
) -> None:
    """After an unknown outcome a second creation would make another token, and a second removal would find none."""
    missing = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    world = await World(type(request_), lambda: answer(missing)).start()
    caller = CallContext("CLIENT", "test", Session(ALICE, SecurityProtocol.SASL_SSL))
    said = await getattr(tokens(world), method)(request_, caller)
    assert world.taken == ([1, 2] if again else [1])
    assert said.error is (missing if again else ErrorCode.REQUEST_TIMED_OUT)
    assert again or "may or may not" in said.error_message


@pytest.mark.parametrize(("method", "request_", "answer", "again"), TOKEN_CALLS)
@pytest.mark.parametrize(
    ("session", "peer", "may"),
    [
        (Session(ALICE, SecurityProtocol.SASL_SSL), "ipv4:10.0.0.9:5", True),
        (Session(ALICE, SecurityProtocol.SSL), "ipv4:10.0.0.9:5", True),
        (Session(ALICE, SecurityProtocol.SASL_PLAINTEXT), "ipv4:127.0.0.1:5", True),
        (Session(ALICE, SecurityProtocol.SASL_PLAINTEXT), "ipv4:10.0.0.9:5", False),
        (Session(ALICE, SecurityProtocol.SASL_SSL, by_token=True), "ipv4:10.0.0.9:5", False),
        (Session(protocol=SecurityProtocol.SSL), "ipv4:10.0.0.9:5", False),
        (Session(), "ipv4:127.0.0.1:5", False),
    ],
)
async def test_who_may_ask_about_tokens(
    method: str,
    request_: object,
    answer: Callable[[ErrorCode], Any],
    again: bool,
    session: Session,
    peer: str,
    may: bool,
) -> None:
    missing = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    world = await World(type(request_), lambda: answer(missing), first_dies=False).start()
    said = await getattr(tokens(world), method)(request_, CallContext("CLIENT", peer, session))
    assert world.taken == ([1] if may else [])
    assert said.error is (missing if may else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
