"""The names of sinks' transactions lead to their sink, and nobody else's do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.sinks import (
    BATCH_MAX,
    SINK_PREFIX,
    SinkAttempt,
    coordinator_key,
    is_sinks,
    job_fault,
    part_fault,
    sink_attempt,
    sink_fault,
    sink_key,
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
parts = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


@given(names, st.integers(0, BATCH_MAX), parts, parts)
def test_an_attempt_is_read_from_its_id(sink: str, batch: int, job: str, attempt: str) -> None:
    whose = SinkAttempt(sink, batch, job, attempt)
    assert sink_attempt(whose.transactional_id) == whose
    assert coordinator_key(whose.transactional_id) == sink == coordinator_key(sink_key(sink))
    assert len(whose.transactional_id.encode()) < 32_767
    assert part_fault("job", job) is None
    assert job_fault(batch, job) is None


@given(names)
def test_other_ids_are_their_own_keys(name: str) -> None:
    if not name.startswith(SINK_PREFIX):
        assert coordinator_key(name) == name
        assert not is_sinks(name)
        assert sink_attempt(name) is None


@given(names)
def test_whatever_follows_the_prefix_harms_nobody(rest: str) -> None:
    found = sink_attempt(SINK_PREFIX + rest)
    assert found is None or coordinator_key(SINK_PREFIX + rest) == found.sink


@pytest.mark.parametrize("sink", ["", "x" * 256, "ü" * 128, "\ud800"])
def test_names_that_no_sink_has(sink: str) -> None:
    fault = sink_fault(sink)
    assert fault is not None
    assert fault.startswith("expected a sink's name")


@pytest.mark.parametrize("sink", ["x" * 255, "ü" * 127, "__sink/a", "/", " "])
def test_names_that_sinks_have(sink: str) -> None:
    assert sink_fault(sink) is None
    assert coordinator_key(sink_key(sink)) == sink


@pytest.mark.parametrize("part", ["", "a/b", "x" * 65, "a b", "ä", "a\n"])
def test_parts_that_there_are_not(part: str) -> None:
    assert part_fault("attempt", part) is not None
    assert job_fault(0, part) is not None


def test_batches_that_there_are_not() -> None:
    assert job_fault(-1, "j") == "expected a batch from 0 on, found -1"
    assert job_fault(BATCH_MAX + 1, "j") is not None
