"""A group of the consumer protocol (KIP-848) working in a simulated cluster, and a client that forges requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.consumer_groups import ConsumerGroupJudge
from tidelog.chaos.simulated.watch.consumer_groups import FORGER, ConsumerGroupWatch
from tidelog.chaos.simulated.watch.groups import GroupWatch
from tidelog.chaos.simulated.workloads.group_prober import FORGES, GroupProber
from tidelog.chaos.simulated.workloads.group_work import GROUP, GroupWork
from tidelog.chaos.workloads.groups import MAX_POLL_INTERVAL_MS
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest, IdAssignment

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

SESSION_MS: Final = 3_000
_ASSIGNORS: Final = (None, "uniform", "range")


class ConsumerGroupWork(GroupWork):
    judged: ConsumerGroupJudge

    def _watch(self, sim: Simulation) -> GroupWatch:
        self.judged = ConsumerGroupJudge(SESSION_MS / 1_000, MAX_POLL_INTERVAL_MS / 1_000)
        self.consumer_watch = ConsumerGroupWatch(sim.world, GROUP, self._generation_of, self._is_member, self.judged)
        return self.consumer_watch

    def _settings(self) -> dict[str, Any]:
        return {"group_protocol": "consumer", "group_remote_assignor": self._rng.choice(_ASSIGNORS)}

    def _probe(self) -> GroupProber:
        self.forger = ConsumerGroupProber(self._sim, self.consumer_watch, self.judged)
        return self.forger

    @property
    def events(self) -> Counter[str]:
        forger: ConsumerGroupProber | None = getattr(self, "forger", None)
        return super().events + Counter({"forged-heartbeat": 0 if forger is None else forger.heartbeats})


class ConsumerGroupProber(GroupProber):
    """Commits for strangers, too early, and for members that gave the partition up; sends heartbeats that are long out
    of date."""

    def __init__(self, sim: Simulation, watch: ConsumerGroupWatch, judge: ConsumerGroupJudge) -> None:
        self.heartbeats = 0
        """Forged heartbeats that were refused."""
        self._epochs = watch.epochs
        self._judge = judge
        super().__init__(sim, watch, GROUP)

    async def _act(self, node: NodeId) -> None:
        old = [member_id for member_id, told in self._epochs.items() if len(told) >= 3]
        if old and self._rng.random() < FORGES:
            member_id = self._rng.choice(sorted(old))
            await self._beat(node, member_id, self._rng.choice(self._epochs[member_id][:-2]))
        else:
            await super()._act(node)

    async def _beat(self, node: NodeId, member_id: str, epoch: int) -> None:
        """Send a heartbeat for a member that owns nothing, in an epoch before its previous one."""
        request = ConsumerGroupHeartbeatRequest(GROUP, member_id, epoch, owned=IdAssignment(()), client_id=FORGER)
        response = await self._ask(node, request)
        if response is None:
            return
        if response.error is ErrorCode.NONE:
            self._sim.world.violated(f"fenced: a heartbeat of {member_id} in epoch {epoch}, long past, was taken")
        self.heartbeats += response.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

    def _forged(self) -> tuple[int, str, str | None, ErrorCode, TopicPartition | None] | None:
        rng, former = self._rng, self._judge.former
        if not self._epochs:
            return None
        match rng.choice(("stranger", "later", "former", "former")):
            case "stranger":
                return 1, f"nobody-{rng.randrange(1 << 32):x}", None, ErrorCode.UNKNOWN_MEMBER_ID, None
            case "later":
                member_id = rng.choice(sorted(self._epochs))
                return self._epochs[member_id][-1] + 1_000, member_id, None, ErrorCode.STALE_MEMBER_EPOCH, None
            case "former" if former:
                member_id, epoch, at = rng.choice(former[-20:])
                return epoch, member_id, None, ErrorCode.STALE_MEMBER_EPOCH, at
        return None
