"""Starts, serves and closes the console."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from tidelog.client.background import BackgroundLoop
from tidelog.console.access import LOCAL_NAMES, Access, Way, is_loopback
from tidelog.console.door import Door
from tidelog.console.drill_runs import Drills
from tidelog.console.schemas.settings import Messages
from tidelog.console.web.server import WebServer


class Place(NamedTuple):
    """Where to listen, and the addresses at which browsers reach it, if those differ."""

    host: str
    port: int
    origins: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None


def origins_of(place: Place, port: int) -> list[str]:
    """Return the addresses at which browsers may reach the console; the first is the one to show."""
    if place.origins:
        return list(place.origins)
    scheme, default = ("http", 80) if place.tls is None else ("https", 443)
    own = f"[{place.host}]" if ":" in place.host else place.host
    names = [own, *(name for name in LOCAL_NAMES if name != own)] if is_loopback(place.host) else [own]
    suffix = "" if port == default else f":{port}"
    return [f"{scheme}://{name}{suffix}" for name in names]


async def serve(
    bootstrap: str,
    access: Access,
    place: Place,
    background: BackgroundLoop,
    about: dict[str, Any],
    tell: Callable[[str], None],
    clock: Callable[[], float],
    *,
    messages: Messages | None = None,
    drills: bool = False,
) -> None:
    """Serve until cancelled. ``tell`` gets the page's address once it can be opened. Raises ``OSError``."""
    door: Door | None = None

    async def handle(request: Any) -> Any:
        assert door is not None
        return await door.handle(request)

    server = WebServer(handle)
    port = await server.start(place.host, place.port, place.tls)
    offered = Drills(bootstrap) if drills else None
    origins = origins_of(place, port)
    door = Door(bootstrap, access, origins, background, clock, about, messages or Messages(), offered)
    try:
        tell(f"{origins[0]}/" + (f"#token={access.token}" if access.way is Way.TOKEN else ""))
        while True:
            await asyncio.sleep(60)
            door.sessions.sweep()
    finally:
        await server.close()
        await door.close()
        if offered is not None:
            await asyncio.to_thread(offered.close)
