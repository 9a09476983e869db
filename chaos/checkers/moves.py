"""Judges the placement of a partition's replicas and their moves, from one committed state to the next. KIP-455,
KIP-1066."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from tidelog.model.ids import LeaderEpoch, NodeId


class Placed(Protocol):
    """The committed state of a partition, as far as it is judged."""

    @property
    def partition_epoch(self) -> int: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def replicas(self) -> tuple[NodeId, ...]: ...
    @property
    def adding_replicas(self) -> tuple[NodeId, ...]: ...
    @property
    def removing_replicas(self) -> tuple[NodeId, ...]: ...
    @property
    def isr(self) -> tuple[NodeId, ...]: ...
    @property
    def eligible_leader_replicas(self) -> tuple[NodeId, ...]: ...


def moved(name: str, before: Placed, now: Placed, min_isr: int) -> list[str]:
    """Judge one change. ``min_isr``: the topic's setting; the number of replicas bounds it."""
    if now.partition_epoch != before.partition_epoch + 1:
        return []  # no living node saw the changes between
    found = []
    gone = set(before.replicas) - set(now.replicas)
    if gone and now.leader_epoch == before.leader_epoch:
        found.append(f"moves: {name} lost the replicas {sorted(gone)} and kept leader epoch {now.leader_epoch}")
    if gone & {*before.isr, *before.eligible_leader_replicas} and len(now.isr) < min(min_isr, len(now.replicas)):
        found.append(
            f"moves: {name} let go of {sorted(gone)} while only {now.isr} are in sync; {min_isr} are to be "
            f"(in sync were {before.isr}, eligible {before.eligible_leader_replicas})"
        )
    target = [node for node in before.replicas if node not in before.removing_replicas]
    was_moving = bool(before.adding_replicas or before.removing_replicas)
    is_over = was_moving and not (now.adding_replicas or now.removing_replicas) and list(now.replicas) == target
    if is_over and (late := sorted(set(before.adding_replicas) - set(now.isr))):
        found.append(f"moves: {name} was moved to {target} before {late} were in sync; in sync are {now.isr}")
    return found


def placed(name: str, before: Iterable[NodeId], now: Iterable[NodeId], closed: Collection[NodeId]) -> list[str]:
    """Judge the placement of new replicas. ``before``: the partition's former replicas, none if it is new; ``closed``:
    brokers that could get no new ones when this was decided, cordoned or unregistered."""
    wrong = sorted((set(now) - set(before)).intersection(closed))
    return [f"moves: {name} got a replica on {wrong}, which are cordoned or unregistered"] if wrong else []
