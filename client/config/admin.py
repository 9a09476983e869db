"""The admin client's settings: Kafka's names and defaults (``AdminClientConfig``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.config import settings
from tidelog.client.config.connection import ClientConnection, ConnectionSettings
from tidelog.model.settings.config_def import ConfigDef, integer


class AdminSettings(ConnectionSettings, total=False):
    """The keyword arguments of an admin client."""

    default_api_timeout_ms: int


@dataclass(frozen=True)
class AdminConfig(ClientConnection):
    """An admin client's settings, checked. Made by :meth:`of`."""

    default_api_timeout_ms: int = integer(60_000, "Longest time for a call, retries included.", at_least=0)

    @classmethod
    def of(cls, values: AdminSettings | dict[str, Any]) -> AdminConfig:
        """Check ``values``. Raises ``ConfigError`` that names the setting, what was expected and found."""
        return settings.build(cls, ADMIN_DEFINITION, dict(values))


ADMIN_DEFINITION: Final = ConfigDef(AdminConfig)
"""Every setting, with its type, default, bounds and meaning."""
