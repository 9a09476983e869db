"""Additions of a scenario to a run besides producers and consumers: clients of another kind, and their judges."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Work(Protocol):
    """One such addition. Its constructor may add kinds of fault and targets to the run's :class:`FaultInjector`."""

    @property
    def operations(self) -> int:
        """Return the number of client operations that were attempted."""

    @property
    def events(self) -> Counter[str]:
        """Return the events of its clients."""

    async def begin(self) -> None:
        """Start: the topic exists and producers are working."""

    async def settle(self, bound_s: float) -> None:
        """Wait for the required final state; everything is repaired and producers have ended.

        Raises ``TimeoutError``, which says what was waited for, if the state is not reached within the bound.
        """

    def judge(self) -> None:
        """Report violations to the world, now that all is over."""

    async def finish(self) -> None:
        """End the remaining clients."""

    def failures(self) -> list[tuple[str, BaseException | None]]:
        """Return its clients, each with the error that ended it, if anything but the run did."""
