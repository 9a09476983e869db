"""Plans where replicas go: off a broker, or evenly over all, while moving as few bytes as possible. Pure.

If the brokers allow it, a partition never ends on fewer racks than it has, and its replicas are never more crowded in
one rack, nor within it on one machine. The *weight* of a replica is what it adds to its broker: its bytes, plus a
constant, so that empty partitions are spread too. Leaders are balanced only by the order of replicas, which moves
nothing: first by number, then by bytes written per second.

Moves from the fullest to the emptiest broker are tried first. If no partition can make such a move, one goes via a
third broker. Source of the goals: Cruise Control's rack awareness, disk usage distribution and leader replica
distribution.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from tidelog.model.ids import TopicPartition

REPLICA_WEIGHT: Final = 1 << 20
"""The weight of a replica besides its bytes."""

Assignment = dict[TopicPartition, tuple[int, ...]]


class NoRoom(Exception):
    """A partition has more replicas than brokers are available; the text says which."""


class Target(NamedTuple):
    """A broker that may have replicas."""

    node: int
    rack: str | None
    machine: str | None = None
    """What it shares with the other nodes of its machine; ``None``: it is alone there."""


class Part(NamedTuple):
    """A partition: its nodes, preferred leader first; one replica's bytes; the bytes written to it per second."""

    replicas: tuple[int, ...]
    size: int
    rate: int = 0


def drained(parts: Mapping[TopicPartition, Part], targets: Iterable[Target], gone: Collection[int]) -> Assignment:
    """Replace each replica on ``gone`` by one on another broker; nothing else moves. Returns the changes. Raises
    :class:`NoRoom`."""
    spread = _Spread(parts, [target for target in targets if target.node not in gone], _weight)
    leaving = {at for at, part in parts.items() if not set(gone).isdisjoint(part.replicas)}
    spread.leave(gone)
    spread.even_leaders(leaving)
    return spread.changes()


def rebalanced(
    parts: Mapping[TopicPartition, Part],
    targets: Iterable[Target],
    tolerance: float,
    fixed: Collection[TopicPartition] = (),
) -> Assignment:
    """Balance bytes until each broker is within ``tolerance`` (0.1: 10 %) of the average, or no move helps; then
    leaders, and the bytes written to them. Replicas on brokers outside ``targets``, and ``fixed`` partitions, do not
    move. Returns the changes."""
    spread = _Spread(parts, targets, _weight, fixed=fixed)
    spread.mend_racks()
    average = sum(spread.load.values()) / max(len(spread.load), 1)
    spread.even_out(math.floor(average * (1 - tolerance)), math.ceil(average * (1 + tolerance)))
    movable = parts.keys() - set(fixed)
    spread.even_leaders(movable)
    spread.even_traffic(movable, tolerance)
    return spread.changes()


def resized(
    parts: Mapping[TopicPartition, Part], targets: Iterable[Target], topic: str, replication_factor: int
) -> Assignment:
    """Give each partition of ``topic`` this many replicas. New ones go to racks and brokers with room. Removed are
    first those outside ``targets``, then those that crowd a rack or broker, but never the first replica on one of
    ``targets``. Returns the changes. Raises :class:`NoRoom`."""
    spread = _Spread(parts, targets, _weight)
    own = [at for at in parts if at.topic == topic]
    for at in sorted(own):
        spread.resize(at, replication_factor)
    spread.even_leaders({at for at in own if len(parts[at].replicas) != replication_factor})
    return spread.changes()


def spread_topics(parts: Mapping[TopicPartition, Part], targets: Sequence[Target]) -> Assignment:
    """Spread each topic over exactly these brokers, with replica counts that differ by at most one, in as few moves as
    possible. Returns all partitions. Raises :class:`NoRoom`."""
    by_topic: dict[str, dict[TopicPartition, Part]] = {}
    for at in sorted(parts):
        by_topic.setdefault(at.topic, {})[at] = parts[at]
    found: Assignment = {}
    everywhere: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for own in by_topic.values():
        spread = _Spread(own, targets, lambda _: 1, everywhere, leaders)
        spread.leave({node for part in own.values() for node in part.replicas} - {target.node for target in targets})
        spread.mend_racks()
        average = sum(spread.load.values()) / max(len(spread.load), 1)
        spread.even_out(math.floor(average), math.ceil(average))
        spread.even_leaders(own)
        found.update({at: tuple(replicas) for at, replicas in spread.replicas.items()})
        everywhere.update(node for at in own for node in found[at])
        leaders.update(found[at][0] for at in own)
    return found


