"""Which record a worker gets, and what is committed: tables, and random histories against a simple model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import SPAN_MAX, Board, OrderedBy, Work
from tidelog.client.workers.progress import METADATA_MAX, Progress, finished_runs, says
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.model.ids import TopicPartition

AT = TopicPartition("t", 0)


def record(
    offset: int, key: bytes | None = None, message_id: bytes | None = None, at: TopicPartition = AT
) -> ConsumerRecord:
    headers = () if message_id is None else (("id", message_id),)
    return ConsumerRecord(offset, 0, key, b"", headers, at.topic, at.partition, 3)


def board(ordered_by: OrderedBy = "key", in_flight_max: int = 100, deduplicate: Deduplicate | None = None) -> Board:
    made = Board(ordered_by, in_flight_max, deduplicate)
    made.own(AT, None)
    return made


def taken(of: Board, now_ms: int = 0) -> list[Work]:
    found = []
    while (work := of.take(now_ms)) is not None:
        found.append(work)
    return found


def offsets_of(works: list[Work]) -> list[int]:
    return [work.record.offset for work in works]


def test_records_of_a_key_come_one_after_the_other() -> None:
    of = board()
    of.admit([record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3, None), record(4, None)])
    first = taken(of)
    assert offsets_of(first) == [0, 2, 3, 4]
    of.finish(first[0])
    assert offsets_of(taken(of)) == [1]


def test_what_a_filter_leaves_out_is_committed_once_nothing_before_it_is_unfinished() -> None:
    of = board()
    of.passed({AT: OffsetAndMetadata(5, 2)})
    assert of.news() == {AT: OffsetAndMetadata(5, 2)}
    of.admit([record(7)])
    of.passed({AT: OffsetAndMetadata(9)})
    assert of.news()[AT].offset == 7
    (work,) = taken(of)
    of.finish(work)
    assert of.news() == {AT: OffsetAndMetadata(9)}
    of.stop(AT)
    of.admit([record(20)])
    of.passed({AT: OffsetAndMetadata(30)})
    assert of.news() == {AT: OffsetAndMetadata(9)}, "what was not admitted is not finished"


def test_order_by_partition_and_none() -> None:
    of = board("partition")
    of.admit([record(0, b"a"), record(1, b"b")])
    assert offsets_of(taken(of)) == [0]
    of = board("none")
    of.admit([record(0, b"a"), record(1, b"a")])
    assert offsets_of(taken(of)) == [0, 1]


def test_the_commit_stays_at_the_lowest_unfinished_record_and_names_what_is_finished_above() -> None:
    of = board("none")
    of.admit([record(n) for n in (5, 6, 7, 9, 10)])
    works = {work.record.offset: work for work in taken(of)}
    of.finish(works[7])
    of.finish(works[9])
    assert of.news() == {AT: OffsetAndMetadata(5, -1, "w1,2,3")}
    of.committed(of.news())
    assert of.news() == {}
    of.finish(works[5])
    of.finish(works[6])
    assert of.news() == {AT: OffsetAndMetadata(10, 3, "")}


def test_the_next_owner_skips_what_is_finished() -> None:
    of = Board("none", 100)
    of.own(AT, OffsetAndMetadata(5, -1, "w1,2,3"))
    of.admit([record(n) for n in (5, 6, 7, 9, 10)])
    assert offsets_of(taken(of)) == [5, 6, 10]
    assert of.skipped == 2


def test_metadata_of_other_programs_counts_for_nothing() -> None:
    for metadata in ("", "w1,x", "w2,1,1", "w1,-1,2", "hello"):
        assert not list(finished_runs(5, metadata))


def test_what_the_metadata_has_no_room_for_is_left_out() -> None:
    progress = Progress()
    for offset in range(SPAN_MAX):
        progress.admit(offset * 3, 0)
    for offset in range(1, SPAN_MAX, 2):
        progress.finish(offset * 3)
    news = progress.news()
    assert news is not None
    assert METADATA_MAX - 20 < len(news.metadata) <= METADATA_MAX
    runs = list(finished_runs(news.offset, news.metadata))
    assert len(runs) > 500
    assert all(start % 6 == 3 for start, _ in runs)


def test_a_partition_waits_when_too_much_lies_above_an_unfinished_record() -> None:
    of = board("none", in_flight_max=SPAN_MAX * 2)
    of.admit([record(n) for n in range(SPAN_MAX)])
    assert of.held_back() == {AT}
    for work in taken(of):
        if work.record.offset:
            of.finish(work)
    assert of.held_back() == {AT}, "all but one are finished, and must be remembered"


def test_room_comes_back_by_half() -> None:
    of = board("none", in_flight_max=4)
    of.admit([record(n) for n in range(4)])
    works = taken(of)
    assert of.room() == 0
    of.finish(works[0])
    assert of.room() == 0
    of.finish(works[1])
    assert of.room() == 2


def test_a_retry_holds_back_its_key_alone() -> None:
    of = board()
    of.admit([record(0, b"a"), record(1, b"a"), record(2, b"b")])
    first, other = taken(of)
    of.again(first, due_ms=100, now_ms=7)
    of.finish(other)
    assert taken(of, 99) == []
    assert of.due_ms() == 100
    (again,) = taken(of, 100)
    assert (again.record.offset, again.failures, again.first_failed_ms) == (0, 1, 7)


def test_a_partition_that_was_taken_away_counts_for_nothing() -> None:
    of = board("none")
    of.admit([record(0), record(1)])
    works = taken(of)
    of.disown(AT)
    of.own(AT, OffsetAndMetadata(0))
    of.admit([record(0)])
    of.finish(works[0])
    of.again(works[1], 0, 0)
    assert of.news() == {}, "the finished one belonged to the former ownership"
    assert of.unfinished == 1


def test_a_stopped_partition_ends_what_is_in_hand() -> None:
    of = board("none")
    of.admit([record(n) for n in range(3)])
    in_hand = of.take(0)
    assert in_hand is not None
    of.stop(AT)
    assert taken(of) == []
    assert (of.in_work([AT]), of.unfinished) == (1, 1)
    of.finish(in_hand)
    assert (of.in_work([AT]), of.unfinished) == (0, 0)
    assert of.news() == {AT: OffsetAndMetadata(1, 3, "")}


def test_duplicates_within_the_window_are_left_out() -> None:
    of = board("none", deduplicate=Deduplicate(window=3))
    of.admit([record(0, message_id=b"x"), record(1, message_id=b"x"), record(3, message_id=b"y")])
    of.admit([record(4, message_id=b"x"), record(8, message_id=b"x"), record(9), record(10)])
    assert offsets_of(taken(of)) == [0, 3, 8, 9, 10]
    assert of.duplicates == 2


def test_a_new_owner_knows_the_ids_before_its_place() -> None:
    of = Board("none", 100, Deduplicate(window=10))
    of.own(AT, OffsetAndMetadata(2))
    of.admit(
        [record(0, message_id=b"x"), record(1, message_id=b"y"), record(2, message_id=b"x"), record(3, message_id=b"z")]
    )
    assert offsets_of(taken(of)) == [3]


def test_dead_letters_wait_where_the_commit_cannot_say_so() -> None:
    of = board("none", in_flight_max=SPAN_MAX)
    of.admit([record(n) for n in range(SPAN_MAX)])
    works = taken(of)
    for work in works[1:-1:2]:
        of.finish(work)
    low, high = works[2], works[-1]
    told, offsets = of.given_up([low, high])
    assert told == [low]
    assert says(offsets[AT], 2)
    assert not says(offsets[AT], high.record.offset)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_is_lost_and_nothing_finished_is_repeated_whatever_crashes(data: st.DataObject) -> None:
    """One partition, crashes and handovers at random: the model is the log and the set of what was finished."""
    count = data.draw(st.integers(1, 25), "records")
    keys = data.draw(st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=count, max_size=count), "keys")
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count), "gaps")
    log, offset = [], 0
    for key, gap in zip(keys, gaps, strict=True):
        log.append(record(offset, key))
        offset += gap
    stored: OffsetAndMetadata | None = None
    finished: list[int] = []
    durable: set[int] = set()
    of = Board("key", 10)
    of.own(AT, stored)
    position, hand = 0, list[Work]()
    for _ in range(150):
        if len(durable) == count:
            break
        step = data.draw(st.sampled_from(["read", "take", "finish", "again", "commit", "crash"]), "step")
        if step == "read" and (room := of.room()):
            end = min(count, position + min(room, 3))
            of.admit(log[position:end])
            position = end
        elif step == "take" and (work := of.take(0)) is not None:
            same_key = [other.record.key for other in hand if other.record.key is not None]
            assert work.record.key not in same_key, "two workers have records of one key"
            hand.append(work)
        elif step in ("finish", "again") and hand:
            work = hand.pop(data.draw(st.integers(0, len(hand) - 1), "which"))
            if step == "again":
                of.again(work, 0, 0)
                continue
            of.finish(work)
            assert work.record.offset not in durable, "a commit had said that it was finished"
            before = [r.offset for r in log if r.key == work.record.key and r.offset < work.record.offset]
            assert work.record.key is None or set(before) <= set(finished), "out of its key's order"
            finished.append(work.record.offset)
        elif step == "commit" and (news := of.news().get(AT)) is not None:
            of.committed({AT: news})
            stored = news
            durable = {r.offset for r in log if says(news, r.offset)}
            assert durable <= set(finished), "a commit says of unfinished records that they are finished"
        elif step == "crash":
            of = Board("key", 10)
            of.own(AT, stored)
            hand = []
            at = 0 if stored is None else stored.offset
            position = next((n for n, r in enumerate(log) if r.offset >= at), count)
    hand_over = Board("key", 100)
    hand_over.own(AT, stored)
    hand_over.admit(r for r in log if stored is None or r.offset >= stored.offset)
    left = set()
    while (work := hand_over.take(0)) is not None:
        left.add(work.record.offset)
        hand_over.finish(work)
    assert left | durable == {r.offset for r in log}, "lost"
    assert not left & durable, "repeated"
