"""Follows a group of the consumer protocol (KIP-848): what members say in heartbeats, and the answers they get."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeGuard

from tidelog.chaos.checkers.consumer_groups import ConsumerGroupJudge
from tidelog.chaos.simulated.watch.groups import GroupWatch, word
from tidelog.chaos.simulated.world.world import World
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)

FORGER: Final = "forger"
"""The client id of a heartbeat that must be refused."""


class ConsumerGroupWatch(GroupWatch):
    def __init__(
        self,
        world: World,
        group: str,
        generation_of: Callable[[str], int | None],
        is_member: Callable[[str], bool],
        judge: ConsumerGroupJudge,
    ) -> None:
        super().__init__(world, group, generation_of, is_member, judge)
        self.epochs: dict[str, list[int]] = {}
        """Member id → the epochs that it received, in order."""
        self._judged = judge
        self._newest: dict[str, ConsumerGroupHeartbeatRequest] = {}
        """A member's last heartbeat: it ignores answers to earlier ones."""

    def _sent(self, client: str, request: object) -> None:
        super()._sent(client, request)
        if not self._is_heartbeat(request):
            return
        self._newest[request.member_id] = request
        if request.member_epoch <= JOIN_EPOCH:
            self._judged.has_nothing(request.member_id)
        elif request.owned is not None:
            owned = self._named(request.owned.topics)
            self._tell(self._judged.says(client, request.member_id, request.member_epoch, owned))

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        super()._answered(server, request, response, asked_s)
        if not self._is_heartbeat(request) or not isinstance(response, ConsumerGroupHeartbeatResponse):
            return
        if response.error is not ErrorCode.NONE:
            self.events[f"heartbeat-{word(response.error)}"] += 1
            return
        if self._newest.get(request.member_id) is not request or request.member_epoch < JOIN_EPOCH:
            return
        if server == f"node{self.coordinator}":
            self._moved(server)
            self._judged.heard(request.member_id, response.member_epoch, asked_s)
        self.events["epoch"] += self._reached(request.member_id, response.member_epoch)
        if response.assignment is not None:
            given = self._named(response.assignment.topics)
            self._tell(self._judged.told(request.member_id, response.member_epoch, given, self._now))

    def _reached(self, member_id: str, epoch: int) -> bool:
        """Note a member's epoch. Returns whether it is another one than before."""
        known = self.epochs.setdefault(member_id, [])
        if known and known[-1] == epoch:
            return False
        known.append(epoch)
        return True

    def _is_heartbeat(self, request: object) -> TypeGuard[ConsumerGroupHeartbeatRequest]:
        return (
            isinstance(request, ConsumerGroupHeartbeatRequest)
            and request.group_id == self._group
            and request.client_id != FORGER
        )

    def _named(self, topics: Iterable[TopicIdPartitions]) -> list[TopicPartition]:
        image = self._world.cluster.image
        names = {each.topic_id: image.topics.get(each.topic_id) for each in topics}
        return [
            TopicPartition(found.name, partition)
            for each in topics
            if (found := names[each.topic_id]) is not None
            for partition in each.partitions
        ]
