"""Follows a group with members of both protocols, which changes its own meanwhile.

A classic member says what it still has when it joins, and is told what it may have when it syncs. While nobody leads
the group, the coordinator divides the partitions, and then two members may not have the same one, whatever protocol
they speak. While it has a leader, the rules for classic groups hold.

A group that has become empty and changes its protocol begins at generation and epoch 1 again. Nobody is in both of two
classic generations with the same number, so they have different leaders; the judge knows them by different numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidelog.chaos.simulated.watch.consumer_groups import ConsumerGroupWatch
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.group_api import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment, decode_subscription

AGAIN: Final = 1_000_000
"""How far the judge's numbers of generations with one number are apart."""


class MixedGroupWatch(ConsumerGroupWatch):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._leader: dict[tuple[str, int], str] = {}
        """Member id and generation → who leads it, "" for nobody."""
        self._led: dict[int, dict[str, set[str]]] = {}
        """Generation → the leaders of those with this number, and the members that have their assignment."""
        self._latest: dict[str, object] = {}
        """Member id → its last JoinGroup or SyncGroup; it ignores answers to earlier ones."""

    def _sent(self, client: str, request: object) -> None:
        super()._sent(client, request)
        match request:
            case JoinGroupRequest(group_id=self._group) if request.member_id:
                self._latest[request.member_id] = request
                owned = decode_subscription(request.protocols[0].metadata).owned
                generation = self.epochs.get(request.member_id, [0])[-1]
                self._tell(self._judged.says(client, request.member_id, generation, owned))
            case SyncGroupRequest(group_id=self._group):
                self._latest[request.member_id] = request
            case LeaveGroupRequest(group_id=self._group):
                for member in request.members:
                    self._judged.has_nothing(member.member_id)

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        super()._answered(server, request, response, asked_s)
        if server != f"node{self.coordinator}":
            return
        match request, response:
            case HeartbeatRequest(group_id=self._group), HeartbeatResponse():
                if response.error is ErrorCode.REBALANCE_IN_PROGRESS:
                    self.events["called-back"] += 1
                    self._judged.called_back(request.member_id)
                if response.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                    self._judged.heard(request.member_id, request.generation_id, asked_s)

    def _joined(self, server: str, request: JoinGroupRequest, response: JoinGroupResponse) -> None:
        if response.leader:
            self._judged.let_in(response.member_id, ())
            super()._joined(server, request, response)
            self.events["joined-led"] += 1
        else:
            self.events["joined-unled"] += 1
            self._judged.let_in(response.member_id, decode_subscription(request.protocols[0].metadata).owned)
            for led in self._led.values():  # it may be in another generation of the same number from now on
                for members in led.values():
                    members.discard(response.member_id)
        self._leader[response.member_id, response.generation_id] = response.leader
        self._reached(response.member_id, response.generation_id)
        if server == f"node{self.coordinator}":
            self._judged.heard(response.member_id, response.generation_id, self._now)

    def _synced(self, server: str, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        leader = self._leader.get((request.member_id, request.generation_id), "")
        if leader:
            number = self._told_apart(request.generation_id, leader, request.member_id)
            super()._synced(server, replace(request, generation_id=number), response)
        if self._latest.get(request.member_id) is not request:
            return
        try:
            given = decode_assignment(response.assignment).partitions if response.assignment else ()
        except BadConsumerProtocol as error:
            self._tell([f"one owner: {request.member_id} was given an assignment that is none: {error}"])
            return
        if server == f"node{self.coordinator}":
            self._judged.heard(request.member_id, request.generation_id, self._now)
        known = [TopicPartition(*at) for at in given]
        found = self._judged.told(request.member_id, request.generation_id, known, self._now)
        self._tell([] if leader else found)

    def _reached(self, member_id: str, epoch: int) -> bool:
        known = self.epochs.setdefault(member_id, [])
        if known and epoch < known[-1]:  # none of them is past for good
            known.clear()
        return super()._reached(member_id, epoch)

    def _told_apart(self, generation: int, leader: str, member_id: str) -> int:
        """Return a number that no generation with another leader has."""
        led = self._led.setdefault(generation, {})
        if leader not in led and led:
            self.events["began-again"] += 1
        led.setdefault(leader, set()).add(member_id)
        leaders = [each for each, members in led.items() if member_id in members]
        if len(leaders) > 1:
            text = f"one owner: generation {generation} of {member_id} has the leaders {' and '.join(leaders)}"
            self._tell([text])
        return generation + AGAIN * list(led).index(leader)
