"""The brokers' sessions: when each was last heard from. Exists on the active controller only, in memory.

Source: Kafka's ``BrokerHeartbeatManager``. Times are monotonic milliseconds of the active controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import NO_OFFSET, NodeId, Offset


@dataclass(slots=True)
class _Session:
    contact_ms: int
    fenced: bool
    metadata_offset: Offset = NO_OFFSET
    shutdown_offset: Offset = NO_OFFSET
    """Once every active broker has applied this offset, none sends to the broker that is shutting down."""
    caught_up_ms: int | None = None
    """The last time it reported that it had applied everything committed."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A broker's progress in the metadata log, by its last heartbeat."""

    node_id: NodeId
    metadata_offset: Offset
    contact_ms: int
    caught_up_ms: int | None


OBSERVER_SESSION_MS: Final = 300_000
"""A broker silent for this long is no longer a follower (``LeaderState.OBSERVER_SESSION_TIMEOUT_MS``)."""


class BrokerLiveness:
    """The sessions of all registered brokers. A session ends ``session_timeout_ms`` after the last contact.

    Brokers that died together were last heard from within one heartbeat interval of each other, and must be fenced
    together: otherwise the first one's leaderships would go to the others, which are dead as well. So its fencing waits
    at most one interval for brokers that seem to have died with it.
    """

    def __init__(self, session_timeout_ms: int, heartbeat_interval_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        # No live broker is silent for one and a half intervals.
        self._overdue_ms = heartbeat_interval_ms * 5 // 4
        self._together_ms = max(0, min(heartbeat_interval_ms, session_timeout_ms - heartbeat_interval_ms * 3 // 2))
        self._sessions: dict[NodeId, _Session] = {}

    def reset(self, unfenced: Iterable[NodeId], fenced: Iterable[NodeId], now_ms: int) -> None:
        """Forget everything; every broker gets a fresh session, because a new controller has not heard from any yet."""
        self._sessions = {node: _Session(now_ms, False) for node in unfenced}
        self._sessions |= {node: _Session(now_ms, True) for node in fenced}

    def register(self, node_id: NodeId, fenced: bool, now_ms: int) -> None:
        """Start a new session for a broker, or a new incarnation of one, that has registered."""
        self._sessions[node_id] = _Session(now_ms, fenced)

    def remove(self, node_id: NodeId) -> None:
        self._sessions.pop(node_id, None)

    def touch(self, node_id: NodeId, fenced: bool, metadata_offset: Offset, committed: Offset, now_ms: int) -> None:
        """Note that a registered broker in this state was heard from; the log is committed up to ``committed``."""
        session = self._sessions.setdefault(node_id, _Session(now_ms, fenced))
        session.contact_ms = now_ms
        session.fenced = fenced
        session.metadata_offset = metadata_offset
        if metadata_offset >= committed:
            session.caught_up_ms = now_ms
        if fenced:
            session.shutdown_offset = NO_OFFSET

    def followers(self, now_ms: int) -> list[Follower]:
        """Return the brokers that this controller has heard from, ordered by id."""
        return [
            Follower(node_id, session.metadata_offset, session.contact_ms, session.caught_up_ms)
            for node_id, session in sorted(self._sessions.items())
            if session.metadata_offset != NO_OFFSET and now_ms < session.contact_ms + OBSERVER_SESSION_MS
        ]

    def fence(self, node_id: NodeId) -> None:
        session = self._sessions.get(node_id)
        if session is not None:
            session.fenced = True
            session.shutdown_offset = NO_OFFSET

    def shuts_down_at(self, node_id: NodeId, offset: Offset) -> None:
        """Note that a broker's controlled shutdown was committed at ``offset``; only the first call counts."""
        session = self._sessions.get(node_id)
        if session is not None and not session.fenced and session.shutdown_offset == NO_OFFSET:
            session.shutdown_offset = offset

    def forgive(self, late_ms: int, now_ms: int) -> None:
        """Extend all sessions after this process did not run for ``late_ms``: messages that brokers sent meanwhile are
        still unread, so that time counts against none of them."""
        for session in self._sessions.values():
            session.contact_ms = min(now_ms, session.contact_ms + late_ms)

    def has_valid_session(self, node_id: NodeId, now_ms: int) -> bool:
        """Return whether an unfenced broker has been heard from in time. A fenced one has no valid session."""
        session = self._sessions.get(node_id)
        return session is not None and not session.fenced and now_ms < session.contact_ms + self._timeout_ms

    def is_seen_by_all(self, node_id: NodeId, active: Iterable[NodeId]) -> bool:
        """Return whether every ``active`` broker knows of the controlled shutdown of ``node_id``."""
        session = self._sessions.get(node_id)
        if session is None or session.shutdown_offset == NO_OFFSET:
            return False
        return all(
            other.metadata_offset >= session.shutdown_offset
            for other in (self._sessions.get(node) for node in active if node != node_id)
            if other is not None
        )

    def expired(self, now_ms: int) -> list[NodeId]:
        """Return the unfenced brokers with ended sessions, longest silence first; none yet while waiting for one that
        was last heard from at nearly the same time."""
        due_ms = self.next_expiry_ms()
        if due_ms is None or now_ms < due_ms:
            return []
        late = [
            (session.contact_ms, node)
            for node, session in self._sessions.items()
            if not session.fenced and now_ms >= session.contact_ms + self._timeout_ms
        ]
        return [node for _, node in sorted(late)]

    def overdue(self, now_ms: int) -> dict[NodeId, int]:
        """Return the unfenced brokers with overdue heartbeats, each with the time of its last contact."""
        return {
            node: session.contact_ms
            for node, session in self._sessions.items()
            if not session.fenced and now_ms >= session.contact_ms + self._overdue_ms
        }

    def unfenced(self) -> dict[NodeId, int]:
        """Return all unfenced brokers, each with the time of its last contact."""
        return {node: session.contact_ms for node, session in self._sessions.items() if not session.fenced}

    def lost(self, node_id: NodeId, heard_ms: int) -> None:
        """End a session, because the host says that the broker's process is gone. Has no effect if the broker was heard
        from after ``heard_ms``."""
        session = self._sessions.get(node_id)
        if session is not None and session.contact_ms == heard_ms:
            session.contact_ms = heard_ms - self._timeout_ms

    def next_overdue_ms(self) -> int | None:
        """Return when the first heartbeat will be overdue if none arrives; ``None`` without an unfenced broker."""
        contacts = self.unfenced().values()
        return min(contacts) + self._overdue_ms if contacts else None

    def next_expiry_ms(self) -> int | None:
        """Return when to fence brokers next if none is heard from; ``None`` without an unfenced broker."""
        contacts = [session.contact_ms for session in self._sessions.values() if not session.fenced]
        if not contacts:
            return None
        together_ms = min(contacts) + self._together_ms
        return max(contact for contact in contacts if contact <= together_ms) + self._timeout_ms
