"""Alerts, judged by promtool over what real nodes exported in drills, each made for some alerts, and in a rolling
restart."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.health.alerts import rules_file
from tidelog.broker.health.progress import SAMPLES

from .recording import DRILLS, EVERY_S, WEEK

RECORDINGS = Path(__file__).with_name("recordings")
FIRING = 'ALERTS{alertstate="firing"'
WITHIN_S = 60
"""A node is missed once its session has ended, and the next scrape tells."""
WINDOW_S = SAMPLES * EVERY_S
WEEK_S = WEEK * EVERY_S
SELDOM_S = 300
"""How often alerts are evaluated over a week, which would take a minute otherwise."""
FIRES: dict[str, dict[str, int]] = {
    "node-loss": {
        "TidelogBrokerFenced": 60 + 120,
        "TidelogControllerDown": 60 + 120,
        "TidelogUnderReplicated": 60 + 300,
        "TidelogNoActiveController": 480 + 60 + 30,
    },
    "rolling-restart": {},
    "reader-loss": {"TidelogGroupBehind": 60 + WINDOW_S + 600},
    "weak-topics": {
        "TidelogPartitionOffline": 60 + 30,
        "TidelogUnderMinIsr": 60 + 60,
        "TidelogBrokerFenced": 60 + 120,
        "TidelogControllerDown": 60 + 120,
        "TidelogUnderReplicated": 60 + 300,
        "TidelogReassignmentStuck": 75 + 300,
        "TidelogMarkersWait": 75 + 300,
    },
    "unclean-election": {"TidelogUncleanElection": 104},
    "rotten-disk": {"TidelogDamagedRecords": 60 + 300},
    "two-clusters": {"TidelogSeveralActiveControllers": 60 + 60},
    "link": {"TidelogLinkBehind": 60 + 60 + 300, "TidelogLinkStopped": 451},
    "certificates-and-logins": {
        "TidelogCertificateExpires": 300,
        "TidelogCertificateExpiresSoon": 300,
        "TidelogCertificateRefused": 60,
        "TidelogLoginsRefused": 60 + 120 + 300,
        "TidelogAuditGaps": 60,
    },
    "sick-nodes": {
        "TidelogLogDirectoryOffline": 60,
        "TidelogClockApart": 60 + 300,
        "TidelogLogsUncleanable": 60 + 300,
        "TidelogDamagedRecords": 60 + 300,
        "TidelogUnderReplicated": 60 + 300,
    },
    "stuck-cleaner": {"TidelogCleanerDead": 60 + 300 + 60},
    "busy-loop": {"TidelogLoopSaturated": 60 + 270 + 300, "TidelogLoopBusy": 60 + 210 + 900},
    "few-files": {"TidelogOpenFiles": 60 + 300},
    "full-disk": {"TidelogDiskFillsUp": 60 + 900, "TidelogDiskAlmostFull": 1_020 + 60},
    "undecided": {"TidelogPreparedTransaction": 5 + 3_600},
    "slow-follower": {"TidelogProduceSlow": WEEK_S + SELDOM_S + 600},
}
"""Of each drill, the alerts and from which second on they are due, by their ``for`` and what they look back at. Others
may not fire."""

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
    often_s = EVERY_S if DRILLS[drill].week_later_s is None else SELDOM_S
    told = {"rule_files": ["rules.yml"], "evaluation_interval": f"{often_s}s", "tests": [case]}
    (place / "test.yml").write_text(json.dumps(told))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=place, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_fires_its_alerts_in_time_and_no_other(drill: str, tmp_path: Path) -> None:
    asked: list[tuple[int, str, int | None]] = []
    for name, due_s in FIRES[drill].items():
        own = f'group({FIRING}, alertname="{name}"}})'
        asked += [(due_s - EVERY_S, own, None), (due_s + WITHIN_S, own, 1)]
    began_s = 0 if DRILLS[drill].week_later_s is None else WEEK_S
    end_s = began_s + DRILLS[drill].seconds - (DRILLS[drill].week_later_s or 0)
    others = f'count({FIRING}, alertname!~"{"|".join(FIRES[drill]) or "none"}"}})'
    asked += [(second, others, None) for second in range(began_s, end_s, EVERY_S)]
    judge(tmp_path, drill, asked)
