"""Rights that are granted and revoked while a simulated cluster is working, and users who constantly try what they may
do.

Judged, besides the checks of every run: each node decides by the entries of the image that it has in force, so that no
right outlives the image of the node that is asked; nothing changes for a user to whom the active controller's image
allows no changes, however old the asked node's image is; once all is repaired, every node has every change that was
confirmed to the administrator.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.watch.in_force import ImagesInForce, InForce
from tidelog.chaos.simulated.watch.rights import may
from tidelog.chaos.simulated.workloads.node_client import TRY_S, NodeClient
from tidelog.chaos.simulated.world.loop import Process
from tidelog.client.errors import TidelogError
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, Offset
from tidelog.proto.calls.acl_api import binding_of
from tidelog.proto.calls.api import AlterResource, ConfigChange, ConfigResource, IncrementalAlterConfigsRequest
from tidelog.proto.calls.group_api import OffsetCommitPartition, OffsetCommitRequest
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.memory_transport import MemoryNetwork
from tidelog.proto.transport.network import CallTimeout, ConnectionLost, StreamKind
from tidelog.security.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.security.principal import USER, Principal
from tidelog.security.session import Session

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

ADMINISTRATOR: Final = "administrator"
TOPIC: Final = "ledgers"
GROUP: Final = "auditors"
USERS: Final = ("alice", "bob")
ASK_S: Final = 5.0
AT_ONCE_S: Final = 0.09
"""A request that was answered within this time was sent once: nobody retries before ``retry_backoff_ms``."""
_DENIED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)
_T, _G = ResourceType.TOPIC, ResourceType.GROUP
_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.ALL,
)
_RESOURCES: Final = (
    (_T, TOPIC, PatternType.LITERAL),
    (_T, TOPIC[:3], PatternType.PREFIXED),
    (_T, WILDCARD, PatternType.LITERAL),
    (_G, GROUP, PatternType.LITERAL),
    (_G, GROUP, PatternType.LITERAL),
)
Right = tuple[AclOperation, ResourceType, str]
ALTER: Final = "alter"
NEEDED: Final[dict[str, tuple[Right, ...]]] = {
    "offsets": ((AclOperation.DESCRIBE, _T, TOPIC),),
    "produce": ((AclOperation.WRITE, _T, TOPIC),),
    "fetch": ((AclOperation.READ, _T, TOPIC),),
    "commit": ((AclOperation.READ, _G, GROUP), (AclOperation.READ, _T, TOPIC)),
    ALTER: ((AclOperation.ALTER_CONFIGS, _T, TOPIC),),
}
"""The rights that each attempt needs, by its name."""


class Ruler(NamedTuple):
    """The active controller, and its epoch."""

    node_id: NodeId
    node: Node
    epoch: int


def entries_of(image: MetadataImage) -> list[AclBinding]:
    """Return the access control entries of an image."""
    found = [binding_of(record) for record in image.acls.values()]
    return [acl for acl in found if not isinstance(acl, Refusal)]


class AccessWork:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        self._rng = random.Random(sim.rng.random())
        self.stopping = False
        self.quiet = False
        """Whether rights stay unchanged from now on, and nothing is written any more."""
        self.changing = False
        """Whether a change of rights is in progress, which one node may know of and another may not."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.images = ImagesInForce(sim.cluster, lambda: sim.now_s)
        self.controllers = ImagesInForce(sim.cluster, lambda: sim.now_s, controllers=True)
        self._sure: dict[AclBinding, bool] = {}
        """Entries that were requested, and whether each must exist now."""
        self._unsure: set[AclBinding] = set()
        """Entries that may or may not exist: a change may still take effect."""
        self._late: set[AclBinding] = set()
        """Entries with a slow change: a copy of the request may be in transit, and undo a later change."""
        for user in USERS:
            sim.cluster.fabric.sessions[user] = Session(Principal(USER, user))

    async def begin(self) -> None:
        await self.sim.cluster.create_topic(TOPIC, 1, 3)
        cluster = self.sim.cluster
        process = cluster.client_process(ADMINISTRATOR)
        self._tasks[ADMINISTRATOR] = cluster.run_in(process, self._administer(process))
        for user in USERS:
            process = cluster.client_process(user)
            prober = Prober(self, user, cluster.fabric.network(user, context=process.context))
            self._tasks[user] = cluster.run_in(process, prober.run())

    async def settle(self, bound_s: float) -> None:
        self.quiet = True
        await asyncio.wait([self._tasks[ADMINISTRATOR]])
        await asyncio.sleep(TRY_S)  # the write in progress is answered, or given up
        await self.sim.cluster.wait_for(self._level, "the same access control entries on every node", bound_s)

    def judge(self) -> None:
        image = self.sim.cluster.image
        there = set(entries_of(image))
        for acl, wanted in self._sure.items():
            if acl not in self._unsure and (acl in there) is not wanted:
                self.sim.world.violated(f"{acl}: expected {'it' if wanted else 'it to be gone'}, as was acknowledged")

    async def finish(self) -> None:
        self.stopping = True
        await asyncio.wait(self._tasks.values())

    def failures(self) -> list[tuple[str, BaseException | None]]:
        ended = [(name, task) for name, task in self._tasks.items() if task.done() and not task.cancelled()]
        return [(name, task.exception()) for name, task in ended]

    def _level(self) -> bool:
        images = [node.view.image.acls for node in self.sim.cluster.nodes.values()]
        return all(dict(acls) == dict(images[0]) for acls in images)

    # --- the administrator ------------------------------------------------------------------------------

    async def _administer(self, process: Process) -> None:
        rng = self._rng
        while not self.quiet:
            await asyncio.sleep(rng.choice((0.05, 0.3, 1.0)) * 2 * rng.random())
            there = [acl for acl, wanted in self._sure.items() if wanted]
            revokes = bool(there) and rng.random() < 0.5
            await self._change(process, rng.choice(there) if revokes else self._entry(), wanted=not revokes)

    def _entry(self) -> AclBinding:
        rng = self._rng
        kind, name, pattern = rng.choice(_RESOURCES)
        operation = rng.choice(_OPERATIONS if kind is _T else (AclOperation.READ, AclOperation.ALL))
        principal = rng.choice((*(f"{USER}:{user}" for user in USERS), EVERYBODY))
        permission = PermissionType.DENY if rng.random() < 0.25 else PermissionType.ALLOW
        return AclBinding(kind, name, pattern, principal, WILDCARD, operation, permission)

    async def _change(self, process: Process, acl: AclBinding, *, wanted: bool) -> None:
        self.operations += 1
        began_s = self.sim.now_s
        self.changing = True
        try:
            async with self.sim.cluster.admin(process) as admin:
                if wanted:
                    await admin.create_acls([acl], timeout=ASK_S)
                else:
                    exact = {field.name: getattr(acl, field.name) for field in dataclasses.fields(acl)}
                    await admin.delete_acls([AclFilter(**exact)], timeout=ASK_S)
        except TidelogError as error:
            self.sim.world.note(f"{acl}: {type(error).__name__}")
            self._unsure.add(acl)
            return
        finally:
            self.changing = False
        self._sure[acl] = wanted
        self.events["granted" if wanted else "revoked"] += 1
        if acl in self._late:
            self._unsure.add(acl)
        if self.sim.now_s - began_s > AT_ONCE_S:
            self._late.add(acl)

    # --- the judge of each decision ---------------------------------------------------------------------

    def leader(self) -> Ruler | None:
        """Return the only node that considers itself the active controller."""
        found = [(node_id, self.controllers.watched(node_id)) for node_id in self.sim.cluster.node_ids]
        active = [Ruler(at, node, node.known_leader[1]) for at, node in found if node and node.is_active_controller]
        return active[0] if len(active) == 1 else None

    def decided(self, user: str, node_id: NodeId, node: Node, attempt: str, began_s: float, error: ErrorCode) -> None:
        """Judge a node's answer to an attempt that began at a time: does it match one of the images in force since
        then?"""
        topic = self.sim.cluster.image.topic(TOPIC)
        in_force = self.images.since(node_id, node, began_s)
        if not in_force or topic is None or topic.topic_id not in in_force[0].image.topics:
            return
        denied = error in _DENIED or (error is ErrorCode.UNKNOWN_TOPIC_ID and attempt in ("produce", "fetch"))
        self._judge(user, f"{attempt} at node {node_id}", NEEDED[attempt], in_force, began_s, error, denied=denied)

    def altered(
        self, user: str, node_id: NodeId, node: Node, led: Ruler | None, began_s: float, error: ErrorCode
    ) -> None:
        """Judge a node's answer to a change that began at a time, when ``led`` was the active controller. Both must
        allow the change, and either may have refused it."""
        asked = self.images.since(node_id, node, began_s)
        if error not in (ErrorCode.NONE, *_DENIED) or not asked or led is None or led != self.leader():
            return
        ruled = self.controllers.since(led.node_id, led.node, began_s)
        what, needed = f"change by node {node_id} and controller {led.node_id}", NEEDED[ALTER]
        if error is not ErrorCode.NONE:
            self._judge(user, what, needed, [*asked, *ruled], began_s, error, denied=True)
            return
        self.events["changed"] += 1
        for in_force in (asked, ruled):
            self._judge(user, what, needed, in_force, began_s, error, denied=False)

    def _judge(
        self,
        user: str,
        what: str,
        needed: tuple[Right, ...],
        in_force: list[InForce],
        began_s: float,
        error: ErrorCode,
        *,
        denied: bool,
    ) -> None:
        may_be = {all(may(entries_of(one.image), f"{USER}:{user}", *right) for right in needed) for one in in_force}
        self.events["denied" if denied else "allowed"] += 1
        if len(may_be) > 1:
            self.events["decided-amid-a-change"] += 1
        if (not denied) not in may_be:
            entries = sorted(map(str, entries_of(in_force[-1].image)))
            self.sim.world.violated(
                f"access: {user}'s {what}, asked at {began_s:.6f}: expected it to be "
                f"{'denied' if not denied else 'allowed'} by {entries}, found {error.name}"
            )


