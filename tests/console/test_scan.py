"""Searching a partition: every order, filter and bound, against a plain list of what is there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.errors import OffsetOutOfRangeError
from tidelog.console.reading.filters import RE2, TEXT, Filter, PatternWrong, finder
from tidelog.console.reading.rows import part
from tidelog.console.reading.scan import Limits, Scan
from tidelog.console.schemas.view import PLAIN
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, ProducerId, TopicId, TopicPartition, random_id
from tidelog.proto.records.batches import Batch, patch_batch
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.proto.transport.frames import FetchedPartition

FETCH_BYTES = 300
TOPIC_ID = TopicId(random_id(random.Random(1)))
WITHOUT_END = Limits(10**9, 10**9, 3_600, 10**9)


class Leader:
    """Answers fetches as a leader does: whole batches, the first that holds the offset, some bytes of them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = 0
        self.start = 0
        self.stable: int | None = None
        self.aborted: list[tuple[ProducerId, Offset]] = []
        self.asked = 0

    def add(self, data: bytearray) -> int:
        patch_batch(data, 0, base_offset=self.end, leader_epoch=0)
        batch = Batch(memoryview(data))
        self.batches.append(batch)
        self.end = batch.next_offset
        return int(batch.base_offset)

    def append(self, values: Sequence[bytes], compression: Compression = Compression.NONE, **more: Any) -> int:
        builder = BatchBuilder(compression)
        for value in values:
            builder.append(1_000 + self.end, b"k%d" % (len(value) % 7), value, (("h", value[:3]),))
        return self.add(builder.build(**more))

    async def fetch(
        self, at: TopicPartition, position: int, last_epoch: int, timeout_ms: int, *, read_committed: bool = False
    ) -> FetchedPartition:
        self.asked += 1
        if position < self.start:
            raise OffsetOutOfRangeError("gone")
        stable = self.end if self.stable is None else self.stable
        end = stable if read_committed else self.end
        found: list[Batch] = []
        for batch in self.batches:
            fits = not found or sum(one.size for one in found) + batch.size <= FETCH_BYTES
            if batch.last_offset >= position and batch.base_offset < end:
                if not fits:
                    break
                found.append(batch)
        aborted = [one for one in self.aborted if found and one[1] < found[-1].next_offset] if read_committed else []
        return FetchedPartition(
            TOPIC_ID, at.partition, ErrorCode.NONE, Offset(self.end), Offset(stable), aborted=aborted,
            records=[b"".join(bytes(one.view) for one in found)], current_leader_epoch=LeaderEpoch(0),
        )  # fmt: skip


def scan_of(leaders: Mapping[int, Leader], wanted: Filter = Filter(), **more: Any) -> Scan:  # noqa: B008
    class All:
        async def fetch(
            self, at: TopicPartition, position: int, last_epoch: int, timeout_ms: int, *, read_committed: bool = False
        ) -> FetchedPartition:
            return await leaders[at.partition].fetch(
                at, position, last_epoch, timeout_ms, read_committed=read_committed
            )

    newest = more.pop("newest_first", False)
    ends = {at: leader.end for at, leader in leaders.items()}
    starts = {at: leader.start for at, leader in leaders.items()}
    positions = more.pop("positions", None) or dict(ends if newest else starts)
    return Scan(All(), "t", positions, starts if newest else ends, wanted, more.pop("view", PLAIN), newest, **more)


def rows_of(scan: Scan) -> list[dict[str, Any]]:
    async def all_of() -> list[dict[str, Any]]:
        return [row async for rows in scan.run() for row in rows]

    return asyncio.run(all_of())


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=20), max_size=12),
    st.booleans(),
    st.integers(1, 40),
    st.binary(min_size=1, max_size=1),
)
@settings(max_examples=60, deadline=None)
def test_page_by_page_a_search_finds_what_a_list_holds(
    batches: list[list[bytes]], newest_first: bool, rows: int, wanted: bytes
) -> None:
    leader = Leader()
    for values in batches:
        leader.append(values)
    values = [value for some in batches for value in some]
    expected = [at for at, value in enumerate(values) if wanted in value]
    found: list[int] = []
    positions: dict[int, int] | None = None
    for _ in range(len(values) + 2):
        scan = scan_of(
            {0: leader}, Filter(value=lambda data: wanted in data), newest_first=newest_first, positions=positions,
            limits=Limits(rows=rows),
        )  # fmt: skip
        page = [row["offset"] for row in rows_of(scan)]
        assert len(page) <= rows
        found += page
        positions = dict(scan.positions)
        if scan.scanned.stopped == "end":
            break
    assert scan.scanned.stopped == "end"
    assert found == (expected[::-1] if newest_first else expected)


