"""Java's ``.properties``: the examples of ``java.util.Properties.load``'s documentation, and a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import format_properties, parse_properties


def values(text: str) -> dict[str, str]:
    return {key: found.value for key, found in parse_properties(text).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Truth = Beauty", {"Truth": "Beauty"}),
        ("  Truth:Beauty", {"Truth": "Beauty"}),
        ("Truth\t\t\t:Beauty", {"Truth": "Beauty"}),
        ("fruits apple, banana, pear, \\\n   cantaloupe", {"fruits": "apple, banana, pear, cantaloupe"}),
        ("cheeses", {"cheeses": ""}),
        ("# comment\n! comment\n\n  \t\na=1", {"a": "1"}),
        ("a\\:b\\=c\\ d = e", {"a:b=c d": "e"}),
        ("a = b = c", {"a": "b = c"}),
        ("a=\\t\\n\\u00e4\\q", {"a": "\t\näq"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=b  ", {"a": "b  "}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n", {"a": "b"}),
        ("", {}),
    ],
)
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


def test_lines_are_counted_through_continuations() -> None:
    found = parse_properties("a=1,\\\n2\n# x\nb=3\n")
    assert (found["a"].line, found["b"].line) == (1, 4)


def test_comment_mark_in_a_continued_line_is_text() -> None:
    assert values("a=1,\\\n#2\n") == {"a": "1,#2"}


def test_key_twice() -> None:
    with pytest.raises(ConfigError, match="line 2: a is set already in line 1"):
        parse_properties("a=1\na=2")


KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.dictionaries(KEYS, st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=5))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert values(format_properties(properties)) == properties


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_properties(text)
    except ConfigError as error:
        assert str(error).startswith("line ")
