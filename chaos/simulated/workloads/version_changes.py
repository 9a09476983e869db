"""A cluster of release 0.1 that is upgraded and rolled back node by node while faults happen, and finalised at some
time.

Judged, besides the checks of every run: no node serves that does not support a level in use; no feature of a level is
available before that level is in use, and no record of it is in the log (judged by
:func:`~tidelog.chaos.checkers.metadata.above_level`); every node can roll back until then, and none after it; topics
can be created through every node; in the end the highest levels are in use.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.chaos.simulated.workloads.node_client import NodeClient
from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import BrokerIdNotRegisteredError, InvalidUpdateVersionError, TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.model.ids import NodeId
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.calls.api import AlterReplicaLogDir, AlterReplicaLogDirsRequest
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest, ScramUpsertion
from tidelog.proto.transport.network import CallTimeout, ConnectionLost
from tidelog.security.principal import USER, Principal
from tidelog.security.scram import ITERATIONS_MIN, ScramMechanism
from tidelog.security.session import Session

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

OPERATOR: Final = "operator"
HIGHEST: Final = {name: high for name, (_, high) in SUPPORTED_FEATURES.items() if high}
LEVEL: Final = SUPPORTED_FEATURES[METADATA_VERSION][1]
REASONS: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.TOPIC_ALREADY_EXISTS,  # the first answer was lost
    ErrorCode.INVALID_REPLICATION_FACTOR,  # brokers that shut down do not count
)
"""Acceptable reasons for failing to create a topic."""
ASK_S: Final = 6.0
AGAIN_S: Final = 1.0
LOOK_S: Final = 0.05
REMOVAL_S: Final = 20.0
"""How long to try to unregister a node: longer than its session lasts."""
TOO_LATE_S: Final = 3.0
"""How long to try a node of release 0.1 in a cluster that has left its level."""


class VersionChanges:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        self._rng = random.Random(sim.rng.random())
        self._cluster = sim.cluster
        self._busy: set[NodeId] = set()
        """Nodes whose release is being changed."""
        self._attempted = False
        """Whether a change of the level was requested and not refused: from then on no node rolls back."""
        self._topics = 0
        self._told: set[NodeId] = set()
        self._looking: asyncio.Task[None] | None = None
        for host in self._cluster.hosts.values():
            host.is_former = True
        process = self._cluster.client_process(OPERATOR)
        self._client = NodeClient(self._cluster.fabric.network(OPERATOR, context=process.context))
        self._cluster.fabric.sessions[OPERATOR] = Session(Principal(USER, OPERATOR), SecurityProtocol.SASL_SSL)
        sim.injector.acts |= {
            "upgrade": self._upgrade,
            "roll-back": self._roll_back,
            "finalise": self._finalise,
            "ask-for-more": self._ask_for_more,
            "make-topic": self._make_topic,
        }

    async def begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def finish(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for node_id in self._cluster.node_ids:
            await self._client.hang_up(node_id)

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return []

    @property
    def _level(self) -> int:
        """Return the ``metadata.version`` in use, as far as a node of the current release knows."""
        return self._cluster.image.features.get(METADATA_VERSION, 0)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for node_id, node in self._cluster.former.items():
                if self._level >= LEVEL and node.serves and node_id not in self._told:
                    self._told.add(node_id)
                    self.sim.violation(f"versions: node {node_id} of release 0.1 serves under level {self._level}")

    # --- faults -------------------------------------------------------------------------------------

    def _upgrade(self, number: int, killed: bool) -> bool:
        """Upgrade one of the nodes of release 0.1."""
        return self._change([n for n in self._cluster.node_ids if self._cluster.hosts[n].is_former], number, killed)

    def _roll_back(self, number: int, killed: bool) -> bool:
        """Roll one of the upgraded nodes back to release 0.1; this fails once the level has changed."""
        found = [n for n in self._cluster.node_ids if not self._cluster.hosts[n].is_former]
        if self._attempted and self._level < LEVEL:
            return False  # it may still take effect
        return self._change(found, number, killed)

    def _change(self, among: list[NodeId], number: int, killed: bool) -> bool:
        free = [node_id for node_id in among if node_id not in self._busy]
        if not free:
            return False
        node_id = free[number % len(free)]
        self._busy.add(node_id)
        self.sim.injector.run(self._install(node_id, killed))
        return True

    async def _install(self, node_id: NodeId, killed: bool) -> None:
        """Change the release of a node between two of its processes."""
        cluster, host = self._cluster, self._cluster.hosts[node_id]
        try:
            if node_id in cluster.running and host.starting is None and not host.process.paused and not killed:
                await cluster.stop_node(node_id)
            if cluster.is_up(node_id):
                cluster.kill(node_id)
            if not host.is_former and self._attempted and self._level < LEVEL:
                self.sim.injector.start(node_id)  # somebody has begun to finalise meanwhile
                return
            too_late = not host.is_former and self._level >= LEVEL
            host.is_former = not host.is_former
            self.sim.world.note(f"node {node_id} gets {'release 0.1' if host.is_former else 'the present release'}")
            self.sim.injector.start(node_id)
            if too_late:
                await self._refuses(node_id)
            else:
                self.events["rolled-back" if host.is_former else "upgraded"] += 1
        finally:
            self._busy.discard(node_id)

    async def _refuses(self, node_id: NodeId) -> None:
        """Check that a node of release 0.1 ends by itself, or waits without end, and never serves."""
        cluster, host = self._cluster, self._cluster.hosts[node_id]
        await asyncio.sleep(TOO_LATE_S)
        self.events["came-too-late"] += 1
        if cluster.is_up(node_id):
            cluster.kill(node_id)
        cluster.refused[:] = [(other, text) for other, text in cluster.refused if other != node_id]
        cluster.failures[:] = [failure for failure in cluster.failures if failure[0] != node_id]
        host.is_former = False
        self.sim.injector.start(node_id)

    def _finalise(self) -> bool:
        if not self._cluster.nodes or self._attempted:
            return False
        self._attempted = True
        self.sim.injector.run(self._finalise_now())
        return True

    async def _finalise_now(self) -> None:
        self.operations += 1
        before = self._former()
        try:
            async with self._cluster.admin() as admin:
                await admin.update_features(HIGHEST, timeout=ASK_S)
        except InvalidUpdateVersionError as refused:
            self.sim.world.note(f"not finalised: {refused}")
            self.events["finalise-refused"] += 1
            self._attempted = await self._finalised_without()
        except TidelogError as error:
            self.sim.world.note(f"finalised or not: {type(error).__name__}: {error}")
        else:
            self.events["finalised"] += 1
            for node_id, host in self._cluster.hosts.items():
                if host.is_former:  # it rolled back a moment before, and had not said so yet
                    self._busy.add(node_id)
                    await self._refuses(node_id)
                    self._busy.discard(node_id)
            if former := before & self._former():
                self.sim.violation(f"versions: finalised, and nodes {sorted(former)} were of release 0.1")

    async def _finalised_without(self) -> bool:
        """Perhaps remove a node of release 0.1 for good and ask again; return whether this may finalise the levels. A
        removed broker no longer blocks that, but a voter does: nobody knows which release it will run."""
        cluster = self._cluster
        found = [n for n in cluster.node_ids if cluster.hosts[n].is_former and n not in self._busy]
        if not found or self._rng.random() < 0.3:
            return False
        node_id = self._rng.choice(found)
        self._busy.add(node_id)
        try:
            if cluster.is_up(node_id):
                cluster.kill(node_id)
            if not await self._unregistered(node_id):
                return False
            self.events["node-removed"] += 1
            async with cluster.admin() as admin:
                await admin.update_features(HIGHEST, timeout=ASK_S)
        except InvalidUpdateVersionError as refused:
            self.sim.world.note(f"not finalised without node {node_id}: {refused}")
            if f"broker {node_id} " in str(refused):
                self.sim.violation(f"versions: node {node_id} was unregistered, and still: {refused}")
            return False
        except TidelogError as error:
            self.sim.world.note(f"finalised without node {node_id} or not: {type(error).__name__}: {error}")
            return True
        finally:
            if cluster.is_up(node_id):  # the end of a fault has restarted it, as release 0.1
                cluster.kill(node_id)
            cluster.hosts[node_id].is_former = False
            self.sim.injector.start(node_id)
            self._busy.discard(node_id)
        self.events["finalised"] += 1
        self.events["finalised-without"] += 1
        if node_id in cluster.controller_ids:
            self.sim.violation(f"versions: finalised, and controller {node_id} was of release 0.1 when last seen")
        return True

    async def _unregistered(self, node_id: NodeId) -> bool:
        """Unregister a dead broker; return whether that was done in time."""
        until = self._cluster.loop.now + REMOVAL_S
        while self._cluster.loop.now < until and not self._cluster.is_up(node_id):
            try:
                async with self._cluster.admin() as admin:
                    await admin.unregister_broker(node_id, timeout=ASK_S)
            except BrokerIdNotRegisteredError:
                return True  # by an earlier try
            except TidelogError as error:
                self.sim.world.note(f"unregister {node_id}: {type(error).__name__}")
                await asyncio.sleep(AGAIN_S)
            else:
                return True
        return False

    def _former(self) -> set[NodeId]:
        """Return nodes of release 0.1 that have registered as such with the controllers, as their brokers serve."""
        return {node_id for node_id, node in self._cluster.former.items() if node.serves} - self._busy

    def _ask_for_more(self, number: int, partition: int) -> bool:
        """Ask a node to create a user with a password, and to move a replica to its other disk: both need the second
        level."""
        node_id = NodeId(number)
        if not self._cluster.is_up(node_id):
            return False
        path = self._cluster.log_directory(node_id, self._rng.randrange(2))
        self.sim.injector.run(self._ask(node_id, AlterReplicaLogDir(self.sim.topic, partition, path)))
        return True

    async def _ask(self, node_id: NodeId, move: AlterReplicaLogDir) -> None:
        user = ScramUpsertion("alice", ScramMechanism.SCRAM_SHA_256, ITERATIONS_MIN, bytes(16), bytes(32))
        try:
            moved = await self._client.call(node_id, AlterReplicaLogDirsRequest((move,)))
            outcome = moved.error or moved.replicas[0].error
            self._judge("a move to another disk", node_id, outcome)
            made = await self._client.call(node_id, AlterUserScramCredentialsRequest(upsertions=(user,)))
            self._judge("a user with a password", node_id, made.error or made.results[0].error)
        except (ConnectionLost, CallTimeout) as error:
            self.sim.world.note(f"node {node_id} was asked for what needs level {LEVEL}: {error}")
            await self._client.hang_up(node_id)

    def _judge(self, what: str, node_id: NodeId, outcome: ErrorCode) -> None:
        if outcome is not ErrorCode.NONE:
            self.events["gate-closed"] += outcome is ErrorCode.UNSUPPORTED_VERSION
            return
        self.events["gate-open"] += 1
        if self._level < LEVEL:
            self.sim.violation(f"versions: node {node_id} granted {what} under level {self._level}")

    def _make_topic(self, replicas: int) -> bool:
        self._topics += 1
        self.sim.injector.run(self._make(NewTopic(f"{self.sim.topic}-{self._topics}", 2, replicas)))
        return True

    async def _make(self, topic: NewTopic) -> None:
        """Create a topic through some node; the active controller may be of the other release."""
        try:
            async with self._cluster.admin() as admin:
                await admin.create_topics([topic], timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"{topic.name}: {type(error).__name__}: {error}")
            if not error.retriable and error.code not in REASONS:
                self.sim.violation(f"versions: {topic.name} was not made: {error!r}")
        else:
            self.events["topic-made"] += 1

    # --- the end ------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        for _ in range(int(bound_s / AGAIN_S)):
            if self._level >= LEVEL:
                break
            try:
                async with self._cluster.admin() as admin:
                    await admin.update_features(HIGHEST, timeout=ASK_S)
            except TidelogError as error:
                self.sim.world.note(f"not finalised yet: {error}")
                await asyncio.sleep(AGAIN_S)
        await self._cluster.wait_for(
            self._all_know, "every node at the highest levels, every controller known", bound_s
        )

    def _all_know(self) -> bool:
        controllers = set(self._cluster.controller_ids)
        return all(
            dict(node.view.image.features) == HIGHEST and set(node.view.image.controllers) == controllers
            for node in self._cluster.nodes.values()
        )

    def judge(self) -> None:
        for node_id, node in self._cluster.nodes.items():
            if node.controller is not None and node.controller.quorum.voters is None:
                self.sim.violation(f"versions: controller {node_id} does not know the voters by their directories")
