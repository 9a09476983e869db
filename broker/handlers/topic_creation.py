"""Creates topics on first use: clients' topics, and the cluster's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.internal_topics import topic_to_make
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.quotas.usage import charged
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.model.names import is_internal, topic_name_fault
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import CreateTopicsRequest
from tidelog.proto.transport.network import CallContext

log = logging.getLogger(__name__)

CREATE_TIMEOUT_S: Final = 5.0
LEADERS_TIMEOUT_S: Final = 2.0
"""How long to wait for the leaders of a new topic."""
CREATIONS_MAX: Final = 100
"""Maximum topics being created on first use at a time; others are answered as unknown, and clients ask again."""

Outcome = tuple[ErrorCode, str]


class TopicCreation:
    """Sends one request per topic to the controller at a time, however many ask for it."""

    def __init__(
        self,
        config: NodeConfig,
        view: MetadataView,
        channel: ControllerChannel,
        tell: Callable[[str, CallContext, ErrorCode], None],
        may: Callable[[], bool],
    ) -> None:
        """``tell`` hears of each topic that a client's use made, or could not make. ``may``: whether one may be made
        by use now."""
        self._may = may
        self._config = config
        self._view = view
        self._channel = channel
        self._tell_of_use = tell
        self._under_way: dict[str, asyncio.Task[Outcome]] = {}
        self._told: dict[str, str] = {}
        """By internal topic: the logged reason why it could not be created."""

    async def create(self, names: Iterable[str], sender: CallContext | None = None) -> dict[str, Outcome]:
        """Create these topics and wait briefly for their leaders. Returns the error for each that is still missing.
        ``sender``: the client that uses them; ``None`` for the cluster itself."""
        tasks: dict[str, asyncio.Task[Outcome]] = {}
        for name in names:
            if topic_name_fault(name) is not None:
                continue
            task = self._under_way.get(name)
            if task is None:
                if len(self._under_way) >= CREATIONS_MAX:
                    continue
                task = self._under_way[name] = asyncio.get_running_loop().create_task(self._create(name, sender))
                task.add_done_callback(lambda _, name=name: self._under_way.pop(name))  # type: ignore[misc]
            tasks[name] = task
        if not tasks:
            return {}
        await asyncio.wait(tasks.values())
        return {name: task.result() for name, task in tasks.items()}

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    async def _create(self, name: str, sender: CallContext | None) -> Outcome:
        if sender is not None and not self._may():
            return ErrorCode.LEADER_NOT_AVAILABLE, "the audit log has no room (audit.on.full=refuse): try again"
        pays = None if sender is None else charged(sender)
        request = CreateTopicsRequest((topic_to_make(name, self._config),), charged=pays)
        try:
            answer, _ = await self._channel.forward(request, sender, timeout_s=CREATE_TIMEOUT_S)
        except ControllerUnavailable as error:
            return ErrorCode.LEADER_NOT_AVAILABLE, str(error)
        result = answer.topics[0]
        if sender is not None:
            self._tell_of_use(name, sender, result.error)
        if result.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:  # no client expects this from Metadata
            return ErrorCode.LEADER_NOT_AVAILABLE, result.error_message
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._tell(name, result.error_message)
            return result.error, result.error_message
        await self._view.wait_until(lambda image: _has_leaders(image, name), timeout_s=LEADERS_TIMEOUT_S)
        return ErrorCode.LEADER_NOT_AVAILABLE, "the topic was just created"

    def _tell(self, name: str, why: str) -> None:
        """Log why an internal topic is missing: clients of groups and transactions only wait, and many cannot say for
        what."""
        if is_internal(name) and self._told.get(name) != why:
            self._told[name] = why
            log.warning("%s cannot be created yet; still trying: %s", name, why)


def _has_leaders(image: MetadataImage, name: str) -> bool:
    topic = image.topic(name)
    return topic is not None and all(p.leader != NO_NODE for p in topic.partitions.values())
