"""The state shared by all decisions about one partition of ``__transaction_state``: its ids, timers and appends."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.model.names import TOPIC_NAME_LENGTH_MAX
from tidelog.proto.calls.request import Response
from tidelog.proto.calls.transaction_api import AddedTransaction
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.proto.logs.sink_records import encode_sink_key, encode_sink_value
from tidelog.proto.logs.transaction_records import encode_transaction_key, encode_transaction_value
from tidelog.replication.coordinators.coordinator_core import CoreState, append_error
from tidelog.transactions.counters import TransactionCounters
from tidelog.transactions.effects import Allocate, Answer, Append, Effect
from tidelog.transactions.ledger import Ledger, Sink
from tidelog.transactions.lineage import Lineage
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.transaction import Busy, Entry, Transaction
from tidelog.transactions.transitions import ALLOWED, Cause, TransactionState, Transition

Answered = Response | AddedTransaction

_RECORD_SPARE_BYTES: Final = 256
"""Bytes of a batch besides key and value, plus those that a transaction's end adds to its record."""

_PARTITION_BYTES_MAX: Final = TOPIC_NAME_LENGTH_MAX + 16


class TimerKind(enum.IntEnum):
    TIMEOUTS = 0
    """Check open transactions for timeouts."""
    EXPIRY = 1
    """Check ids for expiry."""
    ADDS = 2
    """Tell requests that wait to add partitions to retry."""
    COMPLETE = 3
    """Retry writing a transaction's final record."""
    SWEEP = 4
    """Check a sink's transactions for those that the ledger has abandoned."""
    HOLD = 5
    """End a hold that has not been extended."""


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""


TIMEOUTS_KEY: Final = TimerKey(TimerKind.TIMEOUTS)
EXPIRY_KEY: Final = TimerKey(TimerKind.EXPIRY)
HOLD_KEY: Final = TimerKey(TimerKind.HOLD)


class Asker(NamedTuple):
    """A waiter that gets the answer ``tell(error)`` once its change is in the log, or was refused."""

    waiter: int
    tell: Callable[[ErrorCode], Answered]


class PendingAppend:
    """A pending append: who requested it, and what follows."""

    __slots__ = ("askers", "ended")

    def __init__(self, askers: Sequence[Asker], ended: Callable[[ErrorCode, Moment], None]) -> None:
        self.askers = askers
        self.ended = ended


class Allocation(NamedTuple):
    """A request for a producer id: ``got`` receives it, or ``missed`` learns that there is none."""

    entry: Entry | None
    askers: Sequence[Asker]
    got: Callable[[ProducerId, Moment], None]
    missed: Callable[[], None]


