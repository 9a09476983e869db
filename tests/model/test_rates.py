"""Rates over windows and token buckets, held to plain models of themselves."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.quotas.client_quotas import Sensor
from tidelog.metadata_quorum.image.quota_matching import Bound
from tidelog.model.rates import SampledRate, TokenBucket


class Window:
    def __init__(self, start: int) -> None:
        self.start = start
        self.events: list[tuple[int, int]] = []

    def last(self) -> int:
        return self.events[-1][0] if self.events else self.start


class PlainRate:
    """Keeps every window that there was, and every event in it."""

    def __init__(self, samples: int, width: int) -> None:
        self.samples, self.width = samples, width
        self.windows: list[Window] = []

    def record(self, amount: int, now: int) -> None:
        if not self.windows or now - self.windows[-1].start >= self.width:
            self.windows.append(Window(now))
        self.windows[-1].events.append((now, amount))

    def measure(self, now: int) -> tuple[int, int]:
        """The sum, and the time that it came in."""
        live = [w for w in self.windows[-self.samples - 1 :] if now - w.last() < self.samples * self.width]
        if self.windows and self.windows[-1] not in live:
            self.windows.append(Window(now))
        span = now - min((w.start for w in live), default=now)
        while span // self.width < self.samples - 1:
            span += self.width
        return sum(amount for w in live for _, amount in w.events), max(span, 1)


steps = st.tuples(st.integers(0, 3_000) | st.integers(0, 30_000), st.integers(-500, 5_000), st.booleans())


@given(st.integers(1, 12), st.sampled_from([1, 10, 1_000]), st.lists(steps, max_size=60))
def test_a_rate_is_that_of_the_plain_model(samples: int, width: int, history: list[tuple[int, int, bool]]) -> None:
    rate, model = SampledRate(samples, width), PlainRate(samples, width)
    now = 5
    for passed, amount, looked in history:
        now += passed
        rate.record(amount, now)
        model.record(amount, now)
        if looked:
            total, span = model.measure(now)
            assert rate.span_ms(now) == span
            assert rate.measure(now) == pytest.approx(total * 1000 / span)


@given(
    st.integers(1, 5), st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(-20, 100), st.integers(0, 40)), max_size=15),
)  # fmt: skip
def test_a_bucket_is_that_of_the_plain_model(samples: int, rate: int, history: list[tuple[int, int, int]]) -> None:
    """The model fills the bucket millisecond by millisecond."""
    bucket = TokenBucket(samples, 1_000, rate)
    most = Fraction(samples * rate)
    tokens, now = most, 17
    bucket.tokens(now)
    for passed, amount, new_rate in history:
        for _ in range(passed):
            tokens = min(most, tokens + Fraction(rate, 1000))
        now += passed
        assert bucket.tokens(now) == pytest.approx(float(tokens), abs=1e-6)
        bucket.take(amount, now)
        tokens = min(most, tokens - amount)
        lacking = max(-tokens * 1000 / rate, Fraction(0))
        assert abs(bucket.lacking_ms(now) - lacking) <= Fraction(501, 1000)
        if new_rate:
            rate = bucket.rate = new_rate
            most = Fraction(samples * rate)
            tokens = min(most, tokens)


def test_ten_seconds_worth_may_come_at_once_and_the_rest_has_to_wait() -> None:
    sensor = Sensor(Bound(100.0, "u", ""), 11, 1_000)
    sensor.record(1_000, 0)
    assert sensor.wait_ms(0) == 0
    sensor.record(500, 0)
    assert sensor.wait_ms(0) == 5_000  # (150 - 100) / 100 of ten seconds
    assert sensor.wait_ms(5_000) == 5_000, "as in Kafka, the burst counts until its window is out of sight"
    assert sensor.wait_ms(10_999) > 0
    assert sensor.wait_ms(11_000) == 0
    sensor.record(1_000, 11_000)
    assert sensor.wait_ms(11_000) == 0


@given(st.integers(1, 1_000), st.lists(st.integers(1, 100), min_size=50, max_size=300), st.integers(0, 50))
def test_a_client_that_waits_as_told_keeps_to_its_rate(limit: int, percents: list[int], pace_ms: int) -> None:
    """Over any time, no more than that time is worth, the burst before it, and one request."""
    sensor = Sensor(Bound(float(limit), "", "c"), 11, 1_000)
    now, total = 0, 0.0
    for percent in percents:
        size = limit * percent / 100
        total += size
        sensor.record(size, now)
        assert total <= limit * (now / 1000 + 11) + size + 1e-6
        now += sensor.wait_ms(now) + pace_ms
