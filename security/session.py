"""What a node knows of the other end of one connection.

Whatever authenticates a connection makes a session: a listener for its plaintext connections, TLS from the client's
certificate, a login. Handlers find it in :attr:`tidelog.proto.transport.network.CallContext.session`. A session never
changes. A login, or another one on the same connection, puts a new session in the old one's place, and requests that
were read before keep the session that they came with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.security.principal import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True)
class Session:
    """See the module."""

    principal: Principal = ANONYMOUS
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """The listener's."""
    by_token: bool = False
    """Whether the login was by a delegation token (``KafkaPrincipal.tokenAuthenticated``)."""


FindSession: TypeAlias = Callable[[str, str], Session | None]
"""By the token that a login gave and the caller's host; ``None`` for a token that is not good there."""

UNSECURED: Final = Session()
"""All connections of PLAINTEXT listeners share it, as do a node's requests to itself."""
