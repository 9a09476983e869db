"""Log lines about peers that a listener rejects."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 10
"""Maximum log lines about peers' mistakes per second, so that junk from strangers does not fill the disk."""


class Notices:
    """Logs at most :data:`LINES_A_SECOND`; the next line after a pause says how many were left out."""

    __slots__ = ("_left", "_second", "_unsaid")

    def __init__(self) -> None:
        self._second = -1
        self._left = 0
        self._unsaid = 0

    def say(self, now_s: float, listener: str, peer: str, text: str, deed: str = "closing the connection of") -> None:
        """Log the peer and the reason in one line."""
        if int(now_s) != self._second:
            self._second, self._left = int(now_s), LINES_A_SECOND
            if self._unsaid:
                log.warning("listener %s: %d more peers rejected", listener, self._unsaid)
                self._unsaid = 0
        if self._left:
            self._left -= 1
            log.warning("listener %s: %s %s: %s", listener, deed, peer, text)
        else:
            self._unsaid += 1
