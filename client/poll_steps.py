"""What a group asks of the form of the consumer, blocking or asyncio: to call the user's functions, to wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tidelog.client.errors import IllegalStateError, RebalanceCallbackError, TidelogError

UserCall = Callable[[], Any]
"""Something of the user's, to be called (and awaited, if it returns an awaitable)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for news, until this time (ms, monotonic) at most."""

    until_ms: int


Steps = Generator[UserCall | Wait, BaseException | None, None]
"""Driven by ``send``: of what a call raised, or ``None``."""


def nested() -> IllegalStateError:
    return IllegalStateError("called from within a rebalance listener or commit callback of the same consumer")


def reported(called: str, error: BaseException) -> BaseException:
    """What poll raises of an error in a listener: our own as they are, others wrapped (as Kafka does)."""
    if isinstance(error, TidelogError) or not isinstance(error, Exception):
        return error
    found = RebalanceCallbackError(f"{called} raised {error!r}")
    found.__cause__ = error
    return found
