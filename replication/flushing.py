"""fdatasync for logs that ask for it (``flush.messages``, ``flush.ms``): grouped, one in flight per log.

Appends that arrive while a flush runs share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed

OTHERS_FLUSH_S: Final = 0.005
"""Pause before another request if someone else's flush is in progress (the log manager's, if the topic has only just
got its flush settings)."""

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that may block and waits for it: a thread in a node, inline in a simulation."""


async def run_inline(action: Callable[[], None]) -> None:
    """Run it here and now."""
    action()


class Flusher:
    """Flushes replicas' logs, and reports when each is done."""

    def __init__(
        self,
        run_blocking: RunBlocking,
        flushed: Callable[[Replica], None],
        failed: Callable[[Replica, LogDirFailed], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._run_blocking = run_blocking
        self._flushed = flushed
        self._failed = failed
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()
        self._callbacks: dict[Replica, list[Callable[[], None]]] = {}

    def request(self, replica: Replica, done: Callable[[], None] | None = None) -> None:
        """Flush everything appended so far; call ``done`` once it is durable, or the disk failed."""
        if done is not None:
            self._callbacks.setdefault(replica, []).append(done)
        if replica.flushing:
            return
        replica.flushing = True
        task = asyncio.get_running_loop().create_task(self._flush(replica))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _flush(self, replica: Replica) -> None:
        log = replica.partition.log
        try:
            while not replica.partition.offline and not log.closed:
                job = log.begin_flush()
                if job is None:
                    if not replica.partition.needs_flush:
                        break
                    await asyncio.sleep(OTHERS_FLUSH_S)
                    continue
                try:
                    await self._run_blocking(job.run)
                except BaseException:
                    job.release()
                    raise
                log.finish_flush(job)
                self._flushed(replica)
                if not replica.partition.needs_flush:
                    break
        except LogDirFailed as failure:
            self._failed(replica, failure)
        finally:
            replica.flushing = False
            for done in self._callbacks.pop(replica, ()):
                done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._on_fatal(bug)

    def kill(self) -> None:
        """Cancel running flushes without waiting."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel running flushes; already flushed data stays flushed."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
