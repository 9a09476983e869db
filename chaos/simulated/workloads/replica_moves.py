"""Random replica moves while a simulated cluster is working: reassignments, cancelled ones, drains, elections,
throttles.

Judged, besides the checks of every run: each change of a partition's replicas (:mod:`tidelog.chaos.checkers.moves`);
that every reassignment ends once all is repaired, with the requested replicas; that a drain changes no number of
replicas; that the preferred replica of every partition can then be made its leader; and that no node keeps the log of a
partition that is not its own any more.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.cli.work.replicas.spreading import NoRoom, Part, Target, drained
from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import (
    BrokerNotAvailableError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
    RequestTimedOutError,
    TidelogError,
)
from tidelog.model.ids import NodeId, TopicIdPartition, TopicPartition
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.model.settings.node.replication_settings import CORDONED, EVERY_DIRECTORY
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.logs.metadata_records import PartitionRecord

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

SIZES: Final = (2, 3, 3, 4)
ASK_S: Final = 6.0
AT_ONCE_S: Final = 0.09
"""An answer within this time answers a first request: nobody retries before ``retry_backoff_ms``."""
CORDONED_S: Final = 2.0
"""How long a drained node stays cordoned."""
LIFT_S: Final = 60.0
NO_RATE: Final = str(LONG_MAX)
RATE_SETTINGS: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICA_SETTINGS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class ReplicaMoves:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        self._topics = 0
        self._asking: set[int] = set()
        self._wishes: dict[int, list[tuple[int, ...]]] = {}
        """Every assignment that a partition may have in the end."""
        self._sure: dict[int, tuple[int, ...] | None] = {}
        """The assignment that it must have, if every later outcome is known."""
        self._late: set[int] = set()
        """Partitions with a reassignment that may still reach some node after later ones."""
        sim.injector.acts |= {
            "reassign": self._reassign,
            "drain": self._drain,
            "cancel-reassignment": self._cancel,
            "elect": self._elect,
            "throttle": self._throttle,
        }

    async def begin(self) -> None:
        for number, found in self._partitions().items():
            self._wishes[number] = [found.replicas]
            self._sure[number] = found.replicas

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return []

    async def finish(self) -> None:
        pass

    # --- faults -------------------------------------------------------------------------------------

    def _reassign(self, partition: int, choice: int) -> bool:
        rng = random.Random(choice)
        nodes = tuple(rng.sample(list(self.sim.cluster.node_ids), rng.choice(SIZES)))
        return self._ask(partition, tuple(int(node) for node in nodes))

    def _drain(self, node: int, dwell_s: float) -> bool:
        if not self.sim.cluster.nodes:
            return False
        self.sim.injector.run(self._drain_node(node, dwell_s))
        return True

    async def _drain_node(self, node: int, dwell_s: float) -> None:
        """Move all replicas off a node as ``tidelog brokers drain`` does: cordon it, and execute a plan made from a
        broker's view, one partition after the other, so that it may be outdated by then. A topic is created
        meanwhile."""
        await self._set_cordon(node, EVERY_DIRECTORY)
        try:
            await self._make_topic()
            await self._move_off(node, dwell_s)
            await self.sim.sleep(CORDONED_S)
        finally:
            await self._set_cordon(node, None)

    async def _set_cordon(self, node: int, value: str | None) -> None:
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.alter_configs({ConfigResource("broker", str(node)): {CORDONED: value}}, timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"cordon of {node} {value}: {type(error).__name__}")
        else:
            self.events["cordoned"] += value is not None

    async def _make_topic(self) -> None:
        self._topics += 1
        topic = NewTopic(f"{self.sim.topic}-beside-{self._topics}", 2, 1 + self._topics % 3)
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.create_topics([topic], timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"{topic.name}: {type(error).__name__}")
        else:
            self.events["topic-beside-a-drain"] += 1

    async def _move_off(self, node: int, dwell_s: float) -> None:
        parts = {
            TopicPartition(self.sim.topic, number): Part(
                tuple(int(one) for one in found.replicas if one not in found.removing_replicas), 0
            )
            for number, found in self._partitions().items()
        }
        image = self.sim.cluster.image
        targets = [Target(int(one), None) for one in self.sim.cluster.node_ids if not image.is_cordoned(one)]
        try:
            wanted = drained(parts, targets, [node])
        except NoRoom as none:
            self.sim.world.note(f"drain of {node}: {none}")
            return
        for at, replicas in sorted(wanted.items()):
            await self.sim.sleep(dwell_s)
            if at.partition not in self._asking:
                self._asking.add(at.partition)
                await self._alter(at.partition, replicas, keeps_factor=True)
                self.events["drain"] += 1

    def _cancel(self, partition: int) -> bool:
        return self._ask(partition, None)

    def _ask(self, partition: int, wish: tuple[int, ...] | None) -> bool:
        if partition in self._asking or not self.sim.cluster.nodes:
            return False
        self._asking.add(partition)
        self.sim.injector.run(self._alter(partition, wish))
        return True

    async def _alter(self, partition: int, wish: tuple[int, ...] | None, *, keeps_factor: bool = False) -> None:
        self.operations += 1
        at = TopicPartition(self.sim.topic, partition)
        name = "cancelled" if wish is None else str(wish)
        # Any effect is possible from here on.
        before, began = self._sure[partition], self.sim.cluster.loop.now
        self._sure[partition] = None
        if wish is not None:
            self._wishes[partition].append(wish)
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.alter_partition_reassignments(
                    {at: wish}, allow_replication_factor_change=not keeps_factor, timeout=ASK_S
                )
        except (InvalidReplicaAssignmentError, InvalidReplicationFactorError, NoReassignmentInProgressError) as error:
            self.sim.world.note(f"{at} {name}: {error}")
            if self.sim.cluster.loop.now - began > AT_ONCE_S:
                self._late.add(partition)  # an earlier try may take effect once the reason for its refusal is gone
            elif wish is not None:
                self._sure[partition] = before
        except TidelogError as error:
            self.sim.world.note(f"{at} {name}: {type(error).__name__}")
            self._late.add(partition)
        else:
            self.sim.world.note(f"{at} {name}: begun")
            self.events["reassignment" if wish is not None else "reassignment-cancelled"] += 1
            if self.sim.cluster.loop.now - began > AT_ONCE_S:
                self._late.add(partition)
            if partition not in self._late:
                self._sure[partition] = wish
                if keeps_factor and wish and before and len(wish) != len(before):
                    self.sim.world.violated(f"moves: a drain took {at} from {len(before)} replicas to {wish}")
        finally:
            self._asking.discard(partition)

    def _elect(self) -> bool:
        if not self.sim.cluster.nodes:
            return False
        self.sim.injector.run(self._elect_preferred())
        return True

    async def _elect_preferred(self) -> None:
        self.operations += 1
        try:
            async with self.sim.cluster.admin() as admin:
                elected = await admin.elect_leaders(timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"preferred leaders: {type(error).__name__}")
        else:
            self.events["preferred-elected"] += sum(elected.values())

    def _throttle(self, rate: int, seconds: float) -> bool:
        """Throttle replicas that catch up for a while."""
        if not self.sim.cluster.nodes:
            return False
        self.sim.injector.run(self._throttled(str(rate), seconds))
        return True

    async def _throttled(self, rate: str, seconds: float) -> None:
        """Throttle, and lift it: until it has stayed lifted for as long as an earlier request may be in transit."""
        await self._set_throttle(rate, "*")
        await self.sim.sleep(seconds)
        lifted_s, until = 0.0, self.sim.cluster.loop.now + LIFT_S
        while lifted_s < ASK_S and self.sim.cluster.loop.now < until:
            if lifted_s == 0:
                await self._set_throttle(NO_RATE, "")
            await self.sim.sleep(0.5)
            lifted_s = lifted_s + 0.5 if self._is_lifted() else 0.0

    def _is_lifted(self) -> bool:
        settings = self.sim.cluster.image.configs.get(ConfigResource("broker", ""))
        return settings is not None and all(settings.get(name) == NO_RATE for name in RATE_SETTINGS)

    async def _set_throttle(self, rate: str, replicas: str) -> None:
        changes = {
            ConfigResource("broker", ""): dict.fromkeys(RATE_SETTINGS, rate),
            ConfigResource("topic", self.sim.topic): dict.fromkeys(REPLICA_SETTINGS, replicas),
        }
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.alter_configs(changes, timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"throttle {rate}: {type(error).__name__}")

    # --- the end ------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        cluster = self.sim.cluster
        await cluster.wait_for(self._nothing_moves, "every reassignment over", bound_s)
        await cluster.wait_for(lambda: not self._strays(), "no log where it does not belong", bound_s)
        places = [TopicPartition(self.sim.topic, number) for number in sorted(self._partitions())]
        async with cluster.admin() as admin:
            loop = cluster.loop
            until = loop.now + bound_s
            while True:
                try:
                    await admin.elect_leaders(places, timeout=ASK_S)
                    break
                except (TidelogError, BrokerNotAvailableError, RequestTimedOutError) as error:
                    if loop.now > until:
                        raise TimeoutError(f"preferred leaders: {error}") from None
                    await self.sim.sleep(0.2)
        await cluster.wait_for(self._preferred_lead, "preferred leaders", bound_s)

    def judge(self) -> None:
        for number, found in sorted(self._partitions().items()):
            sure = self._sure[number]
            name = f"{self.sim.topic}-{number}"
            if sure is not None and found.replicas != sure:
                self.sim.world.violated(f"moves: {name} was to be on {sure} and is on {found.replicas}")
            cancelled = bool(self.events["reassignment-cancelled"]) or sure is None
            known = {frozenset(wish) for wish in self._wishes[number]}
            if not cancelled and frozenset(found.replicas) not in known:
                self.sim.world.violated(f"moves: nobody wished for {name} on {found.replicas}")

    def _partitions(self) -> dict[int, PartitionRecord]:
        topic = self.sim.cluster.image.topic(self.sim.topic)
        return {} if topic is None else dict(topic.partitions)

    def _nothing_moves(self) -> bool:
        return not any(found.adding_replicas or found.removing_replicas for found in self._partitions().values())

    def _preferred_lead(self) -> bool:
        return all(found.leader == found.replicas[0] for found in self._partitions().values())

    def _strays(self) -> Sequence[tuple[NodeId, TopicIdPartition]]:
        """Return logs on nodes that are not among the partition's replicas."""
        partitions = self._partitions()
        return [
            (node_id, TopicIdPartition(log.topic_id, log.partition))
            for node_id, node in self.sim.cluster.nodes.items()
            if node.broker is not None
            for log in node.broker.logs.logs()
            if log.topic == self.sim.topic and node_id not in partitions[log.partition].replicas
        ]
