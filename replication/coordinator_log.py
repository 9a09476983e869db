"""The seam between a coordinator (of groups, of transactions) and the log of the topic that holds its state."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.network import Buffer


class Token(NamedTuple):
    """Names what a coordinator's core asked for: under which epoch, and its place in that epoch's order."""

    leader_epoch: LeaderEpoch
    number: int


class LogRange(NamedTuple):
    """What is to be loaded: from the log's start to its end (exclusive) when it was asked."""

    start: Offset
    end: Offset


class LogSlice(NamedTuple):
    """Whole batches from the offset that was asked for (the first may begin before it), and what follows them."""

    records: Buffer
    next_offset: Offset


class CoordinatorLog(Protocol):
    """The partitions of one coordinator's topic that this node leads. All of it on the node's event loop.

    ``leader_epoch`` is that of ``elected``; a call under another epoch than the partition's is answered
    NOT_COORDINATOR and does nothing.
    """

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        """Write one batch (base offset 0, no producer id) as the leader, origin ``Origin.COORDINATOR``.

        The order of calls is the order in the log: it is written, or refused, before this returns. NONE
        once the high watermark passed it (acks=all). NOT_COORDINATOR when leadership ended before that:
        the outcome is unknown then. Every other code says that *nothing was written*:
        COORDINATOR_NOT_AVAILABLE (fewer in-sync replicas than ``min.insync.replicas``, no such topic),
        RECORD_LIST_TOO_LARGE or MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR as NOT_COORDINATOR. There is no
        timeout here: a coordinator has its own and needs to hear how a written batch ended all the same.
        """

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        """Start and end of the log now; the coordinator has appended nothing yet."""

    def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> Awaitable[LogSlice | Refusal]:
        """Read at least one whole batch from ``offset`` on, also beyond the high watermark. The log's start
        may have moved past ``offset``: then from there. ``next_offset`` is greater than ``offset`` always."""

    def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> Awaitable[ErrorCode]:
        """NONE once the high watermark is at ``offset`` or beyond; NOT_COORDINATOR when leadership ended."""

    def batch_bytes_max(self, partition: int) -> int:
        """``max.message.bytes`` of the topic: bytes that one appended batch may have."""
