"""Sessions, kept in memory and bounded in number, age and idle time; and a limit on failed logins."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

SESSION_S: Final = 8 * 3_600.0
IDLE_S: Final = 30 * 60.0
SESSIONS_MAX: Final = 32
"""Beyond this, a new session ends the one that has been idle longest."""
STREAMS_MAX: Final = 8
"""How many open streams a session may have. A page has one, or two while it searches."""
FAILURES_MAX: Final = 5
"""How many logins may fail in a row per user and per address. After that, one more every :data:`FAILURE_S`."""
FAILURE_S: Final = 12.0
REMEMBERED_MAX: Final = 4_096


class Closable(Protocol):
    def close(self) -> None: ...


D = TypeVar("D", bound=Closable)


@dataclass(slots=True, eq=False)
class Session(Generic[D]):
    """``desk`` holds the person's connections to the cluster; ``csrf`` must come with every change."""

    id: str
    csrf: str
    user: str | None
    desk: D
    began_s: float
    used_s: float
    streams: int = 0
    over: bool = field(default=False)


class Sessions(Generic[D]):
    """See the module. ``clock``: seconds, as ``time.monotonic``. ``close`` gets the desk of a session that ended."""

    def __init__(self, clock: Callable[[], float], close: Callable[[D], None]) -> None:
        self._clock = clock
        self._close = close
        self._found: dict[str, Session[D]] = {}

    def open(self, user: str | None, desk: D) -> Session[D]:
        self.sweep()
        if len(self._found) >= SESSIONS_MAX:
            self.end(min(self._found.values(), key=lambda one: one.used_s))
        now = self._clock()
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), user, desk, now, now)
        self._found[session.id] = session
        return session

    def find(self, session_id: str | None) -> Session[D] | None:
        """Return and touch the session of a cookie; ``None`` if there is none or it has ended."""
        found = self._found.get(session_id or "")
        if found is None or not self.lasts(found):
            return None
        found.used_s = self._clock()
        return found

    def lasts(self, session: Session[D]) -> bool:
        """Return whether a session is alive. Ends it if its time is up."""
        now = self._clock()
        if not session.over and (now - session.began_s >= SESSION_S or now - session.used_s >= IDLE_S):
            self.end(session)
        return not session.over

    def sweep(self) -> None:
        """End the sessions whose time is up."""
        for session in list(self._found.values()):
            self.lasts(session)

    def end(self, session: Session[D]) -> None:
        if self._found.pop(session.id, None) is not None:
            session.over = True
            self._close(session.desk)

    def end_all(self) -> None:
        for session in list(self._found.values()):
            self.end(session)

    def __len__(self) -> int:
        return len(self._found)


class Attempts:
    """Counts failed logins by user name and by address, in one leaky bucket each: it holds :data:`FAILURES_MAX`, and
    one leaks every :data:`FAILURE_S`. Beyond :data:`REMEMBERED_MAX` buckets, the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._full_until: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """Return how long to wait before the next attempt; 0 if it may be made now."""
        now = self._clock()
        room = FAILURES_MAX * FAILURE_S
        return max(0.0, *(self._full_until.get(key, now) - now - (room - FAILURE_S) for key in keys))

    def failed(self, *keys: str) -> None:
        now = self._clock()
        for key in keys:
            self._full_until[key] = max(self._full_until.get(key, now), now) + FAILURE_S
            self._full_until.move_to_end(key)
        while len(self._full_until) > REMEMBERED_MAX:
            self._full_until.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        for key in keys:
            self._full_until.pop(key, None)
