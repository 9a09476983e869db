"""Alerts, judged by promtool over what real nodes exported: a node is lost and then a second one; a rolling restart."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.health.alerts import rules_file

from .recording import DRILLS, EVERY_S

RECORDINGS = Path(__file__).with_name("recordings")
FIRING = 'ALERTS{alertstate="firing"'
FIRST_KILL_S, SECOND_KILL_S = (at_s for at_s, _ in DRILLS["node-loss"][1])
WITHIN_S = 60
"""A node is missed once its session has ended, and the next scrape tells."""
FIRES = {
    "TidelogBrokerFenced": FIRST_KILL_S + 120,
    "TidelogControllerDown": FIRST_KILL_S + 120,
    "TidelogUnderReplicated": FIRST_KILL_S + 300,
    "TidelogNoActiveController": SECOND_KILL_S + 60 + 30,
}
"""From when on an alert is due in ``node-loss``, by its ``for`` and what it looks back at. Others may not fire."""

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not there: apt install prometheus brings it"
)


def judge(place: Path, drill: str, asked: list[tuple[int, str, int | None]]) -> None:
    """``asked``: at a second, an expression, and its value or nothing."""
    series: dict[str, str] = json.loads((RECORDINGS / f"{drill}.json").read_text())
    case: dict[str, Any] = {
        "interval": f"{EVERY_S}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{second}s",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for second, expr, value in asked
        ],
    }
    (place / "rules.yml").write_text(rules_file())
    told = {"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY_S}s", "tests": [case]}
    (place / "test.yml").write_text(json.dumps(told))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=place, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_loss_of_nodes_fires_its_alerts_and_no_other(tmp_path: Path) -> None:
    asked: list[tuple[int, str, int | None]] = []
    for name, due_s in FIRES.items():
        own = f'count({FIRING}, alertname="{name}"}})'
        asked += [(due_s - EVERY_S, own, None), (due_s + WITHIN_S, own, 1)]
    others = f'count({FIRING}, alertname!~"{"|".join(FIRES)}"}})'
    asked += [(second, others, None) for second in range(0, DRILLS["node-loss"][0], EVERY_S)]
    judge(tmp_path, "node-loss", asked)


def test_no_alert_fires_in_a_rolling_restart(tmp_path: Path) -> None:
    judge(tmp_path, "rolling-restart", [(at, f"count({FIRING}}})", None) for at in range(0, 480, EVERY_S)])
