"""Actions that the coordinator's core asks of its shell, in order."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import DeletedGroup
from tidelog.proto.calls.request import Response
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.replication.coordinators.coordinator_log import Token


class Writer(NamedTuple):
    """The producer whose transaction a batch belongs to."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class Append:
    """Write these records as one batch, then report the outcome to ``appended``, exactly once.

    With a ``writer``, the batch belongs to that producer's open transaction.
    """

    token: Token
    records: tuple[CoordinatorRecord, ...]
    timestamp_ms: int
    writer: Writer | None = None


@dataclass(frozen=True, slots=True)
class AppendMarker:
    """Write the marker that ends ``writer``'s transaction here, then tell ``appended``, as for :class:`Append`."""

    token: Token
    writer: Writer
    coordinator_epoch: int
    committed: bool
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of ``waiter`` with ``response``. Each waiter gets exactly one answer."""

    waiter: int
    response: Response | DeletedGroup | ErrorCode


Effect: TypeAlias = Append | AppendMarker | Answer
