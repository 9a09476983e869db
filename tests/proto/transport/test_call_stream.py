"""Recurring calls as frames of one stream: the same as by themselves, and by themselves where there is no stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId, Offset, ProducerEpoch, ProducerId
from tidelog.proto.calls.controller_api import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.transaction_api import EndTxnRequest, EndTxnResponse
from tidelog.proto.transport import call_stream, grpc_serving
from tidelog.proto.transport.call_stream import Answer, CallStream
from tidelog.proto.transport.grpc_calling import GrpcConnection
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import GrpcLimits
from tidelog.proto.transport.network import Address, BadFrame, CallContext, CallTimeout, ConnectionLost, Server, Service

LOOPBACK = Address("127.0.0.1", 0)
UNDER_WAY_AND_STREAM = 3


def beat(node: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(NodeId(node), BrokerEpoch(node), Offset(7), want_fence=False, want_shut_down=False)


class Controller:
    """A listener that answers heartbeats with the number of the node, once ``gate`` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0
        self.peers: set[str] = set()
        self.bugs: list[BaseException] = []
        self.server: Server | None = None

    async def heartbeat(self, request: BrokerHeartbeatRequest, context: CallContext) -> BrokerHeartbeatResponse:
        assert context.listener == "CONTROLLER"
        self.peers.add(context.peer)
        if request.node_id == 13:
            raise LookupError("a bug")
        self.under_way += 1
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        return BrokerHeartbeatResponse(ErrorCode.NONE, error_message=str(request.node_id))

    async def start(self, limits: GrpcLimits | None = None, address: Address = LOOPBACK) -> Address:
        service = Service({BrokerHeartbeatRequest: self.heartbeat}, {})
        self.server = await GrpcNetwork(limits, self.bugs.append).serve("CONTROLLER", address, service)
        return self.server.address

    async def close(self, grace_s: float = 0) -> None:
        assert self.server is not None
        await self.server.close(grace_s)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not true():
            await asyncio.sleep(0.005)


async def connected(address: Address) -> GrpcConnection:
    """A connection whose stream of calls stands."""
    connection = GrpcNetwork().connect(address)
    assert (await connection.call(beat(1), timeout_s=10)).error_message == "1"
    await until(lambda: streamed(connection))
    return connection


def streamed(connection: GrpcConnection) -> bool:
    return connection._recurring.stream is not None


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    made = Controller()
    yield made
    await made.close()


async def test_after_the_first_answer_calls_go_as_frames_and_may_overtake(controller: Controller) -> None:
    connection = await connected(await controller.start())
    controller.gate.clear()
    waiting = [asyncio.ensure_future(connection.call(beat(node), timeout_s=10)) for node in range(20, 40)]
    await until(lambda: controller.under_way == 20)
    controller.gate.set()
    assert [(await each).error_message for each in waiting] == [str(node) for node in range(20, 40)]
    assert len(controller.peers) == 1
    await connection.close()


async def test_the_end_of_a_transaction_goes_as_a_frame_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unary call each time is half of a small transaction's processor time."""
    by_themselves = []
    unary = GrpcConnection._call_by_itself

    async def count(self: GrpcConnection, request: Request[Any], timeout_s: float) -> Any:
        by_themselves.append(request)
        return await unary(self, request, timeout_s)

    async def end(request: EndTxnRequest, _: CallContext) -> EndTxnResponse:
        return EndTxnResponse(ErrorCode.NONE, request.producer_id, request.producer_epoch)

    monkeypatch.setattr(GrpcConnection, "_call_by_itself", count)
    server = await GrpcNetwork().serve("CLIENT", LOOPBACK, Service({EndTxnRequest: end}, {}))
    connection = GrpcNetwork().connect(server.address)
    for number in range(5):
        request = EndTxnRequest("t", ProducerId(number), ProducerEpoch(0), committed=True)
        assert (await connection.call(request, timeout_s=10)).producer_id == number
        await until(lambda: streamed(connection))
    assert len(by_themselves) == 1
    await connection.close()
    await server.close(0)


