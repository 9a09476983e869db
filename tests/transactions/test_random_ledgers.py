"""Random histories of sinks: drivers and tasks of several jobs at once, frozen ones, requests asked twice, appends
that end late or never, coordinators that crash with any part of the unacknowledged log lost. What must hold:

- each request is answered once, at the latest when leadership ends;
- a batch is decided once, by one record batch, for one job; its winners are those of one CommitBatch, all prepared
  before, and nothing else of a sink is ever committed;
- batches are decided in the order of their numbers;
- a job that was told to be aborted, or over whose batch another was told to have begun, is not decided for;
- if a client was told that a batch is decided, the committed log agrees, and so do its transactions;
- no marker is sent for a decision that is not in the committed log, or against it;
- a node that loads the log has the coordinator's state;
- left alone, nothing remains but ledgers, and a new job can write the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tidelog.model.ids import TopicPartition
from tidelog.model.sinks import SinkAttempt, sink_attempt
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.proto.logs.sink_records import SinkLedgerValue, decode_sink_key, decode_sink_value
from tidelog.proto.logs.transaction_records import TransactionLogKey, decode_transaction_key, decode_transaction_value

from .histories import NONE, DeskHistory, run_histories

SINKS = ("s", "t")
JOBS = ("j", "k", "l")
ATTEMPTS = ("a", "b", "c")
PARTITIONS = tuple(TopicPartition(topic, 0) for topic in "abc")
sinks = st.sampled_from(("s", "s", "s", "t"))
jobs = st.sampled_from(JOBS)
attempts = st.sampled_from(ATTEMPTS)
ahead = st.sampled_from([0, 0, 0, 0, 0, -1, -2, 1])
COMMITTED, ABORTED, FORGOTTEN = 2, 3, 99
Run = tuple[str, int, str]
"""Sink, batch, job."""


class History(DeskHistory):
    def __init__(self) -> None:
        super().__init__(
            sink_timeout_ms=60_000,
            sink_prepared_timeout_ms=120_000,
        )
        # What the committed log says, in the simplest way.
        self.ledgers: dict[str, SinkLedgerValue] = {}
        self.status: dict[str, int] = {}
        self.prepared_ever: set[tuple[str, int]] = set()
        self.decisions: dict[tuple[str, int], tuple[str, frozenset[str]]] = {}
        self.outcome: dict[int, bool] = {}
        # What was told.
        self.identity: dict[SinkAttempt, tuple[int, int]] = {}
        self.gone: set[Run] = set()

    def _next(self, sink: str, ahead: int) -> int:
        ledger = self.ledgers.get(sink)
        return max((-1 if ledger is None else ledger.last_batch) + 1 + ahead, 0)

    # --- Tasks ----------------------------------------------------------------------------------

    @rule(sink=sinks, ahead=ahead, job=jobs, attempt=attempts)
    def begin(self, sink: str, ahead: int, job: str, attempt: str) -> None:
        self._begin(SinkAttempt(sink, self._next(sink, ahead), f"{job}{self._next(sink, ahead)}", attempt))

    def _begin(self, attempt: SinkAttempt) -> int:
        waiter: int = self.desk.begin_sink(attempt.batch, attempt.job, attempt.attempt, attempt.sink)
        self._ask(waiter, "begin", attempt)
        return waiter

    def _known(self, number: int) -> SinkAttempt | None:
        found = list(self.identity)
        return found[-1 - number % len(found)] if found else None

    @rule(number=st.integers(0, 15), which=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, number: int, which: set[TopicPartition]) -> None:
        attempt = self._known(number)
        if attempt is not None:
            name = attempt.transactional_id
            self._ask(self.desk.add(self.identity[attempt], *sorted(which), transactional_id=name), "add", attempt)

    @rule(number=st.integers(0, 15))
    def prepare(self, number: int) -> None:
        attempt = self._known(number)
        if attempt is not None:
            waiter = self.desk.prepare(self.identity[attempt], attempt.transactional_id)
            self._ask(waiter, "prepare", attempt)

    @rule(number=st.integers(0, 15), committed=st.booleans())
    def end(self, number: int, committed: bool) -> None:
        attempt = self._known(number)
        if attempt is not None and (committed or number % 4 == 0):
            name = attempt.transactional_id
            waiter = self.desk.end(self.identity[attempt], committed, transactional_id=name)
            self._ask(waiter, "end", (attempt, committed))

    @rule(
        sink=sinks,
        job=jobs,
        count=st.integers(1, 3),
        speculative=st.booleans(),
        commits=st.integers(0, 2),
        careless=st.sampled_from(["", "", "", "unprepared", "identity"]),
    )
    def whole_job(self, sink: str, job: str, count: int, speculative: bool, commits: int, careless: str) -> None:
        """Without this, few of them get far; perhaps its driver dies, or errs about its tasks."""
        self.everything_is_replicated()
        batch = self._next(sink, 0)
        run = (sink, batch, f"{job}{batch}")
        winners: dict[str, tuple[int, int]] = {}
        for attempt in ATTEMPTS[: count + speculative]:
            whose = SinkAttempt(*run, attempt)
            waiter = self._begin(whose)
            self.everything_is_replicated()
            if whose not in self.identity or self.desk.error(waiter) is not NONE:
                return
            self.add(0 if whose == self._known(0) else self._number(whose), {PARTITIONS[0]})
            self.everything_is_replicated()
            if careless != "unprepared" or attempt != ATTEMPTS[0]:
                self.prepare(self._number(whose))
            if attempt in ATTEMPTS[:count]:
                producer_id, epoch = self.identity[whose]
                winners[attempt] = (producer_id - (careless == "identity"), epoch)
        self.everything_is_replicated()
        for _ in range(commits):
            self._commit(run, winners, careless == "identity")

    def _number(self, attempt: SinkAttempt) -> int:
        return len(self.identity) - 1 - list(self.identity).index(attempt)

    # --- Drivers --------------------------------------------------------------------------------

    @rule(sink=sinks, ahead=ahead, job=jobs, which=st.sets(attempts))
    def commit(self, sink: str, ahead: int, job: str, which: set[str]) -> None:
        batch = self._next(sink, ahead)
        run = (sink, batch, f"{job}{batch}")
        known = {name: self.identity.get(SinkAttempt(*run, name), (7, 0)) for name in sorted(which)}
        self._commit(run, known)

    def _commit(self, run: Run, winners: dict[str, tuple[int, int]], careless: bool = False) -> None:
        """``careless``: the producers named are not those of the attempts."""
        sink, batch, job = run
        waiter = self.desk.commit_batch(batch, job, winners, sink)
        self._ask(waiter, "commit", (run, frozenset(winners), careless))

    @rule(sink=sinks, ahead=ahead, job=jobs)
    def abort(self, sink: str, ahead: int, job: str) -> None:
        batch = self._next(sink, ahead)
        run = (sink, batch, f"{job}{batch}")
        self._ask(self.desk.abort_job(batch, run[2], sink), "abort", run)

    # --- The world ------------------------------------------------------------------------------

    @rule()
    def markers_are_written(self) -> None:
        for token in list(self.desk.markers):
            self.desk.mark(token)
        self._look()

    @rule(ms=st.sampled_from([100, 600, 10_000, 65_000]))
    def time_passes(self, ms: int) -> None:
        self.desk.pass_time(ms)
        self._look()

    # --- What must hold -------------------------------------------------------------------------

    def _look(self) -> None:
        for append in self.desk.log[self.read :]:
            self._read(append.records)
        self.read = len(self.desk.log)
        for marker in self.desk.sent[self.markers_seen :]:
            assert self.outcome.get(marker.producer_id) is marker.committed, "a marker without a decision"
        self.markers_seen = len(self.desk.sent)
        self._hear()

    def _read(self, records: Iterable[CoordinatorRecord]) -> None:
        """One record batch, which is there as a whole."""
        decided: tuple[str, int, str] | None = None
        winners: set[str] = set()
        for key, raw in records:
            sink = decode_sink_key(key)
            if sink is not None:
                assert raw is not None
                value = decode_sink_value(raw)
                before = self.ledgers.get(sink, SinkLedgerValue())
                assert value.last_batch >= before.last_batch, "a decision was forgotten"
                if value.last_batch != before.last_batch:
                    decided = (sink, value.last_batch, value.last_job)
                else:
                    assert value.last_job == before.last_job
                self.ledgers[sink] = value
                continue
            named = decode_transaction_key(key)
            assert isinstance(named, TransactionLogKey)
            attempt = sink_attempt(named.transactional_id)
            assert attempt is not None
            if self._step(named.transactional_id, raw):
                winners.add(attempt.attempt)
                assert decided == attempt[:3], "committed by another record than its batch's decision"
        if decided is not None:
            assert decided[:2] not in self.decisions, "a batch was decided twice"
            assert decided not in self.gone, "decided for a job that was told to be gone"
            self.decisions[decided[:2]] = (decided[2], frozenset(winners))

    def _step(self, name: str, raw: bytes | None) -> bool:
        """One transaction's record; whether it commits."""
        before = self.status.get(name)
        if raw is None:
            assert before in (0, COMMITTED, ABORTED), "an open transaction was forgotten"
            del self.status[name]
            return False
        value = decode_transaction_value(raw)
        assert value.status in (0, 1, COMMITTED, ABORTED)
        assert before not in (COMMITTED, ABORTED), "a decision was changed"
        self.status[name] = value.status
        if value.prepared:
            self.prepared_ever.add((name, value.producer_id))
        if value.status in (COMMITTED, ABORTED):
            assert value.producer_id not in self.outcome
            self.outcome[value.producer_id] = value.status == COMMITTED
        if value.status == COMMITTED:
            assert (name, value.producer_id) in self.prepared_ever, "committed unprepared"
        return value.status == COMMITTED

    def _succeeded(self, kind: str, what: Any, answer: Any) -> None:
        match kind:
            case "begin":
                decided = self.ledgers[what.sink].last_batch
                if answer.already_committed:
                    assert decided >= what.batch == min(what.batch, answer.last_batch)
                    return
                assert tuple(what[:3]) not in self.gone, "a job that is gone began anew"
                assert answer.transactional_id == what.transactional_id
                self.identity.pop(what, None)
                self.identity[what] = (answer.producer_id, answer.producer_epoch)
                batch = f"{what.batch}"
                others = {(what.sink, what.batch, f"{job}{batch}") for job in JOBS} - {tuple(what[:3])}
                begun = {tuple(item[:3]) for item in self.identity}
                if what.batch > decided:
                    self.gone |= others & begun
            case "commit":
                (sink, batch, job), winners, careless = what
                found = self.ledgers[sink].last_batch
                assert found >= batch, "told of a decision that is not in the log"
                if not answer.already_committed:
                    assert not careless, "committed for somebody else"
                    assert self.decisions[sink, batch] == (job, winners)
                    assert (answer.last_batch, answer.last_job) == (batch, job)
            case "abort":
                if answer.already_committed:
                    assert self.ledgers[what[0]].last_batch >= what[1]
                else:
                    self.gone.add(what)
            case "end":
                assert not what[1], "a task committed by itself"

    @invariant()
    def state_is_what_the_log_says(self) -> None:
        state = self.desk.shard.state
        for name in SINKS:
            value, sink = self.ledgers.get(name), state.sinks.get(name)
            if value is None:
                assert sink is None or sink.ledger.stored() == SinkLedgerValue()
            else:
                assert sink is not None
                assert sink.ledger.stored() == value
                mine = {item for item in state.entries if sink_attempt(item)[0] == name}  # type: ignore[index]
                assert set(sink.transactions) == mine
        assert {item for item, entry in state.entries.items() if entry.value is not None} == set(self.status)

    def teardown(self) -> None:
        """Left alone, what is abandoned is aborted, the rest times out; then the next batch can be written."""
        for _ in range(4):
            self.everything_is_replicated()
            self.markers_are_written()
            self.desk.pass_time(200)
            self._look()
        for sink in self.desk.shard.state.sinks.values():
            assert not [item for item in sink.transactions.values() if sink.abandons(item)]
        for _ in range(16):
            self.everything_is_replicated()
            self.markers_are_written()
            self.desk.pass_time(10_000)
            self._look()
        self.everything_is_replicated()
        self.markers_are_written()
        self.everything_is_replicated()
        assert not self.desk.shard.state.entries
        for name in SINKS:
            run = (name, self._next(name, 0), "new")
            attempt = SinkAttempt(*run, "a")
            self._begin(attempt)
            self.everything_is_replicated()
            self.add(0, {PARTITIONS[0]})
            self.everything_is_replicated()
            self.prepare(0)
            self.everything_is_replicated()
            self._commit(run, {"a": self.identity[attempt]})
            self.everything_is_replicated()
            self.coordinator_crashes(0)
            self.markers_are_written()
            self.everything_is_replicated()
            assert self.decisions[run[:2]] == ("new", frozenset("a"))
        assert not self.desk.shard.state.entries
        super().teardown()


@pytest.mark.parametrize("examples", [150])
def test_random_histories_of_sinks(examples: int) -> None:
    run_histories(History, examples)
