"""A scenario's additions to a run besides producers and consumers: clients of another kind, and their judges."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Work(Protocol):
    """One such addition. It may add kinds of fault and targets to the run's :class:`FaultInjector` when it is made."""

    @property
    def operations(self) -> int:
        """Client operations that were tried."""

    @property
    def events(self) -> Counter[str]:
        """The events of its clients."""

    async def begin(self) -> None:
        """Start: the topic is there and producers are at work."""

    async def settle(self, bound_s: float) -> None:
        """All is mended and producers have ended: wait until everything is as it must be then.

        Raises ``TimeoutError`` that says what was waited for, if it does not come within the bound.
        """

    def judge(self) -> None:
        """All is over: tell the world of what should not have been."""

    async def finish(self) -> None:
        """End the clients that are left."""

    def failures(self) -> list[tuple[str, BaseException | None]]:
        """Its clients, and what ended each of them, if anything but the run did."""
