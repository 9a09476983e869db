"""Background tasks of a node, and what happens when one of them ends.

A task that ends by itself, with or without an exception, is a bug: it takes the node down.
Nothing of a node dies quietly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

OnFatal = Callable[[str, BaseException], None]
"""Called once, with what failed in words and the exception behind it. Must not block."""


class TaskEnded(RuntimeError):
    """A background task returned although it should have run as long as its node."""


class Supervisor:
    """Starts a node's background tasks and reports the first trouble of any of them, once."""

    def __init__(self, on_fatal: OnFatal) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._failed = False

    def run(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` for as long as the node lives; its end before :meth:`stop` is fatal."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def once(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` that may end by itself; only an exception is fatal."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def fail(self, what: str, error: BaseException) -> None:
        """Report trouble that a part noticed itself. The first report wins, later ones are logged."""
        if self._stopping:
            log.debug("while the node stops: %s", what, exc_info=error)
            return
        if self._failed:
            log.error("after the node had failed: %s", what, exc_info=error)
            return
        self._failed = True
        log.critical("the node goes down: %s", what, exc_info=error)
        self._on_fatal(what, error)

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self.kill()
        pending = [task for task in self._tasks if not task.done()]
        if pending:
            await asyncio.wait(pending)

    def kill(self) -> None:
        """Cancel every task without waiting."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._stopping or task.cancelled():
            if not task.cancelled() and (error := task.exception()) is not None:
                log.debug("background task %s failed while the node stopped", task.get_name(), exc_info=error)
            return
        error = task.exception() or TaskEnded(f"background task {task.get_name()} ended by itself")
        self.fail(f"background task {task.get_name()} ended: {error!r}", error)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self.fail(f"background task {task.get_name()} failed: {error!r}", error)
