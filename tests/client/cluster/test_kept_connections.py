"""Connections that outlive their users: handed on where they are sound, bounded, gone where they are not."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.client.cluster.kept_connections import KeptConnections
from tidelog.proto.calls.transaction_api import InitProducerIdRequest
from tidelog.proto.transport.network import Address, CallTimeout, ConnectionLost, StreamKind

HERE, THERE = Address("here", 1), Address("there", 2)


class Stream:
    closed = False

    def close(self) -> None:
        self.closed = True


class Wire:
    """A connection that fails as it is told."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.fault: Exception | None = None
        self.closed = False
        self.streams: list[Stream] = []

    async def call(self, request: object, *, timeout_s: float) -> Any:
        if self.fault is not None:
            raise self.fault
        return "answer"

    async def open(self, kind: StreamKind, *, timeout_s: float) -> Any:
        if self.fault is not None:
            raise self.fault
        self.streams.append(Stream())
        return self.streams[-1]

    async def close(self) -> None:
        self.closed = True


class Wires:
    def __init__(self) -> None:
        self.made: list[Wire] = []

    def connect(self, address: Address, listener: str = "") -> Any:
        self.made.append(Wire(address))
        return self.made[-1]

    async def serve(self, listener: str, address: Address, service: object) -> Any:
        return (listener, address, service)


async def test_the_next_user_has_the_connection_of_the_one_before() -> None:
    wires = Wires()
    kept = KeptConnections(wires)
    first = kept.connect(HERE)
    answer: object = await first.call(InitProducerIdRequest(), timeout_s=1)
    assert answer == "answer"
    stream: Any = await first.open(StreamKind.PRODUCE, timeout_s=1)
    other = kept.connect(HERE)
    assert len(wires.made) == 2, "one that is in use is nobody else's"
    await first.close()
    await first.close()
    assert stream.closed
    assert kept.count == 1
    second, elsewhere = kept.connect(HERE), kept.connect(THERE)
    assert [wire.address for wire in wires.made] == [HERE, HERE, THERE]
    assert second.address == HERE
    again: object = await second.call(InitProducerIdRequest(), timeout_s=1)
    assert again == "answer"
    for refused in (first.call(InitProducerIdRequest(), timeout_s=1), first.open(StreamKind.PRODUCE, timeout_s=1)):
        with pytest.raises(ConnectionLost, match="closed by us"):
            await refused
    for lease in (second, elsewhere, other):
        await lease.close()
    assert kept.count == 3
    await kept.close()
    assert all(wire.closed for wire in wires.made)


@pytest.mark.parametrize("fault", [ConnectionLost("gone"), CallTimeout("late")])
async def test_one_on_which_a_call_failed_is_not_handed_on(fault: Exception) -> None:
    wires = Wires()
    kept = KeptConnections(wires)
    for opens in (False, True):
        lease = kept.connect(HERE)
        wires.made[-1].fault = ConnectionLost("gone") if opens else fault
        with pytest.raises((ConnectionLost, CallTimeout)):
            await (
                lease.open(StreamKind.FETCH, timeout_s=1) if opens else lease.call(InitProducerIdRequest(), timeout_s=1)
            )
        await lease.close()
        assert wires.made[-1].closed
    assert kept.count == 0


async def test_no_more_are_kept_than_may_be_and_none_once_it_is_closed() -> None:
    wires = Wires()
    kept = KeptConnections(wires, kept_max=1)
    leases = [kept.connect(HERE) for _ in range(3)]
    for lease in leases[:2]:
        await lease.close()
    assert [wire.closed for wire in wires.made] == [False, True, False]
    await kept.close()
    await leases[2].close()
    assert all(wire.closed for wire in wires.made)
    assert kept.count == 0
