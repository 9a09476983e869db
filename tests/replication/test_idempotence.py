"""A producer's state is part of the log: it outlives the leader that took the batch."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, Refusal

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def test_a_retry_to_the_next_leader_is_a_duplicate(rig):
    r = rig()
    r.lead(1, (1, 2, 3))
    first = r.wrote(1, b"a", base_sequence=0, **PRODUCER)
    r.sync(2, 3)
    r.lead(2, (2, 3))
    again = r.wrote(2, b"a", base_sequence=0, **PRODUCER)
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert r[2].values() == [b"a"]
    r.wrote(2, b"b", base_sequence=1, **PRODUCER)
    assert r[2].values() == [b"a", b"b"]


def test_a_gap_is_refused_by_the_next_leader(rig):
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a", base_sequence=0, **PRODUCER)
    r.sync(2)
    r.lead(2, (2,))
    outcome = r.produce(2, b"c", base_sequence=2, **PRODUCER)
    assert isinstance(outcome, Refusal)
    assert outcome.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_was_cut_away_may_be_sent_again(rig):
    """The old leader took a batch that never reached the others; its state goes with the records."""
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a", base_sequence=0, **PRODUCER)
    r.sync(2, 3)
    r.wrote(1, b"lost", base_sequence=1, **PRODUCER)
    r.lead(2, (2, 3))
    r.wrote(2, b"lost", base_sequence=1, **PRODUCER)
    r.sync(1)
    assert r[1].values() == r[2].values() == [b"a", b"lost"]
    r.lead(1, (1, 2))
    again = r.wrote(1, b"lost", base_sequence=1, **PRODUCER)
    assert again.duplicate
    r.wrote(1, b"c", base_sequence=2, **PRODUCER)
    assert r[1].values() == [b"a", b"lost", b"c"]


def test_the_state_survives_a_kill_of_the_new_leader(rig):
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a", base_sequence=0, **PRODUCER)
    r.sync(2)
    r.restart(2)
    r.lead(2, (2,))
    assert r.wrote(2, b"a", base_sequence=0, **PRODUCER).duplicate
