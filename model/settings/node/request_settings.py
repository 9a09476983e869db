"""A node's settings for requests and connections, and their bounds. Source: Kafka's ``ServerConfigs`` and
``SocketServerConfigs``."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.settings.config_def import INT_MAX, integer, long, structured
from tidelog.model.settings.listeners import format_connection_counts, parse_connection_counts


@dataclass(frozen=True)
class RequestSettings:
    """A node's settings for the size, number and pace of requests and connections."""

    fetch_max_bytes: int = integer(
        8 * 2**20, "Most bytes in one fetch answer; a larger first batch is still sent whole.", at_least=1024
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1000,
        "Most fetch sessions of Kafka's clients that a node remembers; a client without one sends whole requests.",
        at_least=0,
    )
    request_timeout_ms: int = integer(30_000, "Time for another node to answer.", at_least=1)
    socket_request_max_bytes: int = integer(100 * 2**20, "Largest request.", at_least=1)
    telemetry_max_bytes: int = integer(
        2**20,
        "Largest push of a client's metrics, as received; decompressed it may be four times as large.",
        at_least=1,
    )
    queued_max_requests: int = integer(
        64,
        "Most unanswered requests of one produce or fetch stream; beyond that, the broker does not read the stream.",
        at_least=1,
    )
    queued_max_request_bytes: int = long(
        64 * 2**20,
        "Most bytes held for producers, and as many for consumers; beyond that, the broker reads no more from them.",
        at_least=1,
    )
    max_connections: int = integer(
        10_000,
        "Most connections to each listener; the broker closes further ones immediately.",
        at_least=1,
        at_most=1_000_000,  # gRPC's core aborts the process at the largest 32-bit number
    )
    connection_failed_authentication_delay_ms: int = integer(
        100, "How long the answer to a failed login is delayed, whatever the reason.", at_least=0, at_most=10_000
    )
    max_connections_per_ip: int = integer(
        INT_MAX,
        "Most connections from one address to all Kafka listeners together; the broker closes further ones "
        "immediately.",
        at_least=0,
    )
    max_connections_per_ip_overrides: tuple[tuple[str, int], ...] = structured(
        (),
        "Other limits for certain addresses or host names, host:count,….",
        read=parse_connection_counts,
        write=format_connection_counts,
    )
    max_connection_creation_rate: int = integer(
        INT_MAX,
        "Most new connections per second to all Kafka listeners together; further ones wait.",
        at_least=1,
    )
    max_requests_under_way: int = integer(
        20_000, "Most calls and open streams on each listener; the node refuses further ones.", at_least=1
    )
    connections_max_idle_ms: int = long(
        600_000, "Time after which a connection without calls and streams is closed; -1 is never.", at_least=-1
    )
