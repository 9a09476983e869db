"""Acts that the cluster performs itself: elections of other leaders, and replica moves while clients are working."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from tidelog.aio import Admin
from tidelog.chaos.laboratory.faults.schedule import Step
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas.reassignment_plan import Move, throttles, without_throttles
from tidelog.client.errors import TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.node.replication_settings import CORDONED
from tidelog.proto.calls.api import ConfigResource

ASK_S: Final = 10.0
"""Bound of one request to the cluster."""
BACK_S: Final = 60.0
"""How long to try to move replicas back after everything is repaired."""
_POLL_S: Final = 0.5

Replicas = Mapping[TopicPartition, tuple[int, ...]]


class MoveActs:
    """Performs them. ``ask`` runs a coroutine on the loop of the clients; called on the main thread."""

    def __init__(
        self,
        laboratory: Laboratory,
        partitions: Sequence[TopicPartition],
        ask: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._laboratory = laboratory
        self._partitions = partitions
        self._ask = ask
        self._homes: Replicas = {}
        """The places of replicas before the first of these acts, preferred leader first."""
        self._astray = False

    @property
    def acts(self) -> Mapping[str, Callable[[Step, int], None]]:
        return {
            "elect": lambda step, node: self._do(self._elect(int(step.options["turn"]))),
            "reassign": lambda step, node: self._do(self._reassign(step.options)),
            "assign-back": lambda step, node: self._do(self._back()),
        }

    def mend(self) -> None:
        """Move displaced replicas back. Raises :class:`CommandFailed` if the cluster does not accept that in time."""
        deadline = time.monotonic() + BACK_S
        while self._astray:
            try:
                self._do(self._back())
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def learn(self) -> None:
        """Remember the places of replicas before others move them. :meth:`mend` puts them back in any case."""
        self._do(self._before_moves())
        self._astray = True

    def end_drain(self, node: int) -> None:
        """Let the node have replicas again, and move them back."""
        self._do(self._uncordon(node))
        self._do(self._back())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._ask(work)
        except (TidelogError, TimeoutError) as error:
            raise CommandFailed(f"{type(error).__name__}: {error}") from None

    def _admin(self) -> Admin:
        return Admin(self._laboratory.bootstrap, **self._laboratory.admin, default_api_timeout_ms=round(ASK_S * 1000))

    async def _learn(self, admin: Admin) -> None:
        if not self._homes:
            found = await admin.describe_topics({at.topic for at in self._partitions})
            self._homes = {
                TopicPartition(topic.name, each.partition): tuple(map(int, each.replicas))
                for topic in found
                for each in topic.partitions
            }

    async def _before_moves(self) -> None:
        async with self._admin() as admin:
            await self._learn(admin)

    async def _uncordon(self, node: int) -> None:
        async with self._admin() as admin:
            await admin.alter_configs({ConfigResource("broker", str(node)): {CORDONED: None}})

    async def _elect(self, turn: int) -> None:
        """Reorder the replicas; the first is to lead now."""
        async with self._admin() as admin:
            await self._learn(admin)
            self._astray = True
            await admin.alter_partition_reassignments(
                {at: _turned(replicas, turn) for at, replicas in self._homes.items()}
            )
            await admin.elect_leaders(self._homes)

    async def _reassign(self, options: Mapping[str, Any]) -> None:
        async with self._admin() as admin:
            await self._learn(admin)
            at = self._partitions[int(options["number"]) % len(self._partitions)]
            wanted = _turned(self._laboratory.node_ids, int(options["turn"]))[: int(options["copies"])]
            self._astray = True
            if rate := int(options["throttle"]):
                (topic,) = await admin.describe_topics([at.topic])
                (there,) = [
                    tuple(map(int, each.replicas)) for each in topic.partitions if each.partition == at.partition
                ]
                if settings := throttles({at: Move(there, wanted)}, rate):
                    await admin.alter_configs(settings)
            await admin.alter_partition_reassignments({at: wanted})

    async def _back(self) -> None:
        """Bring every replica back to its place, in the original order, at full speed."""
        if not self._homes:
            return
        async with self._admin() as admin:
            await admin.alter_partition_reassignments(self._homes)
            topics = {at.topic for at in self._homes}
            await admin.alter_configs(without_throttles(topics, self._laboratory.node_ids))
        self._astray = False


def _turned(replicas: Sequence[int], turn: int) -> tuple[int, ...]:
    turn %= len(replicas)
    return (*replicas[turn:], *replicas[:turn])
