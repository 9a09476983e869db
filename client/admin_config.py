"""The admin client's settings: Kafka's names and defaults (``AdminClientConfig``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict

from tidelog.client import settings
from tidelog.model.config_def import INT_MAX, ConfigDef, integer, long


class AdminSettings(TypedDict, total=False):
    """The keyword arguments of an admin client."""

    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int


@dataclass(frozen=True)
class AdminConfig:
    """An admin client's settings, checked. Made by :meth:`of`."""

    request_timeout_ms: int = integer(30_000, "Longest wait for the answer to one request.", at_least=1)
    default_api_timeout_ms: int = integer(60_000, "Longest time of a call, retries included.", at_least=0)
    retry_backoff_ms: int = long(100, "Wait before the first retry; doubles with each.", at_least=0, at_most=INT_MAX)
    retry_backoff_max_ms: int = long(1_000, "Longest wait before a retry.", at_least=0, at_most=INT_MAX)
    metadata_max_age_ms: int = long(300_000, "Age at which metadata is fetched anew.", at_least=0, at_most=INT_MAX)
    reconnect_backoff_ms: int = long(
        50,
        "Wait before a broker that could not be reached is tried again; doubles with each failure.",
        at_least=0,
        at_most=INT_MAX,
    )
    reconnect_backoff_max_ms: int = long(1_000, "Longest such wait.", at_least=0, at_most=INT_MAX)

    @classmethod
    def of(cls, values: AdminSettings | dict[str, Any]) -> AdminConfig:
        """Check ``values``. Raises ``ConfigError`` that names the setting, what was expected and found."""
        return settings.build(cls, ADMIN_DEFINITION, dict(values))


ADMIN_DEFINITION: Final = ConfigDef(AdminConfig)
"""Every setting, with its type, default, bounds and meaning."""
