"""When heartbeats leave: at their interval, or a little early where the node is sending anyway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.lifecycle import LifecycleRunner
from tidelog.broker.metadata.lifecycle_state import BrokerLifecycle, BrokerStanding, Identity
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, Offset
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, CallHandler, Service

INTERVAL_MS = 1_000
WHERE = Address("controller", 1)


class HandClock:
    def __init__(self) -> None:
        self.ms = 50_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Rig:
    """A broker that registers and beats towards a controller that notes it. Time is the test's, but for the timer."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.fabric = MemoryFabric()
        self.beats = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fenced = False
        network = self.fabric.network("broker")
        voters = {NodeId(1): WHERE}
        identity = Identity("cluster", NodeId(1), b"i" * 16, (), None, ())
        self.runner = LifecycleRunner(
            BrokerLifecycle(identity, BrokerEpoch(-1), INTERVAL_MS, 20, 3_000),
            ControllerChannel(NodeId(1), voters, network.connect, random.Random(1)),
            self.clock,
            lambda: (DirectoryId(b"d" * 16),),
            lambda: Offset(3),
            lambda: None,
            lambda _: None,
            answer_timeout_ms=10_000,
        )

    async def register(self, _: RegisterBrokerRequest, __: CallContext) -> RegisterBrokerResponse:
        return RegisterBrokerResponse(ErrorCode.NONE, BrokerEpoch(40))

    async def beat(self, _: BrokerHeartbeatRequest, __: CallContext) -> BrokerHeartbeatResponse:
        self.beats += 1
        await self.gate.wait()
        return BrokerHeartbeatResponse(ErrorCode.NONE, is_caught_up=True, is_fenced=self.fenced)

    async def start(self) -> None:
        calls: dict[type[Request[Any]], CallHandler] = {
            RegisterBrokerRequest: self.register,
            BrokerHeartbeatRequest: self.beat,
        }
        await self.fabric.network("controller").serve("CONTROLLER", WHERE, Service(calls, {}))

    async def settle(self) -> None:
        """Let everything happen that can without a timer."""
        for _ in range(200):
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.start()
    running = asyncio.ensure_future(made.runner.run())
    assert await made.runner.wait_for(BrokerStanding.RUNNING, timeout_s=20)
    await made.settle()
    made.beats = 0
    yield made
    running.cancel()
    await asyncio.wait((running,))


async def test_a_heartbeat_that_is_nearly_due_goes_with_what_the_node_sends(rig: Rig) -> None:
    rig.clock.ms += 600
    rig.runner.sending()
    await rig.settle()
    assert rig.beats == 1
    rig.clock.ms += 599
    rig.runner.sending()
    await rig.settle()
    assert rig.beats == 1, "the next one is due a whole interval after the last"
    rig.clock.ms += 1
    rig.runner.sending()
    await rig.settle()
    assert rig.beats == 2


async def test_one_that_waits_for_its_answer_is_not_sent_twice(rig: Rig) -> None:
    rig.gate.clear()
    rig.clock.ms += 900
    rig.runner.sending()
    await rig.settle()
    rig.clock.ms += 2_000
    rig.runner.sending()
    rig.gate.set()
    await rig.settle()
    assert rig.beats == 1


async def test_who_is_not_running_keeps_to_its_own_times(rig: Rig) -> None:
    rig.fenced = True
    rig.clock.ms += 900
    rig.runner.sending()
    await rig.settle()
    assert rig.runner.standing is BrokerStanding.FENCED
    assert rig.beats == 1
    rig.runner.sending()
    await rig.settle()
    assert rig.beats == 1


async def test_without_anything_else_to_send_it_goes_at_its_interval(rig: Rig) -> None:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(100):
        while not rig.beats:
            await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began > 0.5
