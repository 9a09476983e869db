"""What the decisions about one partition of ``__transaction_state`` share: its ids, timers and appends."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.model.names import TOPIC_NAME_LENGTH_MAX
from tidelog.model.timers import Timers
from tidelog.proto.coordinator_records import CoordinatorRecord
from tidelog.proto.request import Response
from tidelog.proto.sink_records import encode_sink_key, encode_sink_value
from tidelog.proto.transaction_api import AddedTransaction
from tidelog.proto.transaction_records import encode_transaction_key, encode_transaction_value
from tidelog.replication.coordinator_log import Token
from tidelog.transactions.counters import TransactionCounters
from tidelog.transactions.effects import Allocate, Answer, Append, Effect
from tidelog.transactions.ledger import Ledger, Sink
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.transaction import Busy, Entry, Transaction
from tidelog.transactions.transitions import ALLOWED, Cause, TransactionState, Transition

Answered = Response | AddedTransaction

_RECORD_SPARE_BYTES: Final = 256
"""What a batch has besides key and value, and what the end of a transaction adds to its record."""

_PARTITION_BYTES_MAX: Final = TOPIC_NAME_LENGTH_MAX + 16


class TimerKind(enum.IntEnum):
    TIMEOUTS = 0
    """Open transactions are looked over for what has timed out."""
    EXPIRY = 1
    """Ids are looked over for what has expired."""
    APPEND = 2
    """Who waits for an append is told that its outcome is unknown."""
    ADDS = 3
    """Who waits to add partitions is told to ask again."""
    COMPLETE = 4
    """The last record of a transaction is tried again."""
    SWEEP = 5
    """A sink's transactions are looked over for what the ledger has abandoned."""


class TimerKey(NamedTuple):
    kind: TimerKind
    number: int = -1
    transactional_id: str = ""


TIMEOUTS_KEY: Final = TimerKey(TimerKind.TIMEOUTS)
EXPIRY_KEY: Final = TimerKey(TimerKind.EXPIRY)


class Asker(NamedTuple):
    """Somebody who is answered ``tell(error)`` when what was asked for is in the log, or was refused."""

    waiter: int
    tell: Callable[[ErrorCode], Answered]


class Under:
    """An append under way: what it was asked for by, and what follows."""

    __slots__ = ("askers", "ended")

    def __init__(self, askers: Sequence[Asker], ended: Callable[[ErrorCode, Moment], None]) -> None:
        self.askers = askers
        self.ended = ended


class Allocation(NamedTuple):
    """A producer id that was asked for. ``got`` is told of it, ``missed`` that there is none."""

    entry: Entry | None
    askers: Sequence[Asker]
    got: Callable[[ProducerId, Moment], None]
    missed: Callable[[], None]


