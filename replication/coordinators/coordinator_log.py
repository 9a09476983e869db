"""The interface between a coordinator (of groups, of transactions) and the log of the topic that holds its state."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset


class Token(NamedTuple):
    """Identifies a request of a coordinator's core: its epoch, and its number in that epoch."""

    leader_epoch: LeaderEpoch
    number: int


class LogRange(NamedTuple):
    """The range to load: from the log's start to its end (exclusive) at the time of the call."""

    start: Offset
    end: Offset


class LogSlice(NamedTuple):
    """Whole batches from the requested offset on (the first may begin before it), and the offset after them."""

    records: Buffer
    next_offset: Offset


class CoordinatorLog(Protocol):
    """The partitions of one coordinator's topic that this node leads. Everything runs on the node's event loop.

    ``leader_epoch`` is that of ``elected``; a call under any other epoch gets NOT_COORDINATOR and does nothing.
    """

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        """Write one batch (base offset 0, no producer id) as the leader, origin ``Origin.COORDINATOR``.

        The order of calls is the order in the log: the batch is written, or refused, before this returns. NONE once the
        high watermark has passed it (acks=all). NOT_COORDINATOR if leadership ended before that: the outcome is then
        unknown. Every other code means that *nothing was written*: COORDINATOR_NOT_AVAILABLE (fewer in-sync replicas
        than ``min.insync.replicas``, no such topic), RECORD_LIST_TOO_LARGE or MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR as
        NOT_COORDINATOR. There is no timeout here: a coordinator has its own, and still needs to learn the outcome of a
        written batch.
        """

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        """Return the log's current start and end; the coordinator has appended nothing yet."""

    def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> Awaitable[LogSlice | Refusal]:
        """Read at least one whole batch from ``offset`` on, even beyond the high watermark. If the log's start has
        moved past ``offset``, read from there. ``next_offset`` is always greater than ``offset``."""

    def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> Awaitable[ErrorCode]:
        """Return NONE once the high watermark is at or past ``offset``; NOT_COORDINATOR if leadership ended."""

    def batch_bytes_max(self, partition: int) -> int:
        """Return the topic's ``max.message.bytes``: most bytes of one appended batch."""
