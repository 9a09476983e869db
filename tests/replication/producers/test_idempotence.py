"""A producer's state is part of the log: it outlives the leader that took the batch."""

from __future__ import annotations

from tests.replication.rig import MakeRig, ProducerFields
from tidelog.model.errors import ErrorCode, Refusal


def numbered(base_sequence: int) -> ProducerFields:
    return {"producer_id": 7, "producer_epoch": 0, "base_sequence": base_sequence}


def test_a_retry_to_the_next_leader_is_a_duplicate(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    first = r.wrote(1, b"a", **numbered(0))
    r.sync(2, 3)
    r.lead(2, (2, 3))
    again = r.wrote(2, b"a", **numbered(0))
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert r[2].values() == [b"a"]
    r.wrote(2, b"b", **numbered(1))
    assert r[2].values() == [b"a", b"b"]


def test_a_gap_is_refused_by_the_next_leader(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a", **numbered(0))
    r.sync(2)
    r.lead(2, (2,))
    outcome = r.produce(2, b"c", **numbered(2))
    assert isinstance(outcome, Refusal)
    assert outcome.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_was_cut_away_may_be_sent_again(rig: MakeRig) -> None:
    """The old leader took a batch that never reached the others; its state goes with the records."""
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a", **numbered(0))
    r.sync(2, 3)
    r.wrote(1, b"lost", **numbered(1))
    r.lead(2, (2, 3))
    r.wrote(2, b"lost", **numbered(1))
    r.sync(1)
    assert r[1].values() == r[2].values() == [b"a", b"lost"]
    r.lead(1, (1, 2))
    again = r.wrote(1, b"lost", **numbered(1))
    assert again.duplicate
    r.wrote(1, b"c", **numbered(2))
    assert r[1].values() == [b"a", b"lost", b"c"]


def test_the_state_survives_a_kill_of_the_new_leader(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a", **numbered(0))
    r.sync(2)
    r.restart(2)
    r.lead(2, (2,))
    assert r.wrote(2, b"a", **numbered(0)).duplicate
