"""The audit log in a topic: each broker sends its lines to the leader, which appends them.

Nothing waits for it. While there is no leader, or no topic yet, lines wait in a bounded queue. Beyond its size, lines
are dropped and counted, and the next line says so. A line whose answer was lost is sent again, so it may appear twice;
its ``metadata.uid`` shows that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.model.names import AUDIT_TOPIC
from tidelog.proto.calls.audit_api import AppendAuditRequest, AppendAuditResponse
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.network import CallContext, CallTimeout, Connection, ConnectionLost
from tidelog.replication.manager import ReplicaManager
from tidelog.security.audit import Audit, AuditLine

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 256 * 1024
"""Maximum bytes of lines per request, unless a single line is larger."""
APPEND_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Maximum pause before the leader is asked again; pauses double."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_NO_ROOM: Final = "more than audit.topic.queue.bytes"


class AuditQueue:
    """Lines that wait for the topic, at most ``bytes_max``. The newest are dropped, because the first lines of an
    attack say more than its last; the line after them says how many they were."""

    def __init__(self, audit: Audit, bytes_max: int) -> None:
        self._audit = audit
        self._bytes_max = bytes_max
        self._lines: deque[AuditLine] = deque()
        self._untold = 0
        """Events that the topic lacks without saying so yet."""
        self.bytes = 0
        self.dropped = 0
        """Events that the topic lacks."""
        self.waiting = asyncio.Event()
        """Set while there are lines,"""
        self.empty = asyncio.Event()
        """and while there are none."""
        self.empty.set()
        # Half of it is left for what is under way when changes begin to be refused.
        audit.full_places.append(lambda: self._untold > 0 or 2 * self.bytes > bytes_max)

    def put(self, lines: Iterable[AuditLine]) -> None:
        """Add lines as far as there is room."""
        for line in lines:
            self._tell()
            if self._untold or not self._add(line):
                self._drop(line)

    def head(self, bytes_max: int) -> list[AuditLine]:
        """Return the first lines, at most ``bytes_max`` but at least one; empty only if none waits."""
        taken: list[AuditLine] = []
        size = 0
        for line in self._lines:
            size += len(line.text)
            if taken and size > bytes_max:
                break
            taken.append(line)
        return taken

    def settle(self, lines: list[AuditLine], *, lost: bool = False) -> None:
        """Remove these lines of the head: they are in the topic, or ``lost`` for good."""
        for line in lines:
            assert self._lines.popleft() is line, "only the sender takes lines out"
            self.bytes -= len(line.text)
            if lost:
                self._drop(line)
        self._tell()
        if not self._lines:
            self.waiting.clear()
            self.empty.set()

    def close(self) -> int:
        """Close the queue, because the node ends; waiting lines are lost. Returns how many events the topic lacks
        without saying so."""
        for line in self._lines:
            self._drop(line)
        self._lines.clear()
        self.bytes = 0
        return self._untold

    def _drop(self, line: AuditLine) -> None:
        self._untold += line.events
        if not line.counted:
            self.dropped += line.events

    def _tell(self) -> None:
        if self._untold and self._add(self._audit.loss(self._untold, _NO_ROOM)):
            self._untold = 0

    def _add(self, line: AuditLine) -> bool:
        if self.bytes + len(line.text) > self._bytes_max:
            return False
        self._lines.append(line)
        self.bytes += len(line.text)
        self.waiting.set()
        self.empty.clear()
        return True


class AuditTopic:
    """A broker's two roles for the topic: it sends its own lines, and appends everybody's if it leads."""

    def __init__(
        self,
        queue: AuditQueue | None,
        node_id: NodeId,
        replicas: ReplicaManager,
        view: MetadataView,
        clock: Clock,
        *,
        connection: Callable[[NodeId], Connection | None],
        create: Callable[[Iterable[str]], Awaitable[object]],
    ) -> None:
        """``queue``: ``None`` if the node sends nothing. ``create``: creates topics."""
        self._queue = queue
        self._node_id = node_id
        self._replicas = replicas
        self._view = view
        self._clock = clock
        self._connection = connection
        self._create = create
        self._batch_bytes = BATCH_BYTES

    def calls(self) -> Calls:
        return {AppendAuditRequest: self.append}

    async def append(self, request: AppendAuditRequest, _: CallContext | None = None) -> AppendAuditResponse:
        """Append lines as the leader. Answers once they are committed."""
        partition = self._replicas.partition_named(AUDIT_TOPIC, 0)
        leading = None if partition is None else partition.leading
        if leading is None:
            return AppendAuditResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {AUDIT_TOPIC}-0")
        if not request.lines:
            return AppendAuditResponse(ErrorCode.INVALID_REQUEST, "expected audit log lines, found none")
        batch = encode_values([bytes(line) for line in request.lines], self._clock.now_ms())
        try:
            async with asyncio.timeout(APPEND_TIMEOUT_S):
                at = TopicPartition(AUDIT_TOPIC, 0)
                error = await self._replicas.coordinating.append(at, leading.epoch, batch)
        except TimeoutError:
            error = ErrorCode.REQUEST_TIMED_OUT
        return AppendAuditResponse(error, "" if error is ErrorCode.NONE else f"{AUDIT_TOPIC}: {error.name}")

    async def run(self) -> None:
        """Send as long as the node lives."""
        assert self._queue is not None
        queue, pause_s = self._queue, 0.0
        while True:
            await queue.waiting.wait()
            lines = queue.head(self._batch_bytes)
            error = await self._send(AppendAuditRequest(tuple(line.text.rstrip() for line in lines)))
            if error is ErrorCode.NONE:
                if pause_s > RETRY_MAX_S:
                    log.info("audit topic: sending works again")
                queue.settle(lines)
                pause_s = 0.0
                self._batch_bytes = min(BATCH_BYTES, 2 * self._batch_bytes)
            elif error in _TOO_LARGE and len(lines) == 1:
                log.error("audit topic: %s: a line of %d bytes is lost", error.name, len(lines[0].text))
                queue.settle(lines, lost=True)
            elif error in _TOO_LARGE:
                self._batch_bytes = sum(len(line.text) for line in lines) // 2
            else:
                if RETRY_MAX_S / 2 < pause_s <= RETRY_MAX_S:
                    log.warning("audit topic: %s; lines wait and will be retried", error.name)
                pause_s = min(2 * pause_s, 2 * RETRY_MAX_S) or RETRY_FIRST_S
                await asyncio.sleep(min(pause_s, RETRY_MAX_S))

    async def drain(self, bound_s: float) -> None:
        """Return once nothing waits any more, or on timeout."""
        if self._queue is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(bound_s):
                    await self._queue.empty.wait()

    async def _send(self, request: AppendAuditRequest) -> ErrorCode:
        """Send lines. NONE means that they are in the topic; otherwise they may be."""
        topic = self._view.image.topic(AUDIT_TOPIC)
        if topic is None:
            await self._create((AUDIT_TOPIC,))
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader = topic.partitions[0].leader
        try:
            if leader == self._node_id:
                answer = await self.append(request)
            else:
                connection = self._connection(leader)
                if connection is None:
                    return ErrorCode.LEADER_NOT_AVAILABLE
                answer = await connection.call(request, timeout_s=APPEND_TIMEOUT_S)
        except (ConnectionLost, CallTimeout):
            return ErrorCode.REQUEST_TIMED_OUT
        return answer.error