@pytest.mark.parametrize(
    ("bound", "limits"),
    [("records", Limits(records=30)), ("bytes", Limits(bytes=2_000)), ("rows", Limits(rows=7)),
     ("seconds", Limits(seconds=0))],
)  # fmt: skip
@pytest.mark.parametrize("newest_first", [False, True])
def test_each_bound_stops_a_search_and_it_goes_on_where_it_stopped(
    bound: str, limits: Limits, newest_first: bool
) -> None:
    leader = Leader()
    for number in range(40):
        leader.append([b"%d-%d" % (number, each) for each in range(10)])
    scan = scan_of({0: leader}, newest_first=newest_first, limits=limits)
    first = [row["offset"] for row in rows_of(scan)]
    assert scan.scanned.stopped == bound
    assert scan.left == (scan.positions[0] if newest_first else 400 - scan.positions[0]) > 0
    assert leader.asked < 30
    rest = scan_of({0: leader}, newest_first=newest_first, positions=dict(scan.positions), limits=WITHOUT_END)
    offsets = first + [row["offset"] for row in rows_of(rest)]
    assert sorted(set(offsets)) == list(range(400)), "nothing is left out"
    assert len(offsets) == 400, "and nothing comes twice"
    assert rest.left == 0


def test_the_newest_of_every_partition_are_among_the_first() -> None:
    leaders = {number: Leader() for number in range(5)}
    for leader in leaders.values():
        leader.append([b"x"] * 100)
    rows = rows_of(scan_of(leaders, newest_first=True, limits=Limits(rows=20)))
    assert {row["partition"] for row in rows} == {0, 1, 2, 3, 4}
    assert {row["offset"] for row in rows} == {99, 98, 97, 96}


def test_the_fate_of_each_transaction_is_told() -> None:
    leader = Leader()
    leader.append([b"plain"])
    for pid, kind in ((1, ControlKind.COMMIT), (2, ControlKind.ABORT), (2, ControlKind.COMMIT)):
        more: dict[str, Any] = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        first = leader.append([b"of %d" % pid], **more)
        if kind is ControlKind.ABORT:
            leader.aborted.append((ProducerId(pid), Offset(first)))
        leader.add(encode_control_batch(kind, timestamp=5, producer_id=pid, producer_epoch=0, coordinator_epoch=0))
    leader.stable = leader.end
    leader.append([b"late"], producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    leader.append([b"plain too"])
    rows = rows_of(scan_of({0: leader}, control=True))
    fates = [row.get("transaction") or row.get("control") for row in rows]
    assert fates == [None, "committed", "commit", "aborted", "abort", "committed", "commit", "open", None]
    assert len(rows_of(scan_of({0: leader}))) == 6, "markers only on request"


def test_a_batch_that_cannot_be_read_is_told_of() -> None:
    leader = Leader()
    leader.append([b"first"])
    leader.append([bytes(40 * 2**20)], Compression.ZSTD)  # 40 MiB of zeros in some kilobytes
    damaged = BatchBuilder()
    damaged.append(1, None, b"flipped")
    data = damaged.build()
    data[-2] ^= 1
    leader.add(data)
    leader.append([b"last"])
    first, bomb, flipped, last = rows_of(scan_of({0: leader}))
    assert "at most 33554432 bytes" in bomb["unreadable"]
    assert "CRC" in flipped["unreadable"]
    assert (first["value"]["text"], last["value"]["text"]) == ("first", "last")


def test_records_that_have_gone_end_the_search() -> None:
    leader = Leader()
    leader.append([b"x"])
    scan = scan_of({0: leader})
    leader.start = 1
    assert rows_of(scan) == []
    assert scan.scanned.stopped == "end"


# --- Filters and parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "pattern", "text", "found"),
    [
        (TEXT, "a.c", b"xa.cx", True),
        (TEXT, "a.c", b"abc", False),
        (TEXT, "<b>", b"1<b>2", True),
        (RE2, "a.c", b"abc", True),
        (RE2, "^{\"id\": \\d+}$", b'{"id": 17}', True),
        (RE2, "\u00fc+", "\u00fc\u00fc".encode(), True),
        (RE2, "\\xff", b"\xfe", False),
        (RE2, "(a+)+$", b"a" * 200_000 + b"b", False),
    ],
)  # fmt: skip
def test_what_a_filter_finds(mode: str, pattern: str, text: bytes, found: bool) -> None:
    finds = finder(pattern, mode)
    assert finds is not None
    assert finds(text) is found


@pytest.mark.parametrize("pattern", ["(", "a{100000}", "(?=x)", "(?P<n", "x" * 2_000, "((a{1,1000}){1,1000}){1,1000}"])
def test_a_pattern_that_would_cost_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(PatternWrong, match="expected"):
        finder(pattern, RE2)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_part_is_text_or_hex_never_both_and_json_takes_it(data: bytes, shown: int) -> None:
    found = part(data, shown)
    assert found is not None
    assert ("text" in found) != ("hex" in found)
    assert found["size"] == len(data)
    assert json.loads(json.dumps(found)) == found
    if "hex" in found:
        assert bytes.fromhex(found["hex"]) == data[:shown]
    elif "cut" not in found:
        assert found["text"].encode() == data


def test_a_cut_does_not_split_a_character() -> None:
    assert part("äöü".encode(), 3) == {"size": 6, "cut": True, "text": "ä"}
    assert part(None, 3) is None
    assert part("a\u202eb".encode(), 9) == {"size": 5, "hex": "61e280ae62"}
