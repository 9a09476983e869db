"""How a group's progress is judged: by table, and against what must hold for any window."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.broker.health.facts import Progress
from tidelog.broker.health.progress import Sample, Windows, judge
from tidelog.model.ids import TopicPartition


def window(*offsets: tuple[int, int]) -> list[Sample]:
    """Looks a second apart, each (committed, log end)."""
    return [Sample(1_000 * at, committed, end) for at, (committed, end) in enumerate(offsets)]


@pytest.mark.parametrize(
    ("offsets", "reader", "expected"),
    [
        ([(5, 5), (5, 5), (5, 5)], True, (Progress.OK, None)),
        ([(1, 9), (1, 9), (9, 9)], True, (Progress.OK, None)),
        ([(1, 9), (1, 9), (1, 9)], True, (Progress.STALLED, 0)),
        ([(1, 9), (1, 9), (1, 9)], False, (Progress.STOPPED, 0)),
        ([(1, 9), (2, 10), (3, 11)], True, (Progress.SLOW, 0)),
        ([(1, 9), (2, 10), (3, 10)], True, (Progress.OK, None)),
        ([(9, 9), (9, 12), (9, 15)], True, (Progress.OK, None)),
        ([(5, 9), (2, 9), (3, 9)], True, (Progress.REWOUND, 1_000)),
        ([(5, 9), (2, 9), (6, 9)], True, (Progress.OK, None)),
        ([(5, 9), (2, 2), (2, 9)], True, (Progress.REWOUND, 1_000)),
        ([(1, 9), (1, 9)], True, (Progress.UNSETTLED, None)),
        ([(9, 9), (9, 9)], True, (Progress.OK, None)),
    ],
)
def test_what_a_window_means(
    offsets: list[tuple[int, int]], reader: bool, expected: tuple[Progress, int | None]
) -> None:
    assert judge(window(*offsets), reader, wanted=3) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 12),
)
def test_a_group_that_has_caught_up_is_well_and_only_a_reader_stalls(
    offsets: list[tuple[int, int]], reader: bool, wanted: int
) -> None:
    samples = window(*offsets)
    progress, since = judge(samples, reader, wanted)
    if samples[-1].lag == 0:
        assert progress is Progress.OK
    if progress in (Progress.STALLED, Progress.STOPPED):
        assert (progress is Progress.STALLED) == reader
        assert samples[0].committed == samples[-1].committed
    if progress is Progress.SLOW:
        assert samples[0].lag <= samples[-1].lag
    assert (since is None) == (progress in (Progress.OK, Progress.UNSETTLED))


def test_a_window_forgets_partitions_that_are_gone_and_old_looks() -> None:
    windows, here, gone = Windows(3), ("g", TopicPartition("t", 0)), ("g", TopicPartition("t", 1))
    windows.look({here: Sample(0, 0, 0), gone: Sample(0, 0, 0)})
    for time_ms in range(1, 5):
        windows.look({here: Sample(time_ms, 0, 0)})
    assert [sample.time_ms for sample in windows.of(*here)] == [2, 3, 4]
    with pytest.raises(KeyError):
        windows.of(*gone)
