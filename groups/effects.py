"""What the coordinator's core asks its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.coordinator_records import CoordinatorRecord
from tidelog.proto.group_api import DeletedGroup
from tidelog.proto.request import Response
from tidelog.replication.coordinator_log import Token


class Writer(NamedTuple):
    """The producer in whose transaction something is written."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class Append:
    """Write these records as one batch, then tell ``appended`` how it ended, exactly once.

    With a ``writer`` the batch is one of that producer's open transaction.
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
    """Give ``response`` to whom asked under ``waiter``. Each waiter is answered exactly once."""

    waiter: int
    response: Response | DeletedGroup | ErrorCode


Effect: TypeAlias = Append | AppendMarker | Answer
