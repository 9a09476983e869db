"""The history of a run as a file: JSON lines, written as operations end, read back by the judges.

=============  ======================================================================================================
``kind``       further fields; times are seconds of one monotonic clock, 0 is the run's start
=============  ======================================================================================================
``run``        ``version``, ``seed``, ``workload``, ``nodes``, ``seconds``, ``settings``, ``topics``,
               ``configs`` (those of topics), ``mutant``; ``began`` (wall clock), ``again`` (the command),
               ``made_by`` (versions, machine); and ``schedule``, the planned faults, with which the run can be
               repeated
``send``       ``producer``, ``number``, ``topic``, ``partition``, ``value``, ``began``, ``ended``, ``outcome`` (ok,
               failed, unknown), ``offset``; ``transaction``, its number, if it is part of one
``poll``       ``consumer``, ``topic``, ``partition``, ``records`` (offset and value each), ``began``, ``ended``,
               ``committed`` (read_committed)
``position``   ``consumer``, ``topic``, ``partition``, ``offset`` (-1: wherever the group left off)
``txn``        ``producer``, ``number``, ``id`` (transactional), ``outcome``, ``began``, ``ending`` (when its
               commit was requested, null if it never was), ``ended``
``snapshot``   ``who``, ``balances``, ``at``: the balances of a bank, read in one go
``fault``      ``episode``, ``act``, ``target``, ``nodes`` that it hit, ``at``, ``until`` (when it was done), ``leads``
               (partitions led by those nodes then), ``trouble`` if it could not be done
``standing``   ``at``, ``controller``, ``partitions`` (leader and ISR each): written on a change
``elected``    ``at``, ``node``, ``epoch``: a node logged that it is the active controller
``replicas``   ``topic``, ``partition``, ``copies`` (node, bytes and digest each) on disk at the end
``phase``      ``at``, ``name``: faults (they begin), mending (the last one is over)
``stall``      ``at``, ``late``: the laboratory itself was ready and did not run for this long
``machine``    ``at``, ``seconds``, ``processors``, ``processor_s`` (by state), ``load``, ``stalls``, ``stalled_s``,
               ``worst_s``: the machine's effects on the run
``committed``  ``group``, ``offsets`` (topic, partition, offset each): the committed offsets at the end
``batch``      ``sink``, ``number``, ``rows`` (those of the whole batch), ``asked`` (job → rows that it was to
               commit), ``told`` (jobs for which drivers were told that it is decided), ``aborted``: all that
               drivers know of a batch at the end
``sinks``      ``noted``, ``last``: sink → the last batch that its program stored, and that is decided in its ledger
``note``       ``at``, ``text``
``wrong``      ``at``, ``text``: an observation that a client must never make
``final``      ``topic``, ``partition``, ``start``, ``end``, ``records``: the log at the end, as read_committed reads it
``end``        ``at``: the last line; without it the run is incomplete
=============  ======================================================================================================

The lines of group members are described in :mod:`tidelog.chaos.laboratory.workloads.recorded_group`, those of
compacted topics in :mod:`tidelog.chaos.laboratory.history.keyed_lines`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.chaos.checkers.history import History, Outcome, Polled, Positioned, Sent, Transaction, TransactionKey
from tidelog.model.ids import TopicPartition

FORMAT_VERSION: Final = 1
LINES_MAX: Final = 5_000_000
"""A run writes at most this many lines; further ones are counted, and the run fails."""


class BadHistory(ValueError):
    """The file is not a valid history; the text says where and what was expected."""


class HistoryFile:
    """Writes a history. Thread-safe; lines are on their way to the disk after :meth:`flush`."""

    def __init__(self, path: Path, lines_max: int = LINES_MAX) -> None:
        self.path = path
        self.dropped = 0
        self._lines_left = lines_max
        self._began = time.monotonic()
        self.began_wall_s = time.time()
        """The start of the run by the wall clock, needed to interpret the nodes' logs."""
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def now(self) -> float:
        """Return the seconds since the start of the run."""
        return time.monotonic() - self._began

    def write(self, kind: str, **fields: Any) -> None:
        """Add a line."""
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":"))
        with self._lock:
            if self._lines_left <= 0 or self._file.closed:
                self.dropped += 1
                return
            self._lines_left -= 1
            self._file.write(line + "\n")

    def send(self, sent: Sent, **more: Any) -> None:
        partition = _fields(sent.partition)
        self.write(
            "send",
            producer=sent.producer,
            number=sent.number,
            **partition,
            value=sent.value.decode(),
            began=_time(sent.began_s),
            ended=_time(sent.ended_s),
            outcome=sent.outcome.value,
            offset=sent.offset,
            **({} if sent.transaction is None else {"transaction": sent.transaction.number}),
            **more,
        )

    def poll(self, polled: Polled) -> None:
        self.write(
            "poll",
            consumer=polled.consumer,
            **_fields(polled.partition),
            records=[[offset, value.decode()] for offset, value in polled.records],
            began=_time(polled.began_s),
            ended=_time(polled.ended_s),
            committed=polled.read_committed,
        )

    def position(self, positioned: Positioned) -> None:
        self.write("position", consumer=positioned.consumer, **_fields(positioned.partition), offset=positioned.offset)

    def transaction(self, key: TransactionKey, transactional_id: str, outcome: Outcome, began_s: float,
                    ending_s: float | None, ended_s: float) -> None:  # fmt: skip
        self.write(
            "txn",
            producer=key.producer,
            number=key.number,
            id=transactional_id,
            outcome=outcome.value,
            began=_time(began_s),
            ending=None if ending_s is None else _time(ending_s),
            ended=_time(ended_s),
        )

    def final(self, at: TopicPartition, start: int, end: int, records: Sequence[tuple[int, bytes]]) -> None:
        kept = [[offset, value.decode()] for offset, value in records]
        self.write("final", **_fields(at), start=start, end=end, records=kept)

    def phase(self, name: str) -> None:
        self.write("phase", at=_time(self.now()), name=name)

    def note(self, text: str) -> None:
        self.write("note", at=_time(self.now()), text=text)

    def wrong(self, text: str) -> None:
        self.write("wrong", at=_time(self.now()), text=text)

    def flush(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        """Write the last line, which says that the run was completed, and close."""
        self.write("end", at=_time(self.now()))
        self.abandon()

    def abandon(self) -> None:
        """Close it as it is; later writes are dropped. May be called twice."""
        with self._lock:
            self._file.close()


@dataclass(slots=True)
class Recorded:
    """A history read from a file."""

    run: Mapping[str, Any]
    history: History = field(default_factory=History)
    final: dict[TopicPartition, list[tuple[int, bytes]]] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    commits_asked: dict[TransactionKey, float] = field(default_factory=dict)
    """When the commit of a transaction was requested, if it was."""
    snapshots: list[Mapping[str, Any]] = field(default_factory=list)
    faults: list[Mapping[str, Any]] = field(default_factory=list)
    standings: list[Mapping[str, Any]] = field(default_factory=list)
    elections: list[Mapping[str, Any]] = field(default_factory=list)
    replicas: list[Mapping[str, Any]] = field(default_factory=list)
    groups: list[Mapping[str, Any]] = field(default_factory=list)
    """The lines of group members (:mod:`tidelog.chaos.laboratory.workloads.recorded_group`)."""
    keyed: list[Mapping[str, Any]] = field(default_factory=list)
    """The lines of compacted topics (:mod:`tidelog.chaos.laboratory.history.keyed_lines`)."""
    committed: list[Mapping[str, Any]] = field(default_factory=list)
    batches: list[Mapping[str, Any]] = field(default_factory=list)
    sinks: Mapping[str, Any] | None = None
    wrong: list[str] = field(default_factory=list)
    stalls: list[Mapping[str, Any]] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Name → start time."""
    complete: bool = False
    """Whether the run was completed."""

    def last_s(self) -> float:
        """Return the time of the last event on the laboratory's clock; more than 0."""
        return max(
            0.001,
            max((sent.ended_s for sent in self.history.sends), default=0.0),
            max((step.ended_s for step in self.history.reads if isinstance(step, Polled)), default=0.0),
            max((fault["until"] for fault in self.faults), default=0.0),
            max((row["at"] for row in self.standings), default=0.0),
            max(self.phases.values(), default=0.0),
        )


def read_history(path: Path) -> Recorded:
    """Read a file that :class:`HistoryFile` wrote, whole or cut short. Raises :class:`BadHistory` or ``OSError``."""
    with path.open(encoding="utf-8") as file:
        lines = iter(enumerate(file, 1))
        first = next(lines, None)
        if first is None:
            raise BadHistory(f"{path}: expected a history, found an empty file")
        head = _parsed(path, *first)
        if head is None or head.get("kind") != "run":
            raise BadHistory(f"{path} line 1: expected a line of kind run, found something else")
        if head.get("version") != FORMAT_VERSION:
            raise BadHistory(f"{path}: expected a history of version {FORMAT_VERSION}, found {head.get('version')!r}")
        recorded = Recorded(head)
        for number, line in lines:
            if (row := _parsed(path, number, line)) is None:
                break  # the process was killed while writing it
            try:
                _take(recorded, row)
            except (KeyError, TypeError, ValueError) as trouble:
                raise BadHistory(f"{path} line {number}: {type(trouble).__name__}: {trouble}") from None
    return recorded


def _parsed(path: Path, number: int, line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError as error:
        if not line.endswith("\n"):
            return None
        raise BadHistory(f"{path} line {number}: expected JSON, found something else ({error})") from None
    if not isinstance(row, dict):
        raise BadHistory(f"{path} line {number}: expected an object, found {line[:40]!r}")
    return row


def _take(recorded: Recorded, row: dict[str, Any]) -> None:
    history = recorded.history
    match row["kind"]:
        case "send":
            number = row.get("transaction")
            history.sends.append(
                Sent(
                    row["producer"],
                    row["number"],
                    at_of(row),
                    row["value"].encode(),
                    Outcome(row["outcome"]),
                    row["offset"],
                    row["began"],
                    row["ended"],
                    None if number is None else TransactionKey(row["producer"], number),
                )
            )
            if "key" in row:
                recorded.keyed.append(row)
        case "poll":
            records = _records(row)
            history.reads.append(
                Polled(
                    row["consumer"], at_of(row), records, row["began"], row["ended"], read_committed=row["committed"]
                )
            )
        case "scan":
            recorded.keyed.append(row)
            marks = [(offset, mark.encode()) for offset, *_, mark in row["records"]]
            history.reads.append(Polled(row["consumer"], at_of(row), marks, row["began"], row["ended"]))
        case "kept":
            recorded.keyed.append(row)
        case "position":
            history.reads.append(Positioned(row["consumer"], at_of(row), row["offset"]))
        case "txn":
            key = TransactionKey(row["producer"], row["number"])
            asked = row["ending"]
            if asked is not None:
                recorded.commits_asked[key] = asked
            ending = row["ended"] if asked is None else asked
            history.transactions.append(
                Transaction(key, row["id"], Outcome(row["outcome"]), row["began"], ending, row["ended"])
            )
        case "final":
            recorded.final[at_of(row)] = _records(row)
            recorded.log_starts[at_of(row)] = row["start"]
            recorded.ends[at_of(row)] = row["end"]
        case "snapshot":
            recorded.snapshots.append(row)
        case "fault":
            recorded.faults.append(row)
        case "standing":
            recorded.standings.append(row)
        case "elected":
            recorded.elections.append(row)
        case "replicas":
            recorded.replicas.append(row)
        case "join" | "sync" | "heartbeat" | "commit" | "fetched" | "member" | "settled":
            recorded.groups.append(row)
        case "committed":
            recorded.committed.append(row)
        case "batch":
            recorded.batches.append(row)
        case "sinks":
            recorded.sinks = row
        case "wrong":
            recorded.wrong.append(str(row["text"]))
        case "end":
            recorded.complete = True
        case "stall":
            recorded.stalls.append(row)
        case "machine":
            recorded.machine = row
        case "phase":
            recorded.phases[str(row["name"])] = float(row["at"])
        case "note":
            pass
        case other:
            raise ValueError(f"expected a kind of line, found {other!r}")


def _records(row: Mapping[str, Any]) -> list[tuple[int, bytes]]:
    return [(int(offset), value.encode()) for offset, value in row["records"]]


def at_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _fields(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _time(seconds: float) -> float:
    return round(seconds, 6)
