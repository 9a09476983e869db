"""The sticky assignment for members with equal subscriptions: any member may get any partition.

Source: the constrained algorithm of Kafka's ``AbstractStickyAssignor``. Where Kafka follows the order of a hash map,
this follows the order of member ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from tidelog.model.ids import TopicPartition


def divide_equally(
    counts: Mapping[str, int], owned: Mapping[str, list[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """Give each member its fair share: first what it owns, as far as that fits, then its turn of the rest.

    ``counts``: number of partitions of each topic; ``owned``: what each member owns, no partition twice. With p
    partitions and m members, each member gets p // m, and p % m of them one more. Takes time proportional to p, apart
    from sorting.
    """
    parts: dict[str, list[TopicPartition]] = {member: [] for member in sorted(owned)}
    if not parts:
        return parts
    fewest, members_with_more = divmod(sum(counts.values()), len(parts))
    most = fewest + (members_with_more > 0)

    kept: set[TopicPartition] = set()
    below: deque[str] = deque()  # those with less than the fewest
    may_get_one_more: deque[str] = deque()
    complete = 0  # those with the most, while that is more than the fewest
    for member, part in parts.items():
        mine = sorted(owned[member], key=_number_first)
        if len(mine) >= most and complete < members_with_more:
            complete += 1
            del mine[most:]
        elif len(mine) >= fewest:
            del mine[fewest:]
            may_get_one_more.append(member)
        else:
            below.append(member)
        part += mine
        kept.update(mine)

    for topic in sorted(counts):
        for number in range(counts[topic]):
            partition = TopicPartition(topic, number)
            if partition in kept:
                continue
            if below:
                member = below.popleft()
                parts[member].append(partition)
                (below if len(parts[member]) < fewest else may_get_one_more).append(member)
            else:
                parts[may_get_one_more.popleft()].append(partition)
    return parts


def _number_first(partition: TopicPartition) -> tuple[int, str]:
    """Order partitions by number first: keeping low numbers of all topics, rather than all of the first topics, spreads
    each topic out."""
    return (partition.partition, partition.topic)
