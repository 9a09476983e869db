"""Time, as it is handed to the coordinator's core."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """Now, by both clocks: sessions and rebalances run on the one that never jumps, records carry the other."""

    monotonic_ms: int
    wall_ms: int
