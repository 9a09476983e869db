"""Pushed client metrics (KIP-714): who is asked for what, how often, and what is refused.

Source: Kafka's ``ClientMetricsManager`` and ``ClientMetricsInstance``. Without subscriptions, clients are asked for
nothing and return every five minutes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tidelog.broker.client_metrics.figures import ClientFigures, Pushed, reduced
from tidelog.broker.client_metrics.subscriptions import Client, Wanted, subscriptions, wanted
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import CLIENT_METRICS, MetadataImage
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka.otlp import BadMetrics, figures
from tidelog.proto.records.compression import Compression, UnpacksTooLarge, decompress
from tidelog.proto.records.corrupt_batch import CorruptBatch

CLIENTS_MAX: Final = 10_000
"""Maximum client instances on a node; beyond it, the one that was silent the longest is dropped."""
IDLE_MS_MIN: Final = 60_000
IDLE_INTERVALS: Final = 3
"""An instance is dropped after this many silent intervals, but at least a minute."""
SWEEP_MS: Final = 10_000
UNPACKED_TIMES_MAX: Final = 4
"""How many times ``telemetry.max.bytes`` a push may decompress to."""
FIGURES_A_STEP: Final = 500
RESERVED_IDS: Final = (bytes(16), bytes(15) + b"\x01")
"""Ids that no client may have (``Uuid.RESERVED``)."""


class Subscribed(NamedTuple):
    """The answer to GetTelemetrySubscriptions."""

    error: ErrorCode
    client_instance_id: bytes
    subscription_id: int = 0
    wanted: Wanted = Wanted()


class Push(NamedTuple):
    """A PushTelemetry request."""

    client_instance_id: bytes
    subscription_id: int
    terminating: bool
    compression: int
    metrics: memoryview


class _Instance:
    __slots__ = ("asked_ms", "client", "pushed", "pushed_ms", "seen_ms", "terminated", "version", "wanted")

    def __init__(self, client: Client, pushed: Pushed) -> None:
        self.client = client
        self.pushed = pushed
        self.version = -1
        self.wanted = Wanted()
        self.asked_ms: int | None = None
        """When it last asked for its subscription under the current version,"""
        self.pushed_ms: int | None = None
        """and when it last pushed."""
        self.seen_ms = 0
        self.terminated = False

    def may_ask(self, now_ms: int) -> bool:
        last = [at for at in (self.asked_ms, self.pushed_ms) if at is not None]
        if last and now_ms - max(last) < self.wanted.interval_ms:
            return False
        self.asked_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Return whether a push may come now. Clients spread their first push over half to one and a half intervals, so
        the first one may come early."""
        asked, pushed = self.asked_ms, self.pushed_ms
        early = asked is not None and (pushed is None or asked > pushed)
        if not early and pushed is not None and now_ms - pushed < self.wanted.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True