class ShardState(CoreState[TimerKey, Effect, PendingAppend]):
    """State with a single writer; the deciding modules use it in turn."""

    __slots__ = (
        "allocations",
        "connections_before",
        "counters",
        "entries",
        "hold",
        "idle_watchers",
        "lineage",
        "ongoing",
        "sendings",
        "settings",
        "sinks",
        "waiting_adds",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: TransactionSettings,
        batch_bytes_max: int,
        counters: TransactionCounters,
        connections_before: int = 0,
        lineage: Lineage | None = None,
    ) -> None:
        super().__init__(leader_epoch, batch_bytes_max)
        self.settings = settings
        self.connections_before = connections_before
        """This node's newest connection at its election."""
        self.counters = counters
        self.lineage = lineage or Lineage()
        self.entries: dict[str, Entry] = {}
        self.sinks: dict[str, Sink] = {}
        self.ongoing: dict[str, Entry] = {}
        """Transactions that may time out."""
        self.sendings: dict[int, Entry] = {}
        """Entries whose markers are being sent, by number."""
        self.allocations: dict[int, Allocation] = {}
        self.idle_watchers: list[Callable[[Entry, Moment], None]] = []
        self.waiting_adds = 0
        self.hold = ""
        """The name of the hold in force (:mod:`tidelog.transactions.holding`); empty without one."""

    # --- Effects ------------------------------------------------------------------------------------

    def answer(self, waiter: int, response: Answered) -> None:
        self.effects.append(Answer(waiter, response))

    @property
    def can_append(self) -> bool:
        """Whether a new operation may begin."""
        return not self.hold and len(self.appends) + len(self.allocations) < self.settings.appends_max

    def append(self, records: Sequence[CoordinatorRecord], pending: PendingAppend, now: Moment) -> None:
        """Request an append."""
        deadline_ms = now.monotonic_ms + self.settings.request_timeout_ms if pending.askers else None
        token = self.begin_append(pending, deadline_ms)
        self.effects.append(Append(token, tuple(records), now.wall_ms))

    def allocate(
        self,
        entry: Entry | None,
        askers: Sequence[Asker],
        got: Callable[[ProducerId, Moment], None],
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """Request a producer id; no other operation on ``entry``, if given, begins until the id arrives or is
        refused."""
        if entry is not None:
            assert entry.busy is None
            entry.busy = Busy.ALLOCATING
        number = self.number()
        self.allocations[number] = Allocation(entry, askers, got, missed)
        self.effects.append(Allocate(self.token(number)))

    def watch_idle(self, watcher: Callable[[Entry, Moment], None]) -> None:
        """Call ``watcher`` when an id has no operation in progress any more."""
        self.idle_watchers.append(watcher)

    def idle(self, entry: Entry, now: Moment) -> None:
        """Note that this id has no operation in progress, unless a notified waiter begins one."""
        for watcher in self.idle_watchers:
            watcher(entry, now)

    # --- Transactional ids --------------------------------------------------------------------------

    def new_entry(self, transactional_id: str) -> Entry | None:
        """Create an id; None if there are ``ids_max`` already."""
        if len(self.entries) >= self.settings.ids_max:
            return None
        entry = Entry(transactional_id, encode_transaction_key(transactional_id), None)
        self.enter(entry)
        return entry

    def enter(self, entry: Entry) -> None:
        """Keep an id, and its sink if it has one. Limits do not apply to entries from the log."""
        self.entries[entry.transactional_id] = entry
        if entry.attempt is not None:
            self.enter_sink(entry.attempt.sink).transactions[entry.transactional_id] = entry

    def known(self, transactional_id: str) -> tuple[Entry, Transaction] | None:
        """Return an id that has a record, with its value."""
        entry = self.entries.get(transactional_id)
        return None if entry is None or entry.value is None else (entry, entry.value)

    def forget(self, entry: Entry) -> None:
        entry.value = None
        del self.entries[entry.transactional_id]
        self.ongoing.pop(entry.transactional_id, None)
        sink = self.sink_of(entry)
        if sink is not None:
            del sink.transactions[entry.transactional_id]
            self.drop_unused(sink)

    def record(self, entry: Entry, value: Transaction) -> CoordinatorRecord:
        return CoordinatorRecord(entry.key, encode_transaction_value(value.stored()))

    def fits_surely(self, entry: Entry, partitions: int) -> bool:
        """Like :meth:`fits`, without the record: assumes this many partitions of topics with the longest names."""
        size = len(entry.key) + partitions * _PARTITION_BYTES_MAX
        return size + _RECORD_SPARE_BYTES <= self.batch_bytes_max

    def fits(self, record: CoordinatorRecord) -> bool:
        """Return whether this record, and those that follow it until the transaction's end, can be written."""
        size = len(record.key) + len(record.value or b"")
        return size + _RECORD_SPARE_BYTES <= self.batch_bytes_max

    def move(
        self,
        entry: Entry,
        after: Transaction | None,
        cause: Cause,
        askers: Sequence[Asker],
        now: Moment,
        *,
        moved: Callable[[Moment], None] | None = None,
        busy: Busy = Busy.MOVING,
        refused: Callable[[ErrorCode, Moment], None] | None = None,
    ) -> None:
        """Write the id's new value (None: forget it), which takes effect when it is replicated. Then ``moved`` or
        ``refused`` is called, before the askers get answers; without ``refused``, a refusal changes nothing."""
        before = TransactionState.EMPTY if entry.value is None else entry.value.state
        state = TransactionState.DEAD if after is None else after.state
        assert Transition(before, state, cause) in ALLOWED, f"{before} to {state}: {cause}"
        entry.busy = busy

        def ended(error: ErrorCode, then: Moment) -> None:
            if error is ErrorCode.NONE:
                entry.busy = None
                if after is None:
                    self.forget(entry)
                else:
                    self.put(entry, after)
                if moved is not None:
                    moved(then)
            elif refused is not None:
                refused(error, then)
            else:
                entry.busy = None
                if entry.value is None:
                    self.forget(entry)
            for asker in append.askers:
                self.answer(asker.waiter, asker.tell(append_error(error)))
            if entry.busy is None:
                self.idle(entry, then)

        append = PendingAppend(askers, ended)
        record = CoordinatorRecord(entry.key, None) if after is None else self.record(entry, after)
        self.append((record,), append, now)

    def put(self, entry: Entry, value: Transaction) -> None:
        """Give the id this value from now on."""
        entry.value = value
        if entry.may_time_out:
            self.ongoing[entry.transactional_id] = entry
        else:
            self.ongoing.pop(entry.transactional_id, None)

    # --- Sinks --------------------------------------------------------------------------------------

    def new_sink(self, name: str) -> Sink | None:
        """Create a sink; None if there are ``sinks_max`` already."""
        return None if len(self.sinks) >= self.settings.sinks_max else self.enter_sink(name)

    def enter_sink(self, name: str) -> Sink:
        """Return the sink with this name. Limits do not apply to entries from the log."""
        sink = self.sinks.get(name)
        if sink is None:
            sink = self.sinks[name] = Sink(name, encode_sink_key(name))
        return sink

    def sink_of(self, entry: Entry) -> Sink | None:
        return None if entry.attempt is None else self.sinks.get(entry.attempt.sink)

    def drop_unused(self, sink: Sink) -> None:
        if sink.is_unused:
            self.sinks.pop(sink.name, None)

    def ledger_record(self, sink: Sink, ledger: Ledger) -> CoordinatorRecord:
        return CoordinatorRecord(sink.key, encode_sink_value(ledger.stored()))

    def sinks_fault(self) -> str:
        return (
            f"expected fewer than {self.settings.sinks_max} sinks here (transaction.coordinator.sinks.max): delete"
            " those that are no longer used"
        )
