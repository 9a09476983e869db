"""Time, as passed to the coordinator's core."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """The current time on both clocks: sessions and rebalances use the monotonic clock, records the wall clock."""

    monotonic_ms: int
    wall_ms: int
