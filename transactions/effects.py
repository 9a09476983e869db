"""Actions that the coordinator's core requests from its shell, in order."""

from __future__ import annotations

from typing import TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.proto.calls.request import Response
from tidelog.proto.calls.transaction_api import AddedTransaction, TransactionMarker
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.replication.coordinators.coordinator_log import Token


@dataclass(frozen=True, slots=True)
class Append:
    """Write these records as one batch, then report the outcome to ``appended``, exactly once."""

    token: Token
    records: tuple[CoordinatorRecord, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of ``waiter`` with ``response``. Each waiter gets exactly one answer."""

    waiter: int
    response: Response | AddedTransaction


@dataclass(frozen=True, slots=True)
class Allocate:
    """Request an unused producer id, then tell ``allocated``, exactly once."""

    token: Token


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Ensure that each partition gets the marker; tell ``marked`` about each once it has."""

    token: Token
    marker: TransactionMarker


@dataclass(frozen=True, slots=True)
class StopMarkers:
    """Stop sending these markers."""

    token: Token


Effect: TypeAlias = Append | Answer | Allocate | SendMarkers | StopMarkers
