"""A group whose members speak either protocol, and which is converted up and down meanwhile, in a simulated cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.consumer_groups import ConsumerGroupJudge
from tidelog.chaos.simulated.watch.groups import GroupWatch
from tidelog.chaos.simulated.watch.mixed_groups import MixedGroupWatch
from tidelog.chaos.simulated.workloads.consumer_group_work import SESSION_MS, ConsumerGroupProber, ConsumerGroupWork
from tidelog.chaos.simulated.workloads.group_prober import GroupProber
from tidelog.chaos.simulated.workloads.group_work import GROUP
from tidelog.chaos.workloads.groups import MAX_POLL_INTERVAL_MS
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

_STRATEGIES: Final = (("range",), ("cooperative-sticky",))


class MixedGroupWork(ConsumerGroupWork):
    def _settings(self) -> dict[str, Any]:
        return {"partition_assignment_strategy": self._rng.choice(_STRATEGIES)}

    def _next_settings(self) -> dict[str, Any]:
        return {"group_protocol": "consumer"} if self._rng.random() < 0.4 else self._kind

    async def _leave(self, bound_s: float) -> None:
        """The classic members leave first: the last commit of one whose group becomes classic just then is refused, as
        in Kafka, and its records would be read again."""
        classic = [member for member in self._group.living if member.is_classic]
        for member in classic:
            member.stop()
        if classic:
            await asyncio.wait({member.task for member in classic}, timeout=bound_s)
        await super()._leave(bound_s)

    def _watch(self, sim: Simulation) -> GroupWatch:
        self._static = 0.0  # a static member's place changes hands without a word from its former holder
        self.judged = ConsumerGroupJudge(SESSION_MS / 1_000, MAX_POLL_INTERVAL_MS / 1_000)
        self.consumer_watch = MixedGroupWatch(sim.world, GROUP, self._generation_of, self._is_member, self.judged)
        return self.consumer_watch

    def _probe(self) -> GroupProber:
        self.forger = MixedGroupProber(self._sim, self.consumer_watch, self.judged)
        return self.forger


class MixedGroupProber(ConsumerGroupProber):
    """Commits for strangers only: what others are told depends on the group's protocol at that instant."""

    def _forged(self) -> tuple[int, str, str | None, ErrorCode, TopicPartition | None] | None:
        if not self._epochs:
            return None
        return 1, f"nobody-{self._rng.randrange(1 << 32):x}", None, ErrorCode.UNKNOWN_MEMBER_ID, None
