"""What transactional ids read and write, as this node's coordinators saw it. In memory only, and bounded: what has not
been seen for longest is forgotten first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model.names import is_internal
from tidelog.proto.calls.transaction_api import LineageEdge

BYTES_MAX: Final = 2 * 1024 * 1024
"""Of the names in all edges; an answer with all of them is smaller than the most that a client takes."""
_CLIENT_ID_MAX: Final = 256
_EDGE_BYTES: Final = 64 + _CLIENT_ID_MAX
_CLIENTS_MAX: Final = 10_000


class _Key(NamedTuple):
    transactional_id: str
    topic: str
    reads: bool
    group_id: str

    def size(self) -> int:
        return _EDGE_BYTES + len(self.transactional_id) + len(self.topic) + len(self.group_id)


@dataclass(slots=True)
class _Seen:
    client_id: str
    first_ms: int
    last_ms: int
    count: int = 0


class Lineage:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._bytes = 0
        self._edges: dict[_Key, _Seen] = {}
        """The last seen are last."""
        self._clients: dict[str, str] = {}
        """Of transactions whose end was asked for: the client that asked."""
        self.forgotten = 0

    def ends(self, transactional_id: str, client_id: str) -> None:
        """A client asks for a transaction's end."""
        if len(self._clients) >= _CLIENTS_MAX:
            self._clients.clear()
        self._clients[transactional_id] = client_id

    def read(self, transactional_id: str, group_id: str, client_id: str, topics: Iterable[str], now_ms: int) -> None:
        """Offsets of these topics joined a transaction. It read them, whether it commits or not."""
        for topic in set(topics):
            self._note(_Key(transactional_id, topic, True, group_id), client_id, now_ms)

    def wrote(self, transactional_id: str, topics: Iterable[str], now_ms: int) -> None:
        """A transaction with records in these topics was committed."""
        client_id = self._clients.pop(transactional_id, "")
        for topic in set(topics):
            if not is_internal(topic):
                self._note(_Key(transactional_id, topic, False, ""), client_id, now_ms)

    def edges(self) -> tuple[LineageEdge, ...]:
        return tuple(
            LineageEdge(*key, seen.client_id, seen.count, seen.first_ms, seen.last_ms)
            for key, seen in self._edges.items()
        )

    def _note(self, key: _Key, client_id: str, now_ms: int) -> None:
        seen = self._edges.pop(key, None)
        if seen is None:
            seen = _Seen(client_id, now_ms, now_ms)
            self._bytes += key.size()
        seen.client_id, seen.last_ms = client_id[:_CLIENT_ID_MAX], now_ms
        seen.count += 1
        self._edges[key] = seen
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._edges))
            del self._edges[oldest]
            self._bytes -= oldest.size()
            self.forgotten += 1
