"""Random histories of one partition of ``__transaction_state``: producers and zombies of both protocols, outside
deciders, appends that end late or never, markers that arrive in part or twice, coordinators that crash with any
part of the unacknowledged log lost. What must hold in each of them:

- each request is answered once, at the latest when leadership ends;
- a decision that a marker, an answer or the committed log has told of never changes: all partitions of a
  transaction are told the same, by every coordinator;
- no marker is sent for a decision that is not in the committed log;
- a transaction that is completed has had a marker in each of its partitions;
- once a newer identity was told, nothing is taken in under an older one;
- no two askers that are not the same are told the same identity, and nobody one that could not be fenced;
- only a request ends a prepared transaction, and a producer that was told that it is prepared never loses it;
- a node that loads the log has the coordinator's state, and everything that was acknowledged.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.proto.logs.transaction_records import (
    TransactionLogKey,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from tidelog.replication.coordinators.coordinator_log import Token
from tidelog.transactions.effects import Append
from tidelog.transactions.transaction import Identity, Transaction
from tidelog.transactions.transitions import TransactionState

from .histories import NONE, DeskHistory, run_histories

IDS = ("t", "u")
WALL_MS = 1_700_000_000_000
PARTITIONS = tuple(TopicPartition(topic, 0) for topic in "abc")
ids = st.sampled_from(IDS)
pick = st.integers(0, 63)
Who = tuple[str, tuple[int, int]]


class History(DeskHistory):
    def __init__(self) -> None:
        super().__init__(
            max_timeout_ms=60_000,
            transactional_id_expiration_ms=60_000,
            remove_expired_transaction_cleanup_interval_ms=30_000,
            add_wait_max_ms=500,
        )
        # Identities as they were told, in order; zombies stay.
        self.told: list[Who] = []
        self.past: dict[str, set[tuple[int, int]]] = {name: set() for name in IDS}
        # Marker identity → outcome: a decision, by whomever it was told.
        self.decisions: dict[tuple[str, int, int], bool] = {}
        self.marked: dict[tuple[str, int, int], set[TopicPartition]] = {}
        self.prepared: dict[str, tuple[int, int]] = {}
        self.committed_log: list[tuple[str, Any]] = []
        self.owner: dict[int, str] = {}
        # Identities of producers that kept a prepared transaction, and those transactions.
        self.keepers: set[tuple[int, int]] = set()
        self.kept: set[tuple[str, int, int]] = set()
        self._almost_used_up("u")

    def _almost_used_up(self, name: str) -> None:
        """A log in which few epochs are left."""
        value = Transaction(TransactionState.EMPTY, Identity(ProducerId(500), ProducerEpoch(32_765)), 60_000, WALL_MS)
        record = CoordinatorRecord(encode_transaction_key(name), encode_transaction_value(value.stored()))
        self.desk.log.append(Append(Token(LeaderEpoch(0), 0), (record,), WALL_MS))
        self.desk.fail_over()
        self._look()

    # --- Requests -------------------------------------------------------------------------------

    def _who(self, number: int) -> Who | None:
        """Mostly the newest of the producers that got an identity."""
        if not self.told:
            return None
        return self.told[
            -1 - (number // 4) % len(self.told) if number % 4 == 0 else -1 - number % min(2, len(self.told))
        ]

    @rule(name=ids, two_phase=st.booleans(), keep=st.booleans(), timeout_ms=st.sampled_from([5_000, 60_000]))
    def init(self, name: str, two_phase: bool, keep: bool, timeout_ms: int) -> None:
        self._init(name, None, two_phase, keep, timeout_ms)

    @rule(name=ids, keep=st.booleans(), again=st.booleans())
    def whole_init(self, name: str, keep: bool, again: bool) -> None:
        """As :meth:`whole_transaction`; perhaps by a producer that got an identity before."""
        self.everything_is_replicated()
        before = [item[1] for item in self.told if item[0] == name]
        expected = before[-2] if again and len(before) > 1 else None
        self._init(name, expected, True, keep, 60_000)
        self.everything_is_replicated()
        self.all_markers_are_written()

    @rule(number=pick, two_phase=st.booleans(), keep=st.booleans())
    def init_again(self, number: int, two_phase: bool, keep: bool) -> None:
        who = self._who(number)
        if who is not None:
            self._init(who[0], who[1], two_phase, keep, 60_000)

    def _init(self, name: str, expected: tuple[int, int] | None, two_phase: bool, keep: bool, timeout_ms: int) -> None:
        was_past = expected in self.past[name] and self.desk.has_entry(name)
        if not keep:  # the asker gives up the prepared transaction, whether it hears of success or not
            self.prepared.pop(name, None)
        waiter = self.desk.init(name, expected or (-1, -1), two_phase=two_phase, keep=keep, timeout_ms=timeout_ms)
        self._ask(waiter, "init", (name, expected, was_past))

    @rule(number=pick, which=st.sets(st.sampled_from(PARTITIONS), min_size=1), verify=st.booleans())
    def add(self, number: int, which: set[TopicPartition], verify: bool) -> None:
        who = self._who(number)
        if who is not None:
            partitions = sorted(which)
            waiter = self.desk.add(who[1], *partitions, transactional_id=who[0], verify_only=verify)
            self._ask(waiter, "verify" if verify else "add", (who, who[1] in self.past[who[0]], partitions))

    @rule(number=pick)
    def prepare(self, number: int) -> None:
        who = self._who(number)
        if who is not None:
            self._ask(self.desk.prepare(who[1], who[0]), "prepare", (who, who[1] in self.past[who[0]]))

    @rule(number=pick, committed=st.booleans(), bump=st.sampled_from([True, True, True, False]))
    def end(self, number: int, committed: bool, bump: bool) -> None:
        who = self._who(number)
        if who is not None:
            self._end(who, committed, bump)

    @rule(committed=st.booleans())
    def decide_outside(self, committed: bool) -> None:
        for name, token in sorted(self.prepared.items()):
            self._end((name, token), committed, True)

    def _end(self, who: Who, committed: bool, bump: bool) -> None:
        name, identity = who
        if bump and self.prepared.get(name) == identity:
            del self.prepared[name]
        waiter = self.desk.end(identity, committed, transactional_id=name, bump=bump)
        self._ask(waiter, "end", (who, committed, bump))

    @rule(
        number=pick,
        which=st.sets(st.sampled_from(PARTITIONS), min_size=1),
        committed=st.booleans(),
        prepared=st.booleans(),
    )
    def whole_transaction(self, number: int, which: set[TopicPartition], committed: bool, prepared: bool) -> None:
        """Without this, few of them get far."""
        self.everything_is_replicated()
        who = self._who(number)
        if who is None:
            return
        waiter = self.desk.add(who[1], *sorted(which), transactional_id=who[0])
        self._ask(waiter, "add", (who, who[1] in self.past[who[0]], sorted(which)))
        self.everything_is_replicated()
        if self.desk.error(waiter) is not NONE:
            return
        if prepared:
            self._ask(self.desk.prepare(who[1], who[0]), "prepare", (who, who[1] in self.past[who[0]]))
            self.everything_is_replicated()
        else:
            self._end(who, committed, True)

    @rule(name=ids, takeovers=st.integers(0, 2), committed=st.booleans())
    def decided_after_a_takeover(self, name: str, takeovers: int, committed: bool) -> None:
        """Another process comes and keeps what is prepared; then it is decided."""
        self.whole_init(name, False, False)
        self.whole_init(name, False, False)  # the first may only have aborted what was open
        self.whole_transaction(1, {PARTITIONS[0]}, committed, True)
        for _ in range(takeovers):
            self.whole_init(name, True, False)
        self.decide_outside(committed)
        self.everything_is_replicated()

    # --- The world ------------------------------------------------------------------------------

    @rule(number=pick, which=st.sets(st.sampled_from(PARTITIONS)))
    def markers_are_written(self, number: int, which: set[TopicPartition]) -> None:
        """By some, perhaps not the whole; a sender may tell of what it told before, or of nothing of it."""
        tokens = list(self.desk.markers)
        if tokens:
            token = tokens[number % len(tokens)]
            marker = self.desk.markers[token]
            mine = [TopicPartition(item.topic, item.partition) for item in marker.partitions]
            told = [item for item in mine if item in which] if which else mine
            key = (self.owner[marker.producer_id], marker.producer_id, marker.producer_epoch)
            self.marked.setdefault(key, set()).update(told)
            if told:
                self.desk.mark(token, NONE, *told)
                self._look()

    @rule()
    def all_markers_are_written(self) -> None:
        self._all_are_marked()
        self._look()

    def _all_are_marked(self) -> None:
        for token in list(self.desk.markers):
            marker = self.desk.markers[token]
            key = (self.owner[marker.producer_id], marker.producer_id, marker.producer_epoch)
            self.marked[key].update(TopicPartition(item.topic, item.partition) for item in marker.partitions)
            self.desk.mark(token)

    @rule(number=pick)
    def marker_is_refused(self, number: int) -> None:
        tokens = list(self.desk.markers)
        if tokens and number % 8 == 0:
            self.desk.mark(tokens[0], ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            self._look()

    @rule()
    def news_of_a_former_coordinator(self) -> None:
        for token, marker in list(self.desk.markers.items()):
            old = Token(LeaderEpoch(token.leader_epoch - 1), token.number)
            assert self.desk.shard.marked(old, marker.partitions, NONE, self.desk.now) == []

    @rule(ms=st.sampled_from([100, 600, 10_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.desk.pass_time(ms)
        self._look()

    # --- What must hold -------------------------------------------------------------------------

    def _look(self) -> None:
        self._read_log()
        self._read_markers()
        self._hear()

    def _read_log(self) -> None:
        """The committed log, and in it what a state may follow what."""
        for append in self.desk.log[self.read :]:
            for key, raw in append.records:
                named = decode_transaction_key(key)
                assert isinstance(named, TransactionLogKey)
                name = named.transactional_id
                before = next((item[1] for item in reversed(self.committed_log) if item[0] == name), None)
                value = None if raw is None else decode_transaction_value(raw)
                self.committed_log.append((name, value))
                self._step(name, before, value)
        self.read = len(self.desk.log)

    def _step(self, name: str, before: Any, value: Any) -> None:
        open_before = before is not None and before.status in (1, 2, 3)
        if value is None:
            assert not open_before, "an id expired with an open transaction"
            return
        self.owner.setdefault(value.producer_id, name)
        self.owner.setdefault(value.next_producer_id, name)
        assert self.owner[value.producer_id] == name, "two ids share a producer id"
        identity = (value.producer_id, value.producer_epoch)
        decision = (name, *identity)
        if value.status in (2, 3):
            assert not (before is not None and before.status in (2, 3)), "a decision was taken twice"
            if open_before:
                assert set(value.partitions) == set(before.partitions), "the decision covers all of it"
            self.decisions[decision] = value.status == 2  # in the first protocol, one after the other
            if value.kept:
                self.kept.add(decision)
            self.marked[decision] = set()
        if value.status in (4, 5):
            assert before is not None
            decided = (name, before.producer_id, before.producer_epoch)
            assert before.status == value.status - 2, "completed otherwise than decided"
            assert self.marked[decided] >= set(before.partitions), "completed without all markers"
        if value.status in (0, 1) and not value.prepared:
            assert before is None or before.status not in (2, 3), "left behind before its markers"
            assert not (value.status == 0 and open_before), "an open transaction was forgotten"

    def _read_markers(self) -> None:
        for marker in self.desk.sent[self.markers_seen :]:
            name = self.owner.get(marker.producer_id)
            assert name is not None, "a marker of an id that the log does not know"
            decision = (name, marker.producer_id, marker.producer_epoch)
            assert self.decisions.get(decision) is marker.committed, "a marker without a decision, or against it"
            assert marker.coordinator_epoch == self.desk.epoch
        self.markers_seen = len(self.desk.sent)

    def _succeeded(self, kind: str, what: Any, answer: Any) -> None:
        match kind:
            case "init":
                name, expected, was_past = what
                identity = (answer.producer_id, answer.producer_epoch)
                known = (name, identity) in self.told
                assert known or not was_past, "a fenced producer was given a new identity"
                assert not known or expected not in (None, identity), "two producers have one identity"
                self._told(name, identity)
                if answer.ongoing_producer_id >= 0:
                    self.keepers.add(identity)
                    token = (answer.ongoing_producer_id, answer.ongoing_producer_epoch)
                    self.told.append((name, token))
                    self.past[name].discard(token)
            case "end":
                (name, identity), committed, bump = what
                if bump:
                    following = (answer.producer_id, answer.producer_epoch)
                    decision = (name, identity[0], identity[1] + 1)
                    assert self.decisions.get(decision) is committed, "told of a decision that is not in the log"
                    assert following not in self.keepers, "told whom another producer is"
                    if decision not in self.kept:
                        assert following[1] < 32_767, "told an epoch that could not be fenced"
                        self._told(name, following)
            case "prepare":
                (name, identity), was_past = what
                assert not was_past, "a fenced producer prepared"
                latest = next(item[1] for item in reversed(self.committed_log) if item[0] == name)
                if latest is not None and latest.prepared:
                    self.prepared[name] = identity
            case "add":
                (name, identity), was_past, partitions = what
                assert not was_past, "a fenced producer added partitions"
                assert self._was_in_log(name, identity, partitions)
            case "verify":
                (_, _), was_past, _ = what
                if was_past:
                    assert all(item.error is not NONE for item in answer.results)

    def _was_in_log(self, name: str, identity: tuple[int, int], partitions: list[TopicPartition]) -> bool:
        return any(
            named == name
            and value is not None
            and value.status == 1
            and (value.producer_id, value.producer_epoch) == identity
            and set(value.partitions) >= set(partitions)
            for named, value in self.committed_log
        )

    def _told(self, name: str, identity: tuple[int, int]) -> None:
        """``identity`` was acknowledged: all that were told before, unless this one was, are of the past."""
        before = [item[1] for item in self.told if item[0] == name]
        if identity not in before:
            self.past[name].update(before)
        self.told.append((name, identity))

    @invariant()
    def state_is_what_the_log_says(self) -> None:
        latest = dict(self.committed_log)
        for name in IDS:
            value, entry = latest.get(name), self.desk.shard.state.entries.get(name)
            if value is None:
                assert entry is None or entry.value is None
            else:
                assert entry is not None
                assert entry.value is not None
                assert entry.value.identity == Identity(value.producer_id, value.producer_epoch)
                assert entry.value.stored() == value

    @invariant()
    def what_is_prepared_stays(self) -> None:
        for name, token in self.prepared.items():
            value = self.desk.value(name)
            assert value.state is TransactionState.PREPARED
            assert value.identity == token

    def teardown(self) -> None:
        """Left alone, everything that was decided is completed, and what is open times out."""
        for _ in range(12):
            self.everything_is_replicated()
            self._all_are_marked()
            self.desk.pass_time(10_000)
            self._look()
        self.desk.fail_over()  # for those whose markers were refused
        while self.desk.appends or self.desk.allocations or self.desk.markers:
            self._all_are_marked()
            self.everything_is_replicated()
        for entry in self.desk.shard.state.entries.values():
            assert entry.value is not None
            assert entry.value.state.is_idle or entry.value.state is TransactionState.PREPARED
        super().teardown()


@pytest.mark.parametrize("examples", [150])
def test_random_histories(examples: int) -> None:
    run_histories(History, examples)
