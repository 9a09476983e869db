"""Transactions working in a simulated cluster: producers that die, pause and fence one another, decisions that others
make, a bank, and outputs that are computed from inputs."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.history import History
from tidelog.chaos.checkers.transactions import (
    all_or_none,
    all_stable,
    exactly_once,
    fenced,
    offsets_follow,
    one_decision,
    only_what_counts,
    sum_holds,
    visible,
)
from tidelog.chaos.simulated.watch.transactions import OFFSETS_TOPIC, TransactionWatch
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.chaos.workloads import transform
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.transactions import (
    ACCOUNTS,
    BALANCE,
    BANK,
    MANY,
    PARTITIONS,
    PREPARES,
    TIMEOUT_MS,
    Teller,
    Transaction,
    TransactionClients,
    Writer,
    balances_after,
    group_of,
)
from tidelog.chaos.workloads.transform import Copier, Copying
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

COPIES: Final = "copies"
GROUP: Final = "copiers"
TOPICS: Final = {MANY: PARTITIONS, BANK: PARTITIONS, COPIES: 2}
"""Topics besides the inputs, and their partitions."""
STABLE_S: Final = TIMEOUT_MS / 1_000 + 2.5
"""When all is repaired, no producer is working and nothing is prepared, nothing is undecided after this long."""
WRITERS: Final = ("w0", "w1")
TELLER: Final = "b0"
COPIERS: Final = ("t0", "t1")
READERS: Final = 2


class TransactionWork(TransactionClients):
    """The transactional clients of a run. A slot is a transactional id; one incarnation after another has it, or two at
    a time."""

    def __init__(self, sim: Simulation) -> None:
        copying = Copying(sim.topic, COPIES, TOPICS[COPIES], GROUP, naps=0.08, polls=(3, 20))
        super().__init__(
            sim.clients,
            random.Random(f"transactions-{sim.world.seed}"),
            {
                **dict.fromkeys(WRITERS, Writer),
                TELLER: Teller,
                **dict.fromkeys(COPIERS, lambda slot, name, clients: Copier(slot, name, clients.world, copying)),
            },
            PREPARES,
        )
        self.sim = sim
        self.attempts: list[Transaction] = []
        self._told = History()
        self._readers: list[Reader] = []
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        offsets = int(sim.cluster.settings["offsets.topic.num.partitions"])
        bounds_s = {BANK: STABLE_S, COPIES: transform.TIMEOUT_MS / 1_000 + 2.5}
        self.watch = TransactionWatch(
            sim.world, {**TOPICS, OFFSETS_TOPIC: offsets}, bounds_s, lambda: sim.observer.quiet_since_s
        )
        injector, roster = sim.injector, self.roster
        # It belongs to no process, though it is called during a client's call.
        self.watch.on_commit = lambda: contextvars.Context().run(injector.look)
        injector.roles |= {
            "transactions": lambda: self.watch.coordinator(WRITERS[0]),
            "bank": lambda: self.watch.coordinator(TELLER),
            "coordinator": lambda: self.watch.group_coordinator(GROUP),
            "partition-leader": lambda: sim.cluster.leader_of(MANY, 0),
        }
        injector.acts |= {
            "kill-producer": lambda number, seconds: roster.kill(int(number), seconds),
            "pause-producer": roster.pause,
            "second-producer": roster.second,
            "at-commit": self._at_commit,
            "at-step": partial(self.watch.at_step, injector),
            "kill-both": self._kill_both,
        }

    @property
    def events(self) -> Counter[str]:
        return self.world.events

    @property
    def operations(self) -> int:
        copies = sum(client.commits for client in self.roster.everyone if isinstance(client, Copier))
        return len(self.attempts) + copies

    # --- clients ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        sim = self.sim
        for topic, count in TOPICS.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor, sim.setting.topic_config)
        self.watch.begin()
        self.roster.begin()
        for number in range(READERS):
            self._readers.append(
                Reader(f"rc{number}", self.world, partitions_of(TOPICS), committed=True, history=self._told, asks=True)
            )

    def begun(self, transaction: Transaction) -> None:
        super().begun(transaction)
        self.attempts.append(transaction)

    def taken_over(self, transactional_id: str) -> bool:
        return self.watch.taken_over(transactional_id)

    def misled(self, transactional_id: str) -> bool:
        return self.watch.misled(transactional_id)

    def snapshot(self, name: str, balances: Mapping[int, int]) -> None:
        super().snapshot(name, balances)
        for text in sum_holds(name, balances, ACCOUNTS * BALANCE):
            self.sim.world.violated(text)

    # --- faults -----------------------------------------------------------------------------------------

    def _at_commit(self, number: int, within_s: float, *acts: str | float) -> bool:
        """When a producer next asks for a commit, act on the transaction's coordinator, ``u``."""
        slot = self.roster.slots[number]
        self.watch.committing.pop(slot, None)

        def involved() -> dict[str, NodeId | None]:
            if slot in self.roster.held:  # prepared: a successor would commit it all the same
                self.watch.committing.pop(slot, None)
            node = self.watch.coordinator(slot) if slot in self.watch.committing else None
            return {} if node is None else {"u": node}

        self.sim.injector.wait_for("at-commit", involved, within_s, acts)
        return True

    def _kill_both(self, number: str, target: str, seconds: float) -> bool:
        """Kill a producer and a node after a moment; the node comes back."""
        injector = self.sim.injector

        def end() -> None:
            self.roster.kill(int(number), 1.0)
            injector.act(Fault(0.0, "kill", (target, 1.0)))

        injector.later(seconds, end)
        return True

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        sim, cluster, roster = self.sim, self.sim.cluster, self.roster
        began = cluster.loop.now
        await cluster.wait_for(lambda: self._heard_since(began), "every transactional producer heard again", bound_s)
        before = list(roster.held.items())  # others are prepared meanwhile, so that there may always be some
        await cluster.wait_for(
            lambda: not any(roster.held.get(slot) is one for slot, one in before),
            "everything prepared decided",
            bound_s,
        )
        await self._all_copied(bound_s)
        roster.stopping = True
        clients = [*roster.current.values(), *roster.replaced]
        for client in clients:
            may_die = isinstance(client, Writer) and client.at_work and not client.preparing
            if may_die and roster.rng.random() < 0.5:
                client.kill()  # it has no successor: its open transaction ends by its timeout
            else:
                client.stop()
        await roster.ended(bound_s)
        await cluster.wait_for(lambda: not roster.held, "what was prepared last decided", bound_s)
        await cluster.wait_for(lambda: not self.watch.undecided(), "nothing undecided", STABLE_S)
        for text in all_stable(self.watch.marks()):
            sim.world.violated(text)
        await self._look_up_offsets()
        ends = sim.observer.log_ends()
        await cluster.wait_for(
            lambda: all(reader.is_at(ends) for reader in self._readers),
            "readers of what is committed at the end",
            bound_s,
        )

    async def _look_up_offsets(self) -> None:
        """Look up what the groups of writers have committed."""
        partitions = partitions_of({MANY: PARTITIONS})
        async with self.sim.cluster.admin() as admin:
            for group in map(group_of, WRITERS):
                found = await admin.list_consumer_group_offsets(group, partitions, timeout=10)
                for at in partitions:
                    self._committed[group, at] = -1 if (one := found.get(at)) is None else one.offset

    def _heard_since(self, began: float) -> bool:
        return all(self.committed_s.get(slot, -1.0) > began for slot in (*WRITERS, TELLER))

    async def _all_copied(self, bound_s: float) -> None:
        """Wait until all inputs are read and committed by the group."""
        sim, cluster = self.sim, self.sim.cluster
        ends = {at: end for at, end in sim.observer.log_ends().items() if at.topic == sim.topic and end > 0}
        until = cluster.loop.now + bound_s
        async with cluster.admin() as admin:
            while True:
                found = await admin.list_consumer_group_offsets(GROUP, sorted(ends), timeout=10)
                copied = {at: -1 if (one := found.get(at)) is None else one.offset for at in ends}
                if copied == ends:
                    return
                if cluster.loop.now > until:
                    raise TimeoutError(f"expected within {bound_s:g} s: all inputs copied: {copied} of {ends}")
                await asyncio.sleep(0.3)

    def judge(self) -> None:
        """Judge the logs, now that all replicas are level."""
        tell = self.sim.world.violated
        logs = self.watch.logs((*TOPICS, OFFSETS_TOPIC, self.sim.topic))
        counts = {at: visible(log) for at, log in logs.items()}
        copies = [value for at, records in counts.items() if at.topic == COPIES for _, value in records]
        inputs = [value for at, records in counts.items() if at.topic == self.sim.topic for _, value in records]
        bank = [value for at, records in counts.items() if at.topic == BANK for _, value in records]
        written = {at: records for at, records in counts.items() if at.topic in (MANY, BANK)}
        read = {at: records for at, records in counts.items() if at.topic in TOPICS}
        found = [
            *one_decision({at: log for at, log in logs.items() if at.topic != self.sim.topic}),
            *all_or_none(self.attempts, written),
            *offsets_follow(self.attempts, written, self._committed),
            *only_what_counts(self.attempts, self._told.polls, read, complete=True),
            *fenced(self.watch.identified, logs),
            *exactly_once(inputs, copies),
            *sum_holds("the log at the end", balances_after(bank), ACCOUNTS * BALANCE),
        ]
        for text in found[:20]:
            tell(text)
        if len(found) > 20:
            tell(f"and {len(found) - 20} more")

    async def finish(self) -> None:
        self.roster.kill_all()
        for reader in self._readers:
            if not reader.task.done():
                reader.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [*self.roster.failures(), *((reader.name, reader.failure()) for reader in self._readers)]
