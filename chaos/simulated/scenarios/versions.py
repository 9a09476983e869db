"""The scenario of two releases in one cluster."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.version_changes import VersionChanges

VERSIONS: Final = Setting(
    "versions",
    "A cluster of release 0.1 is upgraded and rolled back node by node under faults, then finalised: nothing is lost.",
    {
        "upgrade": 18,
        "roll-back": 4,
        "finalise": 7,
        "ask-for-more": 5,
        "make-topic": 3,
        "kill": 4,
        "kill-in-disk-call": 2,
        "kill-two": 1,
        "stop": 1,
        "pause": 2,
        "isolate": 2,
        "cut": 1,
        "cut-one-way": 2,
        "power-loss": 1,
    },
    ALWAYS
    | {"upgraded", "rolled-back", "finalised", "finalise-refused", "gate-closed", "gate-open", "came-too-late"}
    | {"topic-made", "node-removed", "finalised-without"},
    nodes=4,
    controllers=3,
    faults=30,
    seconds=50.0,
    producers=1,
    log_dirs=2,
    config={**QUICK_SHRINK, "metadata.log.max.record.bytes.between.snapshots": "4000"},
    topic_config={"flush.messages": "1"},
    work=VersionChanges,
)
