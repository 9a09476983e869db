"""Long work on the event loop, in steps with other work in between, and without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")

SLICE: Final = 500
"""Partitions of one request to process before others get their turn: some 10 ms."""


class Wait:
    """Continue when :meth:`Sliced.go_on` is called."""


WAIT: Final = Wait()

Steps: TypeAlias = Generator["asyncio.Future[Any] | Wait | None", None, T]
"""``None`` yields to other work; a future is awaited."""


class Sliced(Generic[T]):
    """Runs steps up to their result. Cancelling ``future`` closes them, and cancels what they wait for."""

    __slots__ = ("_loop", "_steps", "_waited", "future")

    def __init__(self, steps: Steps[T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps = steps
        self._waited: asyncio.Future[Any] | None = None
        self.future: asyncio.Future[T] = self._loop.create_future()

    def begin(self) -> asyncio.Future[T]:
        """Start; steps that need no wait are done on return."""
        self.go_on()
        if not self.future.done():
            self.future.add_done_callback(self._ended)
        return self.future

    def go_on(self, _: object = None) -> None:
        """Run the next step."""
        if self.future.done():
            return
        self._waited = None
        try:
            waited = next(self._steps)
        except StopIteration as end:
            self.future.set_result(end.value)
        except asyncio.CancelledError:
            self.future.cancel()
        except Exception as error:
            self.future.set_exception(error)
        else:
            if waited is None:
                self._loop.call_soon(self.go_on)
            elif isinstance(waited, asyncio.Future):
                self._waited = waited
                waited.add_done_callback(self.go_on)

    def _ended(self, future: asyncio.Future[T]) -> None:
        if future.cancelled():
            if self._waited is not None:
                self._waited.cancel()
            self._steps.close()
