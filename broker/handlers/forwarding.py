"""Calls about topics and configs, which a broker forwards to the active controller.

The answer waits, up to a limit, until this broker's own image shows the change: a client that creates a topic and then
asks the same broker about it finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.controller.refusals import refuse
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    ConfigChange,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    TopicResult,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidelog.proto.calls.request import Change, Response
from tidelog.proto.transport.network import CallContext

TIMEOUT_MS_MAX: Final = 60_000
CONFIG_TIMEOUT_S: Final = 30.0
"""Timeout of calls that have none."""
VISIBLE_TIMEOUT_S: Final = 5.0
"""How long to wait for the change to appear in this broker's image; then the answer is sent anyway."""

SETTING_VISIBLE_TIMEOUT_S: Final = 1.0
"""The same for settings: another change of the same setting may hide this one."""


R = TypeVar("R", bound=Response)


async def forwarded(
    channel: ControllerChannel,
    request: Change[R],
    context: CallContext,
    *,
    timeout_s: float = CONFIG_TIMEOUT_S,
    retry_unknown: bool = True,
) -> tuple[R, bool]:
    """Return the active controller's answer, and whether an earlier try had an unknown outcome. Without a controller it
    is a refusal, which says whether the change may have taken effect."""
    try:
        return await channel.forward(request, context, timeout_s=timeout_s, retry_unknown=retry_unknown)
    except ControllerUnavailable as error:
        return refuse(request, *timed_out(error)), False


class Forwarding:
    """Forwards admin calls. Reports an unknown outcome as such, never as a failure."""

    def __init__(self, channel: ControllerChannel, view: MetadataView) -> None:
        self._channel = channel
        self._view = view

    async def create_topics(self, request: CreateTopicsRequest, context: CallContext) -> CreateTopicsResponse:
        answer, unknown = await forwarded(self._channel, request, context, timeout_s=bound_s(request.timeout_ms))
        if unknown:
            answer = CreateTopicsResponse(tuple(_settle_created(topic) for topic in answer.topics))
        if not request.validate_only:
            made = [topic.topic_id for topic in answer.topics if topic.error is ErrorCode.NONE]
            await self._visible(lambda image: all(i in image.topics for i in made))
        return answer

    async def delete_topics(self, request: DeleteTopicsRequest, context: CallContext) -> DeleteTopicsResponse:
        answer, unknown = await forwarded(self._channel, request, context, timeout_s=bound_s(request.timeout_ms))
        if unknown:
            answer = DeleteTopicsResponse(tuple(_settle_deleted(topic) for topic in answer.topics))
        gone = [topic.topic_id for topic in answer.topics if topic.error is ErrorCode.NONE]
        await self._visible(lambda image: not any(i in image.topics for i in gone))
        return answer

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: CallContext
    ) -> CreatePartitionsResponse:
        answer, unknown = await forwarded(self._channel, request, context, timeout_s=bound_s(request.timeout_ms))
        if unknown:
            answer = CreatePartitionsResponse(tuple(_settle_grown(topic) for topic in answer.topics))
        if not request.validate_only:
            done = {topic.name for topic in answer.topics if topic.error is ErrorCode.NONE}
            wanted = {topic.name: topic.count for topic in request.topics if topic.name in done}
            await self._visible(lambda image: all(_partitions(image, name) >= n for name, n in wanted.items()))
        return answer

    async def alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: CallContext
    ) -> IncrementalAlterConfigsResponse:
        # Not repeated after an unknown outcome: "append" and "subtract" would then apply twice.
        safe = all(c.operation in ("set", "delete") for r in request.resources for c in r.changes)
        answer, _ = await forwarded(self._channel, request, context, retry_unknown=safe)
        if not request.validate_only:
            done = {item.resource for item in answer.resources if item.error is ErrorCode.NONE}
            wanted = [
                (item.resource, change.name, _after(change))
                for item in request.resources
                for change in item.changes
                if item.resource in done and change.operation in ("set", "delete")
            ]
            await self._view.wait_until(
                lambda image: all(image.config(at.resource_type, at.name).get(name) == to for at, name, to in wanted),
                timeout_s=SETTING_VISIBLE_TIMEOUT_S,
            )
        return answer

    async def unregister_broker(
        self, request: UnregisterBrokerRequest, context: CallContext
    ) -> UnregisterBrokerResponse:
        answer, unknown = await forwarded(self._channel, request, context)
        if unknown and answer.error is ErrorCode.BROKER_ID_NOT_REGISTERED:
            answer = UnregisterBrokerResponse(ErrorCode.NONE)  # unregistered by the first attempt, or never registered
        if answer.error is ErrorCode.NONE:
            await self._visible(lambda image: image.broker(request.node_id) is None)
        return answer

    async def _visible(self, shown: Callable[[MetadataImage], bool]) -> None:
        await self._view.wait_until(shown, timeout_s=VISIBLE_TIMEOUT_S)


def _after(change: ConfigChange) -> str | None:
    return change.value.strip() if change.operation == "set" and change.value is not None else None


def bound_s(timeout_ms: int) -> float:
    return min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1000


def timed_out(error: ControllerUnavailable) -> tuple[ErrorCode, str]:
    outcome = "; it may or may not have taken effect" if error.unknown else "; nothing was changed"
    return error.code, f"{error}{outcome}"


_UNKNOWN_TEXT: Final = (
    "the first attempt's outcome is unknown, and now the topic {state}; describe the topic to find out"
)


def _settle_created(topic: CreatedTopic) -> CreatedTopic:
    if topic.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
        return topic
    return replace(topic, error=ErrorCode.REQUEST_TIMED_OUT, error_message=_UNKNOWN_TEXT.format(state="exists"))


def _settle_deleted(topic: TopicResult) -> TopicResult:
    if topic.error not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        return topic
    return replace(topic, error=ErrorCode.REQUEST_TIMED_OUT, error_message=_UNKNOWN_TEXT.format(state="does not exist"))


def _settle_grown(topic: TopicResult) -> TopicResult:
    if topic.error is not ErrorCode.INVALID_PARTITIONS:
        return topic
    text = f"the first attempt's outcome is unknown; the second answered: {topic.error_message}"
    return replace(topic, error=ErrorCode.REQUEST_TIMED_OUT, error_message=text)


def _partitions(image: MetadataImage, name: str) -> int:
    topic = image.topic(name)
    return len(topic.partitions) if topic is not None else 0
