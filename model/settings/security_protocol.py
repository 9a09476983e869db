"""How a listener is secured. Source: Kafka's ``SecurityProtocol``."""

from __future__ import annotations

import enum


class SecurityProtocol(enum.Enum):
    """A listener's security protocol, by Kafka's name.
    :meth:`tidelog.model.settings.broker_config.NodeConfig.protocol_of` returns a listener's."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    def __str__(self) -> str:
        return self.value

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted, and the server (with ``ssl.client.auth`` the client too) has a
        certificate."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether a client logs in before its first request."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
