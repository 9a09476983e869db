"""The scenarios of a group of the consumer protocol (KIP-848), and of one with members of both protocols."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, GROUPS
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.consumer_group_work import SESSION_MS, ConsumerGroupWork
from tidelog.chaos.simulated.workloads.mixed_group_work import MixedGroupWork

CONSUMER_GROUPS: Final[Setting] = replace(
    GROUPS,
    name="consumer-groups",
    about="A group whose coordinator assigns (KIP-848), while members and coordinators come, go, die and stand still.",
    kinds={kind: weight for kind, weight in GROUPS.kinds.items() if kind != "replace-member"},
    events=ALWAYS
    | {
        "commit",
        "compacted",
        "coordinator-moved",
        "epoch",
        "forged-commit",
        "forged-heartbeat",
        "lost-partitions",
        "redelivered",
        "heartbeat-unreleased-instance-id",
    },
    config={
        **GROUPS.config,
        "group.consumer.session.timeout.ms": str(SESSION_MS),
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.assignment.interval.ms": "500",
        "group.coordinator.work.max": "60",  # so that a target takes several turns
    },
    partitions=4,
    work=ConsumerGroupWork,
)

MIXED_GROUPS: Final[Setting] = replace(
    CONSUMER_GROUPS,
    name="mixed-groups",
    about="A group with members of both protocols, which is converted up and down while everything moves and fails.",
    events=ALWAYS
    | {
        "called-back",
        "commit",
        "compacted",
        "coordinator-moved",
        "epoch",
        "joined-led",
        "joined-unled",
        "lost-partitions",
        "redelivered",
    },
    work=MixedGroupWork,
)
