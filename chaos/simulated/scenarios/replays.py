"""The scenario of replays into a copy."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, CLIENTS_AND_COORDINATORS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.patterns.replay_work import ReplayWork

REPLAYS: Final = Setting(
    "replays",
    "Copies of a range whose programs, coordinators and leaders die, stand still and come back: each record once.",
    {
        "kill-producer": 14,
        "pause-producer": 5,
        "second-producer": 8,
        **CLIENTS_AND_COORDINATORS,
        "kill-all": 1,
    },
    ALWAYS | {"aborted", "committed", "copied", "ended-ProducerFencedError", "resumed"},
    faults=8,
    producers=1,
    consumers=0,
    seconds=16.0,
    config={
        **QUICK_SHRINK,
        "offsets.topic.num.partitions": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.state.log.num.partitions": "1",
    },
    victim_only=("power-loss",),
    targets=("transactions", "coordinator", "source-leader", "target-leader"),
    work=ReplayWork,
)
