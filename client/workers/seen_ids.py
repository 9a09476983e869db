"""Duplicates by message id, within a window of offsets. Pure.

A record is a duplicate if one of the ``window`` offsets before it, in its partition, has the same id. That is a
property of the log, so a restarted or another member decides the same way: a new owner reads the window again
(:attr:`Deduplicate.window` offsets) before it processes anything.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tidelog.proto.records.walk import RecordHeaders


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Skips a record whose header ``header`` has the same value as one of the ``window`` offsets before it in its
    partition. A record without the header is never skipped. ``window``: 1 to 1,000,000."""

    header: str = "id"
    window: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1_000_000:
            raise ValueError(f"window: expected 1 to 1000000 offsets, found {self.window}")
        if not self.header:
            raise ValueError("header: expected the name of a header, found ''")

    def id_of(self, headers: RecordHeaders) -> bytes | None:
        """Return a record's id; ``None`` without the header."""
        for name, value in headers:
            if name == self.header:
                return value
        return None


class SeenIds:
    """The ids of the last ``window`` offsets of one partition."""

    __slots__ = ("_last", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: OrderedDict[bytes, int] = OrderedDict()
        """Id → the last offset that has it, ordered by offset."""

    def __len__(self) -> int:
        return len(self._last)

    def seen(self, offset: int, message_id: bytes) -> bool:
        """Note the id of the next record. Returns true if it is a duplicate."""
        while self._last and next(iter(self._last.values())) < offset - self._window:
            self._last.popitem(last=False)
        known = message_id in self._last
        self._last[message_id] = offset
        self._last.move_to_end(message_id)
        return known
