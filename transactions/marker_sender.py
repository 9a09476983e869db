"""The interface between the coordinator, which decides how a transaction ends, and the sender that notifies the
partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import TransactionMarker

MarkersWritten: TypeAlias = Callable[[Sequence[GroupPartition], ErrorCode], None]
"""Called as partitions are done, once for each, never from within ``send``. NONE: the marker is written and replicated,
or the partition no longer exists. TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH: the leader refuses
permanently. All other errors are retried and not reported."""


class Sending(Protocol):
    """One transaction's markers that are being sent."""

    def cancel(self) -> None:
        """Stop; no further calls follow."""


class MarkerSender(Protocol):
    """Writes the markers of ended transactions through the leaders of their partitions."""

    def send(self, marker: TransactionMarker, written: MarkersWritten) -> Sending:
        """Ensure that each of ``marker``'s partitions gets it, through leader changes, however long that takes."""
