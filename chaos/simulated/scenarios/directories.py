"""The scenario of replicas that move between the log directories of their brokers."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.directory_moves import DirectoryMoves

DIRECTORIES: Final = Setting(
    "directories",
    "Replicas move between two disks of their brokers, which fail, lose power, are slow: one of the two has all of it.",
    {
        "move-log": 14,
        "move-logs": 5,
        "end-moves": 2,
        "kill": 4,
        "kill-two": 1,
        "kill-in-disk-call": 4,
        "power-loss": 3,
        "power-loss-two": 1,
        "power-loss-all": 1,
        "power-loss-in-rename": 4,
        "disk-error": 3,
        "disk-full": 1,
        "slow-disk": 2,
        "stop": 2,
        "pause": 1,
        "isolate": 3,
        "cut-one-way": 2,
        "clock-jump": 1,
    },
    ALWAYS | {"log-directory-failed", "log-moved", "move-resumed", "move-ended", "truncation", "torn-tail"},
    partitions=3,
    faults=22,
    seconds=40.0,
    log_dirs=2,
    replication_factors=(3, 3, 2),
    config={**QUICK_SHRINK, "replica.alter.log.dirs.io.max.bytes.per.second": "10000"},
    topic_config={"flush.messages": "1"},
    work=DirectoryMoves,
)
