"""Every judge of links rejects what it is there to reject, and takes what is right."""

from __future__ import annotations

from tidelog.chaos.checkers import links
from tidelog.chaos.checkers.history import Outcome, Polled, Sent
from tidelog.chaos.checkers.links import Told
from tidelog.chaos.checkers.transactions import LogEntry
from tidelog.model.ids import TopicPartition

AT = TopicPartition("t", 0)
MASK = 1 << 40


def plain(offset: int, *values: bytes) -> LogEntry:
    return LogEntry(offset, 7, 0, False, None, [(offset + number, value) for number, value in enumerate(values)])


def written(offset: int, value: bytes, producer: int = 9) -> LogEntry:
    return LogEntry(offset, producer, 0, True, None, [(offset, value)])


def marker(offset: int, *, committed: bool, producer: int = 9) -> LogEntry:
    return LogEntry(offset, producer, 0, True, committed)


SOURCE = [plain(0, b"a", b"b"), written(2, b"c"), marker(3, committed=True), plain(4, b"d")]
TARGET = [one._replace(producer_id=one.producer_id ^ MASK) for one in SOURCE]


def copied(target: list[LogEntry], end: int, source: list[LogEntry] = SOURCE) -> list[str]:
    return links.copied({AT: source}, {AT: target}, {AT: end})


def test_a_copy_has_the_same_records_and_markers_at_the_same_offsets() -> None:
    assert copied(TARGET, 5) == []
    assert copied(TARGET[:2], 3) == [], "the link is not so far yet"
    assert copied([*TARGET[:3], plain(4, b"own")], 4) == [], "the target's own"
    for wrong in (
        [plain(0, b"a", b"x"), *TARGET[1:]],
        [plain(0, b"a"), *TARGET[1:]],
        [*TARGET[:2], marker(3, committed=False), TARGET[3]],
        [*TARGET[:2], TARGET[3]],
        [*TARGET[:3], plain(4, b"d", b"d")],
    ):
        assert "expected below 6 what the source has" in copied(wrong, 6)[0]
    assert copied([], 1), "less than its end says"


def test_markers_of_a_promotion_are_the_targets_own_and_no_others() -> None:
    ended = [TARGET[0], TARGET[1], marker(3, committed=False)]
    assert copied(ended, 4) == []
    decided = [marker(3, committed=True), marker(4, committed=False, producer=8)]
    assert copied([*ended, marker(4, committed=False)], 5, [*SOURCE[:2], *decided]) == [], "the source's came later"
    assert copied([*ended[:2], marker(3, committed=True)], 4, [*SOURCE[:2], plain(3, b"z")]), "nobody commits here"
    assert copied([plain(0, b"a"), marker(1, committed=False)], 2, [plain(0, b"x")])


def test_a_kept_position_is_there_in_the_end() -> None:
    assert links.promised({AT: 5}, {AT: 5}) == []
    assert "position 6, the target's log ends at 5" in links.promised({AT: 6}, {AT: 5})[0]
    assert links.promised({AT: 1}, {})


def test_a_drain_leaves_nothing_behind() -> None:
    def sent(offset: int, outcome: Outcome = Outcome.OK) -> Sent:
        return Sent("p", offset, AT, b"%d" % offset, outcome, offset)

    both = ({AT: SOURCE}, {AT: TARGET})
    assert links.left_behind([sent(4), sent(5, Outcome.UNKNOWN)], *both, {AT: 5}) == []
    assert "acknowledged at offset 5" in links.left_behind([sent(5)], *both, {AT: 5})[0]
    aborted = [*TARGET[:2], marker(3, committed=False), TARGET[3]]
    assert "on one side only" in links.left_behind([], {AT: SOURCE}, {AT: aborted}, {AT: 5})[0]


def test_readers_see_nothing_that_the_source_does_not_show() -> None:
    committed = [written(0, b"a"), marker(1, committed=True)]
    aborted = [written(0, b"a"), marker(1, committed=False)]
    assert links.shown({AT: committed}, {AT: aborted}, {AT: 2}) == [], "a promotion may abort it"
    assert "does not" in links.shown({AT: aborted}, {AT: committed}, {AT: 2})[0]
    poll = Polled("r", AT, [(0, b"a")], read_committed=True)
    assert links.told([poll], {AT: committed}) == []
    assert "does not count" in links.told([poll], {AT: aborted})[0]


def test_a_groups_offset_is_not_beyond_the_records_nor_moved_by_the_link_after_the_promotion() -> None:
    assert links.groups([Told("g", AT, 5, 5)], {}) == []
    assert "no log reaches beyond 5" in links.groups([Told("g", AT, 6, 5)], {})[0]
    assert links.groups([Told("g", AT, 3, 5)], {("g", AT): 3}) == []
    assert "expected 3" in links.groups([Told("g", AT, 4, 5)], {("g", AT): 3})[0]
