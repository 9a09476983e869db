"""A logged-in person's SDK clients."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from tidelog import Admin
from tidelog.broker.health.look import Look, Watch
from tidelog.broker.health.progress import Windows
from tidelog.cli.work.health_facts import Asker
from tidelog.client.background import BackgroundLoop
from tidelog.client.cluster.cluster import Cluster
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.console.drill_runs import Drills
from tidelog.console.rates import Rates
from tidelog.console.schemas.settings import Messages
from tidelog.console.web.shared import Shared

if TYPE_CHECKING:
    from tidelog.client.producer.producer import AsyncProducer

ANSWER_MS: Final = 8_000
"""The timeout of each request to the cluster, retries included. A person is waiting for it."""
CLIENT_ID: Final = "tidelog-console"
FETCH_BYTES: Final = 256 * 1024
"""How many bytes to fetch from a leader at a time. A larger batch comes whole."""


class Desk:
    """Create and close it in a thread: both wait for ``background``, the loop that also serves the browsers."""

    def __init__(
        self,
        bootstrap: str,
        settings: Mapping[str, Any],
        background: BackgroundLoop,
        messages: Messages,
        drills: Drills | None = None,
    ) -> None:
        self.bootstrap: Final = bootstrap
        self.settings: Final = {"client_id": CLIENT_ID, **settings}
        self._background = background
        self.admin: Final = Admin(
            bootstrap, _background=background, **{"default_api_timeout_ms": ANSWER_MS, **self.settings}
        )
        self.shared: Final = Shared()
        self.messages: Final = messages
        self.drills: Final = drills
        self.rates: Final = Rates()
        self._watch = Watch(Asker(self.admin, self.settings, Windows()))
        self._watching = threading.Lock()

    def close(self) -> None:
        self.admin.close()

    def look(self) -> Look:
        """Return the cluster's health. Call it in a thread; one call runs at a time."""
        with self._watching:
            return self._watch.look()

    @property
    def cluster(self) -> Cluster:
        """What the SDK knows about the cluster. Call it on the loop."""
        return self.admin._inner._cluster

    @asynccontextmanager
    async def fetcher(self) -> AsyncIterator[RawFetcher]:
        """Yield a fetcher of raw batches. Use it on the loop."""
        raw = RawFetcher(self.cluster, FETCH_BYTES)
        try:
            yield raw
        finally:
            await raw.close()

    def run(self, work: Any) -> Any:
        """Run a coroutine on the loop, and wait for it in a thread."""
        return self._background.run(work)

    def producer(self) -> AsyncProducer:
        """Return a producer for a few records. Use it on the loop, with ``async with``."""
        from tidelog.client.producer.producer import AsyncProducer  # costs 4 MB, which most consoles never need

        return AsyncProducer(
            self.bootstrap, linger_ms=0, delivery_timeout_ms=ANSWER_MS, request_timeout_ms=ANSWER_MS // 2,
            max_block_ms=ANSWER_MS, **self.settings,
        )  # fmt: skip
