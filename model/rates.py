"""Measures for quotas: a rate over sampled windows, and a token bucket. Pure: times are passed in as milliseconds.

Source: Kafka's ``SampledStat``, ``Rate`` and ``TokenBucket``.

A :class:`SampledRate` keeps sums over windows of ``window_ms``. A window begins with the first value after the end of
the one before. The rate is the sum of all windows, divided by the time since the oldest of them began, but by at least
``samples - 1`` whole windows: with 11 one-second windows, ten seconds' worth may pass in one burst.

A :class:`TokenBucket` holds up to ``samples`` windows' worth of tokens. Taking tokens may make it negative; then take
no more until it has refilled to zero.
"""

from __future__ import annotations


class _Sample:
    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.begin(now_ms)

    def begin(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.total = 0.0


class SampledRate:
    """Amounts per second, over the last ``samples`` windows."""

    __slots__ = ("_current", "_most", "_samples", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._most = samples
        self._window_ms = window_ms
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, amount: float, now_ms: int) -> None:
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._window_ms:
            # One window more than requested: the oldest overlaps the measured time.
            self._current = (self._current + 1) % (self._most + 1)
            if self._current == len(samples):
                samples.append(_Sample(now_ms))
            sample = samples[self._current]
            sample.begin(now_ms)
        sample.total += amount
        sample.last_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """Return the current rate."""
        span_ms = self.span_ms(now_ms)
        return sum([sample.total for sample in self._samples]) * 1000 / span_ms

    def span_ms(self, now_ms: int) -> int:
        """Return the time that :meth:`measure` divides by; reset windows without recent values."""
        keep_ms = self._most * self._window_ms
        oldest_ms = now_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= keep_ms:
                sample.begin(now_ms)
            oldest_ms = min(oldest_ms, sample.start_ms)
        span_ms = now_ms - oldest_ms
        lacking = self._most - 1 - span_ms // self._window_ms
        return max(span_ms + max(lacking, 0) * self._window_ms, 1)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long nothing must be recorded for the rate to drop to the limit: ``(rate - limit) / limit`` of the
        measured time. Source: ``QuotaUtils.throttleTime``."""
        over = self.measure(now_ms) - limit
        return round(over / limit * self.span_ms(now_ms)) if over > 0 else 0


class TokenBucket:
    """A token bucket that begins full. ``rate`` may change at any time."""

    __slots__ = ("_at_ms", "_burst_s", "_tokens", "rate")

    def __init__(self, samples: int, window_ms: int, rate: float) -> None:
        self.rate = rate
        self._burst_s = samples * window_ms / 1000
        self._tokens = rate * self._burst_s
        self._at_ms: int | None = None

    def tokens(self, now_ms: int) -> float:
        """Return the tokens left; negative if too many were taken."""
        most = self.rate * self._burst_s
        gained = 0.0 if self._at_ms is None else self.rate * (now_ms - self._at_ms) / 1000
        self._tokens = min(most, self._tokens + gained)
        self._at_ms = now_ms
        return self._tokens

    def is_full(self, now_ms: int) -> bool:
        return self.tokens(now_ms) >= self.rate * self._burst_s

    def take(self, amount: float, now_ms: int) -> None:
        """Take tokens, or give them back if negative."""
        self._tokens = min(self.rate * self._burst_s, self.tokens(now_ms) - amount)

    def lacking_ms(self, now_ms: int) -> int:
        """Return how long until no tokens are lacking; 0 if none are. Source:
        ``ControllerMutationQuotaManager.throttleTimeMs``."""
        return max(round(-self.tokens(now_ms) * 1000 / self.rate), 0)
