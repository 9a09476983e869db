"""Random faults on replica managers in virtual time, with idempotent producers that retry until they know.

Links are cut and healed, connections broken, processes killed and started again, metadata comes late to
some. At the end every acknowledged record lies in every replica once, in order, and nothing lies twice.
A failing seed is named by the test's parameter.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from functools import partial
from typing import Unpack

import pytest

from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.controller_api import AlterPartitionItem
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.partition_state import PartitionState

from .managers import Cluster, MakeCluster, until
from .rig import StateFields

SEEDS = int(os.environ.get("TIDELOG_REPLICATION_SEEDS", "15")) // 5
PARTITIONS = 3
PRODUCERS = 3
"""Per partition: what one has written under a leader that is deposed, another may have overtaken under the next."""
SECONDS = 12.0
NODES = (1, 2, 3)


def all_committed(copies: Sequence[Partition], total: int) -> bool:
    return all(copy.high_watermark >= total for copy in copies)


class Chaos:
    def __init__(self, c: Cluster, rng: random.Random) -> None:
        self.c = c
        self.rng = rng
        self.elr: dict[int, set[NodeId]] = {number: set() for number in range(PARTITIONS)}
        self.acknowledged: dict[tuple[int, int], list[bytes]] = {
            (number, producer): [] for number in range(PARTITIONS) for producer in range(PRODUCERS)
        }
        self.busy = True
        self.faults: list[str] = []

    # --- the controller's part: fencing, elections, ELR

    def state(self, number: int) -> PartitionState:
        return next(state for state in self.c.states.values() if state.partition == number)

    def change(self, number: int, isr: Sequence[NodeId], **fields: Unpack[StateFields]) -> None:
        """ELR: replicas that left an ISR that fell below min.insync.replicas, until it is that large again
        (KIP-966)."""
        state = self.state(number)
        if len(isr) >= state.config.min_insync_replicas:
            self.elr[number] = set()
        else:
            self.elr[number] = (self.elr[number] | set(state.isr)) - set(isr)
        self.c.change(number, isr=isr, **fields)

    def altered(self, node: NodeId, items: tuple[AlterPartitionItem, ...]) -> None:
        """ISR changes by the leaders go the same way."""
        for item in items:
            state = self.state(item.partition)
            good = item.leader_epoch == state.leader_epoch and item.partition_epoch == state.partition_epoch
            if good and all(self.c.broker_epoch_of(one.node_id) == one.broker_epoch for one in item.new_isr):
                isr = {one.node_id for one in item.new_isr}
                if len(isr) < state.config.min_insync_replicas:
                    self.elr[item.partition] |= set(state.isr) - isr
                else:
                    self.elr[item.partition] = set()

    def fence(self, node: NodeId, *, unclean: bool) -> None:
        """Out of leaderships and ISRs; out of the ELR as well if its process died."""
        self.c.fenced.add(node)
        for number in range(PARTITIONS):
            state = self.state(number)
            live = [one for one in state.isr if one != node and one not in self.c.fenced]
            if unclean and (live or self.elr[number] - {node}):
                self.elr[number].discard(node)
            if node in state.isr and live:
                self.change(number, [one for one in state.isr if one != node])
                if unclean:
                    self.elr[number].discard(node)
            self.elect(number)
        self.tell_brokers(node)

    def unfence(self, node: NodeId) -> None:
        self.c.fenced.discard(node)
        for number in range(PARTITIONS):
            self.elect(number)
        self.tell_brokers(node)

    def tell_brokers(self, node: NodeId) -> None:
        for broker in self.c.brokers.values():
            if broker.alive and broker.node not in self.c.deaf:
                broker.manager.brokers_changed([node])

    def elect(self, number: int) -> None:
        state = self.state(number)
        if state.leader >= 0 and state.leader not in self.c.fenced:
            return
        live = [one for one in state.isr if one not in self.c.fenced]
        eligible = sorted(self.elr[number] - self.c.fenced)
        if live:
            self.change(number, state.isr, leader=self.rng.choice(live))
        elif eligible:
            leader = self.rng.choice(eligible)
            self.elr[number].discard(leader)
            self.c.change(number, isr=[leader], leader=leader)
        elif state.leader >= 0:
            self.c.change(number, leader=NodeId(-1))

    # --- faults

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS
        while loop.time() < end:
            fault = self.rng.choice((self.cut, self.cut, self.break_connections, self.kill, self.deafen, self.move))
            self.faults.append(fault.__name__)
            await fault()
            await asyncio.sleep(self.rng.uniform(0, 0.6))

    async def cut(self) -> None:
        """One direction, or a node from both others; mended while other faults go on."""
        a, b, other = self.rng.sample(NODES, 3)
        links = self.rng.choice(([(a, b)], [(a, b), (b, a)], [(a, b), (b, a), (a, other), (other, a)]))
        for sender, receiver in links:
            self.c.fabric.cut(f"node-{sender}", f"node-{receiver}")
        asyncio.get_running_loop().call_later(self.rng.choice((0.05, 0.4, 1.5)), self.c.fabric.heal)

    async def break_connections(self) -> None:
        self.c.fabric.break_connections(f"node-{self.rng.choice(NODES)}")

    async def kill(self) -> None:
        node = NodeId(self.rng.choice(NODES))
        self.c[node].kill()
        await asyncio.sleep(self.rng.choice((0.0, 0.6)))
        self.fence(node, unclean=True)
        await asyncio.sleep(self.rng.uniform(0, 1))
        await self.c[node].start()
        self.unfence(node)

    async def deafen(self) -> None:
        node = NodeId(self.rng.choice(NODES))
        self.c.deaf.add(node)
        await asyncio.sleep(0.05)
        self.fence(node, unclean=False)
        await asyncio.sleep(self.rng.uniform(0, 1))
        self.c.deaf.discard(node)
        self.c.tell(*self.c.states.values())
        self.unfence(node)

    async def move(self) -> None:
        number = self.rng.randrange(PARTITIONS)
        state = self.state(number)
        others = [node for node in state.isr if node != state.leader and node not in self.c.fenced]
        if others:
            self.change(number, state.isr, leader=self.rng.choice(others))

    # --- clients

    async def produce(self, number: int, producer: int) -> None:
        """One record after the other, each until its outcome is known; asks for the leader only after an error."""
        count = 0
        leader = self.state(number).leader
        while self.busy:
            value = b"%d-%d-%d" % (number, producer, count)
            while True:
                if leader >= 0 and self.c[leader].alive:
                    sent = self.c[leader].produce(
                        value,
                        partition=number,
                        timeout_ms=700,
                        producer_id=number * PRODUCERS + producer,
                        producer_epoch=0,
                        base_sequence=count,
                    )
                    try:
                        async with asyncio.timeout(1):  # a killed process answers nobody
                            answer = await sent
                    except TimeoutError:
                        leader = self.state(number).leader
                        continue
                    if answer.error is ErrorCode.NONE:
                        break
                    assert answer.error.retriable, answer
                await asyncio.sleep(0.03)
                leader = self.state(number).leader
            self.acknowledged[number, producer].append(value)
            count += 1
            await asyncio.sleep(self.rng.uniform(0, 0.02))


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda value: f"seed-{value}")
@in_virtual_time
async def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(cluster: MakeCluster, seed: int) -> None:
    async with cluster(replica_lag_time_max_ms=1_000, replica_socket_timeout_ms=1_000) as c:
        chaos = Chaos(c, random.Random(seed))
        c.answer_alter = chaos.altered
        c.create(leader=1, partitions=PARTITIONS, min_insync_replicas=2)
        producers = [asyncio.ensure_future(chaos.produce(*key)) for key in chaos.acknowledged]
        await chaos.run()
        c.fabric.heal()
        chaos.busy = False
        await asyncio.wait_for(asyncio.gather(*producers), 30)
        await until(lambda: all(len(state.isr) == 3 for state in c.states.values()), 30)
        for number in range(PARTITIONS):
            expected = {key: values for key, values in chaos.acknowledged.items() if key[0] == number}
            total = sum(map(len, expected.values()))
            assert total > 30
            copies = [c[node].partition(number) for node in NODES]
            await until(partial(all_committed, copies, total), 5)
            for node in NODES:
                found = c[node].values(number)
                assert len(found) == total, f"partition {number} on node {node} after {chaos.faults}"
                for (_, producer), values in expected.items():
                    assert [value for value in found if value.startswith(b"%d-%d-" % (number, producer))] == values
                assert found == c[1].values(number)
                assert c[node].partition(number).counts.truncations_below_high_watermark == 0