class Prober:
    """A user who asks any node for anything, all the time."""

    def __init__(self, work: AccessWork, user: str, network: MemoryNetwork) -> None:
        self._work = work
        self._sim = work.sim
        self._user = user
        self._client = NodeClient(network)
        self._rng = random.Random(self._sim.rng.random())

    async def run(self) -> None:
        """Ask until the work stops."""
        work, rng = self._work, self._rng
        while not work.stopping:
            await asyncio.sleep(rng.uniform(0.0005, 0.003) if work.changing else rng.uniform(0.002, 0.06))
            node_id = rng.choice(self._sim.cluster.node_ids)
            node = work.images.watched(node_id)
            if node is None:
                continue
            attempt = rng.choice([name for name in NEEDED if name != "produce" or not work.quiet])
            attempt = ALTER if work.changing and rng.random() < 0.5 else attempt
            work.operations += 1
            began_s, led = self._sim.now_s, work.leader() if attempt == ALTER else None
            try:
                async with asyncio.timeout(TRY_S):
                    error = await self._try(node_id, attempt)
            except (ConnectionLost, CallTimeout, TimeoutError):
                await self._client.hang_up(node_id)
            else:
                if attempt == ALTER:
                    work.altered(self._user, node_id, node, led, began_s, error)
                else:
                    work.decided(self._user, node_id, node, attempt, began_s, error)
        for node_id in self._sim.cluster.node_ids:
            await self._client.hang_up(node_id)

    async def _try(self, node_id: NodeId, attempt: str) -> ErrorCode:
        topic = self._sim.cluster.image.topic(TOPIC)
        assert topic is not None
        match attempt:
            case "offsets":
                return await self._client.offsets(node_id, TOPIC)
            case "commit":
                item = OffsetCommitPartition(TOPIC, 0, Offset(0))
                commit = OffsetCommitRequest(GROUP, -1, "", None, (item,))
                return (await self._client.call(node_id, commit)).results[0].error
            case "alter":
                changed = AlterResource(ConfigResource("topic", TOPIC), (ConfigChange("retention.ms", "set", "-1"),))
                return (await self._client.call(node_id, IncrementalAlterConfigsRequest((changed,)))).resources[0].error
            case "produce":
                batch = bytes(encode_values([b"entry"], 1_750_000_000_000))
                produce = ProduceRequest(1, 1_000, (ProducePartition(topic.topic_id, 0, batch),))
                encode = functools.partial(encode_produce_request, request=produce)
                frame = await self._client.caller(node_id, StreamKind.PRODUCE).submit(encode)
                return decode_produce_response(frame)[1][0].error
            case _:
                return await self._client.fetch(node_id, topic.topic_id)
