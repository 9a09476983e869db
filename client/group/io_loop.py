"""Where a consumer's IO runs: on the loop of its user, or on a loop in a thread of its own.

In a thread of its own the heartbeats of a group go on while the user's program computes, blocks its loop, or
stands in a debugger. In one place (a test, a simulation) everything stays on the one loop.
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
        """Ready for use from now on; call it on the user's loop."""

    def release(self) -> None:
        """No longer used. May be called twice."""

    def call(self, action: Callable[[], object]) -> None:
        """Call ``action`` where IO runs, soon or at once."""

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run ``work`` there; raise its exceptions here."""

    def tell(self, action: Callable[[], object]) -> None:
        """The other way: called where IO runs, it calls ``action`` on the user's side."""


class SameLoop:
    """The loop of the user."""

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
    """The blocking form: callers of :meth:`run` are on the background loop already."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop

    def call(self, action: Callable[[], object]) -> None:
        self._loop.call(action)


class BackgroundThread:
    """A background loop, the process's own unless one is given, under a consumer of another loop."""

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
            return await work  # closed: it says so
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
                return  # closed at this moment: nobody is left to tell
