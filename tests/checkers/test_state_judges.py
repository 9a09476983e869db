"""Judges of single replicas, of brokers and of clients: each with a state that must pass and one that must not."""

from __future__ import annotations

from tidelog.chaos.checkers.brokers import (
    ChangeJudge,
    LeaderKnowledgeJudge,
    Registered,
    Running,
    broker_changed,
    came_back,
    fenced_in_charge,
    offline_in_charge,
    unregistered,
)
from tidelog.chaos.checkers.replica_state import (
    NO_LEADERSHIP,
    KnownProducer,
    MarkJudge,
    ProducedBatch,
    producers_apart,
    producers_of,
)
from tidelog.model.ids import NO_NODE, NodeId, TopicPartition

P = TopicPartition("orders", 0)
N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)


class TestMarks:
    def test_a_mark_lies_within_the_log(self) -> None:
        judge = MarkJudge()
        assert judge.observe(P, N1, NO_LEADERSHIP, 5, 5) == []
        assert "its high watermark is 6" in judge.observe(P, N1, NO_LEADERSHIP, 6, 5)[0]

    def test_a_leaders_mark_stays_within_an_epoch(self) -> None:
        judge = MarkJudge()
        assert judge.observe(P, N1, 3, 5, 9) == []
        assert judge.observe(P, N1, 3, 5, 9) == []
        assert "fell from 5 to 4" in judge.observe(P, N1, 3, 4, 9)[0]

    def test_another_epoch_follower_or_process_begins_anew(self) -> None:
        judge = MarkJudge()
        judge.observe(P, N1, 3, 5, 9)
        assert judge.observe(P, N1, 4, 4, 9) == []
        assert judge.observe(P, N1, NO_LEADERSHIP, 3, 9) == []
        assert judge.observe(P, N1, 5, 3, 9) == []
        judge.restarted(N1)
        assert judge.observe(P, N1, 5, 2, 9) == []


class TestProducers:
    def test_the_last_batch_of_a_producer_counts(self) -> None:
        batches = [ProducedBatch(7, 0, 4, 4), ProducedBatch(-1, -1, -1, 5), ProducedBatch(7, 1, 0, 6)]
        assert producers_of(batches) == {7: KnownProducer(1, 0, 6)}

    def test_what_is_known_is_what_is_stored(self) -> None:
        stored = {7: KnownProducer(0, 4, 4)}
        assert producers_apart(P, N1, {7: KnownProducer(0, 4, 4)}, stored) == []
        assert "knows nothing of producer 7" in producers_apart(P, N1, {}, stored)[0]
        assert "its log says nothing" in producers_apart(P, N1, stored, {})[0]
        assert producers_apart(P, N1, {7: KnownProducer(0, 9, 9)}, stored) != []

    def test_a_transaction_is_open_until_its_marker(self) -> None:
        first = ProducedBatch(7, 0, 4, 4, begin=0)
        more = ProducedBatch(7, 0, 6, 6, begin=5)
        marker = ProducedBatch(7, 1, -1, 7, is_marker=True)
        assert producers_of([first, more]) == {7: KnownProducer(0, 6, 6, open_since=0)}
        assert producers_of([first, more, marker]) == {7: KnownProducer(1, -1, -1)}
        assert producers_of([first, marker._replace(epoch=0)]) == {7: KnownProducer(0, 4, 4)}

    def test_a_batch_without_sequence_leaves_the_last_one(self) -> None:
        plain = ProducedBatch(7, 0, -1, 5, begin=5)
        assert producers_of([plain]) == {7: KnownProducer(0, -1, -1, open_since=5)}
        assert producers_of([ProducedBatch(7, 0, 4, 4), plain]) == {7: KnownProducer(0, 4, 4, open_since=5)}

    def test_what_was_deleted_from_the_start_of_the_log_may_still_be_known(self) -> None:
        marker_alone, has = KnownProducer(1, -1, -1), KnownProducer(1, 4, 4)
        for known, stored in (({7: has}, {}), ({7: marker_alone}, {}), ({7: has}, {7: marker_alone})):
            assert producers_apart(P, N1, known, stored, log_start=5) == []
            assert producers_apart(P, N1, known, stored) != []
        assert producers_apart(P, N1, {7: has}, {}, log_start=4) != [], "its record is not below the start"
        assert producers_apart(P, N1, {7: has._replace(open_since=3)}, {}, log_start=5) != []
        assert producers_apart(P, N1, {7: has}, {7: KnownProducer(2, -1, -1)}, log_start=5) != []
        assert producers_apart(P, N1, {}, {7: has}, log_start=5) != []

    def test_who_has_nothing_open_may_expire(self) -> None:
        assert producers_apart(P, N1, {}, {7: KnownProducer(0, 4, 4)}, may_expire=True) == []
        assert producers_apart(P, N1, {}, {7: KnownProducer(0, 4, 4)}) != []
        assert producers_apart(P, N1, {}, {7: KnownProducer(0, 4, 4, open_since=3)}, may_expire=True) != []


