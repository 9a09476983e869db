"""A Kafka listener's limits for its peers; beyond one it refuses, stops reading or closes."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.settings.broker_config import NodeConfig


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """Each with the setting that it comes from, where there is one."""

    frame_bytes_max: int = 100 * 2**20
    """``socket.request.max.bytes``: a larger request closes its connection."""
    first_bytes_max: int = 512 * 1024
    """Largest first request of a connection, but for a produce; so much Kafka takes before a login
    (``sasl.server.max.receive.size``). Some clients ask for versions on one connection only, and begin the others
    with a produce."""
    first_request_ms: int = 10_000
    """A connection without a first request, whole and well formed, is closed after so long."""
    call_bytes_max: int = 16 * 2**20
    """Largest request that is not a produce: its fields take several times its size once they are read."""
    connections_max: int = 10_000
    """``max.connections``: a further one is closed at once."""
    idle_ms: int = 600_000
    """``connections.max.idle.ms``: without progress and without a request under way for so long, a connection is
    closed; below 0 never."""
    requests_max: int = 64
    """``queued.max.requests``: unanswered requests of a connection; then it is not read."""
    held_bytes_max: int = 16 * 2**20
    """Bytes of a connection's unanswered produce requests; then it is not read."""
    unsent_bytes_max: int = 2**20
    """Bytes in memory of answers that a connection has not taken; then no more of its requests is begun. What the
    system sends from files is not in memory."""

    @classmethod
    def of(cls, config: NodeConfig) -> KafkaLimits:
        """As a node's configuration says."""
        return cls(
            frame_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            idle_ms=config.connections_max_idle_ms,
            requests_max=config.queued_max_requests,
        )
