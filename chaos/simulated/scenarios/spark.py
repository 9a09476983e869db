"""The scenario of queries, in its own module because it imports what the Spark connector needs, which not every machine
has."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.spark_work import SparkWork

SPARK: Final = Setting(
    "spark",
    "Queries of a modelled Spark copy a topic while drivers, tasks and nodes die, freeze and come back: each row once.",
    {
        "driver-dies-at": 6,
        "driver-freezes-at": 5,
        "driver-stops-at": 3,
        "kill-producer": 5,
        "pause-producer": 5,
        "second-producer": 4,
        "kill": 5,
        "kill-in-disk-call": 2,
        "stop": 2,
        "pause": 2,
        "power-loss": 2,
        "isolate": 3,
        "cut": 2,
        "cut-one-way": 2,
        "break": 2,
        "delay": 1,
        "slow-disk": 1,
        "double-requests": 3,
        "kill-all": 1,
        "clock-jump": 3,
    },
    ALWAYS
    | {
        "aborted",
        "already-committed",
        "concurrent-update",
        "copied",
        "decided",
        "decided-before-abort",
        "ended-SinkJobFencedError",
        "input-aborted",
        "input-committed",
        "message-lost",
        "replayed",
        "speculative",
        "stopped",
        "stopped-in-commit",
        "task-failed",
    },
    faults=14,
    seconds=30.0,
    partitions=1,
    producers=0,
    consumers=0,
    config={
        **QUICK_SHRINK,
        "log.cleaner.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.sink.timeout.ms": "4000",
        "transaction.sink.prepared.timeout.ms": "6000",
        "transaction.state.log.num.partitions": "2",
    },
    victim_only=("power-loss",),
    plots=(*["between-sink-steps"] * 2, "unheard-batch", *["driver-at-point"] * 2, "deposed-source", "late-loser"),
    targets=("sink", "sink", "sink", "partition-leader", "source"),
    work=SparkWork,
)
