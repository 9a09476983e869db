"""Brokers whose hosts say that they are gone: fenced at once, together, and nobody else."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tidelog.metadata_quorum.controller.broker_liveness import BrokerLiveness
from tidelog.metadata_quorum.overdue_brokers import ASK_AGAIN_MS, OverdueBrokers
from tidelog.model.ids import NodeId, Offset
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.transport.network import Address
from tidelog.proto.transport.refusal import refuses
from tidelog.testing.async_cluster import AsyncCluster

from .conftest import Bench

OVERDUE_MS = 312
"""A heartbeat of 250 ms and a quarter more."""


class Hosts:
    """What the hosts of the brokers of a bench say; each broker has two listeners."""

    def __init__(self, bench: Bench, *brokers: int) -> None:
        self.bench = bench
        self.refused: set[tuple[int, int]] = set()
        """Broker and number of the listener."""
        self.asked: list[int] = []
        for node in brokers:
            listeners = tuple(Endpoint(f"L{n}", f"host{node}", 9000 + n) for n in (1, 2))
            bench.up(node, listeners=listeners)
        controller = bench.controller
        self.questions = OverdueBrokers(controller.liveness, lambda: controller.committed, self.refuses)

    def end(self, *brokers: int) -> None:
        self.refused |= {(node, number) for node in brokers for number in (1, 2)}

    async def refuses(self, address: Address) -> bool:
        node = int(address.host.removeprefix("host"))
        self.asked.append(node)
        await asyncio.sleep(0)
        return (node, address.port - 9000) in self.refused

    async def look(self) -> list[int]:
        """Ask if it is time to; return the brokers that are fenced then."""
        bench = self.bench
        if overdue := self.questions.to_ask(bench.now_ms):
            await self.questions.ask(overdue, bench.now_ms)
        bench.take(bench.controller.fence_silent(bench.now_ms))
        return sorted(node for node, found in bench.controller.committed.brokers.items() if found.fenced)


async def test_a_broker_that_is_gone_is_fenced_before_its_session_ends(bench: Bench) -> None:
    hosts = Hosts(bench, 1, 2)
    hosts.end(1)
    bench.now_ms += OVERDUE_MS - 1
    bench.beat(2)
    assert await hosts.look() == []
    assert hosts.asked == []
    bench.now_ms += 1
    assert await hosts.look() == [1]
    assert set(hosts.asked) == {1, 2}


@pytest.mark.parametrize("refused", [[], [(1, 1)], [(1, 2)]])
async def test_who_still_listens_anywhere_has_its_whole_session(bench: Bench, refused: list[tuple[int, int]]) -> None:
    hosts = Hosts(bench, 1, 2)
    hosts.refused |= set(refused)
    for _ in range(6):
        bench.now_ms += 116
        bench.beat(2)
        assert await hosts.look() == []
    assert set(hosts.asked) == {1}, "broker 2 speaks, and broker 1 is not known to be gone"
    bench.now_ms += 4
    assert await hosts.look() == [1]


async def test_brokers_that_died_together_are_fenced_together(bench: Bench) -> None:
    """The second one's heartbeat is not overdue yet, but nothing must move to it."""
    hosts = Hosts(bench, 1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.now_ms += 200
    bench.beat(2)
    hosts.end(1, 2)
    bench.now_ms += OVERDUE_MS - 200
    bench.beat(3)
    assert await hosts.look() == [1, 2]
    found = bench.partition("t")
    assert (found.leader, found.isr, found.leader_epoch) == (3, (3,), 1)


async def test_who_is_heard_from_while_its_host_is_asked_stays(bench: Bench) -> None:
    """It was started again: the answer is about the process of before."""
    hosts = Hosts(bench, 1, 2)
    hosts.end(1)
    bench.now_ms += OVERDUE_MS
    overdue = hosts.questions.to_ask(bench.now_ms)
    asking = asyncio.ensure_future(hosts.questions.ask(overdue, bench.now_ms))
    await asyncio.sleep(0)
    bench.now_ms += 1
    bench.beat(1)
    assert hosts.questions.to_ask(bench.now_ms + 10_000) == {}, "one round at a time"
    await asking
    assert bench.controller.fence_silent(bench.now_ms) == []


async def test_hosts_are_asked_now_and_then(bench: Bench) -> None:
    hosts = Hosts(bench, 1)
    bench.now_ms += OVERDUE_MS
    for _ in range(4):
        await hosts.look()
        bench.now_ms += ASK_AGAIN_MS // 2
    assert hosts.asked == [1, 1]
    assert hosts.questions.next_ms(bench.now_ms) == bench.now_ms + ASK_AGAIN_MS


def test_a_fenced_broker_is_never_overdue() -> None:
    liveness = BrokerLiveness(700, 250)
    liveness.register(NodeId(1), True, 0)
    liveness.touch(NodeId(2), False, Offset(1), Offset(1), 0)
    assert liveness.overdue(10_000) == {2: 0}
    liveness.fence(NodeId(2))
    assert liveness.overdue(10_000) == {}
    assert liveness.next_overdue_ms() is None


async def test_only_the_word_of_the_host_counts_as_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not await refuses(Address("127.0.0.1", port))
        assert not await refuses(Address("localhost", port)), "one of the name's addresses is enough"
    assert await refuses(Address("127.0.0.1", port))
    assert await refuses(Address("localhost", port))
    assert not await refuses(Address("no-such-host.invalid", port))


async def test_leadership_moves_though_the_session_lasts_an_hour() -> None:
    config = {"broker.session.timeout.ms": "3600000"}
    async with AsyncCluster(4, controllers=1, transport="grpc", config=config) as cluster:
        await cluster.create_topic("t", 3, 3)
        await cluster.wait_for_isr("t", 0, 3)
        victim = next(node for p in range(3) if (node := cluster.leader_of("t", p)) not in (None, 1))
        assert victim is not None
        led = [p for p in range(3) if cluster.leader_of("t", p) == victim]
        await cluster.kill(victim)
        await cluster.wait_for(lambda: all(cluster.leader_of("t", p) not in (None, victim) for p in led), "a leader")
