"""Runs of damaged clusters, in which something must show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidelog.chaos.simulated.world.scenario import Fault, Scenario
from tidelog.chaos.simulated.world.world import World


def shows(words: str, scenario: Scenario, seed: int, schedule: Sequence[Fault] | None = None) -> bool:
    """Return whether a violation with these words shows. The run ends with the first one: what comes after it is no
    longer asked for, and takes most of the time."""
    found = False
    violated = World.violated

    def heard(world: World, text: str) -> None:
        nonlocal found
        violated(world, text)
        if words in text:
            found = True
            world.loop.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "violated", heard)
        try:
            scenario.run(seed, schedule)
        except RuntimeError:  # asyncio's: the loop was stopped
            if not found:
                raise
    return found
