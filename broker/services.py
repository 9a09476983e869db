"""Which listener serves what.

Every listener of a broker serves clients; the one named by ``inter.broker.listener.name`` also serves followers.
Controller listeners serve the quorum, and requests of brokers and tools to a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tidelog.proto.calls.request import Request
from tidelog.proto.transport.network import CallContext, CallHandler, Service, SessionFactory, StreamKind
from tidelog.security.session import FindSession

Calls = Mapping[type[Request[Any]], CallHandler]


def held_until(ready: asyncio.Event, calls: Calls) -> dict[type[Request[Any]], CallHandler]:
    """Wrap the calls so that each waits until the node is ready: earlier answers would be untrue.

    The caller's own timeout bounds the wait.
    """

    def hold(handler: CallHandler) -> CallHandler:
        async def serve(request: object, context: CallContext) -> Any:
            if not ready.is_set():
                await ready.wait()
            return await handler(request, context)

        return serve

    return {request_type: hold(handler) for request_type, handler in calls.items()}


def broker_service(
    calls: Calls,
    produce: SessionFactory,
    fetch: SessionFactory,
    follow: SessionFactory | None,
    elsewhere: str,
    sessions: FindSession | None,
) -> Service:
    """Return the service of a broker's listener. ``follow``: whether followers may use it. For the rest see
    ``Service``."""
    streams: dict[StreamKind, SessionFactory] = {StreamKind.PRODUCE: produce, StreamKind.FETCH: fetch}
    if follow is not None:
        streams[StreamKind.REPLICA_FETCH] = follow
    return Service(dict(calls), streams, elsewhere, sessions)
