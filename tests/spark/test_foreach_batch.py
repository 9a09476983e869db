"""The function for ``foreachBatch``, without Spark: the names of its writes, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.spark_connector.foreach_batch import QUERY_ID, exactly_once, write_once

BROKERS = {"tidelog.bootstrap.servers": "127.0.0.1:9092"}


class Frame:
    """As much of a DataFrame as is looked at; notes the options of each write."""

    def __init__(self, query: str | None = "q", fails: bool = False) -> None:
        self.written: list[dict[str, str]] = []
        self.fails = fails
        self.settings: dict[str, str] = {}
        properties = {} if query is None else {QUERY_ID: query}
        context = type("Context", (), {"getLocalProperty": staticmethod(properties.get)})
        conf = type(
            "Conf", (), {"get": staticmethod(self.settings.get), "set": staticmethod(self.settings.__setitem__)}
        )
        self.sparkSession = type("Session", (), {"sparkContext": context, "conf": conf})

    @property
    def write(self) -> Frame:
        return self

    def format(self, name: str) -> Frame:
        assert name == "tidelog"
        return self

    def options(self, **given: str) -> Frame:
        self._given = given
        return self

    def mode(self, name: str) -> Frame:
        assert name == "append"
        return self

    def save(self) -> None:
        if self.fails:
            raise OSError("no broker")
        self.written.append(self._given)


def write(frame: Any, batch_id: int, options: dict[str, str], **name: str) -> None:
    write_once(frame, batch_id, BROKERS | options, **name)


def test_a_write_is_named_by_query_and_name_and_counted_by_batch() -> None:
    frame = Frame()
    write(frame, 3, {"topic": "t"})
    write(frame, 3, {"topic": "t"}, name="late")
    write(frame, 3, {"topic": "u"})
    write(frame, 4, {"topic": "t"})
    found = [(one["appId"], one["topic"], one["version"]) for one in frame.written]
    assert found == [("q/", "t", "3"), ("q/late", "t", "3"), ("q/", "u", "3"), ("q/", "t", "4")]


def test_a_second_write_of_the_same_name_is_no_repetition_of_the_first_in_one_run() -> None:
    frame = Frame()
    write(frame, 3, {"topic": "t"}, name="x")
    with pytest.raises(ValueError, match="batch 3 was written under the name 'x' to this topic already"):
        write(frame, 3, {"topic": "t"}, name="x")
    again = Frame()  # another run of the query: Spark gives it a session of its own
    write(again, 3, {"topic": "t"}, name="x")
    assert len(frame.written) == len(again.written) == 1


def test_a_write_that_failed_may_be_tried_again() -> None:
    frame = Frame(fails=True)
    with pytest.raises(OSError, match="no broker"):
        write(frame, 3, {"topic": "t"})
    frame.fails = False
    write(frame, 3, {"topic": "t"})
    assert len(frame.written) == 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"found no query: give frame.write the options appId and version instead"):
        write(Frame(query=None), 3, {"topic": "t"})
    for option in ("appId", "VERSION"):
        with pytest.raises(ValueError, match=f"expected no option {option}"):
            write(Frame(), 3, {"topic": "t", option: "1"})
    by_topic: Any = exactly_once(BROKERS | {"Topic": "t"}, lambda frame, _: {"t": frame})
    with pytest.raises(ValueError, match="expected no option topic for DataFrames that are given by topic"):
        by_topic(Frame(), 3)


def test_what_is_made_of_a_batch_is_written_and_nothing_of_nothing() -> None:
    frame, other = Frame(), Frame()
    asked: list[tuple[Any, int]] = []

    def make(batch: object, batch_id: int) -> Any:
        asked.append((batch, batch_id))
        return other

    function: Any = exactly_once(BROKERS | {"topic": "t"}, make, name="n")
    function(frame, 5)
    assert asked == [(frame, 5)]
    assert (frame.written, len(other.written)) == ([], 1)
    nothing: Any = exactly_once(BROKERS, lambda *_: {})
    nothing(frame, 5)
    assert frame.written == []
