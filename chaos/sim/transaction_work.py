"""Transactions at work in a simulated cluster: producers that die, stand still and fence one another, decisions that
others make, a bank, and outputs that are made of inputs."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.history import Polled
from tidelog.chaos.checkers.transactions import (
    Attempt,
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
from tidelog.chaos.sim.scenario import Fault
from tidelog.chaos.sim.transaction_clients import (
    ACCOUNTS,
    BALANCE,
    BANK,
    COPIES,
    COPY_TIMEOUT_MS,
    GROUP,
    MANY,
    PLACES,
    TIMEOUT_MS,
    Client,
    CommittedReader,
    Copier,
    Decider,
    Teller,
    Writer,
    group_of,
)
from tidelog.chaos.sim.transaction_watch import OFFSETS_TOPIC, TransactionWatch
from tidelog.model.ids import NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation

STABLE_S: Final = TIMEOUT_MS / 1_000 + 2.5
"""When all is mended, no producer works any more and nothing is prepared, nothing is undecided after so long."""
_SLOTS: Final[tuple[tuple[str, type[Writer] | type[Teller] | type[Copier]], ...]] = (
    ("w0", Writer),
    ("w1", Writer),
    ("b0", Teller),
    ("t0", Copier),
    ("t1", Copier),
)
READERS: Final = 2


class TransactionWork:
    """The transactional clients of a run. A slot is a transactional id; one life after another has it, or two at a
    time."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.attempts: list[Attempt] = []
        self.events: Counter[str] = Counter()
        self.held: dict[str, Attempt] = {}
        """Transactions that are prepared and wait for a decision, by transactional id: no new life but of whom is to
        decide."""
        self.committed_s: dict[str, float] = {}
        """When each slot was last told of a commit that it asked for."""
        self._rng = random.Random(f"transactions-{sim.world.seed}")
        self._reads: list[Polled] = []
        self._lives = 0
        self._current: dict[str, Writer | Teller | Copier] = {}
        self._others: list[Client] = []
        self._readers: list[CommittedReader] = []
        self._stopping = False
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        self._outside = contextvars.Context()
        """Of no process: what happens in it waits for none that stands still."""
        offsets = int(sim.cluster.settings["offsets.topic.num.partitions"])
        bounds_s = {BANK: STABLE_S, COPIES: COPY_TIMEOUT_MS / 1_000 + 2.5}
        self.watch = TransactionWatch(
            sim.world, {**PLACES, OFFSETS_TOPIC: offsets}, bounds_s, lambda: sim.observer.quiet_since_s
        )
        hand = sim.hand
        # Of no process either, though it is told in the midst of a client's call.
        self.watch.on_commit = lambda: contextvars.Context().run(hand.look)
        hand.roles |= {
            "transactions": lambda: self.watch.coordinator(_SLOTS[0][0]),
            "bank": lambda: self.watch.coordinator("b0"),
            "coordinator": lambda: self.watch.group_coordinator(GROUP),
            "place": lambda: sim.cluster.leader_of(MANY, 0),
        }
        hand.acts |= {
            "kill-producer": lambda number, seconds: self._kill(int(number), seconds),
            "pause-producer": self._pause,
            "second-producer": self._second,
            "at-commit": self._at_commit,
            "at-step": partial(self.watch.at_step, hand),
            "kill-both": self._kill_both,
        }

    @property
    def operations(self) -> int:
        copies = sum(client.commits for client in self._everyone if isinstance(client, Copier))
        return len(self.attempts) + copies

    @property
    def _everyone(self) -> list[Client]:
        return [*self._current.values(), *self._others, *self._readers]

    # --- clients ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        sim = self.sim
        for topic, count in PLACES.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor, sim.setting.topic_config)
        self.watch.begin()
        for slot, _ in _SLOTS:
            self._fill(slot)
        for number in range(READERS):
            self._readers.append(CommittedReader(f"rc{number}", self, self._reads, PLACES))

    def _fill(self, slot: str, token: str | None = None) -> None:
        """Start a life in a slot; who had it before goes on, if it does."""
        kind = dict(_SLOTS)[slot]
        self._lives += 1
        name = f"{slot}.{self._lives}"
        if slot in self._current:
            self._others.append(self._current[slot])
        made = kind(slot, name, self) if not issubclass(kind, Writer) else kind(slot, name, self, token=token)
        made.stopping = self._stopping
        self._current[slot] = made
        made.task.add_done_callback(lambda _: self._gone(slot, made), context=self._outside)

    def _gone(self, slot: str, client: Client) -> None:
        """A life is over: after a while another one begins, unless its decision is another's now."""
        if self._stopping or self._current.get(slot) is not client or slot in self.held:
            return
        self._later(slot, client, self._rng.choice((0.05, 0.5, 2.0)))

    def _later(self, slot: str, client: Client, seconds: float, token: str | None = None) -> None:
        def again() -> None:
            if self._current.get(slot) is client and (token is not None or not self._stopping):
                self._fill(slot, token)

        loop = self.sim.cluster.loop
        loop.at(loop.now + seconds, again, context=self._outside)

    def is_current(self, client: Client) -> bool:
        """Whether nobody else has been given its transactional id since."""
        return any(current is client for current in self._current.values())

    def decide_elsewhere(self, writer: Writer, attempt: Attempt, token: str, *, committed: bool) -> None:
        """Another process decides, and only then is there a new life."""
        slot = writer.transactional_id
        self.held[slot] = attempt
        self._lives += 1
        decider = Decider(slot, f"d{self._lives}", self, attempt, token, committed=committed)
        self._others.append(decider)
        ended = decider.task.add_done_callback
        ended(lambda _: self._gone(slot, self._current[slot]), context=self._outside)

    def decide_by_successor(self, writer: Writer, attempt: Attempt, token: str) -> None:
        """The next life commits what this one has prepared."""
        self.held[writer.transactional_id] = attempt
        self._later(writer.transactional_id, writer, self._rng.choice((0.1, 2.0, 8.0)), token)

    def snapshot(self, name: str, balances: dict[int, int]) -> None:
        """A teller has read the bank."""
        self.events["snapshot"] += 1
        for text in sum_holds(name, {str(n): balance for n, balance in balances.items()}, ACCOUNTS * BALANCE):
            self.sim.world.violated(text)

    # --- faults -----------------------------------------------------------------------------------------

    def _at(self, number: int) -> tuple[str, Client] | None:
        slot = _SLOTS[number % len(_SLOTS)][0]
        client = self._current.get(slot)
        return None if client is None or not client.at_work or slot in self.held else (slot, client)

    def _kill(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        slot, client = found
        client.kill()
        self._later(slot, client, seconds)
        return True

    def _pause(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        _, client = found
        self.sim.cluster.loop.pause(client.process)
        self.sim.hand.later(seconds, lambda: self._resume(client))
        return True

    def _resume(self, client: Client) -> None:
        if client.process.paused and not client.task.cancelled() and not client.task.cancelling():
            self.sim.cluster.loop.resume(client.process)

    def _second(self, number: int, seconds: float) -> bool:
        """Start another process under a transactional id while the first runs, or stands still for a while."""
        found = self._at(number)
        if found is None:
            return False
        slot = found[0]
        if seconds > 0.5:
            self._pause(number, seconds)
        self._fill(slot)
        return True

    def _at_commit(self, number: int, within_s: float, *acts: str | float) -> bool:
        """When a producer next asks for a commit, do something to the transaction's coordinator, ``u``."""
        slot = _SLOTS[number][0]
        self.watch.committing.pop(slot, None)

        def involved() -> dict[str, NodeId | None]:
            if slot in self.held:  # of what is prepared: whoever follows would commit it all the same
                self.watch.committing.pop(slot, None)
            node = self.watch.coordinator(slot) if slot in self.watch.committing else None
            return {} if node is None else {"u": node}

        self.sim.hand.wait_for("at-commit", involved, within_s, acts)
        return True

    def _kill_both(self, number: str, target: str, seconds: float) -> bool:
        """After a moment, end a producer and a node, which comes back."""
        hand = self.sim.hand

        def end() -> None:
            self._kill(int(number), 1.0)
            hand.act(Fault(0.0, "kill", (target, 1.0)))

        hand.later(seconds, end)
        return True

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        sim, cluster = self.sim, self.sim.cluster
        began = cluster.loop.now
        await cluster.wait_for(lambda: self._heard_since(began), "every transactional producer heard again", bound_s)
        await cluster.wait_for(lambda: not self.held, "everything prepared decided", bound_s)
        await self._all_copied(bound_s)
        self._stopping = True
        for client in (*self._current.values(), *self._others):
            may_die = isinstance(client, Writer) and client.at_work and not client.preparing
            if may_die and self._rng.random() < 0.5:
                client.kill()  # nobody follows: what it has open ends by its timeout
                continue
            if isinstance(client, Copier):
                client.stop()
            client.stopping = True
        working = [client.task for client in (*self._current.values(), *self._others) if not client.process.paused]
        if working:
            _, left = await asyncio.wait(working, timeout=bound_s)
            if left:
                names = [c.name for c in (*self._current.values(), *self._others) if c.task in left]
                raise TimeoutError(f"expected within {bound_s:g} s: {', '.join(names)} ended")
        await cluster.wait_for(lambda: not self.held, "what was prepared last decided", bound_s)
        await cluster.wait_for(lambda: not self.watch.undecided(), "nothing undecided", STABLE_S)
        for text in all_stable(self.watch.marks()):
            sim.world.violated(text)
        await self._look_up_offsets()
        ends = {at: end for at, end in sim.observer.log_ends().items() if at.topic in PLACES}
        await cluster.wait_for(
            lambda: all(reader.positions[at] >= end for reader in self._readers for at, end in ends.items()),
            "readers of what is committed at the end",
            bound_s,
        )

    async def _look_up_offsets(self) -> None:
        """What the groups of writers have committed."""
        places = [TopicPartition(MANY, number) for number in range(PLACES[MANY])]
        async with self.sim.cluster.admin() as admin:
            for group in (group_of(slot) for slot, kind in _SLOTS if kind is Writer):
                found = await admin.list_consumer_group_offsets(group, places, timeout=10)
                for at in places:
                    self._committed[group, at] = -1 if (one := found.get(at)) is None else one.offset

    def _heard_since(self, began: float) -> bool:
        return all(self.committed_s.get(slot, -1.0) > began for slot, kind in _SLOTS if kind is not Copier)

    async def _all_copied(self, bound_s: float) -> None:
        """Wait until all inputs are read and committed by the group."""
        sim, cluster = self.sim, self.sim.cluster
        ends = {at: end for at, end in sim.observer.log_ends().items() if at.topic == sim.topic and end > 0}
        until = cluster.loop.now + bound_s
        async with cluster.admin() as admin:
            while True:
                found = await admin.list_consumer_group_offsets(GROUP, sorted(ends), timeout=10)
                at = {place: -1 if (one := found.get(place)) is None else one.offset for place in ends}
                if at == ends:
                    return
                if cluster.loop.now > until:
                    raise TimeoutError(f"expected within {bound_s:g} s: all inputs copied: {at} of {ends}")
                await asyncio.sleep(0.3)

    def judge(self) -> None:
        """All replicas are level: judge the logs."""
        tell = self.sim.world.violated
        logs = self.watch.logs((*PLACES, OFFSETS_TOPIC, self.sim.topic))
        counts = {at: visible(log) for at, log in logs.items()}
        copies = [value for at, records in counts.items() if at.topic == COPIES for _, value in records]
        inputs = [value for at, records in counts.items() if at.topic == self.sim.topic for _, value in records]
        written = {at: records for at, records in counts.items() if at.topic in (MANY, BANK)}
        read = {at: records for at, records in counts.items() if at.topic in PLACES}
        found = [
            *one_decision({at: log for at, log in logs.items() if at.topic != self.sim.topic}),
            *all_or_none(self.attempts, written),
            *offsets_follow(self.attempts, written, self._committed),
            *only_what_counts(self.attempts, self._reads, read, complete=True),
            *fenced(self.watch.identified, logs),
            *exactly_once(inputs, copies),
            *sum_holds("who reads at the end", self._balances(written), ACCOUNTS * BALANCE),
        ]
        for text in found[:20]:
            tell(text)
        if len(found) > 20:
            tell(f"and {len(found) - 20} more")

    def _balances(self, counts: dict[TopicPartition, list[tuple[int, bytes]]]) -> dict[str, int]:
        found = {str(number): BALANCE for number in range(ACCOUNTS)}
        for at, records in sorted(counts.items()):
            if at.topic == BANK:
                for _, value in records:
                    account, _, rest = value.decode().partition("=")
                    found[account] = int(rest.partition(";")[0])
        return found

    async def finish(self) -> None:
        for client in self._everyone:
            if not client.task.done():
                client.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(client.name, client.failure()) for client in self._everyone]
