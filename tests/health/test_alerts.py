"""Alerts and dashboard: their metrics exist; promtool, where it is installed, accepts them and sees each fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker import metrics as m
from tidelog.broker.health.alerts import rules_file
from tidelog.broker.health.dashboard import COLUMNS, dashboard
from tidelog.broker.health.rules import RULES
from tidelog.broker.metrics import ALL_METRICS, HISTOGRAM, MetricName

from .test_recorded_drills import FIRES as RECORDED

ALERTS = [alert for rule in RULES for alert in rule.alerts]
A, B, C = ({"instance": name} for name in ("a", "b", "c"))
Series = list[tuple[MetricName | str, dict[str, str], str]]
FIRES: dict[str, tuple[int, Series]] = {
    "TidelogCleanerDead": (3, [(m.CLEANER_DEAD, A, "1x20")]),
    "TidelogLoopBusy": (30, [(m.LOOP_BUSY, A, "0+45x40")]),
    "TidelogLoopSaturated": (15, [(m.LOOP_BUSY, A, "0+57x40")]),
}
"""For each alert that no recorded drill has, what nodes export where it must fire, and after how many minutes. ``1x3
0x20``: a value a minute."""
RESTART: Series = [
    # Node b stops for two minutes, and had been the active controller.
    (m.ACTIVE_CONTROLLERS, A, "0x10 1x40"), (m.ACTIVE_CONTROLLERS, B, "1x9 stale _x1 0x40"),
    (m.ACTIVE_CONTROLLERS, C, "0x50"), (m.CONTROLLERS_UNREACHED, A, "0x10 1 0x40"),
    (m.FENCED_BROKERS, A, "0x10 1 0x40"), (m.FENCED_BROKERS, B, "0x9 stale _x1 0x40"),
    (m.UNDER_REPLICATED, A, "0x10 5x2 0x40"), (m.UNDER_REPLICATED, B, "0x9 stale _x1 0x40"),
    (m.UNDER_MIN_ISR, A, "0x50"), (m.UNDER_MIN_ISR, B, "0x9 stale _x1 0x40"), (m.REASSIGNING, A, "0x50"),
    (m.OFFLINE_PARTITIONS, A, "0x50"), (m.UNCLEAN_ELECTIONS, A, "0x50"), (m.OFFLINE_DIRS, A, "0x50"),
    (m.LOOP_BUSY, A, "0+6x50"), (m.LOOP_BUSY, B, "0+6x9 stale _x1 0+6x40"), (m.CLOCK, A, "0+60x50"),
    (m.DISK_FREE, A, "800x50"), (m.DISK_TOTAL, A, "1000x50"), (m.TLS_EXPIRY, A, "8640000-60x50"),
    (m.LINK_LAG_SECONDS, {**B, "link": "dr"}, "5x9 stale _x1 4x40"),
    (m.LINK_PARTITIONS_STOPPED, {**B, "link": "dr"}, "0x50"),
    ("process_open_fds", A, "90x50"), ("process_max_fds", A, "1000x50"), (m.UPTIME, A, "0+60x50"),
]  # fmt: skip
"""A cluster in a rolling restart, in which no alert may fire."""
PROCESS = {"process_open_fds", "process_max_fds", "process_resident_memory_bytes"}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kafka|tidelog|process)_\w+", expression))


def exported() -> set[str]:
    parts = {
        f"{one.name}_{part}" for one in ALL_METRICS.values() if one.kind == HISTOGRAM for part in ("bucket", "count")
    }
    return {one.exported for one in ALL_METRICS.values()} | parts | PROCESS


def test_alerts_ask_for_metrics_that_nodes_export() -> None:
    for alert in ALERTS:
        assert names_in(alert.expr), alert.name
        assert names_in(alert.expr) <= exported(), alert.name
        assert re.fullmatch(r"\d+[smh]", alert.for_), alert.name
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_the_dashboard_asks_for_metrics_that_nodes_export_and_its_panels_do_not_overlap() -> None:
    board = json.loads(dashboard())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    for expression in expressions:
        assert names_in(expression) <= exported(), expression
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < COLUMNS for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_each_alert_has_a_recorded_drill_or_made_series_in_which_it_fires() -> None:
    recorded = {name for drill in RECORDED.values() for name in drill}
    assert recorded | FIRES.keys() == {alert.name for alert in ALERTS}
    assert not recorded & FIRES.keys()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not there: apt install prometheus brings it")
def test_promtool_accepts_the_rules_and_each_fires_where_it_should(tmp_path: Path) -> None:
    (tmp_path / "tidelog-rules.yml").write_text(rules_file())
    firing = 'ALERTS{alertstate="firing"'
    cases = [
        _case(series, [(minutes, f'count({firing}, alertname="{name}"}})', 1)])
        for name, (minutes, series) in FIRES.items()
    ]
    cases.append(_case(RESTART, [(minute, f"count({firing}}})", None) for minute in range(50)]))
    (tmp_path / "alerts.test.yml").write_text(json.dumps({"rule_files": ["tidelog-rules.yml"], "tests": cases}))
    for command in (["check", "rules", "tidelog-rules.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr


def _case(series: Series, asked: list[tuple[int, str, int | None]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [
            {"series": _named(metric, labels), "values": _spelled(values)} for metric, labels, values in series
        ],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{minute}m",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for minute, expr, value in asked
        ],
    }


def _named(metric: MetricName | str, labels: dict[str, str]) -> str:
    name = metric if isinstance(metric, str) else metric.exported
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def _spelled(values: str) -> str:
    """``1x3`` as promtool of 2.42 wants it: ``1+0x3``."""
    return re.sub(r"(^| )(\d+)x", r"\1\2+0x", values)


def test_the_page_has_the_table_of_rules_and_alerts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `Tidelog")] == alert_rows()
    (after,) = re.findall(r"^## All rules\n\n(?:\|.*\n){2}((?:\|.*\n)+)", page, re.MULTILINE)
    assert after.splitlines() == rule_rows()


def alert_rows() -> list[str]:
    return [
        f"| `{alert.name}` | {alert.severity.value} | {alert.for_} | `{alert.expr.replace('|', '&#124;')}` |"
        for alert in ALERTS
    ]


def rule_rows() -> list[str]:
    return [
        f"| {rule.name} | {', '.join(rule.needs) or 'metrics over time'} | {rule.why} | {rule.do} |" for rule in RULES
    ]
