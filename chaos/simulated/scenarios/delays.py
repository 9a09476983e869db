"""The scenario of delay topics."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.delay_work import DelayWork

DELAY: Final = Setting(
    "delay",
    "Records for later, moved by leaders that die, stand still and have clocks of their own: each once, none early.",
    {
        "kill": 8,
        "kill-in-disk-call": 5,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 2,
        "pause": 4,
        "isolate": 3,
        "cut": 2,
        "cut-one-way": 2,
        "break": 2,
        "delay": 2,
        "slow-disk": 1,
        "clock-jump": 4,
    },
    ALWAYS | {"delivered", "cancelled", "again", "transaction-failed"},
    producers=0,
    consumers=0,
    faults=10,
    partitions=1,
    seconds=20.0,
    plots=("half-told", "half-written"),
    config={
        **QUICK_SHRINK,
        "offsets.topic.num.partitions": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.state.log.num.partitions": "1",
    },
    targets=("delay-leader", "delay-leader", "target-leader", "transactions"),
    work=DelayWork,
    clock_jumps_ms=(-4_000, -1_000, 1_000, 4_000),
)
