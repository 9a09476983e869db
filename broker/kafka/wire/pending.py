"""A handler's result: an answer, or one to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.broker.kafka.wire.outgoing import Piece

Pieces = Sequence[Piece]


class Pending:
    """A future answer: ``finish`` makes it from the future's result; called once, unless that was cancelled.

    ``held``: the bytes that the request keeps in memory until then.
    """

    __slots__ = ("finish", "future", "held")

    def __init__(self, future: asyncio.Future[Any], finish: Callable[[asyncio.Future[Any]], Pieces], held: int) -> None:
        self.future = future
        self.finish = finish
        self.held = held


class CloseConnection(Exception):
    """Close the connection instead of answering; the text says why."""


class Unanswered(CloseConnection):
    """A produce request that wanted no answer was refused: closing is how its sender learns of it."""
