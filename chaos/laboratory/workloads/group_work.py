"""The workload of groups: members come, leave, are killed, stand still and are replaced, under faults of the cluster.

Two groups read the same topic: one rebalances eagerly, one cooperatively; a third of each one's members are static.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.workloads.client_world import Stage
from tidelog.chaos.laboratory.workloads.recorded_group import RecordedGroup
from tidelog.chaos.laboratory.workloads.workload import ClientWork

TOPIC: Final = "shared"
PARTITIONS: Final = 6
EAGER: Final = "eager"
COOPERATIVE: Final = "cooperative"
MEMBERS: Final = 3
CHANGES: Final = ("kill", "kill", "leave", "second", "second", "join", "pause", "stall")
_EAGER_STRATEGIES: Final = ("range", "roundrobin", "sticky")


class GroupWork(ClientWork):
    """Producers to one topic, and two groups that read it."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, "groups", ("gp0", "gp1"))
        self.targets = Targets(self.partitions, stage.rng("groups").choice((EAGER, COOPERATIVE)))
        eager = stage.rng("groups-strategy").choice(_EAGER_STRATEGIES)
        for name, strategy in ((EAGER, eager), (COOPERATIVE, "cooperative-sticky")):
            settings = {"partition_assignment_strategy": strategy}
            self.groups.append(
                RecordedGroup(stage, name, self.topics, MEMBERS, settings, lambda slot: slot % MEMBERS == 0, CHANGES)
            )
