"""How long the assignment of a large group keeps its coordinator's loop, under the consumer protocol (KIP-848)."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidelog.broker.node.server import GC_THRESHOLDS
from tidelog.groups.batches import batch_of
from tidelog.groups.shard import Shard
from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.effects import Answer, Append, AppendMarker, Effect
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import TopicShape
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, TopicId
from tidelog.model.moment import Moment
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest, IdAssignment, TopicNames

MEMBERS: Final = 10_000
TOPICS: Final = 100
PARTITIONS: Final = 1_000
"""Of each topic."""
_GROUP: Final = "bench"
INTERVAL_MS: Final = 1_000
"""``group.consumer.assignment.interval.ms``, Kafka's default."""
_IMMEDIATELY_MS: Final = 100
_REBALANCE_MS: Final = 60_000
_BATCH_BYTES: Final = 1 << 20
_NAMES: Final = tuple(f"topic-{number:02}" for number in range(TOPICS))
_SHAPES: Final = {name: TopicShape(TopicId(number.to_bytes(16)), PARTITIONS) for number, name in enumerate(_NAMES, 1)}


class _Topics:
    """Implements :class:`tidelog.groups.state.topics.Topics`."""

    version = 1

    def shape(self, name: str) -> TopicShape | None:
        return _SHAPES.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, shape in _SHAPES.items() if shape.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return list(_NAMES)


class _Coordinator:
    """A partition of ``__consumer_offsets`` whose appends are committed when the loop gets to it. Each call of it is
    one turn of the event loop, with the batches that it asks for, as on a node."""

    def __init__(self) -> None:
        topics = _Topics()
        settings = GroupSettings()
        self.turns_s: list[float] = []
        self.refused = 0
        self._ms = 0
        self._appends: deque[Append | AppendMarker] = deque()
        self._shard = Shard(LeaderEpoch(1), settings, random.Random(1), _BATCH_BYTES, topics=lambda: topics)
        self._turn(lambda: self._shard.loaded(self._now))

    @property
    def _now(self) -> Moment:
        return Moment(self._ms, self._ms)

    @property
    def group(self) -> ConsumerGroup:
        found = self._shard.state.groups[_GROUP].consumer
        assert found is not None
        return found

    @property
    def given(self) -> int:
        """The partitions of the newest target, 0 while the group waits for it."""
        if self.group.assignment_epoch < self.group.epoch:
            return 0
        return sum(len(numbers) for share in self.group.target.values() for numbers in share.values())

    @staticmethod
    def name(number: int) -> str:
        return f"member-{number:05}"

    def beat(self, number: int, **said: Any) -> None:
        """A member sends a heartbeat."""
        request = ConsumerGroupHeartbeatRequest(_GROUP, self.name(number), client_id="bench", **said)
        self._turn(lambda: self._shard.consumer_heartbeat(request, number, self._now, "/127.0.0.1", lambda _: True))
        self._commit()

    def come(self, number: int) -> None:
        """A member joins."""
        names = TopicNames(_NAMES)
        self.beat(number, member_epoch=0, rebalance_timeout_ms=_REBALANCE_MS, topics=names, owned=IdAssignment(()))

    def work(self) -> None:
        """Go on with what is due immediately until nothing is, then let an interval pass."""
        while (deadline := self._shard.next_deadline()) is not None and deadline <= self._ms + _IMMEDIATELY_MS:
            self._ms = max(self._ms, deadline)
            self._turn(lambda: self._shard.tick(self._now))
            self._commit()
        self._ms += INTERVAL_MS

    def _commit(self) -> None:
        while self._appends:
            token = self._appends.popleft().token
            self._turn(lambda token=token: self._shard.appended(token, ErrorCode.NONE, self._now))  # type: ignore[misc]

    def _turn(self, act: Callable[[], Sequence[Effect]]) -> None:
        began_s = time.thread_time()
        for effect in act():
            if isinstance(effect, Answer):
                self.refused += getattr(effect.response, "error", None) is not ErrorCode.NONE
            else:
                batch_of(effect)
                self._appends.append(effect)
        self.turns_s.append(time.thread_time() - began_s)


def assignment(root: Path) -> Mapping[str, float]:
    """Measure the full assignment of 100,000 partitions, which the first member has, to 10,000: the processor time of
    its longest turn of the event loop, and of all turns."""
    coordinator = _Coordinator()
    for number in range(MEMBERS):
        coordinator.come(number)
    if coordinator.refused or len(coordinator.group.members) != MEMBERS:
        raise RuntimeError(f"expected {MEMBERS} members to be let in, found {len(coordinator.group.members)}")
    coordinator.work()  # makes the target that the first one asked for
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # as on a node
    gc.set_threshold(*GC_THRESHOLDS)
    coordinator.turns_s.clear()
    coordinator.beat(1, member_epoch=coordinator.group.current_of(coordinator.name(1)).epoch)
    coordinator.work()
    gc.unfreeze()
    gc.set_threshold(*before)
    if coordinator.given != TOPICS * PARTITIONS:
        raise RuntimeError(f"expected {TOPICS * PARTITIONS} partitions to be given out, found {coordinator.given}")
    return {
        "group_assignment_turn": max(coordinator.turns_s) * 1_000,
        "group_assignment_whole": sum(coordinator.turns_s) * 1_000,
    }
