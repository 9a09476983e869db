"""Where a consumer's IO runs: on its user's loop, or on a loop in its own thread.

In its own thread, a group's heartbeats continue while the user's program computes, blocks its loop, or is stopped in a
debugger. In a test or simulation, everything runs on one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from tidelog.client import background
from tidelog.client.background import BackgroundLoop

R = TypeVar("R")


class IoLoop(Protocol):
    """Used by the user's side of a consumer."""

    def open(self) -> None:
        """Make it ready for use. Call it on the user's loop."""

    def release(self) -> None:
        """End its use. May be called twice."""

    def call(self, action: Callable[[], object]) -> None:
        """Call ``action`` where IO runs, soon or immediately."""

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run ``work`` there, and raise its exceptions here."""

    def tell(self, action: Callable[[], object]) -> None:
        """Call ``action`` on the user's side, from where IO runs."""


class SameLoop:
    """The user's loop."""

    def open(self) -> None:
        pass

    def release(self) -> None:
        pass

    def call(self, action: Callable[[], object]) -> None:
        action()

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        return await work

    def tell(self, action: Callable[[], object]) -> None:
        action()


class CallersLoop(SameLoop):
    """The blocking form: callers of :meth:`run` are already on the background loop."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop

    def call(self, action: Callable[[], object]) -> None:
        self._loop.call(action)


class BackgroundThread:
    """A background loop, by default the process's own, for a consumer on another loop."""

    def __init__(self, loop: BackgroundLoop | None = None) -> None:
        self._loop = loop
        self._owns = loop is None
        self._users: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._users = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = background.acquire()

    def release(self) -> None:
        if self._owns and self._loop is not None:
            loop, self._loop = self._loop, None
            background.release(loop)

    def call(self, action: Callable[[], object]) -> None:
        if self._loop is not None:
            self._loop.call(action)

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        loop = self._loop
        if loop is None:
            return await work  # closed: this raises
        try:
            loop.check()
        except BaseException:
            work.close()
            raise
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop.loop))

    def tell(self, action: Callable[[], object]) -> None:
        if self._users is not None and not self._users.is_closed():
            try:
                self._users.call_soon_threadsafe(action)
            except RuntimeError:
                return  # just closed: nobody is left to tell
