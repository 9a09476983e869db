"""Chooses the brokers for the replicas of new partitions.

Replicas are striped over racks first and over a rack's brokers second, from a random start, so that partitions, and the
leaders that take over from a failed broker, are spread evenly. A partition's first replica (its preferred leader) is on
a live broker; fenced ones are used only when no live one is left. Within a rack, a broker on a machine that has no
replica of the partition comes first, fenced or not. Source: Kafka's ``StripedReplicaPlacer``, which has no machines.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId

REPLICATION_FACTOR_MAX: Final = 32_767


class UsableBroker(NamedTuple):
    """A registered broker that is neither shutting down nor cordoned."""

    node_id: NodeId
    rack: str | None
    fenced: bool
    machine: str | None = None
    """What it shares with the other brokers of its machine; ``None``: it is alone there."""


class _Ring:
    """Brokers in rotation. Each new stripe starts one broker later."""

    __slots__ = ("_left", "_members", "_start", "_stripe")

    def __init__(self, members: list[UsableBroker], rng: random.Random) -> None:
        self._members = sorted(members)
        self._start = rng.randrange(len(members)) if members else 0
        self._stripe = 0
        self._left = self._in_turn()

    def _in_turn(self) -> list[UsableBroker]:
        return [*self._members[self._start :], *self._members[: self._start]]

    def take(self, stripe: int, crowded: Collection[str | None]) -> NodeId | None:
        """Return the next broker not yet used in this stripe and on none of these machines, ``None`` if there is
        none."""
        if not self._members:
            return None
        if stripe != self._stripe:
            self._stripe = stripe
            self._start = (self._start + 1) % len(self._members)
            self._left = self._in_turn()
        for at, broker in enumerate(self._left):
            if broker.machine is None or broker.machine not in crowded:
                return self._left.pop(at).node_id
        return None

    def shuffle(self, rng: random.Random) -> None:
        rng.shuffle(self._members)


class _Rack:
    __slots__ = ("fenced", "live")

    def __init__(self, brokers: list[UsableBroker], rng: random.Random) -> None:
        self.live = _Ring([broker for broker in brokers if not broker.fenced], rng)
        self.fenced = _Ring([broker for broker in brokers if broker.fenced], rng)

    def take(self, stripe: int, crowded: Collection[str | None]) -> NodeId | None:
        for machines in (crowded, ()):
            for ring in (self.live, self.fenced):
                if (found := ring.take(stripe, machines)) is not None:
                    return found
        return None


def place_replicas(
    brokers: Iterable[UsableBroker], partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[NodeId, ...]] | Refusal:
    """Return the replicas of each new partition, or INVALID_REPLICATION_FACTOR."""
    usable = sorted(brokers)
    live = sum(not broker.fenced for broker in usable)
    if not 1 <= replication_factor <= REPLICATION_FACTOR_MAX:
        return _refused(f"expected a replication factor of 1 to {REPLICATION_FACTOR_MAX}, found {replication_factor}")
    if live == 0:
        return _refused("expected a live broker, found none: all are fenced, shutting down or cordoned")
    if replication_factor > len(usable):
        return _refused(
            f"expected a replication factor of at most {len(usable)}, the number of registered brokers "
            f"({live} of them live) but for those that are shutting down or cordoned, found {replication_factor}"
        )
    by_rack: dict[str | None, list[UsableBroker]] = {}
    for broker in usable:
        by_rack.setdefault(broker.rack, []).append(broker)
    names = sorted(by_rack, key=lambda name: (name is not None, name or ""))
    racks = [_Rack(by_rack[name], rng) for name in names]
    machines = {broker.node_id: broker.machine for broker in usable}
    first_rack = rng.randrange(len(racks))
    placed: list[tuple[NodeId, ...]] = []
    stripe = 0
    for _ in range(partitions):
        if stripe == live and live > 1:
            # Every live broker has led once: shuffle, so that the same replica sets do not repeat.
            rng.shuffle(racks)
            for rack in racks:
                rack.live.shuffle(rng)
                rack.fenced.shuffle(rng)
            stripe = 0
        placed.append(_place_one(racks, machines, first_rack, replication_factor, stripe))
        stripe += 1
        first_rack = (first_rack + 1) % len(racks)
    return placed


def _place_one(
    racks: list[_Rack], machines: Mapping[NodeId, str | None], first_rack: int, replication_factor: int, stripe: int
) -> tuple[NodeId, ...]:
    at = first_rack
    leader = racks[at].live.take(stripe, ())
    while leader is None:
        at = (at + 1) % len(racks)
        leader = racks[at].live.take(stripe, ())
    chosen = [leader]
    crowded = {machines[leader]}
    led_from: int | None = at
    at = first_rack
    while len(chosen) < replication_factor:
        if at == led_from:
            led_from = None  # the leader's rack has had its turn in this round
        else:
            found = racks[at].take(stripe, crowded)
            if found is not None:
                chosen.append(found)
                crowded.add(machines[found])
        at = (at + 1) % len(racks)
    return tuple(chosen)


def cordoned_fault(node_id: NodeId) -> str:
    """Say why a named broker gets no new replica, and what to do."""
    return (
        f"expected brokers that are not cordoned, found {node_id}, which is (cordoned.log.dirs): name another one, or "
        f"let it have replicas again (tidelog brokers undrain {node_id})"
    )


def _refused(text: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
