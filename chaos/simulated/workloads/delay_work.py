"""A delay topic at work in a simulated cluster: its leaders move records to two targets while nodes and clocks fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.broker.coordinators.delays.surroundings import Counts
from tidelog.chaos.checkers.delays import DelayedSend, judge_delays
from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.workloads.delays import DelayReader, DelayWriter
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import NodeId, id_text
from tidelog.model.names import DELAY_PREFIX, GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.transaction_api import DescribedTransaction, DescribeTransactionsRequest
from tidelog.proto.transport.network import CallContext
from tidelog.transactions.transitions import TransactionState

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

LATER: Final = "later"
LETTERS: Final = "dead-letters"
TARGETS: Final = {"bills": 3, "mails": 1}
PARTITIONS: Final = 1
WRITERS: Final = 2
CONFIG: Final = {
    "delay.enable": "true",
    "delay.target": "bills",
    "delay.targets": "mails",
    "delay.dead.letter.topic": LETTERS,
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(1024 * 1024),
}


class DelayWork:
    """Writers of a delay topic, and a reader of its targets."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.sends: list[DelayedSend] = []
        self._writers: list[DelayWriter] = []
        self._counts: list[Counts] = []
        """Of processes that have ended."""
        cluster = sim.cluster
        cluster.died.append(self._died)
        sim.injector.roles |= {
            "delay-leader": lambda: cluster.leader_of(LATER, 0),
            "target-leader": lambda: cluster.leader_of("bills", 0),
            "transactions": self._coordinator,
        }
        sim.injector.acts |= {"at-commit": self._at_commit, "at-step": self._at_step}

    def _coordinator(self) -> NodeId | None:
        return self._sim.cluster.leader_of("__transaction_state", 0)

    def _move(self) -> DescribedTransaction | None:
        """The transaction of the delay topic's only mover, as its coordinator has it."""
        cluster = self._sim.cluster
        topic, node_id = cluster.image.topic(LATER), self._coordinator()
        node = None if node_id is None else cluster.nodes.get(node_id)
        if topic is None or node is None or node.broker is None:
            return None
        request = DescribeTransactionsRequest((f"{DELAY_PREFIX}{id_text(topic.topic_id)}.0",))
        [found] = (
            node.broker.transactions.coordinator.describe(request, CallContext("", "the simulation"))
            .result()
            .transactions
        )
        return found

    def _at_commit(self, within_s: float, *acts: str | float) -> bool:
        """When a move is decided, and markers are still to be written, act on the coordinator, ``u``."""

        def involved() -> dict[str, NodeId | None]:
            move = self._move()
            decided = move is not None and move.state == TransactionState.PREPARE_COMMIT.value
            return {"u": self._coordinator()} if decided else {}

        self._sim.injector.wait_for("at-commit", involved, within_s, acts)
        return True

    def _at_step(self, within_s: float, *acts: str | float) -> bool:
        """When a move has begun to write to a target, act on the target's leader, ``t``, if it has no other part."""

        def involved() -> dict[str, NodeId | None]:
            leader_of, move = self._sim.cluster.leader_of, self._move()
            if move is None or move.state != TransactionState.ONGOING.value:
                return {}
            others = {leader_of(LATER, 0), self._coordinator(), leader_of(GROUP_OFFSETS_TOPIC, 0)}
            targets = [leader_of(at.topic, at.partition) for at in move.partitions if at.topic in TARGETS]
            return next(({"t": node} for node in targets if node not in others), {})

        self._sim.injector.wait_for("at-step", involved, within_s, acts)
        return True

    @property
    def operations(self) -> int:
        return sum(writer.operations for writer in self._writers)

    @property
    def events(self) -> Counter[str]:
        came = {arrival.mark for arrival in self._reader.arrivals}
        cancelled = {send.cancels for send in self.sends if send.cancels is not None}
        return Counter(
            {
                "delivered": len(came),
                "cancelled": len(cancelled - came),
                "again": sum(counts.again for counts in self._counts),
                "transaction-failed": sum(counts.failed for counts in self._counts),
            }
        )

    def _died(self, node_id: NodeId) -> None:
        node = self._sim.cluster.nodes.get(node_id)
        if node is not None and node.broker is not None:
            self._counts.append(node.broker.delays.counts)

    async def begin(self) -> None:
        sim = self._sim
        for topic, count in {**TARGETS, LETTERS: 1}.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor, {"delay.sources": LATER})
        await sim.cluster.create_topic(LATER, PARTITIONS, sim.replication_factor, CONFIG)
        self._reader = DelayReader("arrivals", sim.clients, partitions_of({**TARGETS, LETTERS: 1}))
        for number in range(WRITERS):
            self._writers.append(
                DelayWriter(
                    f"d{number}", sim.clients, partitions_of({LATER: PARTITIONS}), list(TARGETS), self.sends.append
                )
            )

    async def settle(self, bound_s: float) -> None:
        cluster, began = self._sim.cluster, self._sim.cluster.loop.now
        await cluster.wait_for(lambda: all(w.acknowledged_s > began for w in self._writers), "writers heard", bound_s)
        for writer in self._writers:
            writer.stop()
            await asyncio.wait([writer.task])
        await cluster.wait_for(lambda: not self._missing(), "everything for later delivered", bound_s)
        await asyncio.sleep(2.0)  # for what should not come

    def _missing(self) -> set[bytes]:
        cancelled = {send.cancels for send in self.sends}
        due = {send.mark for send in self.sends if send.outcome is Outcome.OK and send.cancels is None}
        return due - cancelled - {arrival.mark for arrival in self._reader.arrivals}

    def judge(self) -> None:
        sim, arrivals = self._sim, self._reader.arrivals
        ahead = max(host.clock.off_ms[1] for host in sim.cluster.hosts.values())
        found = judge_delays(self.sends, arrivals, ahead, sim.cluster.clock_spread_ms)
        found += [f"delay: {each.mark!r} is a dead letter" for each in arrivals if each.target[0] == LETTERS]
        for text in found[:20]:
            sim.world.violated(text)

    async def finish(self) -> None:
        await self._reader.finish()
        for node_id in self._sim.cluster.nodes:
            self._died(node_id)
        self._sim.cluster.died.remove(self._died)

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(client.name, client.failure()) for client in (*self._writers, self._reader)]
