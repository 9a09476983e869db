"""The scenario of a link between two clusters."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.faults.fault_mix import TARGET
from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.link_work import LinkWork
from tidelog.chaos.simulated.world.cluster import KAFKA

_BOTH: Final = {
    "kill": 5,
    "kill-in-disk-call": 3,
    "kill-two": 1,
    "kill-all": 1,
    "stop": 2,
    "pause": 3,
    "isolate": 3,
    "cut": 2,
    "cut-one-way": 2,
}

LINKS: Final = Setting(
    "links",
    "A cluster's topics in another one, by links that die like both clusters' nodes: promoted, drained, reversed.",
    {
        **_BOTH,
        **{TARGET + kind: weight for kind, weight in _BOTH.items()},
        "break": 2,
        "delay": 1,
        "kill-link": 5,
        "pause-link": 5,
        "second-link": 3,
        "kill-producer": 2,
        "pause-producer": 2,
        "promote-link": 2,
        "drain-link": 4,
        "reverse-link": 8,
        "kill-operator": 3,
    },
    ALWAYS
    | {"promoted", "drained", "reversed", "reverse-refused", "aborted-by-promotion", "committed", "aborted"}
    | {"truncation"},
    faults=20,
    seconds=22.0,
    producers=0,
    consumers=0,
    config={
        **QUICK_SHRINK,
        "kafka.listener.names": KAFKA,
        "offsets.topic.num.partitions": "2",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.state.log.num.partitions": "3",
    },
    plots=("hasty-promotion", "unheard-promotion", "deposed-target", "deposed-target"),
    work=LinkWork,
)
