"""The hand-written part of ``tidelog.Admin``: its lifecycle. ``tools/dev/blocking_forms.py`` generates the rest."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tidelog.client import background
from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.background import BackgroundLoop
from tidelog.client.config.admin import ADMIN_DEFINITION, AdminSettings
from tidelog.client.description import describes
from tidelog.client.errors import ClientClosedError
from tidelog.model.clock import Clock
from tidelog.proto.transport.network import Network

R = TypeVar("R")


@describes(ADMIN_DEFINITION)
class BlockingAdmin:
    """Administers a cluster.

        with Admin("localhost:9092") as admin:
            admin.create_topics([NewTopic("orders", num_partitions=6, replication_factor=3)])

    May be used by several threads at once. Every call takes a ``timeout`` in seconds (default
    ``default_api_timeout_ms``), within which it retries what is retriable. A call about several things
    raises the error of the first that failed; the error's notes name the others, its ``failures`` have each
    of them by name.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._inner = AsyncAdmin(bootstrap_servers, _network=_network, _clock=_clock, _rng=_rng, **settings)
        self._closed = False
        self._owns_background = _background is None
        self._background = _background or background.acquire()
        self._background.run(self._inner.start())

    def __repr__(self) -> str:
        return self._inner._shown("Admin")

    def close(self) -> None:
        """Stop. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._background.run(self._inner.close())
        finally:
            if self._owns_background:
                background.release(self._background)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._closed:
            work.close()
            raise ClientClosedError("this admin client is closed")
        return self._background.run(work)
