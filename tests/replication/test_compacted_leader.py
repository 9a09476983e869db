"""A follower of a leader whose log has gaps, because it was compacted."""

from __future__ import annotations

from dataclasses import replace

from tidelog.model.ids import Offset
from tidelog.proto.records.batches import patch_batch
from tidelog.proto.records.encoder import encode_values
from tidelog.replication.partition.partition import Fetched

from .rig import MakeRig, Rig


def gapped(r: Rig) -> None:
    """Give node 1 a log with offsets 0, 5 and 6, as compaction would have left it."""
    for offset in (0, 5, 6):
        raw = encode_values([b"%d" % offset], r.now_ms)
        patch_batch(raw, 0, base_offset=offset, leader_epoch=0)
        r[1].p.log.append_as_follower(bytes(raw), r.now_ms, takes_gaps=True)


def test_a_gap_is_taken_when_the_leader_leaves_out_the_same_again(rig: MakeRig) -> None:
    """The topic is not compacted (any more), so that the first time it could be an answer to something else."""
    r = rig()
    gapped(r)
    r.lead(1, (1, 2))
    assert r.fetch(2, bytes_max=1) is Fetched.MOVED
    assert r.fetch(2) is Fetched.RETRY
    assert r[2].values() == [b"0"]
    assert r.fetch(2) is Fetched.MOVED
    assert r[2].values() == r[1].values() == [b"0", b"5", b"6"]


def test_another_gap_is_not_the_same(rig: MakeRig) -> None:
    r = rig()
    gapped(r)
    r.lead(1, (1, 2))
    assert r.fetch(2, bytes_max=1) is Fetched.MOVED
    astray = r.ask(2, 1, replace(r.position(2), fetch_offset=Offset(6)))
    assert r[2].p.take(astray, r.now_ms) is Fetched.RETRY
    assert r.fetch(2) is Fetched.RETRY
    assert r.fetch(2) is Fetched.MOVED
    assert r[2].values() == [b"0", b"5", b"6"]


def test_a_gap_that_was_refused_on_another_stream_is_asked_for_again(rig: MakeRig) -> None:
    """The leader has checked nothing on this one yet: what seems to be a gap may be an offset that its disk changed."""
    r = rig()
    gapped(r)
    r.lead(1, (1, 2))
    assert r.fetch(2, bytes_max=1) is Fetched.MOVED
    assert r.fetch(2) is Fetched.RETRY
    r[2].p.forget_refusal()
    assert r.fetch(2) is Fetched.RETRY
    assert r.fetch(2) is Fetched.MOVED
    assert r[2].values() == [b"0", b"5", b"6"]
