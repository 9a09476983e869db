"""The history of a run: the operations of producers, consumers and transactions, and the answers they got.

Every operation has one of three outcomes, and the third is not a weak form of the second: an operation with an unknown
outcome may be in the log or not, now or later, and only evidence from elsewhere decides.

A history is recorded during the run and judged by :mod:`tidelog.chaos.checkers.anomalies.log`. Values are unique over
the whole history: a value names its send. Operations that are in progress when a history ends are recorded as unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.model.ids import TopicPartition

NO_OFFSET: Final = -1


class Outcome(enum.Enum):
    """The outcome of an operation, as far as the client knows it."""

    OK = "ok"
    """Acknowledged."""
    FAILED = "failed"
    """Definitely not done, now or ever. Only for failures that promise that: a send that was refused before anything
    left the client, or an answer that says so to the only request ever sent. A delivery timeout, a lost connection and
    an error after a retry are :attr:`UNKNOWN`."""
    UNKNOWN = "unknown"
    """May be done, may still be done, may never be."""


class TransactionKey(NamedTuple):
    """A transaction: the producer that ran it and its number among that producer's transactions."""

    producer: str
    number: int


class Sent(NamedTuple):
    """A record that was handed to a producer.

    ``producer`` is one incarnation of a producer; a restarted one has another name.
    """

    producer: str
    number: int
    """Rises in the order in which the producer received records; gaps are fine."""
    partition: TopicPartition
    value: bytes
    outcome: Outcome
    offset: int = NO_OFFSET
    """The acknowledged offset."""
    began_s: float = 0.0
    ended_s: float = 0.0
    transaction: TransactionKey | None = None
    durable: bool = True
    """Whether its acknowledgement promises durability: acks=all and min.insync.replicas of 2 or more."""


class Polled(NamedTuple):
    """The records of one poll from one partition, in the order received."""

    consumer: str
    partition: TopicPartition
    records: Sequence[tuple[int, bytes]]
    """Offset and value each."""
    began_s: float = 0.0
    ended_s: float = 0.0
    read_committed: bool = False
    """Isolation level of the consumer."""
    transaction: TransactionKey | None = None
    """The transaction that commits this poll's position (consume, transform, produce), if any."""


class ReadRecord(Protocol):
    """A record as a consumer hands it out."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...


def by_partition(records: Iterable[ReadRecord]) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Return the records of a poll in the form that :class:`Polled` needs."""
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
    for record in records:
        found.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
    return found


class Positioned(NamedTuple):
    """A consumer's position in a partition is set by something other than a poll.

    By assign, seek, a reset after an offset out of range, or an assignment by the group. The next records begin at
    ``offset``; if that is not known (:data:`NO_OFFSET`: reset to the latest), any jump is legal.
    """

    consumer: str
    partition: TopicPartition
    offset: int = NO_OFFSET


class Transaction(NamedTuple):
    """A transaction that began; ``OK`` is committed, ``FAILED`` is aborted."""

    key: TransactionKey
    transactional_id: str
    outcome: Outcome
    began_s: float = 0.0
    ending_s: float = 0.0
    """When its commit or abort was requested: nothing of it may be visible before."""
    ended_s: float = 0.0


ConsumerStep: TypeAlias = Polled | Positioned


@dataclass(slots=True)
class History:
    """The events of a run. Steps of one consumer are in its own order; everything else is in any order."""

    sends: list[Sent] = field(default_factory=list)
    reads: list[ConsumerStep] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    def send(self, sent: Sent) -> None:
        self.sends.append(sent)

    def poll(self, polled: Polled) -> None:
        self.reads.append(polled)

    def position(self, positioned: Positioned) -> None:
        self.reads.append(positioned)

    @property
    def polls(self) -> list[Polled]:
        return [step for step in self.reads if isinstance(step, Polled)]


FinalLog: TypeAlias = Mapping[TopicPartition, Sequence[tuple[int, bytes]]]
"""The content of the partitions at the end, after repair: offset and value, from log start to end, as a read_committed
consumer reads it. A partition that is not in it was not read at the end."""


class Loss(NamedTuple):
    """Data that a partition lost legally: every replica that held it lost it, unflushed or with its disk.

    From ``from_offset`` on, data from before ``at_s`` may be gone and offsets may be reused.
    """

    partition: TopicPartition
    from_offset: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Settings and events of a run that make some anomalies legal."""

    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records below this were deleted, by retention or on request."""
    losses: tuple[Loss, ...] = ()
    compacted: frozenset[TopicPartition] = frozenset()
    """A cleaner ran: a record may be missing if a later one has its key."""
    without_idempotence: frozenset[str] = frozenset()
    """Producers whose retries may duplicate records and change their order."""
    rebalanced: frozenset[str] = frozenset()
    """Consumers of a group whose assignments are not in the history as :class:`Positioned`."""
