"""Strangers' text stays on one line."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.escaping import escaped, escaped_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nFATAL b", r"a\nFATAL b"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\r\x08\x7f\x85\x9b", r"\r\x08\x7f\x85\x9b"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("\u202egnp.exe\u2066\u200f\ufeff", r"\u202egnp.exe\u2066\u200f\ufeff"),
        ("\ud800 \U000e0041", r"\ud800 \U000e0041"),
        (r"C:\new", r"C:\new"),
        (
            "Zürich 東京 می\u200cخواهم 👩\u200d🚀 1\u00a0000 \ue000",
            "Zürich 東京 می\u200cخواهم 👩\u200d🚀 1\u00a0000 \ue000",
        ),
    ],
)
def test_what_a_terminal_acts_on_is_spelled_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_what_is_to_be_kept_is_kept() -> None:
    assert escaped("a\tb\nc\x1b", keep="\t\n") == "a\tb\nc\\x1b"


def unsafe(text: str) -> set[str]:
    """By the categories that Unicode has for them, the joiners apart."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\u200c", "\u200d"}


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left(text: str) -> None:
    shown = escaped(text)
    assert not unsafe(shown)
    assert len(shown.splitlines()) <= 1
    if not unsafe(text):
        assert shown == text


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_json_keeps_its_meaning(value: dict[str, str]) -> None:
    text = escaped_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert unsafe(text) <= {"\n"}
    assert json.loads(text) == value
