"""The workload of groups: members join, leave, are killed, pause and are replaced, during faults of the cluster.

Four groups read the same topic: one rebalances eagerly, one cooperatively, one has its coordinator assign (KIP-848); a
third of each of these groups' members are static. The fourth one has members of both protocols, so that it is converted
up and down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.recorded_group import RecordedGroup
from tidelog.chaos.laboratory.workloads.workload import ClientWork

TOPIC: Final = "shared"
PARTITIONS: Final = 6
EAGER: Final = "eager"
COOPERATIVE: Final = "cooperative"
ASSIGNED: Final = "assigned"
MIXED: Final = "mixed"
MEMBERS: Final = 3
CHANGES: Final = ("kill", "kill", "leave", "second", "second", "join", "pause", "stall")
_WITHOUT_SECONDS: Final = tuple(change for change in CHANGES if change != "second")
"""A second member of an instance id is refused as long as the first lives."""
_MIXED_STRATEGIES: Final = ("range", "cooperative-sticky")
_EAGER_STRATEGIES: Final = ("range", "roundrobin", "sticky")


def _is_first(slot: int) -> bool:
    """Return whether a member is the first of its group, which is a static one."""
    return slot % MEMBERS == 0


class GroupWork(ClientWork):
    """Producers to one topic, and the groups ``names`` that read it."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}
    names: tuple[str, ...] = (EAGER, COOPERATIVE, ASSIGNED, MIXED)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings, "groups", ("gp0", "gp1"))
        self.targets = Targets(self.partitions, surroundings.rng("groups").choice(self.names))
        eager = surroundings.rng("groups-strategy").choice(_EAGER_STRATEGIES)
        for name, settings, changes in (
            (EAGER, {"partition_assignment_strategy": eager}, CHANGES),
            (COOPERATIVE, {"partition_assignment_strategy": "cooperative-sticky"}, CHANGES),
            (ASSIGNED, {"group_protocol": "consumer"}, _WITHOUT_SECONDS),
        ):
            if name in self.names:
                share = RecordedGroup(surroundings, name, self.topics, MEMBERS, settings, _is_first, changes)
                self.groups.append(share)
        if MIXED in self.names:
            rng = surroundings.rng("groups-mixed")
            classic = {"partition_assignment_strategy": rng.choice(_MIXED_STRATEGIES)}

            def next_one() -> Mapping[str, str]:
                return rng.choice((classic, {"group_protocol": "consumer"}))

            self.groups.append(
                RecordedGroup(surroundings, MIXED, self.topics, MEMBERS, next_one, changes=_WITHOUT_SECONDS)
            )