class ShardState:
    """One writer's state; the modules that decide take it by turns."""

    __slots__ = (
        "_next_number",
        "allocations",
        "appends",
        "batch_bytes_max",
        "connections_before",
        "counters",
        "effects",
        "entries",
        "idle_watchers",
        "leader_epoch",
        "ongoing",
        "sendings",
        "settings",
        "sinks",
        "timers",
        "waiting_adds",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: TransactionSettings,
        batch_bytes_max: int,
        counters: TransactionCounters,
        connections_before: int = 0,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.settings = settings
        self.batch_bytes_max = batch_bytes_max
        self.connections_before = connections_before
        """The newest connection that this node had when it was elected."""
        self.counters = counters
        self.entries: dict[str, Entry] = {}
        self.sinks: dict[str, Sink] = {}
        self.ongoing: dict[str, Entry] = {}
        """Those that may time out."""
        self.sendings: dict[int, Entry] = {}
        """Those whose markers are on their way, by number."""
        self.timers: Timers[TimerKey] = Timers()
        self.effects: list[Effect] = []
        self.appends: dict[int, Under] = {}
        self.allocations: dict[int, Allocation] = {}
        self.idle_watchers: list[Callable[[Entry, Moment], None]] = []
        self.waiting_adds = 0
        self._next_number = 0

    # --- Effects ------------------------------------------------------------------------------------

    def number(self) -> int:
        """The next number for an effect's token."""
        self._next_number += 1
        return self._next_number - 1

    def token(self, number: int) -> Token:
        return Token(self.leader_epoch, number)

    def answer(self, waiter: int, response: Answered) -> None:
        self.effects.append(Answer(waiter, response))

    @property
    def can_append(self) -> bool:
        return len(self.appends) + len(self.allocations) < self.settings.appends_max

    def append(self, records: Sequence[CoordinatorRecord], under: Under, now: Moment) -> None:
        """Ask for an append."""
        number = self.number()
        self.appends[number] = under
        if under.askers:
            deadline = now.monotonic_ms + self.settings.request_timeout_ms
            self.timers.set(TimerKey(TimerKind.APPEND, number), deadline)
        self.effects.append(Append(self.token(number), tuple(records), now.wall_ms))

    def allocate(
        self,
        entry: Entry | None,
        askers: Sequence[Asker],
        got: Callable[[ProducerId, Moment], None],
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask for a producer id; nothing else happens to ``entry``, if there is one, until it is there or refused."""
        if entry is not None:
            assert entry.busy is None
            entry.busy = Busy.ALLOCATING
        number = self.number()
        self.allocations[number] = Allocation(entry, askers, got, missed)
        self.effects.append(Allocate(self.token(number)))

    def watch_idle(self, watcher: Callable[[Entry, Moment], None]) -> None:
        """Have ``watcher`` told when nothing is under way with an id any longer."""
        self.idle_watchers.append(watcher)

    def idle(self, entry: Entry, now: Moment) -> None:
        """Nothing is under way with this id, unless one of those who are told begins something."""
        for watcher in self.idle_watchers:
            watcher(entry, now)

    # --- Transactional ids --------------------------------------------------------------------------

    def new_entry(self, transactional_id: str) -> Entry | None:
        """Begin an id; None where there are ``ids_max`` already."""
        if len(self.entries) >= self.settings.ids_max:
            return None
        entry = Entry(transactional_id, encode_transaction_key(transactional_id), None)
        self.enter(entry)
        return entry

    def enter(self, entry: Entry) -> None:
        """Keep an id, and its sink where it is a sink's: no bound keeps out what the log has."""
        self.entries[entry.transactional_id] = entry
        if entry.attempt is not None:
            self.enter_sink(entry.attempt.sink).transactions[entry.transactional_id] = entry

    def known(self, transactional_id: str) -> tuple[Entry, Transaction] | None:
        """An id that has a record, and what that says."""
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
        """The same without a look at the record: so many partitions of topics with the longest names."""
        size = len(entry.key) + partitions * _PARTITION_BYTES_MAX
        return size + _RECORD_SPARE_BYTES <= self.batch_bytes_max

    def fits(self, record: CoordinatorRecord) -> bool:
        """Whether this record, and what will follow it until the transaction's end, can be written."""
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
        """Write what the id becomes (None: it is forgotten); it becomes so when that is replicated. ``moved`` or
        ``refused`` hear of it then, before the askers; without ``refused`` all stays as it was."""
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
            for asker in under.askers:
                self.answer(asker.waiter, asker.tell(told(error)))
            if entry.busy is None:
                self.idle(entry, then)

        under = Under(askers, ended)
        record = CoordinatorRecord(entry.key, None) if after is None else self.record(entry, after)
        self.append((record,), under, now)

    def put(self, entry: Entry, value: Transaction) -> None:
        """The id is so from now on."""
        entry.value = value
        if entry.may_time_out:
            self.ongoing[entry.transactional_id] = entry
        else:
            self.ongoing.pop(entry.transactional_id, None)

    # --- Sinks --------------------------------------------------------------------------------------

    def new_sink(self, name: str) -> Sink | None:
        """Begin a sink; None where there are ``sinks_max`` already."""
        return None if len(self.sinks) >= self.settings.sinks_max else self.enter_sink(name)

    def enter_sink(self, name: str) -> Sink:
        """The sink of this name; no bound keeps out what the log has."""
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


def told(error: ErrorCode) -> ErrorCode:
    """The answer where a record could not be stored. Source: ``TransactionStateManager.appendTransactionToLog``."""
    match error:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.NOT_ENOUGH_REPLICAS | ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error
