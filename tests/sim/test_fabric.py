"""The simulated network: late, held, lost and doubled messages, and ends of connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tidelog.chaos.simulated.world.fabric import SILENCE_S, SimulatedFabric
from tidelog.chaos.simulated.world.loop import SimulatedLoop
from tidelog.proto.calls.api import MetadataRequest, MetadataResponse
from tidelog.proto.transport.network import (
    Address,
    CallContext,
    CallTimeout,
    ConnectionLost,
    Frame,
    Service,
    StreamKind,
)

HOME = Address("server", 9092)


class World:
    """One server that counts what it gets, one client."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimulatedLoop(0.0)
        asyncio.set_event_loop(self.loop)
        self.fabric = SimulatedFabric(self.loop, random.Random(seed), lambda wire, to_server: None)
        self.calls: list[float] = []
        self.frames: list[bytes] = []
        self.closed = 0
        self.server = self.fabric.network("server")
        self.client = self.fabric.network("client")

    async def listen(self) -> None:
        async def answer(request: MetadataRequest, context: CallContext) -> MetadataResponse:
            self.calls.append(self.loop.now)
            return MetadataResponse("c", 1, (), ())  # type: ignore[arg-type]

        service = Service({MetadataRequest: answer}, {StreamKind.PRODUCE: lambda context: Session(self)})
        await self.server.serve("CLIENT", HOME, service)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            await self.listen()
            await main()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(1.0)

        self.loop.run_until_complete(whole())


class Session:
    def __init__(self, world: World) -> None:
        self._world = world

    def on_frame(self, frame: memoryview) -> Frame | None:
        self._world.frames.append(bytes(frame))
        return [b"answer to ", bytes(frame)]

    def on_close(self) -> None:
        self._world.closed += 1


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    asyncio.set_event_loop(None)
    made.loop.close()


REQUEST = MetadataRequest(())


def test_a_call_takes_a_while(world: World) -> None:
    async def main() -> None:
        await world.client.connect(HOME).call(REQUEST, timeout_s=1.0)
        assert 0.0002 <= world.loop.now <= 0.003

    world.run(main)
    assert len(world.calls) == 1


def test_a_cut_link_holds_a_request_until_long_after_its_sender_gave_up(world: World) -> None:
    async def main() -> None:
        world.fabric.cut("client", "server")
        with pytest.raises(CallTimeout):
            await world.client.connect(HOME).call(REQUEST, timeout_s=1.0)
        await asyncio.sleep(30.0)
        assert world.calls == []
        world.fabric.heal()
        await asyncio.sleep(0.1)

    world.run(main)
    assert len(world.calls) == 1
    assert world.calls[0] > 31.0


def test_a_doubled_request_arrives_twice_and_is_answered_once(world: World) -> None:
    async def main() -> None:
        world.fabric.doubled = 1.0
        await world.client.connect(HOME).call(REQUEST, timeout_s=1.0)
        await asyncio.sleep(10.0)

    world.run(main)
    assert len(world.calls) == 2
    assert world.fabric.doubled_count == 1


def test_nobody_listens_is_a_refusal_but_behind_a_cut_it_is_silence(world: World) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match="refused"):
            await world.client.connect(Address("nobody", 1)).call(REQUEST, timeout_s=1.0)
        world.fabric.drop_node("server")
        with pytest.raises(ConnectionLost, match="refused"):
            await world.client.connect(HOME).call(REQUEST, timeout_s=1.0)
        world.fabric.cut("server", "client")
        with pytest.raises(CallTimeout):
            await world.client.connect(HOME).call(REQUEST, timeout_s=1.0)

    world.run(main)


def test_frames_of_one_stream_stay_in_order(world: World) -> None:
    async def main() -> None:
        stream = await world.client.connect(HOME).open(StreamKind.PRODUCE, timeout_s=1.0)
        for number in range(30):
            await stream.send([b"%d" % number])
        answers = [bytes(await stream.receive()) for _ in range(30)]
        assert answers == [b"answer to %d" % number for number in range(30)]

    world.run(main)
    assert world.frames == [b"%d" % number for number in range(30)]


def test_what_is_under_way_when_a_connection_breaks_is_lost_or_arrives() -> None:
    arrived = 0
    for seed in range(40):
        world = World(seed)

        async def main(world: World = world) -> None:
            stream = await world.client.connect(HOME).open(StreamKind.PRODUCE, timeout_s=1.0)
            await stream.send([b"under way"])
            world.fabric.break_connections("client", "server")
            with contextlib.suppress(ConnectionLost):
                await stream.receive()  # the answer may have been faster
            with pytest.raises(ConnectionLost):
                await stream.receive()
            await asyncio.sleep(1.0)

        world.run(main)
        assert world.closed == 1
        arrived += len(world.frames)
        asyncio.set_event_loop(None)
        world.loop.close()
    assert 0 < arrived < 40


def test_peers_of_a_host_without_power_find_out_late(world: World) -> None:
    async def main() -> None:
        stream = await world.client.connect(HOME).open(StreamKind.PRODUCE, timeout_s=1.0)
        began = world.loop.now
        world.fabric.lose_host("server")
        with pytest.raises(ConnectionLost):
            await stream.receive()
        assert world.loop.now - began >= SILENCE_S[0]

    world.run(main)


def test_a_dead_process_sends_nothing_more(world: World) -> None:
    async def main() -> None:
        connection = world.client.connect(HOME)
        world.fabric.drop_node("client")
        with pytest.raises(ConnectionLost):
            await connection.call(REQUEST, timeout_s=1.0)

    world.run(main)
    assert world.calls == []
