"""An API of Kafka's protocol at this listener: a range of versions, and a handler over the node's calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.access.access import Access
from tidelog.broker.services import Calls
from tidelog.proto.transport.network import CallContext


@dataclass(frozen=True, slots=True)
class KafkaContext:
    """A handler's knowledge of its request's connection.

    ``connection`` rises with each connection that the node accepts, so that an older one is told from a
    newer one. ``calls`` are those that the node's other listeners serve, ``call_context`` what they get. ``access`` is
    what the sender may do, ``None`` where nobody is asked.
    """

    listener: str
    peer: str
    connection: int
    calls: Calls
    call_context: CallContext
    access: Access | None = None
    software: tuple[str, str] = ("", "")
    """The name and version that the client's software gave itself (KIP-511)."""

    async def call(self, request: Any) -> Any:
        """Have the node answer one of its own calls."""
        return await self.calls[type(request)](request, self.call_context)


Answer = Mapping[str, Any] | bytes | None
"""A response by its fields (see :func:`tidelog.proto.kafka.messages.encode_response`), or encoded already.

``None`` closes the connection without an answer: for a request that no error code of its API fits.
"""

Handler = Callable[[Any, int, KafkaContext], Awaitable[Answer]]
"""Takes a decoded request, its version and its context. What it raises but ``BadMessage`` is a bug and ends the node.

The requests of one connection come one after the other: the next one once this one is answered. When the
connection ends, the handler is cancelled.
"""


@dataclass(frozen=True, slots=True)
class Api:
    """An API in the versions ``least`` to ``most``, both served."""

    key: int
    least: int
    most: int
    handle: Handler
