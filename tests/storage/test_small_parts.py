"""Leader epochs, retention, checkpoints, indexes, formatting: by table."""

from __future__ import annotations

import random

import pytest

from tidelog.model.ids import BrokerEpoch, NodeId, TopicId, TopicPartition, random_id
from tidelog.storage.disk.checkpoints import (
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_epochs,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from tidelog.storage.disk.format import format_directory, read_meta
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import DirectoryRefused
from tidelog.storage.disk.memory_files import MemoryFiles
from tidelog.storage.segments.index import PENDING_MAX, OffsetIndex, TimeIndex
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.retention import SegmentAge, expired_count

# --- Leader epochs: cases of Kafka's LeaderEpochFileCacheTest ---------------------------------------

KNOWN = [(2, 6), (3, 7), (5, 9)]


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 6)),
        (1, (1, 6)),
        (2, (2, 7)),
        (3, (3, 9)),
        (4, (3, 9)),
        (5, (5, 12)),
        (6, (-1, -1)),
    ],
    ids=[
        "shouldReturnInvalidOffsetIfEpochIsRequestedWhichIsNotCurrentlyTracked: none",
        "shouldGetFirstOffsetOfSubsequentEpochWhenOffsetRequestedForPreviousEpoch: far below",
        "below all",
        "the first",
        "shouldReturnNextAvailableEpochIfThereIsNoExactEpochForTheOneRequested: before a hole",
        "shouldReturnNextAvailableEpochIfThereIsNoExactEpochForTheOneRequested",
        "shouldReturnLogEndOffsetIfLatestEpochRequested",
        "shouldReturnUnsupportedIfRequestedEpochLargerThanAnyKnown",
    ],
)
def test_where_an_epoch_ended(epoch: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(KNOWN).end_offset_for(epoch, 12) == answer


@pytest.mark.parametrize(
    ("new", "result"),
    [
        ((6, 12), [*KNOWN, (6, 12)]),
        ((5, 11), KNOWN),
        ((5, 8), [(2, 6), (3, 7), (5, 8)]),
        ((6, 9), [(2, 6), (3, 7), (6, 9)]),
        ((4, 9), [(2, 6), (3, 7), (4, 9)]),
        ((1, 5), [(1, 5)]),
    ],
    ids=["later", "the same again", "the same, earlier", "an empty one before", "an older one", "before all"],
)
def test_entries_that_contradict_a_new_one_go(new: tuple[int, int], result: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(KNOWN)
    assert epochs.assign(*new) is (result != KNOWN)
    assert epochs.entries() == result
    assert epochs.dirty is (result != KNOWN)


def test_epochs_are_cut_at_both_ends() -> None:
    for end, left in ((6, []), (7, KNOWN[:1]), (9, KNOWN[:2]), (10, KNOWN)):
        epochs = LeaderEpochs(KNOWN)
        epochs.truncate_from_end(end)
        assert epochs.entries() == left
    for start, left in (
        (5, KNOWN),
        (6, KNOWN),
        (7, [(3, 7), (5, 9)]),
        (8, [(3, 8), (5, 9)]),
        (20, [(5, 20)]),
    ):
        epochs = LeaderEpochs(KNOWN)
        epochs.truncate_from_start(start)
        assert epochs.entries() == left


def test_the_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs(KNOWN)
    assert [epochs.epoch_at(offset) for offset in (5, 6, 7, 8, 9, 99)] == [-1, 2, 3, 3, 5, 5]


# --- Retention ----------------------------------------------------------------------------------------

THREE = [SegmentAge(10, 100, 1_000), SegmentAge(20, 100, 2_000), SegmentAge(30, 50, 3_000)]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 0),
        ({"retention_ms": 999, "now_ms": 2_000}, 1),
        ({"retention_ms": 1_000, "now_ms": 2_000}, 0),
        ({"retention_ms": 0, "now_ms": 9_000}, 3),
        ({"retention_ms": 0, "now_ms": 9_000, "high_watermark": 29}, 2),
        ({"retention_ms": 0, "now_ms": 9_000, "high_watermark": 9}, 0),
        ({"retention_bytes": 150}, 1),
        ({"retention_bytes": 151}, 0),
        ({"retention_bytes": 0}, 3),
        ({"retention_ms": 999, "now_ms": 2_000, "retention_bytes": 50}, 2),
        ({"log_start_offset": 10}, 1),
        ({"log_start_offset": 19}, 1),
        ({"log_start_offset": 30}, 2),
    ],
)
def test_which_segments_go(settings: dict[str, int], count: int) -> None:
    full = {
        "now_ms": 0,
        "high_watermark": 30,
        "log_start_offset": 0,
        "retention_ms": -1,
        "retention_bytes": -1,
    } | settings
    assert expired_count(THREE, **full) == count


def test_an_empty_last_segment_never_goes() -> None:
    segments = [SegmentAge(10, 100, 0), SegmentAge(10, 0, 0)]
    settings = {"now_ms": 9, "high_watermark": 10, "log_start_offset": 10, "retention_ms": 0, "retention_bytes": 0}
    assert expired_count(segments, **settings) == 1


# --- Checkpoints --------------------------------------------------------------------------------------


