"""Steps that a group requests from the consumer's form (blocking or asyncio): calls of the user's functions, and
waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tidelog.client.errors import IllegalStateError, RebalanceCallbackError, TidelogError

UserCall = Callable[[], Any]
"""A user's function to call (and to await, if it returns an awaitable)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for news, at most until this time (ms, monotonic)."""

    until_ms: int


Steps = Generator[UserCall | Wait, BaseException | None, None]
"""Driven by ``send``, with a call's exception or ``None``."""


def nested() -> IllegalStateError:
    return IllegalStateError("called from within a rebalance listener or commit callback of the same consumer")


def reported(called: str, error: BaseException) -> BaseException:
    """Return the error that poll raises for an error in a listener: our own as they are, others wrapped (as Kafka
    does)."""
    if isinstance(error, TidelogError) or not isinstance(error, Exception):
        return error
    found = RebalanceCallbackError(f"{called} raised {error!r}")
    found.__cause__ = error
    return found
