"""An event loop whose time is virtual."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _VirtualSelector(selectors.SelectSelector):
    """Never waits: what a wait would have taken is added to the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everything waits and no timer is set: a deadlock")
            self.passed_s += max(timeout, 0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which timers fire as soon as nothing else can run."""

    def __init__(self) -> None:
        self.virtual = _VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return 1_000.0 + self.virtual.passed_s


class LoopClock:
    """A node's clocks in virtual time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


def run_virtual(work: Coroutine[Any, Any, R]) -> R:
    """Run to the end in virtual time; what is still running then is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test as a coroutine that is run as :func:`run_virtual` does."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run
