"""The scenario of readers with a header filter."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.checkers.patterns.filters import TAG
from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.patterns.filter_work import FilterWork
from tidelog.model.settings.node.replication_settings import RACK_AWARE_SELECTOR

FILTERS: Final = Setting(
    "filters",
    "Readers with a header filter while leaders die, logs are cut, expire and are compacted: all that they want, once.",
    {
        "kill": 8,
        "kill-in-disk-call": 6,
        "kill-two": 2,
        "kill-all": 1,
        "power-loss": 3,
        "stop": 2,
        "pause": 3,
        "isolate": 4,
        "cut": 2,
        "cut-one-way": 4,
        "break": 2,
        "delay": 2,
        "slow-disk": 1,
    },
    ALWAYS | {"compacted", "expired", "indexed", "read-nearby", "truncation", "wanted"},
    producers=1,
    hasty=1,
    consumers=0,
    faults=8,
    seconds=16.0,
    victim_only=("power-loss",),
    plots=("ping-pong", "uneven", "lone-leader"),
    config={
        **QUICK_SHRINK,
        "log.cleaner.backoff.ms": "500",
        "log.flush.offset.checkpoint.interval.ms": "1000",
        "log.retention.check.interval.ms": "1000",
        "replica.selector.class": RACK_AWARE_SELECTOR,
    },
    topic_config={"filter.header": TAG, "segment.ms": "500"},
    work=FilterWork,
)
