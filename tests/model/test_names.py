"""Valid topic names. Cases: Kafka's ``TopicTest``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.names import TOPIC_NAME_LENGTH_MAX, collision_key, is_internal, topic_name_fault


@pytest.mark.parametrize("name", ["valid", "TOPIC", "nAmEs", "ar6", "VaL1d", "_0-9_.", "...", "x" * 249])
def test_valid(name: str) -> None:
    assert topic_name_fault(name) is None


@pytest.mark.parametrize("name", ["", "foo bar", "..", "foo:bar", "foo=bar", ".", "x" * 250, "ä", "a/b", "a\n", "a\0"])
def test_invalid(name: str) -> None:
    assert topic_name_fault(name) is not None


@given(st.text(max_size=300))
def test_a_valid_name_is_a_plain_file_name(name: str) -> None:
    if topic_name_fault(name) is None:
        assert len(name.encode()) == len(name) <= TOPIC_NAME_LENGTH_MAX
        assert "/" not in name
        assert name not in (".", "..")


def test_collisions() -> None:
    assert collision_key("a.b") == collision_key("a_b")
    assert collision_key("a.b") != collision_key("a-b")


def test_internal_topics() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert is_internal("__audit")
    assert not is_internal("flights")
