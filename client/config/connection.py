"""Connection settings that all clients share, with Kafka's names and defaults (``CommonClientConfigs``)."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.config.security import ClientSecurity, SpeltOtherwise
from tidelog.model.settings.config_def import INT_MAX, integer, long, text


class ConnectionSettings(SpeltOtherwise, total=False):
    """The keyword arguments of every client."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int


@dataclass(frozen=True)
class ClientConnection(ClientSecurity):
    """See the module."""

    client_id: str = text("", "Name by which brokers know this client, for quotas and in lists of group members.")
    request_timeout_ms: int = integer(30_000, "Longest wait for the answer to one request.", at_least=1)
    retry_backoff_ms: int = long(100, "Wait before the first retry; doubles with each.", at_least=0, at_most=INT_MAX)
    retry_backoff_max_ms: int = long(1_000, "Longest wait before a retry.", at_least=0, at_most=INT_MAX)
    metadata_max_age_ms: int = long(
        300_000, "Age at which the client fetches metadata again.", at_least=0, at_most=INT_MAX
    )
    reconnect_backoff_ms: int = long(
        50,
        "Wait before retrying an unreachable broker; doubles with each failure.",
        at_least=0,
        at_most=INT_MAX,
    )
    reconnect_backoff_max_ms: int = long(1_000, "Longest such wait.", at_least=0, at_most=INT_MAX)
