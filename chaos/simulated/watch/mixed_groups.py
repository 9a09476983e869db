"""Follows a group with members of both protocols, which changes its own meanwhile.

A classic member says what it still has when it joins, and is told what it may have when it syncs. While nobody leads
the group, the coordinator divides the partitions, and then two members may not have the same one, whatever protocol
they speak. While it has a leader, the rules for classic groups hold.
"""

from __future__ import annotations

from typing import Any

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


class MixedGroupWatch(ConsumerGroupWatch):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_led: dict[str, bool] = {}
        """Member id → whether its group had a leader when it joined last."""
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
            super()._joined(server, request, response)
            self.events["joined-led"] += 1
        else:
            self.events["joined-unled"] += 1
        self._is_led[response.member_id] = bool(response.leader)
        known = self.epochs.setdefault(response.member_id, [])
        if not known or known[-1] != response.generation_id:
            known.append(response.generation_id)
        if server == f"node{self.coordinator}":
            self._judged.heard(response.member_id, response.generation_id, self._now)

    def _synced(self, server: str, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        is_led = self._is_led.get(request.member_id, True)
        if is_led:
            super()._synced(server, request, response)
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
        self._tell([] if is_led else found)
