"""The end of a batch, its division into tasks, its missing offsets: the pure half of planning."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.ids import TopicPartition
from tidelog.spark_connector.offsets import BadOffsets, Pace, Range, SourceOffset, limited, plan, split

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "aa", "b": "bb"}

offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 12)), st.integers(0, 99), max_size=9
)


@given(offsets, st.booleans(), st.none() | offsets)
def test_offsets_survive_the_checkpoint_and_their_text_is_in_order(
    found: dict[TopicPartition, int], initial: bool, begin: dict[TopicPartition, int] | None
) -> None:
    def made(pairs: dict[TopicPartition, int], **more: object) -> SourceOffset:
        ids = {at.topic: at.topic * 2 for at in pairs}
        return SourceOffset(pairs, ids, **more)  # type: ignore[arg-type]

    one = made(found, initial=initial, begin=None if begin is None else made(begin))
    text = json.dumps(one.to_json())
    assert SourceOffset.from_json(json.loads(text)) == one
    assert json.dumps(SourceOffset.from_json(json.loads(text)).to_json()) == text
    other = made(dict(reversed(found.items())), initial=initial, begin=one.begin)
    assert json.dumps(other.to_json()) == text


def test_the_text_in_checkpoints_is_what_it_was() -> None:
    """Queries go on from checkpoints of earlier releases."""
    text = '{"offsets": {"a": {"0": 5, "11": 7}}, "topicIds": {"a": "aa"}, "version": 1}'
    one = SourceOffset({TopicPartition("a", 11): 7, A0: 5}, {"a": "aa"})
    assert SourceOffset.from_json(json.loads(text)) == one
    assert json.dumps(one.to_json()) == text
    first = f'{{"begin": {text}, "offsets": {{"a": {{"0": 6}}}}, "topicIds": {{"a": "aa"}}, "version": 1}}'
    assert SourceOffset.from_json(json.loads(first)) == SourceOffset({A0: 6}, {"a": "aa"}, begin=one)


def test_a_checkpoint_of_a_later_release_is_told() -> None:
    with pytest.raises(BadOffsets, match="version 2, this release of tidelog knows 1"):
        SourceOffset.from_json({"offsets": {}, "topicIds": {}, "version": 2})


@pytest.mark.parametrize(
    "text",
    ["{}", '{"offsets": 3, "topicIds": {}, "version": 1}', '{"orders": {"0": 5}}'],
)
def test_other_texts_are_no_offsets(text: str) -> None:
    with pytest.raises(BadOffsets, match="expected offsets that the Tidelog source has written"):
        SourceOffset.from_json(json.loads(text))


@given(offsets, st.integers(1, 200), st.data())
def test_a_limit_is_shared_by_what_each_partition_has(
    start: dict[TopicPartition, int], at_most: int, data: st.DataObject
) -> None:
    latest = {at: offset + data.draw(st.integers(-3, 80)) for at, offset in start.items()}
    ends = limited(at_most, start, latest)
    sizes = {at: latest[at] - start[at] for at in start}
    there = sum(size for size in sizes.values() if size > 0)
    for at, end in ends.items():
        assert end <= latest[at]
        if sizes[at] > 0:
            assert end > start[at], "no partition starves"
            assert end - start[at] <= max(1, at_most * sizes[at] / there)
        else:
            assert end == latest[at], "what was cut is left for the plan to see"
    assert sum(ends[at] - start[at] for at in start if sizes[at] > 0) <= at_most + len(start)


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    pace = Pace(at_least=10, at_most=20, delay_ms_max=1_000)
    assert pace.end({A0: 0}, {A0: 3}, 5_000) == {A0: 3}, "the first batch of a run does not wait"
    assert pace.end({A0: 3}, {A0: 12}, 5_999) is None
    assert pace.end({A0: 3}, {A0: 12}, 6_000) == {A0: 12}
    assert pace.end({A0: 12}, {A0: 22}, 6_001) == {A0: 22}
    assert pace.end({A0: 22}, {A0: 90}, 6_002) == {A0: 42}
    assert pace.end({A0: 42}, {A0: 43}, 6_003, wait=False) == {A0: 43}


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(-2, 400)), max_size=6).map(
    lambda sizes: [Range(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(sizes)]
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 60))
def test_tasks_cover_their_ranges_once(whole: list[Range], min_partitions: int | None, max_records: int | None) -> None:
    tasks = split(whole, min_partitions, max_records)
    covered = [(one.at, offset) for one in tasks for offset in range(one.start, one.end)]
    assert covered == [(one.at, offset) for one in whole for offset in range(one.start, one.end)]
    assert all(one.size > 0 for one in tasks)
    if max_records is not None:
        assert all(one.size <= max_records for one in tasks)
    if min_partitions is None and max_records is None:
        assert len(tasks) == sum(one.size > 0 for one in whole)


def test_the_largest_ranges_are_cut_into_the_most_tasks() -> None:
    tasks = split([Range(A0, 0, 5), Range(A1, 0, 100), Range(B0, 7, 107)], 9, None)
    assert [(one.at, one.size) for one in tasks] == [(A0, 5), *[(A1, 25)] * 4, *[(B0, 25)] * 4]


def lost(start: SourceOffset, end: SourceOffset, **now: object) -> tuple[list[Range], str]:
    earliest: dict[TopicPartition, int] = now.get("earliest", {A0: 0, A1: 0})  # type: ignore[assignment]
    readable: dict[TopicPartition, int] = now.get("readable", {A0: 99, A1: 99, B0: 99})  # type: ignore[assignment]
    present = SourceOffset({}, now.get("ids", IDS))  # type: ignore[arg-type]
    found = plan(start, end, earliest, readable, present)
    return list(found.ranges), " ".join(found.losses)


def of(pairs: dict[TopicPartition, int], **ids: str) -> SourceOffset:
    return SourceOffset(pairs, IDS | ids)


def test_what_is_whole_is_planned_without_a_word() -> None:
    assert lost(of({A0: 1, A1: 4}), of({A0: 3, A1: 4})) == ([Range(A0, 1, 3)], "")


def test_a_new_partition_begins_at_its_first_offset() -> None:
    assert lost(of({A0: 1}), of({A0: 1, A1: 4})) == ([Range(A1, 0, 4)], "")
    planned, words = lost(of({A0: 1}), of({A0: 1, A1: 4}), earliest={A0: 0, A1: 2})
    assert (planned, words) == ([Range(A1, 2, 4)], "Added partition a-1 starts from 2 instead of 0.")


def test_deleted_partitions_are_a_loss() -> None:
    planned, words = lost(of({A0: 1, B0: 4}), of({A0: 3}))
    assert (planned, words) == ([Range(A0, 1, 3)], "Partitions [b-0] have been deleted.")
    assert lost(of({B0: 4}), of({B0: 5})) == ([], "Partitions [b-0] have been deleted.")


def test_a_topic_made_anew_is_read_from_its_start_and_is_a_loss() -> None:
    planned, words = lost(of({A0: 50}, a="old"), of({A0: 3}))
    assert (planned, words) == ([Range(A0, 0, 3)], "Topic a has been deleted and created again.")
    planned, words = lost(of({A0: 1}, a="old"), of({A0: 3}, a="old"))
    assert (planned, words) == ([], "Topic a has been deleted and created again."), "the batch was planned before"


def test_offsets_that_the_log_does_not_have_are_a_loss() -> None:
    planned, words = lost(of({A0: 5}), of({A0: 3}))
    assert planned == []
    assert "Partition a-0 offset was changed from 5 to 3." in words
    planned, words = lost(of({A0: 1}), of({A0: 9}), earliest={A0: 4})
    assert (planned, words) == ([Range(A0, 4, 9)], "Starting offset for a-0 was 1 but the log starts at 4.")
    planned, words = lost(of({A0: 1}), of({A0: 9}), earliest={A0: 40})
    assert planned == []
    assert "the log starts at 40" in words
    planned, words = lost(of({A0: 1}), of({A0: 9}), readable={A0: 6})
    assert (planned, words) == ([Range(A0, 1, 6)], "Partition a-0 ends at offset 6, before the batch's end 9.")
