"""Alerts and dashboard: their metrics exist, and promtool, where it is installed, accepts them. Recorded drills are in
``test_recorded_drills.py``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tidelog.broker.health.alerts import rules_file
from tidelog.broker.health.dashboard import COLUMNS, dashboard
from tidelog.broker.health.rules import RULES
from tidelog.broker.metrics import ALL_METRICS, HISTOGRAM

from .test_recorded_drills import FIRES as RECORDED

ALERTS = [alert for rule in RULES for alert in rule.alerts]
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


def test_each_alert_has_a_recorded_drill_in_which_it_fires() -> None:
    assert {name for drill in RECORDED.values() for name in drill} == {alert.name for alert in ALERTS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not there: apt install prometheus brings it")
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "tidelog-rules.yml").write_text(rules_file())
    command = ["promtool", "check", "rules", "tidelog-rules.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


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
