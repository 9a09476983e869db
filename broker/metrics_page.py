"""The page that Prometheus scrapes from a node: :mod:`tidelog.broker.metrics` with their values of this moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.metrics import COUNTER, GAUGE, HISTOGRAM, MetricSource
from tidelog.broker.traffic import LATENCY_BOUNDS_S, Latency

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Renders the sources' readings and the process's own metrics in Prometheus's text format."""

    def __init__(self, *sources: MetricSource) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics; Prometheus's interface of a custom collector."""
        from prometheus_client import core

        families: dict[str, Any] = {}
        kinds: dict[str, Any] = {
            COUNTER: core.CounterMetricFamily,
            GAUGE: core.GaugeMetricFamily,
            HISTOGRAM: core.HistogramMetricFamily,
        }
        for source in self._sources:
            for reading in source.readings():
                metric = reading.metric
                family = families.get(metric.name)
                if family is None:
                    family = families[metric.name] = kinds[metric.kind](
                        metric.name, metric.meaning, labels=metric.labels
                    )
                if isinstance(reading.value, Latency):
                    family.add_metric(reading.labels, _buckets(reading.value), reading.value.total_s)
                else:
                    family.add_metric(reading.labels, reading.value)
        yield from families.values()

    def describe(self) -> Iterable[Family]:
        """Return nothing: names need not be known before the first scrape."""
        return ()


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    counts = list(accumulate(latency.buckets))
    bounds = [str(bound) for bound in LATENCY_BOUNDS_S] + ["+Inf"]
    return list(zip(bounds, counts, strict=True))
