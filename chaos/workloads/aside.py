"""Runs a blocking program of the SDK in a world whose clients are asyncio's.

The program has a thread of its own, but only one of the two works at a time: the loop stands while the program
computes, and the program while the loop does what it asked for. So a simulation stays deterministic, and a wait of the
program passes in virtual time.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")
_Context = AbstractAsyncContextManager[object]


class Died(BaseException):
    """Ends a program whose process was killed. Whatever it asks for on its way out, it gets this again."""


class Aside(Generic[T]):
    """One run of a program: :meth:`run` it on the loop; the program calls :meth:`ask`."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        self.died = False
        self._thread: threading.Thread | None = None
        self._results: list[T] = []
        self._error: BaseException | None = None

    async def run(self, program: Callable[[], T]) -> T:
        """Run the program to its end. Raises what it raises."""
        self._thread = threading.Thread(target=self._work, args=(program,), daemon=True)
        self._thread.start()
        while (ask := self._asked.get()) is not None:
            try:
                answer = ask()
                self._told.put((await answer if inspect.iscoroutine(answer) else answer, None))
            except Exception as error:
                self._told.put((None, error))
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def ask(self, what: Callable[[], object]) -> object:
        """Let the loop call something, and await it if it is a coroutine. For the program's thread."""
        if self.died:
            raise Died
        self._asked.put(what)
        answer, error = self._told.get()
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        """End the program where it is, if it has begun and not ended. The run never returns."""
        if self._thread is not None and self._thread.is_alive():
            self.died = True
            self._told.put((None, Died()))
            self._thread.join()

    def _work(self, program: Callable[[], T]) -> None:
        try:
            self._results.append(program())
        except BaseException as error:
            self._error = error
        self._asked.put(None)


class Blocking(Generic[T]):
    """An asyncio client, or what its methods return, for a program aside: as the blocking one, which is generated from
    it."""

    def __init__(self, aside: Aside[T], inner: object) -> None:
        self._aside: Final[Aside[T]] = aside
        self._inner: Final = inner

    def __enter__(self) -> object:
        entered = self._aside.ask(cast(_Context, self._inner).__aenter__)
        return self if entered is self._inner else entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return cast(bool | None, self._aside.ask(lambda: cast(_Context, self._inner).__aexit__(kind, error, traceback)))

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if not inspect.isroutine(found):
            return found

        def call(*arguments: object, **named: object) -> object:
            answer = self._aside.ask(lambda: found(*arguments, **named))
            return Blocking(self._aside, answer) if hasattr(answer, "__aenter__") else answer

        return call
