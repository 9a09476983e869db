"""Executes a schedule: finds a step's targets, hits them, and records what it hit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.chaos.laboratory.faults import schedule
from tidelog.chaos.laboratory.faults.disk_acts import DiskActs
from tidelog.chaos.laboratory.faults.drain_acts import DrainActs
from tidelog.chaos.laboratory.faults.move_acts import MoveActs
from tidelog.chaos.laboratory.faults.observer import ClusterStanding, Observer
from tidelog.chaos.laboratory.faults.schedule import ENDS, Step
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.links.links import Impairment, topology
from tidelog.chaos.laboratory.links.proxy_server import ProxyTrouble
from tidelog.chaos.laboratory.processes.laboratory import STOP_TIMEOUT_S, Laboratory
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.group_api import GROUP_COORDINATOR, TRANSACTION_COORDINATOR

READY_S: Final = 60.0
WHOLE_S: Final = 60.0
"""How long a node, and the replicas on it, may take to recover."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Targets:
    """The parts of a workload that steps can aim at."""

    partitions: Sequence[TopicPartition]
    group: str = ""
    transactional_ids: Sequence[str] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(at.topic for at in self.partitions))


class FaultInjector:
    """Performs steps, one after the other, on the main thread. ``ask`` runs a coroutine where the observer lives."""

    def __init__(
        self,
        laboratory: Laboratory,
        observer: Observer,
        ask: Callable[[Coroutine[Any, Any, Any]], Any],
        targets: Targets,
        history: HistoryFile,
        say: Callable[[str], None],
    ) -> None:
        self.faults = 0
        self._laboratory = laboratory
        self._cluster = laboratory.cluster
        self._observer = observer
        self._ask = ask
        self._targets = targets
        self._history = history
        self._say = say
        self._meant: dict[int, int | None] = {}
        """Episode → the node it hits; ``None`` if no target was found."""
        self._asked_to_end: set[int] = set()
        self._disks = DiskActs(laboratory, targets.topics, history)
        self._moves = MoveActs(laboratory, targets.partitions, ask)
        self._drains = DrainActs(laboratory, self._moves, self._look, history)
        self._acts: dict[str, Callable[[Step, int], None]] = {
            "kill": lambda step, node: self._kill(node),
            "start": lambda step, node: self._start([node]),
            "pause": lambda step, node: self._signal(node, signal.SIGSTOP),
            "resume": lambda step, node: self._signal(node, signal.SIGCONT),
            "terminate": lambda step, node: self._terminate(node),
            "roll": lambda step, node: self._roll(),
            "kill-all": lambda step, node: self._kill_together(self._laboratory.node_ids),
            "start-all": lambda step, node: self._start(self._laboratory.node_ids),
            "impair": lambda step, node: self._impair(step, node),
            "heal": lambda step, node: self._laboratory.links.heal(_owner(step)),
            "rotate": lambda step, node: self._rotate([node] if step.target else self._laboratory.node_ids),
            **self._disks.acts,
            "kill-rack": lambda step, node: self._kill_together(self._laboratory.rack_of(node)),
            **self._moves.acts,
            **self._drains.acts,
        }

    def perform(self, step: Step) -> None:
        """Perform a step and record it, with any error."""
        standing = ClusterStanding()
        if step.act not in ENDS:
            standing = self._look()
        node = self._whom(step, standing)
        nodes = list(self._laboratory.node_ids) if not step.target else [] if node is None else [node]
        if step.act == "kill-rack" and node is not None:
            nodes = list(self._laboratory.rack_of(node))
        at, trouble = self._history.now(), ""
        try:
            if step.target and node is None:
                trouble = "nobody is meant"
            else:
                self._acts[step.act](step, node or self._laboratory.node_ids[0])
        except (ProxyTrouble, CommandFailed, ValueError) as error:
            trouble = str(error)
        if step.act not in ENDS:
            self.faults += not trouble
        self._history.write(
            "fault",
            episode=step.episode,
            act=step.act,
            target=step.target,
            options=dict(step.options),
            nodes=nodes,
            at=round(at, 6),
            until=round(self._history.now(), 6),
            leads=[[place.topic, place.partition] for each in nodes for place in standing.led_by(each)],
            controls=standing.controller in nodes,
            trouble=trouble,
        )
        self._history.flush()
        whom = f"node {node}" if step.target and node is not None else ""
        more = " ".join(f"{name}={value}" for name, value in step.options.items())
        words = " ".join(filter(None, (step.act, whom, f"({step.target})" if step.target else "", more)))
        self._say(f"{at:7.2f}  #{step.episode:<3} {words}{f': {trouble}' if trouble else ''}")

    def mend(self) -> None:
        """Undo everything: all processes run, all links are whole. Raises :class:`CommandFailed` or
        :class:`ProxyTrouble` if that fails."""
        for node in self._laboratory.node_ids:
            self._signal(node, signal.SIGCONT)
        self._laboratory.links.heal_all()
        self._disks.mend()
        self._start(self._laboratory.node_ids)
        self._cluster.wait_ready(timeout_s=READY_S)
        self._drains.mend()
        self._moves.mend()

    def _look(self) -> ClusterStanding:
        standing: ClusterStanding = self._ask(self._observer.standing(self._targets.topics))
        return standing

    # --- Targets -----------------------------------------------------------------------------------------

    def _whom(self, step: Step, standing: ClusterStanding) -> int | None:
        if not step.target:
            return None
        if step.episode not in self._meant:
            found = self._look_up(step.target, standing)
            self._meant[step.episode] = found if found in self._laboratory.node_ids else None
        return self._meant[step.episode]

    def _look_up(self, target: str, standing: ClusterStanding) -> int:
        role, _, text = target.partition(":")
        number = int(text or 0)
        nodes = self._laboratory.node_ids
        at = self._targets.partitions[number % len(self._targets.partitions)]
        held = standing.partitions.get(at)
        leader = -1 if held is None else held.leader
        match role:
            case schedule.ANY:
                return nodes[number % len(nodes)]
            case schedule.CONTROLLER:
                return standing.controller
            case schedule.LEADER:
                return leader
            case schedule.FOLLOWER:
                others = [] if held is None else [node for node in held.isr if node != leader]
                return others[number % len(others)] if others else -1
            case schedule.TRANSACTIONS if self._targets.transactional_ids:
                names = self._targets.transactional_ids
                return int(self._ask(self._observer.coordinator(names[number % len(names)], TRANSACTION_COORDINATOR)))
            case schedule.GROUP | schedule.TRANSACTIONS if self._targets.group:
                return int(self._ask(self._observer.coordinator(self._targets.group, GROUP_COORDINATOR)))
            case _:
                return leader

    # --- Acts --------------------------------------------------------------------------------------------

    def _kill(self, node: int) -> None:
        self._cluster.kill(node)

    def _kill_together(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._cluster.node(node).send_signal(signal.SIGKILL)
        for node in nodes:
            self._cluster.kill(node)

    def _signal(self, node: int, number: signal.Signals) -> None:
        self._cluster.node(node).send_signal(number)

    def _start(self, nodes: Sequence[int]) -> None:
        """Start a node. One that was asked to shut down gets time for it; after that it is killed."""
        for node in nodes:
            if node in self._asked_to_end:
                self._asked_to_end.discard(node)
                self._cluster.stop([node], timeout_s=STOP_TIMEOUT_S)
        self._cluster.start(nodes)

    def _terminate(self, node: int) -> None:
        self._asked_to_end.add(node)
        self._signal(node, signal.SIGTERM)

    def _roll(self) -> None:
        for node in self._laboratory.node_ids:
            self._cluster.stop([node], timeout_s=STOP_TIMEOUT_S)
            self._cluster.start([node])
            self._cluster.wait_ready([node], timeout_s=READY_S)
            deadline = time.monotonic() + WHOLE_S
            while not self._ask(self._observer.standing(self._targets.topics)).whole:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"node {node} is back, and not all copies in sync after {WHOLE_S:g} s")
                time.sleep(_POLL_S)

    def _rotate(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._laboratory.renew(node, READY_S)

    def _impair(self, step: Step, node: int) -> None:
        options = dict(step.options)
        name = str(options.pop("topology"))
        listeners = options.pop("listeners", None)
        ways = topology(name, node, self._laboratory.node_ids)
        impairment = Impairment(**options)
        self._laboratory.links.impair(
            _owner(step), ways, impairment, None if listeners is None else frozenset(listeners)
        )


def _owner(step: Step) -> str:
    return f"e{step.episode}"
