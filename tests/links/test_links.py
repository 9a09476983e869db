"""What a link decides: names, producer ids, settings, offsets, comparisons. No cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.admin.transaction_types import ProducerState
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.links.batches import (
    IDS_BELOW,
    OldFormat,
    batches_of,
    fresh,
    mask_of,
    relabelled,
    same,
    same_records,
)
from tidelog.client.links.comparing import Comparison, compare
from tidelog.client.links.definition import LinkDefinition, LinkError, define, read_item
from tidelog.client.links.group_offsets import to_commit
from tidelog.client.links.keeping import changed, copied, refused
from tidelog.client.links.linked import TargetTopic
from tidelog.client.links.managing import open_transactions
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.model.link_position import Position, read_position
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, CorruptBatch, patch_batch
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.proto.records.spans import gap_batch

LINK = LinkDefinition("dr", "A", ("a:9092",), ("t.*",), (".*",))
AT = TopicPartition("t", 0)
MASK = mask_of("A", "B")


def batch(offset: int, count: int = 1, *, producer_id: int = -1, epoch: int = 0, text: str = "v") -> Batch:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000 + offset + number, b"k%d" % (offset + number), f"{text}{offset + number}".encode())
    out = builder.build(
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
    )
    patch_batch(out, 0, base_offset=offset, leader_epoch=epoch)
    return Batch(memoryview(bytes(out)))


# --- Definitions --------------------------------------------------------------------------------------

WORDS = st.text(min_size=1, max_size=20)


@given(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3), WORDS)
def test_a_definition_reads_back_from_its_item_and_is_one_item(
    topics: list[str], groups: list[str], cluster_id: str
) -> None:
    link = replace(LINK, cluster_id=cluster_id, topics=tuple(topics), groups=tuple(groups))
    item = link.item()
    assert read_item(item) == link
    assert "," not in item, "items of a list stand between commas"


def test_names_match_as_a_whole_and_links_own_groups_are_never_copied() -> None:
    assert LINK.takes_topic("t1")
    assert not LINK.takes_topic("at1")
    assert LINK.takes_group("g")
    assert not LINK.takes_group("tidelog.link.dr")


@pytest.mark.parametrize("name", ["", "a b", "ä", "-a", "a;b", "x" * 65])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(LinkError, match="as a link's name"):
        define(name, "A", "a:9092", ["t"], [])


def test_a_damaged_item_is_refused() -> None:
    with pytest.raises(LinkError, match="expected name;cluster;addresses;topics;groups"):
        read_item("dr;a:9092")


# --- Batches --------------------------------------------------------------------------------------------


def test_both_directions_have_the_same_bits_and_other_pairs_others() -> None:
    assert mask_of("A", "B") == mask_of("B", "A") != mask_of("A", "C")
    assert MASK >= IDS_BELOW


@given(st.integers(-1, IDS_BELOW - 1), st.integers(1, 5))
def test_producer_ids_are_changed_out_of_everybodys_range_and_back(producer_id: int, count: int) -> None:
    source = batch(7, count, producer_id=producer_id, epoch=3)
    (found,) = batches_of(relabelled([source], MASK))
    assert found.crc_ok()
    assert (found.producer_id < 0) if producer_id < 0 else (found.producer_id >= IDS_BELOW)
    assert same(found, source, MASK)
    assert relabelled([found], MASK) == bytes(source.view)
    assert found.view[61:] == source.view[61:]


def test_old_formats_are_refused_by_their_name() -> None:
    old = bytearray(batch(0).view)
    old[16] = 1
    with pytest.raises(OldFormat, match=r"found format 1, of before Kafka 0\.11"):
        batches_of(bytes(old))


def test_what_is_there_is_left_out_and_what_does_not_fit_is_refused() -> None:
    found = [batch(0, 3), batch(3, 2), batch(9)]
    assert [one.base_offset for one in fresh(found, 3)] == [3, 9]
    with pytest.raises(CorruptBatch):
        fresh(found, 2)
    spoiled = bytearray(batch(3).view)
    spoiled[-1] ^= 1
    with pytest.raises(CorruptBatch):
        fresh([Batch(memoryview(spoiled))], 3)


def test_a_gap_has_no_records_and_reaches_to_its_end() -> None:
    found = Batch(memoryview(gap_batch(5, 9, 1)))
    assert (found.base_offset, found.next_offset, found.record_count, found.crc_ok()) == (5, 9, 0, True)


# --- Comparing --------------------------------------------------------------------------------------------


def reader(log: list[Batch], at_once: int) -> Callable[[int], object]:
    async def read(offset: int) -> list[Batch]:
        return [one for one in log if one.next_offset > offset][:at_once]

    return read


def compared(source: list[Batch], target: list[Batch], start: int, end: int, *, compacts: bool = False) -> Comparison:
    return asyncio.run(compare(reader(source, 2), reader(target, 3), start, end, MASK, compacts=compacts))  # type: ignore[arg-type]


def copies(log: list[Batch]) -> list[Batch]:
    return batches_of(relabelled(log, MASK))


LOG = [
    batch(0, 3, epoch=1),
    batch(3, producer_id=8, epoch=1),
    batch(4, 2, epoch=2),
    batch(6, epoch=2),
    batch(7, epoch=4),
]


def test_equal_logs_are_equal_and_the_last_epoch_is_told() -> None:
    found = compared(LOG, copies(LOG), 0, 8)
    assert (found.fault, found.batches, found.epoch) == ("", 5, 4)
    assert compared(LOG, copies(LOG), 3, 7).epoch == 2, "only what lies between"
    assert compared(LOG, [*copies(LOG[:3]), batch(6, text="x"), *copies(LOG[4:])], 0, 6).fault == ""


@pytest.mark.parametrize("number", range(5))
def test_every_difference_is_found(number: int) -> None:
    offset = LOG[number].base_offset
    other = batch(offset, LOG[number].record_count, text="x")
    changed_log = [*copies(LOG[:number]), other, *copies(LOG[number + 1 :])]
    assert compared(LOG, changed_log, 0, 8).fault == f"at offset {offset}, source and target have different records"
    less = [*LOG[:number], *LOG[number + 1 :]]
    assert compared(LOG, copies(less), 0, 8).fault == f"at offset {offset}, only the source has records"
    assert compared(less, copies(LOG), 0, 8).fault == f"at offset {offset}, only the target has records"
    assert compared(less, copies(LOG), 0, 8, compacts=True).fault == ""
    assert compared(LOG, changed_log, 0, 8, compacts=True).fault


def test_compaction_on_either_side_may_remove_records_of_a_batch() -> None:
    whole, part = batch(0, 3), batch(0, 2)
    assert same_records(whole, part)
    assert not same_records(whole, batch(0, 2, text="x"))
    assert compared([whole], [part], 0, 3, compacts=True).fault == ""


def test_gaps_do_not_count() -> None:
    gap = Batch(memoryview(gap_batch(0, 3, 1)))
    assert compared(LOG[1:], [gap, *copies(LOG[1:])], 0, 8).fault == ""


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_a_changed_record_is_found_wherever_it_is(counts: list[int], data: st.DataObject) -> None:
    log, offset = [], 0
    for count in counts:
        log.append(batch(offset, count, producer_id=data.draw(st.integers(-1, 5))))
        offset += count
    assert compared(log, copies(log), 0, offset).fault == ""
    spoiled = data.draw(st.integers(0, len(log) - 1))
    other = [batch(one.base_offset, one.record_count, text="x") if at == spoiled else one for at, one in enumerate(log)]
    assert compared(log, copies(other), 0, offset).fault != ""


# --- Positions, topics, groups -----------------------------------------------------------------------------


def test_a_position_reads_back_and_fits_into_a_committed_offset() -> None:
    one = Position(5, 2, "aa", 9, 100, 90, "ü" * 5_000, 80)
    assert len(one.metadata.encode()) < 4_096
    assert read_position(5, 2, one.metadata) == replace(one, reason="ü" * 600)
    assert (one.lag, one.lag_ms(100)) == (4, 10)
    assert read_position(5, 2, "of somebody else") is None
    assert read_position(5, 2, "{}") is None
    older = '{"source_id": "aa", "source_end": 9, "told_ms": 100, "level_ms": 90, "reason": ""}'
    assert read_position(5, 2, older) == Position(5, 2, "aa", 9, 100, 90)


def target(name: str, **values: str) -> TargetTopic:
    return TargetTopic(name, TopicId(b"x" * 16), 1, 1, {key.replace("_", "."): value for key, value in values.items()})


def test_loops_and_topics_of_others_are_refused() -> None:
    sources = {
        "free": {},
        "mine": {},
        "own": {},
        "another": {},
        "looping": {"link.source": "C,B"},
        "chained": {"link.source": "C"},
    }
    there = {"mine": target("mine", link_name="dr"), "own": target("own"), "another": target("another", link_name="x")}
    found = refused(LINK, "B", sources, there)
    assert found.keys() == {"own", "another", "looping"}
    assert "it would loop; leave the topic out of --topics" in found["looping"]
    assert "it would loop" in refused(LINK, "A", {"free": {}}, {})["free"], "the source itself"


def test_settings_are_the_sources_but_for_those_of_a_cluster() -> None:
    theirs = {
        "retention.ms": "5",
        "remote.storage.enable": "true",
        "segment.bytes": "1",
        "link.name": "x",
        "leader.replication.throttled.replicas": "*",
    }
    assert copied(theirs, 3) == {"retention.ms": "5"}
    assert [copied({"min.insync.replicas": "2"}, n)["min.insync.replicas"] for n in (3, 1)] == ["2", "1"]
    assert changed({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4", "link.name": "dr"}) == {"b": "2", "c": None}


def test_offsets_are_clipped_and_only_news_are_committed() -> None:
    other = TopicPartition("t", 1)
    theirs = {AT: (50, "m"), other: (5, ""), TopicPartition("not linked", 0): (7, "")}
    ends = {AT: 40, other: 10}
    wanted = {AT: OffsetAndMetadata(40, -1, "m"), other: OffsetAndMetadata(5, -1, "")}
    assert to_commit(theirs, {}, ends) == wanted
    assert to_commit(theirs, wanted, ends) == {}
    assert to_commit(theirs, {AT: OffsetAndMetadata(41, -1, "m")}, ends) == wanted, "also back"


def test_open_transactions_tell_where_their_producers_have_gone_further() -> None:
    def state(epoch: int, start: int | None) -> ProducerState:
        return ProducerState(7, epoch, 0, 0, 0, start)

    other = TopicPartition("t", 1)
    found = open_transactions({AT: (state(3, 10),), other: (state(4, None),), TopicPartition("t", 2): (state(3, 2),)})
    assert [(one.at.partition, one.start_offset, one.elsewhere) for one in found] == [
        (0, 10, (other,)),
        (2, 2, (other,)),
    ]


@pytest.mark.parametrize(
    ("link", "state", "by", "taken"),
    [
        ("", "active", "", True),
        ("", "active", "dr", False),
        ("dr", "active", "dr", True),
        ("dr", "active", "", False),
        ("dr", "active", "x", False),
        ("dr", "stopped", "dr", False),
        ("dr", "stopped", "", False),
    ],
)
def test_a_topic_takes_the_records_of_its_own_link_alone(link: str, state: str, by: str, taken: bool) -> None:
    fault = TopicConfig(link_name=link, link_state=state).link_fault(by)
    assert (fault is None) == taken
    assert fault is None or (link or by) in fault
