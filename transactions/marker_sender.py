"""The seam between the coordinator, which decides how a transaction ends, and whoever tells the partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tidelog.model.errors import ErrorCode
from tidelog.proto.group_api import GroupPartition
from tidelog.proto.transaction_api import TransactionMarker

MarkersWritten: TypeAlias = Callable[[Sequence[GroupPartition], ErrorCode], None]
"""Told of partitions as they are done, each once, never from within ``send``. NONE: the marker is written and
replicated, or the partition is no more. TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH: the leader
refuses for good. Whatever else went wrong is tried again and not told."""


class Sending(Protocol):
    """The markers of one transaction, on their way."""

    def cancel(self) -> None:
        """Try no more; nothing is told after it."""


class MarkerSender(Protocol):
    """Writes the markers of ended transactions through the leaders of their partitions."""

    def send(self, marker: TransactionMarker, written: MarkersWritten) -> Sending:
        """See that each partition of ``marker`` has it, whoever leads it meanwhile, for as long as it takes."""
