"""A Grafana dashboard: the alerts of the health rules, and the metrics behind them, over time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tidelog.broker import metrics as m
from tidelog.broker.health.rules import RULES

SCHEMA: Final = 39
"""Grafana's ``schemaVersion`` as of release 10; later releases migrate it."""
COLUMNS: Final = 24
WIDTH, HEIGHT = 8, 7
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ONLY: Final = 'instance=~"$instance"'


class Panel(NamedTuple):
    """A chart. ``series``: expressions and their legends; ``unit``: Grafana's name."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


def _rate(metric: m.MetricName, more: str = "") -> str:
    return f"rate({metric.exported}{{{_ONLY}{more}}}[$__rate_interval])"


def _gauge(metric: m.MetricName) -> str:
    return f"{metric.exported}{{{_ONLY}}}"


def _slowest(request: str) -> str:
    rate = f'rate({m.TOTAL_TIME.exported}_bucket{{{_ONLY}, request="{request}"}}[$__rate_interval])'
    return f"histogram_quantile(0.99, sum by (le) ({rate}))"


_NODE: Final = "{{instance}}"
ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Cluster",
        (
            Panel(
                "Partitions in trouble",
                "short",
                (
                    (f"max({m.OFFLINE_PARTITIONS.exported})", "without a leader"),
                    (f"sum({m.UNDER_MIN_ISR.exported})", "below min.insync.replicas"),
                    (f"sum({m.UNDER_REPLICATED.exported})", "under-replicated"),
                    (f"sum({m.REASSIGNING.exported})", "being moved"),
                ),
            ),
            Panel(
                "Brokers and controllers",
                "short",
                (
                    (f"max({m.ACTIVE_BROKERS.exported})", "brokers"),
                    (f"max({m.FENCED_BROKERS.exported})", "fenced"),
                    (f"sum({m.ACTIVE_CONTROLLERS.exported})", "active controllers"),
                ),
            ),
            Panel("Leaders", "short", ((_gauge(m.LEADER_COUNT), _NODE),)),
        ),
    ),
    (
        "Traffic",
        (
            Panel("Bytes in", "Bps", ((_rate(m.BYTES_IN, ', topic=""'), _NODE),)),
            Panel("Bytes out", "Bps", ((_rate(m.BYTES_OUT, ', topic=""'), _NODE),)),
            Panel("Records in", "short", ((_rate(m.MESSAGES_IN, ', topic=""'), _NODE),)),
            Panel("Replication in", "Bps", ((_rate(m.REPLICATION_BYTES_IN), _NODE),)),
            Panel(
                "99th percentile of a request",
                "s",
                ((_slowest("Produce"), "produce"), (_slowest("FetchConsumer"), "fetch")),
            ),
            Panel(
                "Refused",
                "short",
                ((_rate(m.FAILED_PRODUCES), f"produce {_NODE}"), (_rate(m.FAILED_FETCHES), f"fetch {_NODE}")),
            ),
        ),
    ),
    (
        "Nodes",
        (
            Panel("Event loop busy", "percentunit", ((_rate(m.LOOP_BUSY), _NODE),)),
            Panel(
                "Disk free",
                "percentunit",
                ((f"{_gauge(m.DISK_FREE)} / {_gauge(m.DISK_TOTAL)}", f"{_NODE} {{{{logdirectory}}}}"),),
            ),
            Panel("Memory", "bytes", ((f"process_resident_memory_bytes{{{_ONLY}}}", _NODE),)),
            Panel("Connections", "short", ((_gauge(m.KAFKA_CONNECTIONS), f"Kafka's protocol {_NODE}"),)),
            Panel("Replication lag", "short", ((_gauge(m.MAX_LAG), _NODE),)),
            Panel("Certificates expire in", "s", ((_gauge(m.TLS_EXPIRY), f"{{{{listener}}}} {_NODE}"),)),
        ),
    ),
    (
        "Groups and transactions",
        (
            Panel(
                "Group lag, records", "short", ((f"topk(10, sum by (group) ({m.GROUP_LAG.exported}))", "{{group}}"),)
            ),
            Panel(
                "Group lag, time", "s", ((f"topk(10, max by (group) ({m.GROUP_LAG_SECONDS.exported}))", "{{group}}"),)
            ),
            Panel("Group members", "short", ((f"sum({m.GROUP_MEMBERS.exported})", "members"),)),
            Panel("Rebalances", "short", ((f"sum(rate({m.REBALANCES.exported}[$__rate_interval]))", "completed"),)),
            Panel(
                "Transactions",
                "short",
                (
                    (f"sum(rate({m.TRANSACTIONS_COMMITTED.exported}[$__rate_interval]))", "committed"),
                    (f"sum(rate({m.TRANSACTIONS_ABORTED.exported}[$__rate_interval]))", "aborted"),
                ),
            ),
        ),
    ),
)


def dashboard() -> str:
    """Return the dashboard as JSON for Grafana's import, which asks for its Prometheus."""
    names = "|".join(alert.name for rule in RULES for alert in rule.alerts)
    found = {
        "title": "Tidelog",
        "uid": "tidelog",
        "tags": ["tidelog"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": _SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "expr": f'ALERTS{{alertstate="firing", alertname=~"{names}"}}',
                    "titleFormat": "{{alertname}}",
                }
            ]
        },
        "panels": list(_panels(names)),
    }
    return json.dumps(found, indent=2) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    yield {
        "name": "instance",
        "type": "query",
        "label": "Node",
        "datasource": _SOURCE,
        "query": f"label_values({m.UPTIME.exported}, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(names: str) -> Iterator[dict[str, Any]]:
    firing = f'ALERTS{{alertstate="firing", alertname=~"{names}"}}'
    yield {
        **_panel(1, "table", "Alerts that fire", "short", (0, 0, COLUMNS, 5)),
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": firing, "instant": True, "format": "table"}],
    }
    number, y = 2, 5
    for title, panels in ROWS:
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": _place((0, y, COLUMNS, 1))}
        number, y = number + 1, y + 1
        for at, panel in enumerate(panels):
            x, row = at % (COLUMNS // WIDTH) * WIDTH, at // (COLUMNS // WIDTH)
            yield {
                **_panel(number, "timeseries", panel.title, panel.unit, (x, y + row * HEIGHT, WIDTH, HEIGHT)),
                "targets": _targets(panel.series),
            }
            number += 1
        y += -(-len(panels) // (COLUMNS // WIDTH)) * HEIGHT


def _targets(series: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
        for at, (expr, legend) in enumerate(series)
    ]


def _panel(number: int, kind: str, title: str, unit: str, place: tuple[int, int, int, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": _SOURCE,
        "gridPos": _place(place),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
    }


def _place(place: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip("xywh", place, strict=True))
