"""A broker's quotas on bytes and request time: what its clients used, and how long one has to wait.

Sensors are created when a client with a quota first appears, and shared as
:mod:`tidelog.metadata_quorum.image.quota_matching` says. While no quota is set, :attr:`ClientQuotas.any_set` is false,
and nothing is checked.
Source: Kafka's ``ClientQuotaManager`` and ``ClientRequestQuotaManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.quota_matching import Bound, Quotas, bound_of
from tidelog.model.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from tidelog.model.clock import Clock
from tidelog.model.rates import SampledRate
from tidelog.model.settings.node.quota_settings import QuotaSettings

SENSORS_MAX: Final = 10_000
"""Maximum sensors of one kind; beyond it, the longest idle ones are dropped."""
SENSORS_KEPT: Final = 9_000
"""How many are left then."""
CLIENTS_MAX: Final = 10_000
"""Maximum clients whose quotas one kind caches; beyond it, the cache is cleared."""


class Sensor:
    """What all clients that share a quota have used. ``throttle_ms``: the total of waits that answers asked for."""

    __slots__ = ("_rate", "bound", "last_ms", "throttle_ms", "throttles")

    def __init__(self, bound: Bound, samples: int, window_ms: int) -> None:
        self.bound = bound
        self._rate = SampledRate(samples, window_ms)
        self.last_ms = 0
        self.throttle_ms = 0
        self.throttles = 0

    def record(self, amount: float, now_ms: int) -> None:
        """Count without a check; a negative amount takes back."""
        self.last_ms = now_ms
        self._rate.record(amount, now_ms)

    def rate(self, now_ms: int) -> float:
        return self._rate.measure(now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Return how long nothing may be used for the rate to be within the quota again."""
        return self._rate.wait_ms(self.bound.limit, now_ms)

    def told(self, wait_ms: int) -> None:
        """Note that an answer asked a client to wait."""
        self.throttle_ms += wait_ms
        self.throttles += 1


class QuotaKind:
    """One key's quotas. Sums and limits are in its unit: bytes, or hundredths of a second of the event loop."""

    def __init__(self, key: str, samples: int, window_ms: int, wait_ms_max: int | None = None) -> None:
        """``wait_ms_max``: the maximum wait; ``None``: unlimited."""
        self.key = key
        self._window = samples, window_ms
        self._wait_ms_max = wait_ms_max
        self._quotas: Quotas = {}
        self._of: dict[tuple[str, str], Sensor | None] = {}
        self._before: dict[tuple[str, str], Sensor] = {}
        self.sensors: dict[tuple[str, str], Sensor] = {}
        """By user and client id; "" for any."""

    def change(self, quotas: Quotas) -> None:
        """Adopt changed quotas. Clients with a quota before and after keep their counts."""
        self._quotas = quotas
        self._of.clear()
        # A client that waits for its quota is silent, perhaps during several changes.
        known = _newest({**self._before, **self.sensors})
        self._before = {shared: sensor for shared, sensor in known.items() if self._bounds(shared)}
        self.sensors = {}

    def sensor(self, user: str, client_id: str) -> Sensor | None:
        """Return the sensor of a client's quota; ``None`` if it has none."""
        client = user, client_id
        try:
            return self._of[client]
        except KeyError:
            pass
        if len(self._of) >= CLIENTS_MAX:
            self._of.clear()
        bound = bound_of(self._quotas, self.key, user, client_id)
        self._of[client] = found = None if bound is None else self._shared(bound)
        return found

    def record(self, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Count what a client used. Returns how many milliseconds it has to wait."""
        sensor = self.sensor(user, client_id)
        if sensor is None:
            return 0
        sensor.record(amount, now_ms)
        wait_ms = sensor.wait_ms(now_ms)
        return wait_ms if self._wait_ms_max is None else min(wait_ms, self._wait_ms_max)

    def take_back(self, user: str, client_id: str, amount: float, now_ms: int) -> None:
        """Uncount what was not used after all."""
        sensor = self.sensor(user, client_id)
        if sensor is not None:
            sensor.record(-amount, now_ms)

    def at_once(self, user: str, client_id: str) -> float | None:
        """Return the maximum that can be used now without a wait; ``None``: unlimited.
        Source: ``getMaxValueInQuotaWindow``."""
        sensor = self.sensor(user, client_id)
        samples, window_ms = self._window
        return None if sensor is None else sensor.bound.limit * (samples - 1) * window_ms / 1000

    def _bounds(self, shared: tuple[str, str]) -> bool:
        """Return whether there is a quota for those who share this sensor."""
        bound = bound_of(self._quotas, self.key, *shared)
        return bound is not None and (bound.user, bound.client_id) == shared

    def _shared(self, bound: Bound) -> Sensor:
        shared = bound.user, bound.client_id
        found = self.sensors.get(shared)
        if found is None:
            if len(self.sensors) >= SENSORS_MAX:
                self._drop_idle()
            kept = self._before.pop(shared, None)
            found = self.sensors[shared] = kept or Sensor(bound, *self._window)
        found.bound = bound
        return found

    def _drop_idle(self) -> None:
        self.sensors = _newest(self.sensors)
        self._of.clear()


def _newest(sensors: dict[tuple[str, str], Sensor]) -> dict[tuple[str, str], Sensor]:
    """Return at most :data:`SENSORS_KEPT` of them."""
    if len(sensors) <= SENSORS_KEPT:
        return sensors
    return dict(sorted(sensors.items(), key=lambda item: item[1].last_ms, reverse=True)[:SENSORS_KEPT])


class ClientQuotas:
    """A broker's quotas, kept up to date with the metadata."""

    def __init__(self, config: QuotaSettings, clock: Clock) -> None:
        window = config.quota_window_num, config.quota_window_size_seconds * 1000
        self.now_ms = clock.monotonic_ms
        self.any_set = False
        self.produce = QuotaKind(PRODUCER_BYTE_RATE, *window)
        self.fetch = QuotaKind(CONSUMER_BYTE_RATE, *window)
        self.request = QuotaKind(REQUEST_PERCENTAGE, *window, wait_ms_max=window[1])

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        """Adopt the quotas if they changed."""
        if delta.quotas:
            self.any_set = bool(image.quotas)
            for kind in (self.produce, self.fetch, self.request):
                kind.change(image.quotas)
        return ()

    def used(self, user: str, client_id: str, kind: QuotaKind | None, amount: float, seconds: float) -> int:
        """Count a request's use of ``kind`` and of the event loop's time. Returns how long its client has to wait.

        A fetch that has to wait is not answered with what it read, see :meth:`QuotaKind.take_back`.
        """
        now_ms = self.now_ms()
        wait_ms = self.request.record(user, client_id, seconds * 100, now_ms) if seconds else 0
        slower = self.request
        if kind is not None:
            kind_ms = kind.record(user, client_id, amount, now_ms)
            if kind_ms > wait_ms:
                wait_ms, slower = kind_ms, kind
        if wait_ms:
            sensor = slower.sensor(user, client_id)
            assert sensor is not None, "it made the client wait"
            sensor.told(wait_ms)
        return wait_ms
