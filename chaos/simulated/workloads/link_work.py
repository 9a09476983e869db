"""A link between two simulated clusters: its processes die and pause, both sides suffer faults, and it is promoted,
drained and reversed under load.

The source is the run's own cluster, the target one beside it. Both have all of a run's judges for replicas and
metadata; :mod:`tidelog.chaos.checkers.links` compares their contents at the end.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers import links
from tidelog.chaos.checkers.anomalies.log import violations as history_violations
from tidelog.chaos.checkers.history import NO_OFFSET, History, Outcome
from tidelog.chaos.simulated.faults.cluster_faults import FaultInjector
from tidelog.chaos.simulated.faults.fault_mix import TARGET
from tidelog.chaos.simulated.simulation.client_world import SimulatedWorld
from tidelog.chaos.simulated.watch.observer import Observer
from tidelog.chaos.simulated.watch.transactions import led_logs
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.chaos.simulated.world.world import World
from tidelog.chaos.workloads.appending import Appender
from tidelog.chaos.workloads.incarnation import AGAIN_S, GivenUp, Incarnation, Roster
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.transactions import MANY, PARTITIONS, TransactionClients, Writer, group_of
from tidelog.chaos.workloads.world import partitions_of
from tidelog.client.config.security import ClientSecurity
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.errors import TidelogError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.links.definition import LinkDefinition, LinkError
from tidelog.client.links.linked import LINK_STATE, LinkAdmin
from tidelog.client.links.linking import TROUBLE, LinkRunner
from tidelog.client.links.managing import Promotion, create_link, promote
from tidelog.client.links.reversing import drain, reverse
from tidelog.client.links.source import Source
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicIdPartition, TopicPartition
from tidelog.model.settings.topic_config import LINK_STOPPED
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse
from tidelog.proto.calls.request import Request, Response

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

LINK: Final = "dr"
KINDS: Final = ("kill", "kill-in-disk-call", "kill-two", "kill-all", "stop", "pause", "isolate", "cut", "cut-one-way")
WRITERS: Final = ("w0", "w1")
APPENDERS: Final = 2
DRAIN_S: Final = 15.0
LOOK_S: Final = 0.7
_FAILED: Final = (*TROUBLE, LinkError)


class Side:
    """One of the two clusters, with the clients that work on it."""

    def __init__(self, name: str, world: World, injector: FaultInjector, observer: Observer, seed: str) -> None:
        self.name = name
        self.world = world
        self.cluster = world.cluster
        self.injector = injector
        self.observer = observer
        self.history = History()
        self.clients = SimulatedWorld(world, self.history, injector, observer, random.Random(seed))
        self.appenders: list[Appender] = []

    def source(self) -> Source:
        """Return the reader of this cluster."""
        return Source(parse_bootstrap(self.cluster.kafka_bootstrap), ClientSecurity(), "link")

    def begin_to_append(self, topics: Mapping[str, int]) -> None:
        rng = random.Random(f"{self.name}-{self.world.seed}")
        for number in range(APPENDERS):
            settings = {
                "linger_ms": rng.choice((0, 5, 50)),
                "batch_size": rng.choice((300, 16_384)),
                "request_timeout_ms": rng.choice((1_000, 3_000)),
                "delivery_timeout_ms": rng.choice((4_000, 60_000)),
                "max_block_ms": 20_000,
            }
            told = self.observer.acknowledged
            made = Appender(f"{self.name}{number}", self.clients, partitions_of(topics), settings, acknowledged=told)
            self.appenders.append(made)

    def ends(self, topics: Mapping[str, int]) -> dict[TopicPartition, int]:
        """Return the ends of the logs."""
        found = self.observer.log_ends()
        return {at: found.get(at, 0) for at in partitions_of(topics)}


class LinkProcess(Incarnation):
    """``tidelog links run``: from one side to the other, until it is stopped or a transient error ends it."""

    def __init__(self, slot: str, name: str, old: Side, new: Side) -> None:
        self._old = old
        self._over = asyncio.Event()
        super().__init__(name, new.clients)

    async def _run(self) -> None:
        source = self._old.source()
        try:
            async with LinkAdmin(self.world.bootstrap, **self.process.seams()) as admin:
                definition = await admin.definition(LINK)
                await LinkRunner(admin, source, definition, self.world.note).run(self._over)
        except _FAILED as why:
            raise GivenUp(f"{type(why).__name__}: {why}") from None
        finally:
            source.close()

    def stop(self) -> None:
        super().stop()
        self._over.set()


class Operator(Incarnation):
    """One command of a link operator; it may be killed in the middle."""

    def __init__(self, name: str, side: Side, act: Callable[[Operator], Awaitable[None]]) -> None:
        self._act = act
        super().__init__(name, side.clients)

    def admin(self, side: Side) -> LinkAdmin:
        return LinkAdmin(side.cluster.bootstrap, **self.process.seams())

    async def _run(self) -> None:
        try:
            await self._act(self)
        except _FAILED as why:
            raise GivenUp(f"{type(why).__name__}: {why}") from None


class LinkWork:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        seed = sim.world.seed
        sim.topics.clear()  # this class judges what is written here
        self.linked = {sim.topic: sim.setting.partitions, MANY: PARTITIONS}
        config = {"min.insync.replicas": "2", **sim.setting.config}
        world = sim.world.beside(config=config, drift=sim.setting.drift)
        world.cluster.client_names = sim.cluster.client_names  # a cut that affects clients affects those of both
        injector = FaultInjector(world.cluster, sim.topic, lambda text: sim.world.note(f"target: {text}"))
        self.old = Side("o", sim.world, sim.injector, sim.observer, f"old-{seed}")
        self.new = Side("n", world, injector, Observer(world), f"new-{seed}")
        self._rng = random.Random(f"links-{seed}")
        writers = dict.fromkeys(WRITERS, Writer)
        self.writers = TransactionClients(self.old.clients, random.Random(f"writers-{seed}"), writers, 0.0)
        self.runners = self._runners(self.old, self.new, "link")
        self.returning: Roster[LinkProcess] | None = None
        """The processes that run the link in the other direction, once they exist."""
        self.operators: list[Operator] = []
        self.auditor: Operator | None = None
        self.definition: LinkDefinition | None = None
        self.promoted: dict[TopicPartition, int] | None = None
        """Where the target's own records begin, once it has some."""
        self.drained = False
        self.positions: dict[TopicPartition, int] = {}
        """The furthest positions that the link ever stored, or got from a leader."""
        self._heard: dict[TopicPartition, list[tuple[float, int]]] = {}
        """The log ends that leaders reported to the link, and when."""
        self.kept: dict[tuple[str, TopicPartition], int] = {}
        """Offsets committed at the target after the promotion, which we no longer change."""
        self._furthest: Counter[TopicPartition] = Counter()
        self._readers: list[Reader] = []
        self._told = History()
        world.cluster.fabric.answered.append(self._answered)
        sim.injector.acts |= {
            "kill-link": lambda number, seconds: self.runners.kill(int(number), seconds),
            "pause-link": self.runners.pause,
            "second-link": self.runners.second,
            "kill-producer": lambda number, seconds: self.writers.roster.kill(int(number), seconds),
            "pause-producer": self.writers.roster.pause,
            "promote-link": lambda: self._operate(partial(self._promote, drained=False)),
            "drain-link": lambda: self._operate(partial(self._promote, drained=True)),
            "reverse-link": lambda: self._operate(self._reverse),
            "kill-operator": self._kill_operator,
            **{TARGET + kind: partial(self._at_target, kind) for kind in KINDS},
        }

    @property
    def events(self) -> Counter[str]:
        return self.old.clients.events + self.new.clients.events

    @property
    def operations(self) -> int:
        clients: list[Appender | Reader] = [*self.old.appenders, *self.new.appenders, *self._readers]
        return sum(client.operations for client in clients) + self.writers.begun_count

    # --- clients ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        sim = self.sim
        await self.new.cluster.start()
        self.new.observer.moment = self.new.injector.look
        self.new.observer.begin()
        await sim.cluster.create_topic(MANY, PARTITIONS, sim.replication_factor)
        making = Operator("maker", self.new, self._make)
        self.operators.append(making)
        await asyncio.wait([making.task])
        assert self.definition is not None, "nothing is in the way of a new link"
        self.old.begin_to_append({sim.topic: sim.setting.partitions})
        self.writers.roster.begin()
        self.runners.begin()
        for number, (topics, committed) in enumerate((({sim.topic: 2}, False), ({MANY: PARTITIONS}, True))):
            history = self._told if committed else self.new.history
            made = Reader(
                f"r{number}", self.new.clients, partitions_of(topics), committed=committed, history=history, asks=True
            )
            self._readers.append(made)
        self.auditor = Operator("auditor", self.new, self._audit)

    def _runners(self, old: Side, new: Side, name: str) -> Roster[LinkProcess]:
        """Return a roster that runs a link again and again; now and then two processes at a time."""
        rng = random.Random(f"{name}-{self.sim.world.seed}")

        def start(slot: str, name: str) -> LinkProcess:
            return LinkProcess(slot, name, old, new)

        return Roster(new.clients, rng, (name,), start)

    async def _make(self, operator: Operator) -> None:
        source = self.old.source()
        bootstrap = self.old.cluster.kafka_bootstrap
        async with operator.admin(self.new) as admin:
            await create_link(admin, source, LINK, bootstrap, list(self.linked), [".*"])
            self.definition = await admin.definition(LINK)
        source.close()

    async def _audit(self, operator: Operator) -> None:
        """Check the target's state of the link and of groups, again and again."""
        assert self.definition is not None
        async with operator.admin(self.new) as admin:
            while True:
                await asyncio.sleep(LOOK_S)
                for text in links.promised(self.positions, self._led_ends()):
                    self.new.world.violated(text)
                try:
                    if self.promoted is None:
                        for at, one in (await admin.positions(self.definition)).items():
                            self._reaches(at, one.offset)
                    self._judge_groups(await self._offsets(admin), {})
                except TidelogError:
                    continue

    def _led_ends(self) -> dict[TopicPartition, int]:
        """Return the log ends of the target's leaders, according to the committed metadata; without partitions that
        have no serving leader."""
        found = dict.fromkeys(self.positions, sys.maxsize)
        for at in self.positions:
            topic = self.new.observer.image.topic(at.topic)
            node = None if topic is None else self.new.cluster.nodes.get(topic.partitions[at.partition].leader)
            if topic is None or node is None or node.broker is None:
                continue
            replica = node.broker.replicas.replicas.get(TopicIdPartition(topic.topic_id, at.partition))
            if replica is None or replica.partition.leading is None:
                continue
            if replica.partition.leader_epoch == topic.partitions[at.partition].leader_epoch:
                found[at] = replica.partition.log.log_end_offset
        return found

    def _answered(self, server: str, request: Request[Any], response: Response, asked_s: float) -> None:
        if isinstance(request, ImportRecordsRequest) and isinstance(response, ImportRecordsResponse):
            topic = self.new.observer.image.topics.get(request.topic_id)
            if topic is None or response.error is not ErrorCode.NONE or self.promoted is not None:
                return
            at, end = TopicPartition(topic.name, request.partition), response.log_end_offset
            found = topic.partitions[request.partition]
            told = max((one for at_s, one in self._heard.get(at, ()) if at_s < asked_s), default=0)
            leads = server == f"node{found.leader}" and request.leader_epoch == found.leader_epoch
            if leads and end < told:
                self.new.world.violated(f"{at}: the link was told of position {told}, and its leader ends at {end}")
            self._heard.setdefault(at, []).append((self.new.cluster.loop.now, end))
            self._reaches(at, end)

    def _reaches(self, at: TopicPartition, position: int) -> None:
        self.positions[at] = max(self.positions.get(at, 0), position)

    async def _offsets(self, admin: LinkAdmin) -> list[tuple[str, TopicPartition, int]]:
        asked: dict[str, None] = dict.fromkeys(map(group_of, WRITERS))
        found = await admin.list_consumer_group_offsets(asked, timeout=10)
        return [(group, at, one.offset) for group, offsets in found.items() for at, one in offsets.items()]

    def _judge_groups(
        self, offsets: list[tuple[str, TopicPartition, int]], kept: Mapping[tuple[str, TopicPartition], int]
    ) -> None:
        for at, end in self.new.ends(self.linked).items():
            self._furthest[at] = max(self._furthest[at], end)
        told = [links.Told(group, at, offset, self._furthest[at]) for group, at, offset in offsets]
        for text in links.groups(told, kept):
            self.new.world.violated(text)

    # --- the operator's commands --------------------------------------------------------------------------

    def _operate(self, act: Callable[[Operator], Awaitable[None]]) -> bool:
        """Give a command, unless one is in progress."""
        if self.operators and self.operators[-1].at_work:
            return False
        self.operators.append(Operator(f"operator{len(self.operators)}", self.new, act))
        return True

    def _kill_operator(self) -> bool:
        found = [one for one in self.operators if one.at_work]
        for one in found:
            one.kill()
        return bool(found)

    async def _promote(self, operator: Operator, *, drained: bool) -> None:
        if self.promoted is not None:
            return
        async with operator.admin(self.new) as admin, operator.admin(self.old) as old:
            assert self.definition is not None
            found = Promotion({}, {}, ())
            if await admin.linked_topics(self.definition):  # else an operator has done it and was killed then
                found = await (drain(admin, old, LINK, (), DRAIN_S) if drained else promote(admin, LINK))
            # Topics that an operator promoted before being killed are not in it; nobody has written there since.
            self.promoted = {**self.new.ends(self.linked), **found.ends}
            self.drained = drained and found.ends.keys() == self.promoted.keys()
            self.new.clients.events["drained" if drained else "promoted"] += 1
            self.new.clients.events["aborted-by-promotion"] += len(found.aborted)
            self.new.begin_to_append({self.sim.topic: self.sim.setting.partitions})
            for group in map(group_of, WRITERS):
                places = partitions_of({MANY: PARTITIONS})
                while True:
                    try:
                        await admin.alter_consumer_group_offsets(
                            group, {at: OffsetAndMetadata(0, -1, "moved here") for at in places}
                        )
                    except TidelogError:
                        await asyncio.sleep(AGAIN_S)
                    else:
                        break
                self.kept |= {(group, at): 0 for at in places}

    async def _reverse(self, operator: Operator) -> None:
        if self.promoted is None or self.returning is not None:
            return
        here = self.new.source()
        async with operator.admin(self.new) as admin, operator.admin(self.old) as old:
            try:
                await reverse(admin, here, old, LINK, self.new.cluster.kafka_bootstrap)
            except LinkError as why:
                self.new.clients.events["reverse-refused"] += 1
                if self.drained and "only the target has records" in str(why):
                    self.new.world.violated(f"a drained source has records of its own: {why}")
                raise
            finally:
                here.close()
            self.new.clients.events["reversed"] += 1
            self.returning = self._runners(self.new, self.old, "back")
            self.returning.begin()

    def _at_target(self, kind: str, *arguments: Any) -> bool:
        return self.new.injector.act(Fault(0.0, kind, arguments))

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        new, cluster = self.new, self.new.cluster
        await new.injector.over()
        cluster.mend()
        await cluster.wait_ready(bound_s)
        await cluster.wait_for(self._isr_whole, "every ISR of the target whole", bound_s)
        await cluster.wait_for(lambda: not self.operators[-1].at_work, "the operator's command over", 4 * bound_s)
        if self.promoted is None and (self._rng.random() < 0.8 or self._half_promoted()):
            await self._promoted_at_last(bound_s)
        if self._rng.random() < 0.7:
            self._operate(self._reverse)
            await asyncio.wait([self.operators[-1].task])
        began = cluster.loop.now
        await cluster.wait_for(
            lambda: all(one.acknowledged_s > began for one in new.appenders), "everybody heard at the target", bound_s
        )
        self.writers.roster.stop()
        await self.writers.roster.ended(bound_s)
        for one in (*self.old.appenders, *new.appenders):
            one.stop()
            await asyncio.wait([one.task])
        await self._level(bound_s)
        for roster in (self.runners, self.returning):
            if roster is not None:
                roster.stop()
                await roster.ended(bound_s)
        await cluster.wait_for(new.observer.replicas_level, "replicas of the target level", bound_s)
        await cluster.wait_for(self._stable, "nothing undecided at the target", bound_s)
        ends = new.ends(self.linked)
        await cluster.wait_for(
            lambda: all(one.refused or one.is_at(ends) for one in self._readers),
            "readers of the target at the end",
            bound_s,
        )
        async with LinkAdmin(cluster.bootstrap, **cluster.seams(None)) as admin:
            self._judge_groups(await self._offsets(admin), self.kept)

    def _half_promoted(self) -> bool:
        """Return whether a promotion began and did not end: the link does not continue from there."""
        image = self.new.observer.image
        return any(image.config("topic", name).get(LINK_STATE) == LINK_STOPPED for name in self.linked)

    async def _promoted_at_last(self, bound_s: float) -> None:
        """Promote the link, possibly with several commands. Draining is impossible once a promotion began."""
        drained = self._rng.random() < 0.5
        cluster = self.new.cluster
        until = cluster.loop.now + 4 * bound_s
        while self.promoted is None:
            if cluster.loop.now > until:
                raise TimeoutError(f"expected within {4 * bound_s:g} s: the link promoted")
            self._operate(partial(self._promote, drained=drained and not self._half_promoted()))
            await asyncio.wait([self.operators[-1].task])
            await asyncio.sleep(AGAIN_S)

    async def _level(self, bound_s: float) -> None:
        """Wait until every follower has everything."""
        if self.promoted is not None and self.returning is None:
            return
        old, new = (self.old, self.new) if self.promoted is None else (self.new, self.old)
        await new.cluster.wait_for(old.observer.replicas_level, f"replicas of side {old.name} level", bound_s)
        await new.cluster.wait_for(
            lambda: new.ends(self.linked) == old.ends(self.linked), f"side {new.name} has everything", bound_s
        )

    def _isr_whole(self) -> bool:
        cluster = self.new.cluster
        return not cluster.offline_replicas() and all(
            len(found.isr) == len(found.replicas) and found.leader in cluster.nodes
            for topic in cluster.image.topics.values()
            for found in topic.partitions.values()
        )

    def _stable(self) -> bool:
        """Return whether readers of ``read_committed`` at the target see everything."""
        return all(
            replica.partition.last_stable_offset == replica.partition.high_watermark
            for node in self.new.cluster.nodes.values()
            if node.broker is not None
            for replica in node.broker.replicas.replicas.values()
            if replica.partition.leading is not None and replica.partition.state.topic in self.linked
        )

    def judge(self) -> None:
        topic = self.sim.topic
        self.new.observer.judge_end()
        theirs, ours = (led_logs(side.cluster, self.linked) for side in (self.old, self.new))
        ends = self.new.ends(self.linked)
        begin = ends if self.promoted is None else self.promoted
        sent, own = self.old.history.sends, self.new.history.sends
        found = [
            *links.copied(theirs, ours, begin),
            *links.promised(self.positions, ends),
            *links.shown(theirs, ours, begin),
            *links.told(self._told.polls, ours),
        ]
        if self.drained:
            found += links.left_behind(sent, theirs, ours, begin)
        if self.returning is not None:
            found += links.copied(ours, theirs, self.old.ends(self.linked))
            found += links.shown(ours, theirs, ends)
        brought = [
            one
            if one.outcome is not Outcome.OK or one.offset < begin[one.partition]
            else one._replace(outcome=Outcome.FAILED, offset=NO_OFFSET)
            for one in sent
        ]
        mine = [*sent, *own] if self.returning is not None else sent
        for history, logs in (
            (History(mine, self.old.history.reads), theirs),
            (History([*brought, *own], self.new.history.reads), ours),
        ):
            final = {
                at: [record for entry in log for record in entry.records]
                for at, log in logs.items()
                if at.topic == topic
            }
            found += history_violations(history, final)
        for node_id, text in self.new.cluster.refused:
            found.append(f"node {node_id} refused to start: {text}")
        for text in found[:20]:
            self.new.world.violated(text)

    async def finish(self) -> None:
        self.new.observer.end()
        for roster in (self.runners, self.returning, self.writers.roster):
            if roster is not None:
                roster.kill_all()
        clients = [*self.operators, *self.old.appenders, *self.new.appenders, *self._readers]
        for client in (*clients, *(() if self.auditor is None else (self.auditor,))):
            if not (client.task.done() or client.killed):
                client.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        clients: list[Incarnation] = [*self.operators, *self.old.appenders, *self.new.appenders, *self._readers]
        if self.auditor is not None:
            clients.append(self.auditor)
        rosters = [self.writers.roster.failures(), self.runners.failures()]
        if self.returning is not None:
            rosters.append(self.returning.failures())
        return [*((one.name, one.failure()) for one in clients), *(each for some in rosters for each in some)]
