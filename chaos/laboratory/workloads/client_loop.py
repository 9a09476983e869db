"""The clients' event loop, in its own thread: the main thread waits for processes and proxies meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as WaitedTooLong
from types import TracebackType
from typing import Any, Final, TypeVar

T = TypeVar("T")

END_S: Final = 10.0


class ClientLoop:
    """``with ClientLoop() as clients: clients.run(coroutine, bound_s)``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients", daemon=True)

    def __enter__(self) -> ClientLoop:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._cancel_rest(), END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], bound_s: float) -> T:
        """Run a coroutine on the loop and wait for the result. Raises what the coroutine raises; ``TimeoutError`` after
        the bound, and the coroutine is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(bound_s)
        except WaitedTooLong:
            future.cancel()
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise

    async def _cancel_rest(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=END_S / 2)
