"""The thread for the blocking clients' IO: one event loop per process, while any client is open."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.client.errors import ClientClosedError, IllegalStateError, RequestTimedOutError

R = TypeVar("R")


class BackgroundLoop:
    """An event loop in a daemon thread; it runs from the start until :meth:`stop`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="tidelog io", daemon=True)
        self._thread.start()
        started.wait()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float | None = None) -> R:
        """Run ``work`` on the loop and block until it is done; raise what it raises.

        Raises ``RequestTimedOutError`` after ``timeout_s``, ``IllegalStateError`` on the loop's own
        thread (a callback that calls a blocking method would wait for itself), ``ClientClosedError``
        in a process forked from the one that runs the loop.
        """
        if self.is_own_thread or self._pid != os.getpid() or not self._thread.is_alive():
            work.close()
            self.check()
            raise IllegalStateError(
                "a blocking call was made on the client's own IO thread (in a delivery callback?), where it would "
                "wait for itself forever"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise RequestTimedOutError(f"not done within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, action: Callable[[], object]) -> None:
        """Schedule ``action`` on the loop; return at once."""
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            self.check()
            raise ClientClosedError("this client is closed") from None

    def check(self) -> None:
        """Raise ``ClientClosedError`` if this loop does not run in this process."""
        if self._pid != os.getpid():
            raise ClientClosedError(
                f"this client was made in process {self._pid} and its threads stayed there; make a new one after fork()"
            )
        if not self._thread.is_alive():
            raise ClientClosedError("this client is closed")

    def stop(self) -> None:
        """Stop the loop and wait for its thread. May be called twice."""
        if self._pid == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class _Shared:
    """The process's own loop, counted by its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: BackgroundLoop | None = None
        self._users = 0

    def acquire(self) -> BackgroundLoop:
        with self._lock:
            if self._loop is None:
                self._loop = BackgroundLoop()
            self._users += 1
            return self._loop

    def release(self, loop: BackgroundLoop) -> None:
        with self._lock:
            if loop is not self._loop:
                return  # of the process that this one was forked from
            self._users -= 1
            if not self._users:
                self._loop = None
            else:
                return
        loop.stop()

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]  # a child of fork() starts anew: the lock may be held by a thread that is not here


_shared = _Shared()
os.register_at_fork(after_in_child=_shared.forget)


def acquire() -> BackgroundLoop:
    """Return the process's loop, creating it if necessary. Give it back with :func:`release`."""
    return _shared.acquire()


def release(loop: BackgroundLoop) -> None:
    """Give back the loop. The last user stops it."""
    _shared.release(loop)
