"""The judge of the demo's second half must reject every kind of bad topic, and nothing but bad ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.demo.delays.judge import EXAMPLES_MAX, DelaysVerdict, Found, judge

EXPECTED = {f"UA 2013-01-01T{hour:02}:00:00Z": f'{{"delay_minutes":{hour}}}' for hour in range(24)}


def topic() -> list[Found]:
    """The topic's content after a flawless run, over three partitions."""
    return [Found(at % 3, at // 3, key, value) for at, (key, value) in enumerate(EXPECTED.items())]


def counts(verdict: DelaysVerdict) -> tuple[int, int, int, int]:
    return verdict.missing, verdict.twice, verdict.wrong, verdict.foreign


def test_a_flawless_topic_passes_in_any_order() -> None:
    verdict = judge(EXPECTED, reversed(topic()))
    assert verdict.passed
    assert (verdict.expected, verdict.found, counts(verdict)) == (24, 24, (0, 0, 0, 0))
    assert verdict.examples == ()


def again(found: list[Found]) -> None:
    found.append(found[5]._replace(offset=100))


def again_and_wrong(found: list[Found]) -> None:
    found.append(found[5]._replace(offset=100, value="{}"))


def lose(found: list[Found]) -> None:
    del found[7]


def change(found: list[Found]) -> None:
    found[3] = found[3]._replace(value='{"delay_minutes":99}')


def add(found: list[Found]) -> None:
    found.append(Found(0, 100, "UA 2014-01-01T00:00:00Z", "{}"))


def swap(found: list[Found]) -> None:
    found[1], found[2] = found[1]._replace(value=found[2].value), found[2]._replace(value=found[1].value)


@pytest.mark.parametrize(
    ("spoil", "expected", "words"),
    [
        (lose, (1, 0, 0, 0), "missing: UA 2013-01-01T07:00:00Z"),
        (again, (0, 1, 0, 0), "twice: UA 2013-01-01T05:00:00Z at partition 2 offset 1, and at partition 2 offset 100"),
        (again_and_wrong, (0, 1, 1, 0), 'expected {"delay_minutes":5}, found {}'),
        (change, (0, 0, 1, 0), 'expected {"delay_minutes":3}, found {"delay_minutes":99}'),
        (swap, (0, 0, 2, 0), "wrong: UA 2013-01-01T01:00:00Z"),
        (add, (0, 0, 0, 1), "foreign: 'UA 2014-01-01T00:00:00Z' at partition 0 offset 100"),
    ],
)
def test_each_kind_of_bad_topic_is_rejected(
    spoil: Callable[[list[Found]], None], expected: tuple[int, int, int, int], words: str
) -> None:
    found = topic()
    spoil(found)
    verdict = judge(EXPECTED, found)
    assert not verdict.passed
    assert counts(verdict) == expected
    assert any(words in example for example in verdict.examples)


def test_nothing_computed_is_no_success() -> None:
    assert not judge({}, []).passed


def test_examples_are_few_of_each_kind() -> None:
    verdict = judge(EXPECTED, [record._replace(value="{}") for record in topic()[:12]])
    assert counts(verdict) == (12, 0, 12, 0)
    assert len(verdict.examples) == 2 * EXAMPLES_MAX


@given(st.lists(st.sampled_from(topic()), max_size=40))
def test_only_each_row_once_passes(found: list[Found]) -> None:
    verdict = judge(EXPECTED, found)
    keys = [record.key for record in found]
    assert verdict.passed == (sorted(keys) == sorted(EXPECTED))
    assert verdict.missing == len(EXPECTED.keys() - set(keys))
    assert verdict.twice == sum(keys.count(key) > 1 for key in set(keys))
