"""A node's background tasks, and what happens when one of them ends.

A task that ends by itself, with or without an exception, is a bug: it stops the node. Nothing in a node dies quietly.
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
    """A background task returned although it should run as long as its node."""


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether a ``MemoryError`` is behind ``error``."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Supervisor:
    """Starts a node's background tasks and reports the first problem of any of them, once."""

    def __init__(self, on_fatal: OnFatal) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._failed = False

    def run(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` until the node ends; its end before :meth:`stop` is fatal."""
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
        """Report a problem that a part noticed itself. The first report wins, later ones are logged.

        A stopping node treats problems as part of its end, unless memory ran out: then it must not mark half-finished
        work as a clean shutdown.
        """
        if self._stopping and not out_of_memory(error):
            log.debug("while stopping the node: %s", what, exc_info=error)
            return
        if self._failed:
            log.error("after the node had failed: %s", what, exc_info=error)
            return
        self._failed = True
        if out_of_memory(error):
            log.critical(
                "the node is stopping: out of memory (%s). Acknowledged records are safe. Give it more memory, or have "
                "it accept less (max.connections, queued.max.request.bytes, socket.request.max.bytes)", what,
            )  # fmt: skip
        else:
            log.critical("the node is stopping: %s", what, exc_info=error)
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
        error = None if task.cancelled() else task.exception()
        if error is None:
            if self._stopping or task.cancelled():
                return
            error = TaskEnded(f"background task {task.get_name()} ended unexpectedly")
        self.fail(f"background task {task.get_name()} ended: {error!r}", error)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self.fail(f"background task {task.get_name()} failed: {error!r}", error)