class TestFenced:
    def test_a_fenced_broker_has_no_part(self) -> None:
        assert fenced_in_charge(P, N1, (N1, N2), [N3]) == []
        assert fenced_in_charge(P, NO_NODE, (), [N1, N2, N3]) == []
        assert len(fenced_in_charge(P, N1, (N1, N2), [N1])) == 2
        assert len(fenced_in_charge(P, N1, (N1, N2), [N2])) == 1

    def test_whoever_leads_or_is_in_sync_stands_on_a_directory_of_its_broker(self) -> None:
        assert offline_in_charge(P, N1, (N1, N2), lambda _: True) == []
        assert offline_in_charge(P, NO_NODE, (), lambda _: False) == []
        assert len(offline_in_charge(P, N1, (N1, N2), lambda node: node != N1)) == 2
        assert len(offline_in_charge(P, N1, (N1, N2), lambda node: node != N2)) == 1


def process(epoch: int, *, ready: bool = True, stopping: bool = False, reachable: bool = True) -> Running:
    return Running(epoch, ready, stopping, reachable)


class TestBrokers:
    def test_unfenced_once_ready(self) -> None:
        before, now = Registered(7, True, False), Registered(7, False, False)
        assert broker_changed(N1, before, now, process(7)) == []
        assert broker_changed(N1, before, now, None) == []
        assert "not ready" in broker_changed(N1, before, now, process(7, ready=False))[0]

    def test_shut_down_as_asked_for(self) -> None:
        before, now = Registered(7, False, False), Registered(7, False, True)
        assert broker_changed(N1, before, now, process(7, stopping=True)) == []
        assert "has not asked" in broker_changed(N1, before, now, process(7))[0]

    def test_nobody_takes_the_id_of_a_live_process(self) -> None:
        before, now = Registered(7, False, False), Registered(8, True, False)
        assert "replaces 7" in broker_changed(N1, before, now, process(7))[0]
        assert broker_changed(N1, before, now, process(8)) == []
        assert broker_changed(N1, before, now, process(7, reachable=False)) == []
        assert broker_changed(N1, before, now, process(7, stopping=True)) == []
        assert broker_changed(N1, Registered(7, True, False), now, process(7)) == []

    def test_only_a_fenced_one_is_forgotten_with_its_cordon(self) -> None:
        fenced, live = Registered(7, True, False), Registered(7, False, False)
        assert unregistered(N1, fenced, cordoned=False) == []
        assert "was not fenced" in unregistered(N1, live, cordoned=False)[0]
        assert "is cordoned" in unregistered(N1, fenced, cordoned=True)[0]

    def test_whoever_comes_under_its_id_is_eligible_nowhere(self) -> None:
        assert came_back(N1, []) == []
        assert "counts as stopped cleanly" in came_back(N1, [P])[0]


class TestChanges:
    def test_made_under_the_epochs_it_was_decided_under(self) -> None:
        judge = ChangeJudge()
        judge.partition(P, 4, 10.0)
        judge.broker(N2, 7, 10.0)
        judge.partition(P, 5, 20.0)
        judge.broker(N2, 8, 20.0)
        assert judge.granted(P, 5, {N2: 8}, 21.0) == []
        assert judge.granted(P, 4, {N2: 7}, 19.0) == []
        assert "partition epoch 4" in judge.granted(P, 4, {N2: 8}, 21.0)[0]
        assert "broker epoch 7" in judge.granted(P, 5, {N2: 7}, 21.0)[0]

    def test_an_epoch_that_is_left_open_is_no_older_one(self) -> None:
        judge = ChangeJudge()
        judge.broker(N2, 8, 20.0)
        assert judge.granted(P, 5, {N2: -1}, 21.0) == []


def test_a_client_does_not_go_back_to_an_older_leader() -> None:
    judge = LeaderKnowledgeJudge()
    assert judge.observe("c0", P, 3) == []
    assert judge.observe("c1", P, 2) == []
    assert judge.observe("c0", P, 4) == []
    assert "knew leader epoch 4" in judge.observe("c0", P, 3)[0]
