"""Futures that follow other futures without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def then(source: asyncio.Future[T], finish: Callable[[asyncio.Future[T]], R]) -> asyncio.Future[R]:
    """Return a future with the result of ``finish`` on another one. Cancelling it cancels ``source``; exceptions of
    either propagate."""
    out: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    follow(out, source, finish)
    return out


def follow(out: asyncio.Future[R], source: asyncio.Future[T], finish: Callable[[asyncio.Future[T]], R]) -> None:
    """Do the same for an existing future."""

    def done(_: asyncio.Future[T]) -> None:
        if out.done():
            return
        if source.cancelled():
            out.cancel()
            return
        try:
            out.set_result(finish(source))
        except Exception as error:
            out.set_exception(error)

    def dropped(_: asyncio.Future[R]) -> None:
        if out.cancelled():
            source.cancel()

    source.add_done_callback(done)
    out.add_done_callback(dropped)
