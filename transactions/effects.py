"""What the coordinator's core asks its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidelog.proto.coordinator_records import CoordinatorRecord
from tidelog.proto.request import Response
from tidelog.proto.transaction_api import AddedTransaction, TransactionMarker
from tidelog.replication.coordinator_log import Token


@dataclass(frozen=True, slots=True)
class Append:
    """Write these records as one batch, then tell ``appended`` how it ended, exactly once."""

    token: Token
    records: tuple[CoordinatorRecord, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Give ``response`` to whom asked under ``waiter``. Each waiter is answered exactly once."""

    waiter: int
    response: Response | AddedTransaction


@dataclass(frozen=True, slots=True)
class Allocate:
    """Ask for a producer id that nobody has, then tell ``allocated``, exactly once."""

    token: Token


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """See that each partition has the marker; tell ``marked`` of each once it is done."""

    token: Token
    marker: TransactionMarker


@dataclass(frozen=True, slots=True)
class StopMarkers:
    """Nothing more is to be done for these."""

    token: Token


Effect: TypeAlias = Append | Answer | Allocate | SendMarkers | StopMarkers