def test_checkpoints_are_kafkas_text() -> None:
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b.c-d", 12): 7}
    assert encode_offsets(offsets) == b"0\n2\na 0 5\nb.c-d 12 7\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert encode_epochs(KNOWN) == b"0\n3\n2 6\n3 7\n5 9\n"
    assert decode_epochs(encode_epochs(KNOWN)) == KNOWN
    assert encode_partition_metadata(TopicId(bytes(16))) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"
    topic_id = TopicId(random_id(random.Random(1)))
    assert decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id
    assert encode_clean_shutdown(BrokerEpoch(9)) == b'{"version": 0, "brokerEpoch": 9}'
    assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":-1}') == -1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\na 0 5",
        b"0\n1\na 0\n",
        b"0\n1\na x 5\n",
        b"0\n1\na 0 -5\n",
        b"\xff\n0\n",
    ],
)
def test_unreadable_offsets_are_said_to_be(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="expected"):
        decode_offsets(content)


def test_every_shorter_checkpoint_is_noticed() -> None:
    whole = encode_epochs(KNOWN)
    for size in range(len(whole)):
        with pytest.raises(CorruptCheckpoint):
            decode_epochs(whole[:size])


@pytest.mark.parametrize("content", [b"", b"version: 1\n", b"version: 0\n", b"version: 0\ntopic_id: x\n", b"\xff"])
def test_unreadable_partition_metadata(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="expected"):
        decode_partition_metadata(content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"brokerEpoch": "x"}', b"\xff"])
def test_unreadable_clean_shutdown(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="expected"):
        decode_clean_shutdown(content)


# --- Indexes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("count", [0, 1, 3, PENDING_MAX, PENDING_MAX + 1, 3 * PENDING_MAX + 7])
def test_an_index_finds_what_a_list_finds(kind: type[OffsetIndex] | type[TimeIndex], count: int) -> None:
    files = MemoryFiles()
    files.makedirs("/d")
    pool = HandlePool(files)
    entries = [(10 * n + 5, 100 * n) for n in range(count)]
    index = kind(pool, "/d/index")
    index.start_empty()
    for entry in entries:
        index.add(*entry)
    for again in (index, kind(pool, "/d/index")):
        assert len(again) == count
        assert again.last() == (entries[-1] if entries else None)
        for first in [4, 5, 6, 10 * count, 10 * count + 5, *range(0, 10 * count, 97)]:
            expected = max((n for n, entry in enumerate(entries) if entry[0] <= first), default=-1)
            assert again.floor(first) == expected
            assert expected < 0 or again.entry(expected) == entries[expected]
        index.write_out(create=True)


@pytest.mark.parametrize("keep", [0, 1, PENDING_MAX - 1, PENDING_MAX, PENDING_MAX + 3])
def test_an_index_is_cut_and_goes_on(keep: int) -> None:
    files = MemoryFiles()
    files.makedirs("/d")
    pool = HandlePool(files)
    index = OffsetIndex(pool, "/d/index")
    index.start_empty()
    for n in range(PENDING_MAX + 5):
        index.add(n, n)
    index.cut(keep)
    assert len(index) == keep
    index.add(9_000, 9_000)
    index.write_out()
    again = OffsetIndex(pool, "/d/index")
    assert len(again) == keep + 1
    assert [again.entry(n) for n in range(keep)] == [(n, n) for n in range(keep)]
    assert again.last() == (9_000, 9_000)


def test_times_that_do_not_rise_are_left_out() -> None:
    files = MemoryFiles()
    index = TimeIndex(HandlePool(files), "/index")
    index.start_empty()
    for timestamp, offset in ((5, 1), (5, 2), (4, 3), (6, 4)):
        index.add_if_later(timestamp, offset)
    assert [index.entry(n) for n in range(len(index))] == [(5, 1), (6, 4)]


# --- meta.properties ----------------------------------------------------------------------------------


def test_formatting_is_done_once_and_kept() -> None:
    files = MemoryFiles()
    first = format_directory(files, "/data/logs", "c1", NodeId(3), random.Random(1))
    assert format_directory(files, "/data/logs", "c1", NodeId(3), random.Random(2)) == first
    assert read_meta(files, "/data/logs") == first
    content = bytes(files.content("/data/logs/meta.properties")).decode()
    for line in ("cluster.id=c1", "node.id=3", "version=1"):
        assert line in content.splitlines()


@pytest.mark.parametrize(
    ("cluster", "node", "said"),
    [("c2", 3, "of cluster c2, found one of cluster c1"), ("c1", 4, "node 4, found one of")],
)
def test_another_clusters_or_nodes_directory_is_refused(cluster: str, node: int, said: str) -> None:
    files = MemoryFiles()
    format_directory(files, "/d", "c1", NodeId(3), random.Random(1))
    with pytest.raises(DirectoryRefused, match=said):
        format_directory(files, "/d", cluster, NodeId(node), random.Random(1))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version=0\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\ncluster.id=c\nnode.id=x\ndirectory.id=y\n",
        b"\xff",
        b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=y\n",
    ],
)
def test_unreadable_meta_properties_are_refused(content: bytes) -> None:
    files = MemoryFiles()
    files.makedirs("/d")
    file = files.open("/d/meta.properties", create=True)
    file.pwritev((content or b"\n",), 0)
    with pytest.raises(DirectoryRefused, match=r"/d/meta\.properties"):
        read_meta(files, "/d")
