"""The stage of a drill: the cluster's nodes, the clients, the time line, and the measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.chaos.drill.evidence import Seen, committed_after, first_seen, resumed
from tidelog.chaos.drill.objectives import WORDS, Value
from tidelog.chaos.drill.reach import Reach
from tidelog.chaos.drill.target import Found
from tidelog.chaos.drill.traffic import Traffic
from tidelog.chaos.laboratory.faults.observer import ClusterStanding
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import NO_NODE, TopicPartition

RECOVERY_S: Final = 45.0
"""How long to wait for an expected event after a fault, or after its end; then it counts as failed to happen."""
FAULT: Final = "fault"
HEAL: Final = "heal"
SEEN: Final = "seen"
STEP: Final = "step"
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Moment:
    """An event on the time line. ``kind``: :data:`FAULT`, :data:`HEAL`, :data:`SEEN` or :data:`STEP`."""

    at_s: float
    kind: str
    text: str


Milestone = tuple[str, Callable[[], float | None]]
"""A measure, and the function that reads it: seconds, or ``None`` until the event has happened."""


class Stage:
    """The stage of one drill. Runs on the main thread; ``tell`` receives each moment as it becomes known."""

    def __init__(
        self, found: Found, reach: Reach, traffic: Traffic, tell: Callable[[Moment], None], away_s: float
    ) -> None:
        self.found = found
        self.reach = reach
        self.traffic = traffic
        self.evidence = traffic.evidence
        self.away_s = away_s
        self.measures: dict[str, Value] = {}
        self.moments: list[Moment] = []
        self._tell = tell

    def say(self, kind: str, text: str, at_s: float | None = None) -> None:
        moment = Moment(self.traffic.now() if at_s is None else at_s, kind, text)
        self.moments.append(moment)
        self._tell(moment)

    # --- State ---------------------------------------------------------------------------------------------------

    @property
    def everywhere(self) -> list[int]:
        """Return the numbers of the topic's partitions."""
        return [at.partition for at in self.traffic.partitions]

    def whole_standing(self) -> ClusterStanding:
        """Return the current state of the cluster, whole as before a fault; waits for a late answer. Raises
        :class:`CommandFailed` if it is not whole for :data:`RECOVERY_S`."""
        deadline = time.monotonic() + RECOVERY_S
        while not self.is_whole(standing := self.traffic.last_look[1]):
            if time.monotonic() > deadline:
                raise CommandFailed(f"expected a whole cluster before the fault, found {standing} for {RECOVERY_S:g} s")
            time.sleep(_POLL_S)
        return standing

    def led_by(self, nodes: Collection[int]) -> list[int]:
        """Return partitions of the topic that these nodes lead, before a fault."""
        held = self.whole_standing().partitions
        return sorted(at.partition for at, one in held.items() if one.leader in nodes)

    def leads_most(self, avoid: Collection[int]) -> int:
        """Return the broker that leads most partitions of the topic, none of ``avoid`` if there are others."""
        brokers = [node for node in self.found.brokers if node not in avoid] or list(self.found.brokers)
        leaders = [one.leader for one in self.whole_standing().partitions.values()]
        return max(brokers, key=lambda node: (leaders.count(node), -node))

    def spared(self, nodes: Collection[int]) -> list[int]:
        """Return partitions without any in-sync replica on these nodes, before a fault."""
        held = self.whole_standing().partitions
        return sorted(at.partition for at, one in held.items() if not set(one.isr) & set(nodes))

    def is_whole(self, standing: ClusterStanding) -> bool:
        """Return whether every replica of the topic is in sync, and no broker is fenced."""
        return standing.whole and not standing.fenced and len(standing.partitions) == len(self.everywhere)

    # --- Acts ----------------------------------------------------------------------------------------------------

    def rest(self, seconds: float) -> None:
        """Let the clients work for a while."""
        time.sleep(max(0.0, seconds))

    def rest_until(self, at_s: float) -> None:
        self.rest(at_s - self.traffic.now())

    def kill(self, nodes: Sequence[int], what: str) -> float:
        """Kill with kill -9; return when."""
        return self._fault(self.reach.kill(nodes), what)

    def fill(self, node: int, what: str) -> float:
        """Fill the disk; return when."""
        return self._fault(self.reach.fill(node), what)

    def _fault(self, at: float, what: str) -> float:
        at_s = self.when(at)
        self.say(FAULT, what, at_s)
        return at_s

    def when(self, monotonic_s: float) -> float:
        """Convert a time of :func:`time.monotonic` to the drill's clock."""
        return self.traffic.now() - (time.monotonic() - monotonic_s)

    def bring_back(self, nodes: Sequence[int], *, more: Iterable[Callable[[float], Milestone]] = ()) -> float:
        """Start nodes, wait until they serve and everything is in sync; return when they were started. Keeps the worst
        of several such measures. ``more``: other milestones from that time on."""
        names = ", ".join(map(str, nodes))
        began_s = self.when(self.reach.start(nodes))
        self.say(HEAL, f"node{'' if len(nodes) == 1 else 's'} {names} started", began_s)
        self.reach.wait_serving(nodes)
        serving_s = self.traffic.now()
        self.worst("serving_s", serving_s - began_s)
        self.say(SEEN, f"{'it serves' if len(nodes) == 1 else 'they serve'} again", serving_s)

        def whole() -> float | None:
            looked_s, standing = self.traffic.last_look
            return looked_s - began_s if looked_s > serving_s and self.is_whole(standing) else None

        self.reach_milestones(began_s, [*(make(began_s) for make in more), ("whole_s", whole)])
        return began_s

    def reach_milestones(self, from_s: float, milestones: Sequence[Milestone]) -> None:
        """Wait until all of these have happened, announcing each; a milestone that is not reached within
        :data:`RECOVERY_S` is measured as ``None``."""
        open_ones = dict(milestones)
        deadline = time.monotonic() + RECOVERY_S
        while open_ones:
            for measure, told in list(open_ones.items()):
                if (found := told()) is not None:
                    del open_ones[measure]
                    self.worst(measure, found)
                    self.say(SEEN, f"{WORDS[measure]}: {found:.2f} s", from_s + found)
            if open_ones and time.monotonic() > deadline:
                for measure in open_ones:
                    self.measures[measure] = None
                    self.say(SEEN, f"{WORDS[measure]}: not within {RECOVERY_S:g} s")
                return
            if open_ones:
                time.sleep(_POLL_S)

    def worst(self, measure: str, found: float) -> None:
        """Keep the largest value of a measure; once the event failed to happen, ``None`` stays."""
        before = self.measures.get(measure, found)
        self.measures[measure] = None if before is None else max(before, found)

    # --- Milestones -----------------------------------------------------------------------------------------------

    def fenced(self, fault_s: float, nodes: Collection[int]) -> Milestone:
        wanted = set(nodes) & set(self.found.brokers)
        return "detection_s", lambda: self._seen(fault_s, lambda standing: wanted <= standing.fenced)

    def led_elsewhere(self, fault_s: float, nodes: Collection[int], partitions: Collection[int]) -> Milestone:
        places = [TopicPartition(self.traffic.topic, number) for number in partitions]

        def elsewhere(standing: ClusterStanding) -> bool:
            held = [standing.partitions.get(at) for at in places]
            return all(one is not None and one.leader >= 0 and one.leader not in nodes for one in held)

        return "election_s", lambda: self._seen(fault_s, elsewhere)

    def taken_again(self, fault_s: float, partitions: Collection[int]) -> list[Milestone]:
        """Return two milestones: the first of these partitions accepts records again, then all do."""

        def found() -> list[float]:
            told = resumed(self.evidence.acknowledged_since(fault_s), fault_s, partitions)
            return [seconds for seconds in told.values() if seconds is not None]

        return [
            ("first_record_s", lambda: min(found(), default=None)),
            ("every_partition_s", lambda: max(waits) if len(waits := found()) == len(partitions) else None),
        ]

    def another_controller(self, fault_s: float, gone: Collection[int]) -> Milestone:
        return "controller_s", lambda: self._seen(
            fault_s, lambda standing: standing.controller != NO_NODE and standing.controller not in gone
        )

    def changed(self, fault_s: float) -> Milestone:
        return "commit_s", lambda: committed_after(self.evidence.commits[:], fault_s)

    def _seen(self, from_s: float, fits: Callable[[ClusterStanding], bool]) -> float | None:
        seen: list[Seen] = self.evidence.seen[:]
        return first_seen(seen, from_s, fits)