class Cost(NamedTuple):
    """The cost of a plan: replicas to copy, and their bytes."""

    replicas: int
    size: int


def cost_of(parts: Mapping[TopicPartition, Part], changes: Mapping[TopicPartition, Sequence[int]]) -> Cost:
    new = {at: len(set(replicas) - set(parts[at].replicas)) for at, replicas in changes.items()}
    return Cost(sum(new.values()), sum(count * parts[at].size for at, count in new.items()))


def _weight(part: Part) -> int:
    return part.size + REPLICA_WEIGHT


class _Spread:
    """A plan under construction."""

    def __init__(
        self,
        parts: Mapping[TopicPartition, Part],
        targets: Iterable[Target],
        weight: Callable[[Part], int],
        elsewhere: Mapping[int, int] = {},
        leaders_elsewhere: Mapping[int, int] = {},
        fixed: Collection[TopicPartition] = (),
    ) -> None:
        """``elsewhere``: what the brokers have and lead besides; it breaks ties. ``fixed``: partitions that count but
        do not move."""
        self._fixed = frozenset(fixed)
        self._parts = parts
        self._elsewhere = elsewhere
        self._leaders_elsewhere = leaders_elsewhere
        targets = tuple(targets)
        self.racks = {target.node: target.rack for target in targets}
        self._machines = {target.node: target.machine for target in targets if target.machine is not None}
        self.replicas = {at: list(part.replicas) for at, part in sorted(parts.items())}
        self._weights = {at: weight(part) for at, part in parts.items()}
        self._crowds = {at: Counter(self._rack(node) for node in has) for at, has in self.replicas.items()}
        """By partition, the number of its replicas in each rack."""
        self.load = dict.fromkeys(sorted(self.racks), 0)
        self._on: dict[int, dict[str | None, list[tuple[int, TopicPartition]]]] = {
            node: {rack: [] for rack in self.racks.values()} for node in self.load
        }
        """By broker and rack, its replicas that may go to another broker in that rack, ordered by weight."""
        for at, replicas in self.replicas.items():
            for node in self.load.keys() & replicas:
                self.load[node] += self._weights[at]
            for held in self._lists(at):
                held.append((self._weights[at], at))
        for by_rack in self._on.values():
            for held in by_rack.values():
                held.sort()

    def changes(self) -> Assignment:
        return {at: tuple(found) for at, found in self.replicas.items() if tuple(found) != self._parts[at].replicas}

    # --- Moves ---

    def leave(self, gone: Collection[int]) -> None:
        """Move every replica off these brokers, the heaviest first."""
        leaving = [(-self._weights[at], at, node) for at, has in self.replicas.items() for node in has if node in gone]
        for _, at, node in sorted(leaving):
            self._move(at, node, self._roomiest(at, instead=node))

    def resize(self, at: TopicPartition, count: int) -> None:
        """Add or drop replicas until there are ``count``."""
        replicas, crowd = self.replicas[at], self._crowds[at]
        while len(replicas) < count:
            self._place(at, [*replicas, self._roomiest(at, needed=count)])
        while len(replicas) > count:
            may_go = replicas[1:] if replicas[0] in self.load else replicas
            node = max(
                may_go,
                key=lambda one: (one not in self.load, crowd[self._rack(one)], self._near(at, one), self._fill(one)),
            )
            self._place(at, [one for one in replicas if one != node])

    def _roomiest(self, at: TopicPartition, instead: int = -1, needed: int = 0) -> int:
        """Return the broker for one more replica, or for one that replaces ``instead``."""
        free = [target for target in self.load if target not in self.replicas[at]]
        if not free:
            raise NoRoom(
                f"{at.topic}-{at.partition}: expected at most as many replicas as eligible brokers, "
                f"{len(self.load)}, found {needed or len(self.replicas[at])}"
            )
        crowd, left = self._crowds[at], self._rack(instead)
        return min(
            free,
            key=lambda one: (
                crowd[self._rack(one)] - (self._rack(one) == left), self._near(at, one, instead), *self._fill(one),
            ),
        )  # fmt: skip

    def mend_racks(self) -> None:
        """Move replicas of partitions that crowd a rack although another rack has room."""
        racks = set(self.racks.values())
        for at, replicas in self.replicas.items():
            if at in self._fixed:
                continue
            crowd = self._crowds[at]
            while max(crowd.values()) - min(crowd[rack] for rack in racks) >= 2:
                ways = [
                    (gain, -self.load[node], *self._fill(target), node, target)
                    for node in replicas
                    if node in self.load
                    for target in self.load
                    if target not in replicas and (gain := crowd[self.racks[target]] - crowd[self.racks[node]]) <= -2
                ]
                if not ways:
                    break
                *_, node, target = min(ways)
                self._move(at, node, target)
            self._mend_machines(at)

    def _mend_machines(self, at: TopicPartition) -> None:
        """Move replicas that share a machine to other machines, if their racks allow it."""
        replicas, crowd = self.replicas[at], self._crowds[at]
        while len({self._machine(node) for node in replicas}) < len(replicas):
            ways = [
                (gain, crowd[self.racks[target]], -self.load[node], *self._fill(target), node, target)
                for node in replicas
                if node in self.load
                for target in self.load
                if target not in replicas
                and (gain := self._near(at, target, node) - self._near(at, node)) < 0
                and self._rack_takes(at, node, self.racks[target])
            ]
            if not ways:
                break
            *_, node, target = min(ways)
            self._move(at, node, target)

    def even_out(self, low: int, high: int) -> None:
        """Move replicas until each broker's load is between ``low`` and ``high``, or no move helps. Each step lowers
        the sum of squared loads, so this terminates."""
        while any(not low <= load <= high for load in self.load.values()):
            if not (self._step(low, high) or self._detour(low, high)):
                return

    def _step(self, low: int, high: int) -> bool:
        """Move one replica from the fullest to the emptiest broker between which a move is possible."""
        for source, target in self._ways(low, high):
            at = self._fitting(source, target, low, high)
            if at is not None:
                self._move(at, source, target)
                return True
        return False

    def _ways(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        by_fill = sorted(self.load, key=self._fill)
        for source in reversed(by_fill):
            for target in by_fill:
                gap = self.load[source] - self.load[target]
                if gap > 0 and (self.load[source] > high or self.load[target] < low):
                    yield source, target

    def _fitting(self, source: int, target: int, low: int, high: int) -> TopicPartition | None:
        """Choose the replica to move. Among those that are not heavier than needed, take the one closest to the average
        weight that must go, so that replica counts are balanced too; otherwise the lightest that improves the
        balance."""
        held = self._on[source][self.racks[target]]
        surplus = len(self._on[source][self.racks[source]]) - len(self._on[target][self.racks[target]])
        gap = self.load[source] - self.load[target]
        needed = max(self.load[source] - high, low - self.load[target])
        room = min(self.load[source] - low, high - self.load[target])
        if room > 0:
            needed = min(needed, room)
        enough = min(bisect_right(held, (needed, _LAST)), bisect_left(held, (gap, _FIRST)))
        share = needed / max(surplus // 2, 1)
        start = min(bisect_left(held, (math.ceil(share), _FIRST)), enough)
        better = bisect_left(held, (gap, _FIRST))
        for position in chain(range(start, enough), range(start - 1, -1, -1), range(enough, better)):
            at: TopicPartition = held[position][1]
            if self._may_go(at, source, target):
                return at
        return None

    def _detour(self, low: int, high: int) -> bool:
        """Move one replica from the fullest broker to a third one, and one from there to the emptiest."""
        for source, target in self._ways(low, high):
            gap = self.load[source] - self.load[target]
            for third in sorted(self.load, key=self._fill):
                if third in (source, target):
                    continue
                held = self._on[source][self.racks[third]]
                for weight, at in reversed(held[: bisect_left(held, (gap, _FIRST))]):
                    if not self._may_go(at, source, third):
                        continue
                    other = self._like(third, target, weight, at)
                    if other is not None:
                        self._move(at, source, third)
                        self._move(other, third, target)
                        return True
                    break
        return False

    def _like(self, source: int, target: int, weight: int, besides: TopicPartition) -> TopicPartition | None:
        """Return the heaviest replica that can move on from the third broker, about as heavy as the one that
        arrived."""
        held = self._on[source][self.racks[target]]
        for position in range(bisect_right(held, (weight, _LAST)) - 1, -1, -1):
            found: int = held[position][0]
            at: TopicPartition = held[position][1]
            if found * 2 < weight:
                return None
            if at != besides and self._may_go(at, source, target):
                return at
        return None

    def _move(self, at: TopicPartition, source: int, target: int) -> None:
        self._place(at, [target if node == source else node for node in self.replicas[at]])

    def _place(self, at: TopicPartition, replicas: Sequence[int]) -> None:
        entry = (self._weights[at], at)
        for held in self._lists(at):
            del held[bisect_left(held, entry)]
        for nodes, sign in ((self.replicas[at], -1), (replicas, 1)):
            for node in nodes:
                self._crowds[at][self._rack(node)] += sign
                if node in self.load:
                    self.load[node] += sign * self._weights[at]
        self.replicas[at][:] = replicas
        for held in self._lists(at):
            insort(held, entry)

    def _lists(self, at: TopicPartition) -> Iterator[list[tuple[int, TopicPartition]]]:
        """Yield the lists that contain this partition, given its current replicas. A move must not crowd a rack more
        than before."""
        if at in self._fixed:
            return
        for node in self.replicas[at]:
            if node in self.load:
                for rack, held in self._on[node].items():
                    if self._rack_takes(at, node, rack):
                        yield held

    def _rack_takes(self, at: TopicPartition, node: int, rack: str | None) -> bool:
        """Return whether a partition's replica may move from a broker to this rack without crowding it more."""
        here, crowd = self.racks[node], self._crowds[at]
        return rack == here or crowd[rack] < crowd[here]

    def _may_go(self, at: TopicPartition, source: int, target: int) -> bool:
        """Return whether a move ends on a broker without this partition, and crowds no machine more than before."""
        free = target not in self.replicas[at]
        return free and self._near(at, target, source) <= self._near(at, source)

    def _near(self, at: TopicPartition, node: int, leaving: int = -1) -> int:
        """Count the partition's replicas on other brokers of this one's machine, but for the one that leaves."""
        machine = self._machine(node)
        return sum(self._machine(one) == machine for one in self.replicas[at] if one not in (node, leaving))

    def _fill(self, node: int) -> tuple[int, int, int]:
        return self.load.get(node, 0), self._elsewhere.get(node, 0), node

    def _rack(self, node: int) -> str | int | None:
        """Return a broker's rack. One that may have no replicas gets its own rack here, because its rack is unknown."""
        return self.racks.get(node, node)

    def _machine(self, node: int) -> str | int:
        return self._machines.get(node, node)

    # --- Leaders ---

    def even_leaders(self, movable: Collection[TopicPartition]) -> None:
        """Put another replica first to balance leaders: along the shortest path from a broker that leads too many
        partitions to one that leads at least two fewer. Changes only the order within ``movable``."""
        leads, ways = self._led(movable, lambda _: 1)
        open_nodes = set(leads)
        while open_nodes:
            fullest = max(open_nodes, key=lambda node: (leads[node], self._leaders_elsewhere.get(node, 0), node))
            path = self._way_down(fullest, leads, ways)
            if path is None:
                open_nodes.discard(fullest)
                continue
            for source, target in pairwise(path):
                self._hand_over(ways, min(ways[source][target]), target)
            leads[path[0]] -= 1
            leads[path[-1]] += 1

    def even_traffic(self, movable: Collection[TopicPartition], tolerance: float) -> None:
        """Exchange leaders between brokers with more and less write traffic, so that each leads as many as before. If
        that does not help, hand one leader over while the numbers stay within ``tolerance`` too. Each step lowers the
        sum of squared rates, so this terminates."""
        rates, ways = self._led(movable, lambda at: self._parts[at].rate)
        leads, _ = self._led((), lambda _: 1)
        fewest = sum(leads.values()) / max(len(leads), 1) * (1 - tolerance)
        average = sum(rates.values()) / max(len(rates), 1)
        low, high = math.floor(average * (1 - tolerance)), math.ceil(average * (1 + tolerance))
        while (
            step := self._calmer(rates, ways, low, high, {node for node in leads if leads[node] > fewest})
        ) is not None:
            source, target, given, taken = step
            if taken is None:
                leads[source] -= 1
                leads[target] += 1
            for at, first, second in ((given, source, target), (taken, target, source)):
                if at is not None:
                    self._hand_over(ways, at, second)
                    rates[first] -= self._parts[at].rate
                    rates[second] += self._parts[at].rate

    def _calmer(
        self,
        rates: Mapping[int, int],
        ways: Mapping[int, Mapping[int, set[TopicPartition]]],
        low: int,
        high: int,
        may_give: Collection[int],
    ) -> tuple[int, int, TopicPartition, TopicPartition | None] | None:
        """Return the next step: which broker gives which leader to which other, and what comes back."""
        by_rate = sorted(rates, key=lambda node: (rates[node], node))
        pairs = [
            (source, target)
            for source in reversed(by_rate)
            for target in by_rate
            if rates[source] > rates[target] and (rates[source] > high or rates[target] < low)
        ]
        for exchange in (True, False):
            for source, target in pairs:
                if not exchange and source not in may_give:
                    continue
                gap = rates[source] - rates[target]
                given = self._by_rate(ways[source].get(target, ()))
                taken = self._by_rate(ways[target].get(source, ())) if exchange else [(0, None)]
                found = _halving(given, taken, gap)
                if found is not None:
                    return source, target, *found
        return None

    def _by_rate(self, some: Iterable[TopicPartition]) -> list[tuple[int, TopicPartition]]:
        return sorted((self._parts[at].rate, at) for at in some)

    def _led(
        self, movable: Collection[TopicPartition], weight: Callable[[TopicPartition], int]
    ) -> tuple[dict[int, int], dict[int, dict[int, set[TopicPartition]]]]:
        """Return the weight that each broker leads and, by pair of brokers, what the one leads that the other may
        lead."""
        leads = dict.fromkeys(self.load, 0)
        ways: dict[int, dict[int, set[TopicPartition]]] = {node: {} for node in self.load}
        for at, replicas in self.replicas.items():
            if replicas[0] in leads:
                leads[replicas[0]] += weight(at)
                if at in movable:
                    self._offer(ways, at)
        return leads, ways

    def _offer(self, ways: dict[int, dict[int, set[TopicPartition]]], at: TopicPartition) -> None:
        first, *others = self.replicas[at]
        for node in others:
            if node in ways:
                ways[first].setdefault(node, set()).add(at)

    def _hand_over(self, ways: dict[int, dict[int, set[TopicPartition]]], at: TopicPartition, target: int) -> None:
        replicas = self.replicas[at]
        for node in replicas[1:]:
            ways[replicas[0]].get(node, set()).discard(at)
        position = replicas.index(target)
        replicas[0], replicas[position] = replicas[position], replicas[0]
        self._offer(ways, at)

    def _way_down(
        self, source: int, leads: Mapping[int, int], ways: Mapping[int, Mapping[int, set[TopicPartition]]]
    ) -> list[int] | None:
        came_from = {source: source}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if leads[node] <= leads[source] - 2:
                path = [node]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path[::-1]
            nexts = [found for found, held in ways[node].items() if held and found not in came_from]
            for found in sorted(nexts, key=lambda one: (leads[one], self._leaders_elsewhere.get(one, 0), one)):
                came_from[found] = node
                queue.append(found)
        return None


def _halving(
    given: Sequence[tuple[int, TopicPartition]], taken: Sequence[tuple[int, TopicPartition | None]], gap: int
) -> tuple[TopicPartition, TopicPartition | None] | None:
    """Return one of each, sorted by rate, whose difference is nearest to half of ``gap``, if that shrinks it."""
    best: tuple[int, TopicPartition, TopicPartition | None] | None = None
    position = 0
    for rate, at in given:
        while position + 1 < len(taken) and 2 * (rate - taken[position + 1][0]) >= gap:
            position += 1
        for back, other in taken[position : position + 2]:
            difference = rate - back
            if 0 < difference < gap and (best is None or abs(2 * difference - gap) < best[0]):
                best = abs(2 * difference - gap), at, other
    return None if best is None else best[1:]


_FIRST: Final = TopicPartition("", -1)
_LAST: Final = TopicPartition("\U0010ffff", 1 << 31)
