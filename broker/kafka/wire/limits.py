"""A Kafka listener's limits for its peers. Beyond a limit, it refuses, stops reading or closes."""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.broker_config import NodeConfig


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """Each limit with the setting that it comes from, if any."""

    frame_bytes_max: int = 100 * 2**20
    """``socket.request.max.bytes``: a larger request closes its connection."""
    first_bytes_max: int = 512 * 1024
    """Maximum first request of a connection, unless it is a produce; Kafka accepts as much before a login
    (``sasl.server.max.receive.size``). Some clients request versions on one connection only, and start the others with
    a produce."""
    first_request_ms: int = 10_000
    """A connection without a complete, well-formed first request is closed after this time."""
    call_bytes_max: int = 16 * 2**20
    """Maximum size of a request other than a produce: its decoded fields take several times its size."""
    connections_max: int = 10_000
    """``max.connections``: further ones are closed immediately."""
    idle_ms: int = 600_000
    """``connections.max.idle.ms``: a connection without progress and without a request in progress is closed after this
    time; below 0 never."""
    requests_max: int = 64
    """``queued.max.requests``: unanswered requests of a connection, beyond which it is not read."""
    held_bytes_max: int = 16 * 2**20
    """Bytes of a connection's unanswered produce requests, beyond which it is not read."""
    unsent_bytes_max: int = 2**20
    """Bytes in memory of answers that a connection has not taken, beyond which none of its requests is started. Data
    that the system sends from files is not in memory."""

    @classmethod
    def of(cls, config: NodeConfig) -> KafkaLimits:
        """Return the limits of a node's configuration."""
        return cls(
            frame_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            idle_ms=config.connections_max_idle_ms,
            requests_max=config.queued_max_requests,
        )
