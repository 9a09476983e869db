"""Draws from a seed which node is killed at which moment of a roll."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

BEFORE: Final = "instead of its shutdown"
STOPPING: Final = "while it shuts down"
STARTING: Final = "while it starts"
BESIDE: Final = "another one, as soon as it serves"
MOMENTS: Final = (BEFORE, STARTING, STOPPING, BESIDE)
STOPPING_S: Final = 0.7
"""Maximum delay after SIGTERM: a shutdown takes about that long."""
STARTING_S: Final = 2.5
"""Maximum delay after a start: that takes about that long."""
FINALISING_S: Final = 0.05
"""Maximum delay after the request for the levels: they are in force some milliseconds later."""


class Kills:
    """Draws the kills. Two moments at every step, each moment at every second step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"upgrade-{seed}")
        self._step = self.rng.randrange(len(MOMENTS))
        self.count = 0

    def moments(self) -> Sequence[str]:
        """Return the moments of the next step."""
        self._step += 1
        first = self._step % len(MOMENTS)
        return (MOMENTS[first], MOMENTS[(first + 1) % len(MOMENTS)])
