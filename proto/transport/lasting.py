"""Streams that end with the login behind them, on every carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.proto.transport.network import BadFrame, FrameSession

LOG_IN_AGAIN: Final = "the login has ended: log in again"


class LoginOver(BadFrame):
    """A frame came after the end of the login."""


class LastingSession:
    """A stream's session, which ends when the login behind it does."""

    def __init__(self, inner: FrameSession, lasts: Callable[[], bool]) -> None:
        self._inner = inner
        self._lasts = lasts

    def on_frame(self, frame: memoryview) -> Any:
        if not self._lasts():
            raise LoginOver(LOG_IN_AGAIN)
        return self._inner.on_frame(frame)

    def on_close(self) -> None:
        self._inner.on_close()

    def __getattr__(self, name: str) -> Any:
        """The further parts of a paced session."""
        return getattr(self._inner, name)
