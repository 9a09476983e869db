"""The assignors of the consumer protocol: who gets which partitions. Pure, and in portions.

Source: ``UniformAssignor`` and ``RangeAssignor`` of Kafka's group coordinator. Equal input gives equal output. What a
member keeps is not copied, so a small change to a large group costs little more than a look at each of its members.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.groups.consumer.steps import Work
from tidelog.model.ids import TopicId
from tidelog.proto.logs.consumer_group_records import Partitions

_MANY: Final = 256
"""Of more partitions of a topic, a step of the work looks at one topic only."""
_PASSES_MAX: Final = 16
"""Most passes over all topics to balance members that want different ones, as in Kafka."""


class Input(NamedTuple):
    """``counts``: the numbers of partitions, in the order of topics' names. ``wishes``: what each member wants, members
    in order (their ids' for ``uniform``; static ones first for ``range``), topics of ``counts`` only. ``had``: present
    targets; they may name topics and partitions that are gone, or a partition twice."""

    counts: Mapping[TopicId, int]
    wishes: Mapping[str, frozenset[TopicId]]
    had: Mapping[str, Partitions]


Divide = Callable[[Input], Work[dict[str, Partitions]]]
"""Returns the targets of members whose target changes."""


def uniform(given: Input) -> Work[dict[str, Partitions]]:
    """Divide evenly, with few moves: members that want the same get shares that differ by one at most. Others are
    balanced as far as their wishes allow."""
    alike = len(set(given.wishes.values())) <= 1
    yield len(given.wishes) // 8
    return (yield from _equally(given) if alike else _unequally(given))


def _equally(given: Input) -> Work[dict[str, Partitions]]:
    """Each member first keeps what it has, up to its share, then gets its turn of the rest."""
    if not given.wishes:
        return {}
    fewest, members_with_more = divmod(sum(given.counts.values()), len(given.wishes))
    most = fewest + (members_with_more > 0)
    taken = {topic_id: bytearray(count) for topic_id, count in given.counts.items()}
    changed: dict[str, dict[TopicId, set[int]]] = {}
    below: deque[str] = deque()  # those with less than the fewest
    may_get_one_more: deque[str] = deque()
    sizes: dict[str, int] = {}
    for name in given.wishes:
        had = given.had.get(name)
        kept = yield from _take(taken, had or {})
        size = sum(map(len, kept.values()))
        limit = most if size >= most and members_with_more else fewest
        if size > limit:
            yield from _trim(taken, kept, size - limit)
            size = limit
        if had is None or size != sum(map(len, had.values())):
            changed[name] = {topic_id: set(numbers) for topic_id, numbers in kept.items() if numbers}
        if size < fewest:
            below.append(name)
            sizes[name] = size
        elif size == most and members_with_more:
            members_with_more -= 1
        else:
            may_get_one_more.append(name)
        yield 3 + len(kept) + size // 8
    for topic_id, marks in taken.items():
        number = marks.find(0)
        while number >= 0:
            name = below.popleft() if below else may_get_one_more.popleft()
            if name not in changed:
                changed[name] = {topic_id: set(numbers) for topic_id, numbers in given.had[name].items()}
            changed[name].setdefault(topic_id, set()).add(number)
            if name in sizes:
                sizes[name] += 1
                if sizes[name] < fewest:
                    below.append(name)
                else:
                    del sizes[name]
                    may_get_one_more.append(name)
            number = marks.find(0, number + 1)
            yield 1
        yield 1
    return (yield from _different(given, changed))


def _take(taken: Mapping[TopicId, bytearray], had: Partitions) -> Work[dict[TopicId, list[int]]]:
    """Mark what there is, and nobody has, of a member's partitions, and return it."""
    kept: dict[TopicId, list[int]] = {}
    for topic_id, numbers in had.items():
        marks = taken.get(topic_id)
        if marks is not None:
            kept[topic_id] = mine = [number for number in numbers if number < len(marks) and not marks[number]]
            for number in mine:
                marks[number] = 1
        if len(numbers) > _MANY:
            yield len(numbers) // 8
    return kept


def _trim(taken: Mapping[TopicId, bytearray], kept: dict[TopicId, list[int]], surplus: int) -> Work[None]:
    """Give up the highest numbers, of equal ones those of the last topics: keeping low numbers of all topics spreads
    each topic out."""
    holders = [0] * max(map(len, taken.values()))  # number → the topics of which it is kept
    for numbers in kept.values():
        for number in numbers:
            holders[number] += 1
        yield 1 + len(numbers) // 8
    bound = len(holders)
    while surplus >= holders[bound - 1]:
        bound -= 1
        surplus -= holders[bound]
    for topic_id in sorted(kept, reverse=True):
        marks, numbers, mine = taken[topic_id], kept[topic_id], []
        for number in numbers:
            if number < bound - 1 or (number == bound - 1 and not surplus):
                mine.append(number)
            else:
                surplus -= number == bound - 1
                marks[number] = 0
        kept[topic_id] = mine
        yield 1 + len(numbers) // 8


def _unequally(given: Input) -> Work[dict[str, Partitions]]:
    """Each member keeps what it has and still wants; the rest goes to those that have least; then topics are balanced,
    one by one, until no subscriber has two more than another. Balance goes before few moves, as in Kafka."""
    subscribers: dict[TopicId, list[str]] = {topic_id: [] for topic_id in given.counts}
    taken = {topic_id: bytearray(count) for topic_id, count in given.counts.items()}
    shares: dict[str, dict[TopicId, set[int]]] = {}
    loads: dict[str, int] = {}
    for name, wish in given.wishes.items():
        for topic_id in wish:
            subscribers[topic_id].append(name)
        had = {topic_id: numbers for topic_id, numbers in given.had.get(name, {}).items() if topic_id in wish}
        kept = yield from _take(taken, had)
        shares[name] = {topic_id: set(numbers) for topic_id, numbers in kept.items()}
        loads[name] = sum(map(len, shares[name].values()))
        yield 3 + len(wish) // 4 + len(had) + loads[name] // 8
    rarest = sorted(given.counts, key=lambda topic_id: len(subscribers[topic_id]))
    for topic_id in rarest:
        yield from _give_out(topic_id, taken[topic_id], subscribers[topic_id], shares, loads)
    for _ in range(_PASSES_MAX):
        moves = 0
        for topic_id in rarest:
            moves += yield from _balance(topic_id, subscribers[topic_id], shares, loads)
        if not moves:
            break
    return (yield from _different(given, shares))


def _give_out(
    topic_id: TopicId,
    marks: bytearray,
    subscribers: Sequence[str],
    shares: Mapping[str, dict[TopicId, set[int]]],
    loads: dict[str, int],
) -> Work[None]:
    """Give a topic's free partitions to the subscribers that have least."""
    number = marks.find(0)
    if number < 0:
        yield 1
        return
    least = yield from _heap(subscribers, loads, 1)
    while number >= 0:
        load, at = least[0]
        name = subscribers[at]
        shares[name].setdefault(topic_id, set()).add(number)
        loads[name] = load + 1
        heapq.heapreplace(least, (load + 1, at))
        number = marks.find(0, number + 1)
        yield 2


def _balance(
    topic_id: TopicId,
    subscribers: Sequence[str],
    shares: Mapping[str, dict[TopicId, set[int]]],
    loads: dict[str, int],
) -> Work[int]:
    """Move a topic's partitions from the subscribers with most to those with least. Returns the number of moves, each
    of which brings two loads nearer to each other."""
    owners = [name for name in subscribers if shares[name].get(topic_id)]
    yield 1 + len(subscribers) // 4
    if not owners or max(map(loads.__getitem__, owners)) - min(map(loads.__getitem__, subscribers)) < 2:
        return 0
    most = yield from _heap(owners, loads, -1)
    least = yield from _heap(subscribers, loads, 1)
    moves = 0
    while most:
        load, at = most[0]
        giver, mine = owners[at], shares[owners[at]][topic_id]
        if not mine or -load != loads[giver]:
            heapq.heappop(most)
            if mine:
                heapq.heappush(most, (-loads[giver], at))
            continue
        fewest, to = least[0]
        taker = subscribers[to]
        if fewest != loads[taker]:
            heapq.heapreplace(least, (loads[taker], to))
            continue
        if -load - fewest < 2:
            break
        number = max(mine)
        mine.remove(number)
        shares[taker].setdefault(topic_id, set()).add(number)
        loads[giver] -= 1
        loads[taker] += 1
        moves += 1
        yield 4
    return moves


def _heap(names: Sequence[str], loads: Mapping[str, int], sign: int) -> Work[list[tuple[int, int]]]:
    """Return a heap of loads, times ``sign``, and positions in ``names``."""
    found = [(sign * loads[name], at) for at, name in enumerate(names)]
    heapq.heapify(found)
    yield len(names) // 2
    return found


def ranges(given: Input) -> Work[dict[str, Partitions]]:
    """Give neighbouring partitions, topic by topic. Topics of equal size that the same members want are cut alike."""
    subscribers: dict[TopicId, list[str]] = {topic_id: [] for topic_id in given.counts}
    shares: dict[str, dict[TopicId, set[int]]] = {name: {} for name in given.wishes}
    for name, wish in given.wishes.items():
        for topic_id in wish:
            subscribers[topic_id].append(name)
        yield 1 + len(wish) // 4
    for topic_id, count in given.counts.items():
        members = subscribers[topic_id]
        shortest, longer = divmod(count, len(members))
        start = 0
        for rank, name in enumerate(members[: None if shortest else longer]):
            end = start + shortest + (rank < longer)
            shares[name][topic_id] = set(range(start, end))
            yield 1 + (end - start) // 16
            start = end
    return (yield from _different(given, shares))


def _different(given: Input, shares: Mapping[str, Mapping[TopicId, set[int]]]) -> Work[dict[str, Partitions]]:
    """Return the shares that are not those of before."""
    found: dict[str, Partitions] = {}
    for name, share in shares.items():
        now = {topic_id: frozenset(numbers) for topic_id, numbers in share.items() if numbers}
        if given.had.get(name) != now:
            found[name] = now
        yield 2 + len(now) // 2 + sum(map(len, now.values())) // 16
    return found


ASSIGNORS: Final[Mapping[str, Divide]] = MappingProxyType({"uniform": uniform, "range": ranges})
"""The assignors that ``group.consumer.assignors`` may name."""