async def test_a_peer_that_knows_no_stream_is_asked_once_and_served_as_ever(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    service = grpc_serving._Handlers.service

    def without_stream(self: grpc_serving._Handlers, details: grpc.HandlerCallDetails) -> object:
        if details.method.endswith("/Calls"):
            asked.append(details.method)
            return None
        return service(self, details)

    monkeypatch.setattr(grpc_serving._Handlers, "service", without_stream)
    connection = GrpcNetwork().connect(await controller.start())
    for node in range(1, 10):
        assert (await connection.call(beat(node), timeout_s=10)).error_message == str(node)
    await until(lambda: connection._recurring._opening is None)
    assert asked == ["/tidelog.v1.Tidelog/Calls"]
    assert not streamed(connection)
    await connection.close()


async def test_a_call_without_answer_times_out_at_both_ends_and_the_stream_goes_on(controller: Controller) -> None:
    connection = await connected(await controller.start())
    controller.gate.clear()
    with pytest.raises(CallTimeout, match="no answer to BrokerHeartbeat in time"):
        await connection.call(beat(2), timeout_s=0.05)
    await until(lambda: controller.under_way == 0)
    controller.gate.set()
    assert streamed(connection)
    assert (await connection.call(beat(3), timeout_s=10)).error_message == "3"
    await connection.close()


async def test_a_call_that_nobody_waits_for_any_more_disturbs_no_other(controller: Controller) -> None:
    connection = await connected(await controller.start())
    controller.gate.clear()
    kept, dropped = (asyncio.ensure_future(connection.call(beat(node), timeout_s=10)) for node in (4, 5))
    await until(lambda: controller.under_way == 2)
    dropped.cancel()
    controller.gate.set()
    assert (await kept).error_message == "4"
    assert streamed(connection)
    await connection.close()


async def test_when_the_peer_is_lost_every_call_under_way_is_and_a_new_peer_gets_a_new_stream(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_stream, "OPENING_PAUSE_S", 0.0)
    address = await controller.start()
    connection = await connected(address)
    controller.gate.clear()
    waiting = [asyncio.ensure_future(connection.call(beat(node), timeout_s=10)) for node in (2, 3)]
    await until(lambda: controller.under_way == 2)
    await controller.close()
    for each in waiting:
        with pytest.raises(ConnectionLost):
            await each
    with pytest.raises(ConnectionLost):
        await connection.call(beat(4), timeout_s=10)
    controller.gate.set()
    await controller.start(address=address)

    async def answered() -> bool:
        try:
            return (await connection.call(beat(5), timeout_s=10)).error_message == "5"
        except ConnectionLost:
            return False

    async with asyncio.timeout(100):
        while not await answered():
            await asyncio.sleep(0.01)
    await until(lambda: streamed(connection))
    assert await answered()
    assert not controller.bugs
    await connection.close()


async def test_closing_the_connection_fails_what_is_under_way(controller: Controller) -> None:
    connection = await connected(await controller.start())
    controller.gate.clear()
    waiting = asyncio.ensure_future(connection.call(beat(2), timeout_s=10))
    await until(lambda: controller.under_way == 1)
    await connection.close()
    with pytest.raises(ConnectionLost, match="closed by us"):
        await waiting
    with pytest.raises(ConnectionLost, match="closed by us"):
        await connection.call(beat(3), timeout_s=10)
    await until(lambda: controller.under_way == 0)


async def test_what_a_handler_raises_is_a_bug_of_the_node(controller: Controller) -> None:
    connection = await connected(await controller.start())
    with pytest.raises(ConnectionLost, match="internal error"):
        await connection.call(beat(13), timeout_s=10)
    assert [type(bug) for bug in controller.bugs] == [LookupError]
    assert (await connection.call(beat(3), timeout_s=10)).error_message == "3"
    await connection.close()


async def test_a_closing_listener_answers_what_is_under_way_and_waits_for_nothing_else(controller: Controller) -> None:
    address = await controller.start()
    busy, idle = await connected(address), await connected(address)
    controller.gate.clear()
    waiting = asyncio.ensure_future(busy.call(beat(2), timeout_s=30))
    await until(lambda: controller.under_way == 1)
    closing = asyncio.ensure_future(controller.close(grace_s=60))
    await until(lambda: not streamed(idle))
    with pytest.raises(ConnectionLost):
        await busy.call(beat(3), timeout_s=30)
    assert not waiting.done()
    controller.gate.set()
    assert (await waiting).error_message == "2"
    async with asyncio.timeout(100):
        await closing
    await busy.close()
    await idle.close()


async def test_a_full_stream_lets_further_calls_go_by_themselves(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_stream, "IN_FLIGHT_MAX", 2)
    connection = await connected(await controller.start())
    controller.gate.clear()
    waiting = [asyncio.ensure_future(connection.call(beat(node), timeout_s=10)) for node in range(20, 25)]
    await until(lambda: controller.under_way == 5)
    controller.gate.set()
    assert [(await each).error_message for each in waiting] == [str(node) for node in range(20, 25)]
    await connection.close()


async def test_calls_of_a_stream_count_as_under_way(controller: Controller) -> None:
    connection = await connected(await controller.start(GrpcLimits(under_way_max=UNDER_WAY_AND_STREAM)))
    controller.gate.clear()
    waiting = [asyncio.ensure_future(connection.call(beat(node), timeout_s=10)) for node in (2, 3)]
    await until(lambda: controller.under_way == UNDER_WAY_AND_STREAM - 1)
    with pytest.raises(ConnectionLost, match="at most 3 calls and streams under way"):
        await connection.call(beat(4), timeout_s=10)
    controller.gate.set()
    assert [(await each).error_message for each in waiting] == ["2", "3"]
    await connection.close()


@pytest.mark.parametrize(
    ("name", "data", "status", "text"),
    [
        ("Metadata", b"", call_stream.UNIMPLEMENTED, b"does not serve Metadata"),
        ("BrokerHeartbeat", b"\xff\xff", call_stream.INVALID_ARGUMENT, b"expected a BrokerHeartbeatRequest"),
        ("BrokerHeartbeat", b"x" * 1001, call_stream.RESOURCE_EXHAUSTED, b"of at most 1000 bytes, found 1001"),
    ],
)
async def test_what_cannot_be_served_is_answered_and_the_stream_goes_on(
    controller: Controller, name: str, data: bytes, status: int, text: bytes
) -> None:
    connection = GrpcNetwork().connect(await controller.start(GrpcLimits(call_bytes_max=1000)))
    stream = CallStream(await connection._open(call_stream.METHOD, 10, control=True))
    found = await stream.call(name, data, 10)
    assert found.status == status
    assert text in found.body
    good = await stream.call("BrokerHeartbeat", to_proto(beat(8)), 10)
    assert from_proto(BrokerHeartbeatResponse, good.body).error_message == "8"
    await stream.close()
    await connection.close()


async def test_a_frame_that_is_no_call_ends_the_stream_with_the_reason(controller: Controller) -> None:
    connection = GrpcNetwork().connect(await controller.start())
    stream = await connection._open(call_stream.METHOD, 10, control=True)
    await stream.send((b"\x01\0\0\0\1\0\0\0\1\xff",))
    with pytest.raises(ConnectionLost, match="expected a method's name of 255 bytes, found 0"):
        await stream.receive()
    assert not controller.bugs
    await connection.close()


async def test_a_listener_without_recurring_calls_has_no_such_stream() -> None:
    server = await GrpcNetwork().serve("CLIENT", LOOPBACK, Service({}, {}))
    connection = GrpcNetwork().connect(server.address)
    with pytest.raises(ConnectionLost, match="does not serve Calls"):
        await connection._open(call_stream.METHOD, 10, control=True)
    await connection.close()
    await server.close(0)


@given(st.integers(0, 2**32 - 1), st.text(max_size=60), st.binary(max_size=100), st.floats(0, 1e9), st.integers(0, 255))
def test_frames_hold_what_was_put_into_them(
    correlation: int, name: str, data: bytes, timeout_s: float, status: int
) -> None:
    frame = memoryview(b"".join(call_stream.encode_request(correlation, name, data, timeout_s)))
    found = call_stream.decode_request(frame)
    assert (found[0], found[2], found[3]) == (correlation, name, data)
    assert found[1] == pytest.approx(min(timeout_s, 2**32 / 1000), abs=0.0011)
    answer = memoryview(b"".join(call_stream.encode_answer(correlation, Answer(status, data))))
    assert call_stream.decode_answer(answer) == (correlation, Answer(status, data))


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\x01" + tail))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    for decode in (call_stream.decode_request, call_stream.decode_answer):
        try:
            decode(memoryview(frame))
        except BadFrame:
            continue
