"""Sends rows at a pace and records acknowledgements, while other code kills nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.demo.log.flights import Flight, row_digest

if TYPE_CHECKING:
    from tidelog.client.delivery import Callback

SLICE_S: Final = 0.01
PROGRESS_ROWS: Final = 1_000
TRICKLE_PER_S: Final = 400.0
"""Rows per second during a recovery, so that some are always in flight."""


class Sender(Protocol):
    """The part of the producer that is used here."""

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        on_delivery: Callback | None = None,
    ) -> object: ...


class Failover:
    """Watches for the first acknowledgement, in each given partition, of a row sent after a given moment."""

    def __init__(self, row_from: int, partitions: frozenset[int], started: float) -> None:
        self.row_from = row_from
        self.partitions = partitions
        self.started = started
        self.seconds: dict[int, float] = {}
        self.done = threading.Event()
        if not partitions:
            self.done.set()

    def acknowledged(self, row: int, partition: int, now: float) -> None:
        if row >= self.row_from and partition in self.partitions and partition not in self.seconds:
            self.seconds[partition] = now - self.started
            if len(self.seconds) == len(self.partitions):
                self.done.set()


@dataclass(slots=True)
class Account:
    """Which rows were sent, which were acknowledged and where. The sending thread and the producer's write their own
    fields; anybody may read."""

    sent: int = 0
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    failed: list[tuple[int, BaseException]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    value_bytes: int = 0
    failover: Failover | None = None

    def settled(self, row: int, metadata: Any, error: BaseException | None) -> None:
        """Record the producer's outcome for one row."""
        if error is not None:
            self.failed.append((row, error))
        else:
            self.acknowledged[row] = (metadata.partition, metadata.offset)
            watch = self.failover
            if watch is not None and not watch.done.is_set():
                watch.acknowledged(row, metadata.partition, time.monotonic())
        self.pending.discard(row)


class Pace:
    """How many rows may have been sent by now: a rate per second, limited at marks until released."""

    def __init__(self, rows: int, seconds: float, started: float) -> None:
        self.rows = rows
        self.rate = rows / seconds
        self._at = started
        self._allowed = 0.0
        self._hold = rows
        self._lock = threading.Lock()

    def hold_at(self, share: float) -> None:
        """Slow down to a trickle beyond this share of the rows, until the next :meth:`hold_at`."""
        with self._lock:
            self._hold = round(self.rows * share)

    def allowed(self, now: float) -> int:
        """Return the rows that may have been sent at ``now``; never decreases."""
        with self._lock:
            passed, self._at = now - self._at, now
            if self._allowed < self._hold:
                self._allowed = min(self._allowed + passed * self.rate, max(self._hold, self._allowed))
            else:
                self._allowed += passed * min(TRICKLE_PER_S, self.rate)
            self._allowed = min(self._allowed, float(self.rows))
            return int(self._allowed)


def send_paced(
    producer: Sender,
    topic: str,
    flights: Iterator[Flight],
    pace: Pace,
    account: Account,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> None:
    """Send every flight; return when all are sent or ``stopped`` says so. The header ``row`` has the row."""
    settled = account.settled
    for flight in flights:
        while flight.row >= pace.allowed(time.monotonic()):
            progress(account.sent)
            if stopped():
                return
            time.sleep(SLICE_S)
        account.keys.append(flight.key)
        account.digests.append(row_digest(flight.key, flight.value))
        account.value_bytes += len(flight.value)
        account.pending.add(flight.row)
        producer.send(
            topic,
            flight.value,
            flight.key,
            headers=(("row", b"%d" % flight.row),),
            on_delivery=partial(settled, flight.row),
        )
        account.sent = flight.row + 1
        if not account.sent % PROGRESS_ROWS:
            progress(account.sent)
    progress(account.sent)
