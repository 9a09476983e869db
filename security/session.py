"""What a node knows about the other end of a connection.

Whatever authenticates a connection creates a session: a PLAINTEXT listener, TLS from the client's certificate, or a
login. Handlers find it in :attr:`tidelog.proto.transport.network.CallContext.session`. Sessions are immutable. Each
login on a connection replaces its session; requests that were read earlier keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.security.principal import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True)
class Session:
    """See the module."""

    principal: Principal = ANONYMOUS
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """The listener's protocol."""
    by_token: bool = False
    """Whether the login used a delegation token (``KafkaPrincipal.tokenAuthenticated``)."""


FindSession: TypeAlias = Callable[[str, str], Session | None]
"""Finds a session by login token and caller's host; ``None`` if the token is not valid there."""

UNSECURED: Final = Session()
"""Shared by all connections of PLAINTEXT listeners and by a node's requests to itself."""
