"""Calls about replica placement and leadership, forwarded to the active controller.

As in :mod:`tidelog.broker.handlers.forwarding`, the answer waits, up to a limit, until this broker's image shows the
decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from tidelog.broker.handlers.forwarding import SETTING_VISIBLE_TIMEOUT_S, bound_s, forwarded, timed_out
from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.proto.calls.reassignment_api import (
    PREFERRED,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionReassignment,
    PartitionResult,
)
from tidelog.proto.logs.metadata_records import PartitionRecord
from tidelog.proto.transport.network import CallContext

T = TypeVar("T", PartitionReassignment, PartitionResult)


class Reassignments:
    """Forwards calls about replicas and leaders; reports an unknown outcome as such."""

    def __init__(self, channel: ControllerChannel, view: MetadataView) -> None:
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {
            AlterPartitionReassignmentsRequest: self.alter,
            ListPartitionReassignmentsRequest: self.list_ongoing,
            ElectLeadersRequest: self.elect,
        }

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: CallContext
    ) -> AlterPartitionReassignmentsResponse:
        answer, unknown = await forwarded(self._channel, request, context, timeout_s=bound_s(request.timeout_ms))
        if unknown:
            answer = replace(answer, partitions=tuple(map(_settled, answer.partitions)))
        done = _done(answer.partitions)
        await self._visible((item for item in request.partitions if (item.topic, item.partition) in done), _is_wished)
        return answer

    async def list_ongoing(
        self, request: ListPartitionReassignmentsRequest, _: CallContext
    ) -> ListPartitionReassignmentsResponse:
        try:
            return await self._channel.call(request, timeout_s=bound_s(request.timeout_ms), patient=True)
        except ControllerUnavailable as error:
            code, text = timed_out(error)
            return ListPartitionReassignmentsResponse(code, error_message=text)

    async def elect(self, request: ElectLeadersRequest, context: CallContext) -> ElectLeadersResponse:
        answer, _ = await forwarded(self._channel, request, context, timeout_s=bound_s(request.timeout_ms))

        def is_led(found: PartitionRecord, _: PartitionResult) -> bool:
            return found.leader == found.replicas[0] if request.election == PREFERRED else found.leader != NO_NODE

        await self._visible((item for item in answer.partitions if item.error is ErrorCode.NONE), is_led)
        return answer

    async def _visible(self, items: Iterable[T], shown: Callable[[PartitionRecord, T], bool]) -> None:
        """Wait until this broker's image shows it. Not for long, because a later change may hide it."""
        wanted = list(items)

        def are_shown(image: MetadataImage) -> bool:
            for item in wanted:
                topic = image.topic(item.topic)
                found = None if topic is None else topic.partitions.get(item.partition)
                if found is not None and not shown(found, item):
                    return False
            return True

        if wanted:
            await self._view.wait_until(are_shown, timeout_s=SETTING_VISIBLE_TIMEOUT_S)


def _done(results: Iterable[PartitionResult]) -> set[tuple[str, int]]:
    return {(item.topic, item.partition) for item in results if item.error is ErrorCode.NONE}


def _is_wished(found: PartitionRecord, item: PartitionReassignment) -> bool:
    if item.cancel:
        return not (found.adding_replicas or found.removing_replicas)
    return tuple(node for node in found.replicas if node not in found.removing_replicas) == item.replicas


def _settled(result: PartitionResult) -> PartitionResult:
    """Handle a first try with unknown outcome: the second one's refusal may mean that the first one succeeded."""
    if result.error is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        return result
    text = "the first attempt's outcome is unknown, and now no move is in progress; describe the topic to find out"
    return replace(result, error=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