class Telemetry:
    """See the module. Everything runs on the event loop."""

    def __init__(self, clock: Clock, rng: random.Random, bytes_max: Callable[[], int]) -> None:
        """``bytes_max``: ``telemetry.max.bytes``."""
        self.figures = ClientFigures()
        self.bytes_max = bytes_max
        self.unknown_subscriptions = 0
        self.throttled = 0
        self.pushes = 0
        self.failed_pushes = 0
        self._clock = clock
        self._rng = rng
        self._subscriptions = subscriptions(MetadataImage())
        self._version = 0
        self._instances: dict[bytes, _Instance] = {}
        """Ordered by last activity, the oldest first."""
        self._swept_ms = 0

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        """Adopt changed subscriptions. Clients learn of them with their next request."""
        if any(resource.resource_type == CLIENT_METRICS for resource in delta.configs):
            self._subscriptions = subscriptions(image)
            self._version += 1
            if not self._subscriptions:
                for found in self._instances.values():
                    self.figures.clear(found.pushed)
        return ()

    @property
    def clients(self) -> int:
        """The instances that are not idle."""
        self._sweep(self._clock.monotonic_ms(), at_once=True)
        return len(self._instances)

    def page(self) -> Iterator[bytes]:
        """Yield the page for Prometheus in steps, without idle instances."""
        self._sweep(self._clock.monotonic_ms(), at_once=True)
        return self.figures.page()

    def subscribe(self, client_instance_id: bytes, client: Client) -> Subscribed:
        """Return what a client should push. A client without an id gets one; ``client`` has its other attributes."""
        if client_instance_id in RESERVED_IDS:
            client_instance_id = self._rng.randbytes(16)
        now_ms = self._clock.monotonic_ms()
        found = self._instance(client_instance_id, client, now_ms)
        if not found.may_ask(now_ms):
            self.throttled += 1
            return Subscribed(ErrorCode.THROTTLING_QUOTA_EXCEEDED, client_instance_id)
        subscription_id = found.wanted.id_for(client_instance_id)
        return Subscribed(ErrorCode.NONE, client_instance_id, subscription_id, found.wanted)

    async def push(self, push: Push, client: Client) -> ErrorCode:
        """Accept metrics. If there are many, others get their turn in between."""
        if push.client_instance_id in RESERVED_IDS:
            return ErrorCode.INVALID_REQUEST
        now_ms = self._clock.monotonic_ms()
        found = self._instance(push.client_instance_id, client, now_ms)
        error = self._fault(found, push, now_ms)
        found.terminated = push.terminating
        if error is not ErrorCode.NONE or not push.metrics:
            return error
        try:
            taken = await self._read(push)
        except UnpacksTooLarge:
            error = ErrorCode.TELEMETRY_TOO_LARGE
        except (CorruptBatch, BadMetrics):
            error = ErrorCode.INVALID_RECORD
        else:
            if self._instances.get(push.client_instance_id) is found:
                covers = found.wanted.covers
                self.figures.take(found.pushed, {name: each for name, each in taken.items() if covers(name)})
            self.pushes += 1
            return error
        self.failed_pushes += 1
        return error

    async def _read(self, push: Push) -> dict[str, tuple[bool, bool, float]]:
        taken: dict[str, tuple[bool, bool, float]] = {}
        bytes_max = UNPACKED_TIMES_MAX * self.bytes_max()
        data = decompress(Compression(push.compression), push.metrics, bytes_max=bytes_max)
        for number, figure in enumerate(figures(data), 1):
            reduced(taken, figure)
            if not number % FIGURES_A_STEP:
                await asyncio.sleep(0)
        return taken

    def _fault(self, found: _Instance, push: Push, now_ms: int) -> ErrorCode:
        """Source: ``ClientMetricsManager.validatePushRequest``."""
        if found.terminated:
            return ErrorCode.INVALID_REQUEST  # it announced its last push
        if not found.may_push(now_ms) and not push.terminating:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if push.subscription_id != found.wanted.id_for(push.client_instance_id):
            self.unknown_subscriptions += 1
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if not 0 <= push.compression <= Compression.ZSTD:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(push.metrics) > self.bytes_max():
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def _instance(self, client_instance_id: bytes, client: Client, now_ms: int) -> _Instance:
        """Return the client's instance at the newest version."""
        self._sweep(now_ms)
        found = self._instances.pop(client_instance_id, None)
        if found is None:
            while len(self._instances) >= CLIENTS_MAX:
                self._end(next(iter(self._instances)))
            found = _Instance(client, self.figures.begin(client.client_id))
        self._instances[client_instance_id] = found
        found.seen_ms = now_ms
        if found.version != self._version:
            before, found.version = found.wanted, self._version
            found.wanted = wanted(self._subscriptions, found.client)
            found.asked_ms = found.pushed_ms = None
            if found.wanted.metrics != before.metrics:
                self.figures.clear(found.pushed)
        return found

    def _sweep(self, now_ms: int, *, at_once: bool = False) -> None:
        if not at_once and now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms = now_ms
        for client_instance_id in [
            each
            for each, found in self._instances.items()
            if now_ms - found.seen_ms >= max(IDLE_MS_MIN, IDLE_INTERVALS * found.wanted.interval_ms)
        ]:
            self._end(client_instance_id)

    def _end(self, client_instance_id: bytes) -> None:
        self.figures.end(self._instances.pop(client_instance_id).pushed)
