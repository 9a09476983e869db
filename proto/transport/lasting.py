"""Streams that end with their login, on every carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.proto.transport.network import BadFrame, FrameSession

LOG_IN_AGAIN: Final = "the login has ended: log in again"


class LoginOver(BadFrame):
    """A frame came after the end of the login."""


class LastingSession:
    """A stream's session that ends with its login."""

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
        """The additional methods of a paced session."""
        return getattr(self._inner, name)
