"""An API of the Kafka protocol at this listener: a range of versions, and a handler over the node's calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidelog.broker.access.access import Access
from tidelog.broker.services import Calls
from tidelog.model.classes.frozen import dataclass
from tidelog.proto.transport.network import CallContext


@dataclass(frozen=True, slots=True)
class KafkaContext:
    """What a handler knows about its request's connection.

    ``connection`` increases with each connection that the node accepts, so newer ones have higher numbers. ``calls``
    are those of the node's other listeners, ``call_context`` what they get. ``access`` has the sender's rights,
    ``None`` without access control.
    """

    listener: str
    peer: str
    connection: int
    calls: Calls
    call_context: CallContext
    access: Access | None = None
    software: tuple[str, str] = ("", "")
    """The name and version that the client software reports (KIP-511)."""

    async def call(self, request: Any) -> Any:
        """Make one of the node's own calls."""
        return await self.calls[type(request)](request, self.call_context)


Answer = Mapping[str, Any] | bytes | None
"""A response as fields (see :func:`tidelog.proto.kafka.messages.encode_response`), or already encoded.

``None`` closes the connection without an answer, for a request that no error code of its API fits.
"""

Handler = Callable[[Any, int, KafkaContext], Awaitable[Answer]]
"""Takes a decoded request, its version and its context. Any exception but ``BadMessage`` is a bug and stops the node.

The requests of one connection are handled one after the other. When the connection ends, the handler is cancelled.
"""


@dataclass(frozen=True, slots=True)
class Api:
    """An API in the versions ``least`` to ``most``, inclusive."""

    key: int
    least: int
    most: int
    handle: Handler
