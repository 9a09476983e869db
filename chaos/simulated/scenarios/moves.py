"""The scenarios of replicas that move to other brokers, and of brokers that leave."""

from __future__ import annotations

import dataclasses
from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.node_removals import NodeRemovals
from tidelog.chaos.simulated.workloads.replica_moves import ReplicaMoves

REASSIGNMENT: Final = Setting(
    "reassignment",
    "Replicas moved among five nodes, wishes changed and cancelled, nodes drained, leaders elected, under faults.",
    {
        "reassign": 16,
        "cancel-reassignment": 3,
        "drain": 4,
        "elect": 3,
        "throttle": 2,
        "kill": 5,
        "kill-in-disk-call": 3,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 2,
        "pause": 3,
        "cut": 3,
        "cut-one-way": 3,
        "isolate": 3,
        "delay": 1,
        "slow-disk": 1,
        "clock-jump": 1,
    },
    ALWAYS
    | {"truncation", "reassignment", "reassignment-over", "reassignment-cancelled", "preferred-elected", "drain"}
    | {"cordoned", "topic-beside-a-drain"},
    nodes=5,
    controllers=3,
    partitions=2,
    faults=18,
    seconds=30.0,
    producers=1,
    hasty=1,
    config=QUICK_SHRINK,
    replication_factors=(3, 2),
    work=ReplicaMoves,
)

REMOVAL: Final = dataclasses.replace(
    REASSIGNMENT,
    name="removal",
    about="Nodes drained or dead are unregistered, others come under their ids, live ones stay: nothing is lost.",
    kinds={
        "remove": 12,
        "unregister": 8,
        "reassign": 8,
        "cancel-reassignment": 1,
        "elect": 2,
        "kill": 3,
        "kill-in-disk-call": 2,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 1,
        "pause": 2,
        "cut": 2,
        "cut-one-way": 2,
        "isolate": 2,
        "clock-jump": 1,
    },
    events=ALWAYS
    | {"node-removed", "live-node-stays", "broker-unregistered", "broker-came-back", "removed-disk"}
    | {"truncation", "reassignment", "reassignment-over", "preferred-elected", "drain", "cordoned"},
    work=NodeRemovals,
)
