"""When a log had reached which end, remembered at a few points. From that follows how old a record at least is. Pure.

Kafka Lag Exporter estimates the time lag of groups from such a table, too. Here the points are thinned: the older, the
further apart.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

POINTS_MAX: Final = 32


class LogGrowth:
    """One partition's log. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._times_ms = array("q")
        self._ends = array("q")
        """Each greater than the one before; at the same index, the time at which it was first seen."""

    def note(self, now_ms: int, end: int) -> None:
        """Add an end that was seen now. A smaller one than before means another log: it begins anew."""
        if self._ends and end < self._ends[-1]:
            del self._ends[:], self._times_ms[:]
        if self._ends and end == self._ends[-1]:
            return
        self._times_ms.append(now_ms)
        self._ends.append(end)
        if len(self._ends) > POINTS_MAX:
            for points in (self._times_ms, self._ends):
                del points[1 : POINTS_MAX // 2 : 2]

    @property
    def known(self) -> bool:
        return len(self._ends) > 0

    @property
    def end(self) -> int:
        """The end that was seen last."""
        return self._ends[-1]

    def age_ms(self, now_ms: int, offset: int) -> int:
        """Return for how long a record at this offset has been there, or less; 0 if there is none."""
        at = bisect_right(self._ends, offset)
        return now_ms - self._times_ms[at] if at < len(self._ends) else 0
