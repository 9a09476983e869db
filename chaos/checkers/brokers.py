"""Judges of brokers in the committed metadata, against the acts and requests of their processes.

===================  ========================================================================================
fenced does nothing  a fenced or unregistered broker leads nothing and is in no in-sync replicas (KIP-841)
online replicas      a leader, and every in-sync replica, is in a log directory that its broker has (KIP-858)
asked for            a running process is unfenced only once it is ready, and shut down only if it wants to be
node ids             a registration replaces no process that is alive and in good standing (KIP-631)
forgotten            only a fenced broker is unregistered, and its cordon with it; a new broker under its id
                     counts as stopped uncleanly: it is eligible nowhere (KIP-966)
change as decided    a change of in-sync replicas is made only under the partition and broker epochs under
                     which it was decided (KIP-497, KIP-903)
client's leaders     a client never replaces its knowledge of a partition's leader with an older one (KIP-320)
===================  ========================================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.chaos.checkers.replication import PartitionName
from tidelog.model.ids import NO_NODE, NodeId

NOT_NAMED: Final = -1
"""A broker epoch that a request leaves open."""


def fenced_in_charge(
    partition: PartitionName, leader: NodeId, isr: Iterable[NodeId], fenced: Iterable[NodeId]
) -> list[str]:
    """Judge a partition of one committed image. ``fenced``: includes brokers that are no longer registered."""
    out = sorted(fenced)
    found = []
    if leader != NO_NODE and leader in out:
        found.append(f"fenced does nothing: node {leader} is fenced or unregistered and leads {partition}")
    inside = [node for node in isr if node in out]
    if inside:
        found.append(f"fenced does nothing: nodes {inside} are fenced or unregistered and in sync in {partition}")
    return found


def offline_in_charge(
    partition: PartitionName, leader: NodeId, isr: Iterable[NodeId], online: Callable[[NodeId], bool]
) -> list[str]:
    """Judge the log directories of a partition's replicas in one committed image. ``online``: whether a node's replica
    is on one that works."""
    found = []
    if leader != NO_NODE and not online(leader):
        found.append(f"online replicas: node {leader} leads {partition} from a log directory that it does not have")
    failed = [node for node in isr if not online(node)]
    if failed:
        found.append(f"online replicas: nodes {failed} are in sync in {partition} without their log directories")
    return found


class Registered(NamedTuple):
    """A broker in a committed image."""

    broker_epoch: int
    fenced: bool
    shutting_down: bool


class Running(NamedTuple):
    """The process that runs under a node id, as it sees itself."""

    broker_epoch: int
    ready: bool
    wants_shut_down: bool
    reachable: bool
    """Neither paused nor cut off: its session cannot have expired."""


def broker_changed(node: NodeId, before: Registered | None, now: Registered, running: Running | None) -> list[str]:
    """Judge a committed change of a broker against the process that runs there at that moment, if any."""
    if running is None:
        return []
    found = []
    if running.broker_epoch == now.broker_epoch:
        is_same = before is not None and before.broker_epoch == now.broker_epoch
        was_fenced = not is_same or before is None or before.fenced
        was_shutting_down = is_same and before is not None and before.shutting_down
        if was_fenced and not now.fenced and not running.ready:
            found.append(f"asked for: node {node} is unfenced, which is not ready")
        if now.shutting_down and not was_shutting_down and not running.wants_shut_down:
            found.append(f"asked for: node {node} is shut down, which has not asked for it")
    elif (
        before is not None
        and before.broker_epoch == running.broker_epoch
        and now.broker_epoch != before.broker_epoch
        and not before.fenced
        and running.reachable
        and not running.wants_shut_down
    ):
        found.append(
            f"node ids: broker epoch {now.broker_epoch} of node {node} replaces {before.broker_epoch}, which is alive"
        )
    return found


def unregistered(node: NodeId, before: Registered, *, cordoned: bool) -> list[str]:
    """Judge the committed image from which a broker was removed; ``before``: its entry in the previous image."""
    found = []
    if not before.fenced:
        found.append(f"forgotten: node {node} was unregistered while it was not fenced")
    if cordoned:
        found.append(f"forgotten: node {node} was unregistered, and whatever comes under its id is cordoned")
    return found


def came_back(node: NodeId, eligible: Iterable[PartitionName]) -> list[str]:
    """Judge the committed image with a broker under an id that was unregistered. ``eligible``: the partitions for which
    it is an eligible leader there."""
    where = sorted(map(str, eligible))
    return [f"forgotten: node {node} is new, and counts as stopped cleanly in {where}"] if where else []


class ChangeJudge:
    """Compares granted changes of in-sync replicas with the epochs under which they were decided."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionName, tuple[list[float], list[int]]] = {}
        self._brokers: dict[NodeId, tuple[list[float], list[int]]] = {}

    def partition(self, partition: PartitionName, partition_epoch: int, at_s: float) -> None:
        """Record a committed partition epoch."""
        times, epochs = self._partitions.setdefault(partition, ([], []))
        times.append(at_s)
        epochs.append(partition_epoch)

    def broker(self, node: NodeId, broker_epoch: int, at_s: float) -> None:
        """Record a committed broker epoch."""
        times, epochs = self._brokers.setdefault(node, ([], []))
        times.append(at_s)
        epochs.append(broker_epoch)

    def granted(
        self, partition: PartitionName, partition_epoch: int, members: Mapping[NodeId, int], asked_s: float
    ) -> list[str]:
        """Judge a granted change that was requested at a time under these epochs."""
        found = []
        known = _at(self._partitions.get(partition), asked_s)
        if partition_epoch < known:
            found.append(
                f"change as decided: {partition}'s in-sync replicas were changed by what was decided under partition "
                f"epoch {partition_epoch}, asked for at {asked_s:.3f}, when it was {known}"
            )
        for node, broker_epoch in members.items():
            known = _at(self._brokers.get(node), asked_s)
            if NOT_NAMED < broker_epoch < known:
                found.append(
                    f"change as decided: {partition} took node {node} for in sync under broker epoch {broker_epoch}, "
                    f"asked for at {asked_s:.3f}, when it was {known}"
                )
        return found


class LeaderKnowledgeJudge:
    """Judges clients' knowledge of the leaders of partitions."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, PartitionName], int] = {}

    def observe(self, client: str, partition: PartitionName, leader_epoch: int) -> list[str]:
        """Judge that a client takes the leader of an epoch for the current one."""
        key = (client, partition)
        before = self._known.get(key, leader_epoch)
        self._known[key] = leader_epoch
        if leader_epoch < before:
            return [
                f"client's leaders: {client} knew leader epoch {before} of {partition} and now goes by {leader_epoch}"
            ]
        return []


def _at(history: tuple[list[float], list[int]] | None, at_s: float) -> int:
    """Return the value at a time; -1 before the first one."""
    if history is None:
        return -1
    index = bisect_right(history[0], at_s)
    return history[1][index - 1] if index else -1
