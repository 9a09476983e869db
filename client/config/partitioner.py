"""Chooses a record's partition.

With a key: Java's murmur2 of the key's bytes, so that every Kafka client agrees. Without: one partition
until it has received a batch's worth of bytes, then another (KIP-480), chosen at random with a weight
that favours short queues (KIP-794). The choice among partitions is pure: the caller passes in the randomness.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

from tidelog.model.hashes.key_partition import murmur2

KEYS_REMEMBERED_MAX: Final = 65_536
"""Maximum hashes kept per :class:`KeyPartitioner`; when full, all are forgotten."""


class Partitioner(Protocol):
    """The user's own partitioner. The sending thread calls it with the serialized key and value."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int | None:
        """Return one of ``partitions``, or ``None`` to leave the choice to the built-in one."""


class KeyPartitioner:
    """:func:`tidelog.model.hashes.key_partition.partition_for_key` with a cache of recent keys: hashing in Python
    costs microseconds."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: dict[bytes, int] = {}

    def partition(self, key: bytes, partition_count: int) -> int:
        found = self._hashes.get(key)
        if found is None:
            if len(self._hashes) >= KEYS_REMEMBERED_MAX:
                self._hashes.clear()
            found = self._hashes[key] = murmur2(key) & 0x7FFF_FFFF
        return found % partition_count


def choose_sticky(partitions: Sequence[int], queued: Sequence[int] | None, rng: random.Random) -> int:
    """Choose the next sticky partition among ``partitions`` (not empty).

    ``queued`` is the number of batches waiting for each; a partition's chance is proportional to
    (longest queue + 1 - its own queue). ``None``: equal chances. Source: ``BuiltInPartitioner.nextPartition``
    and ``updatePartitionLoadStats``.
    """
    if queued is None or len(partitions) == 1 or len(set(queued)) == 1:
        return partitions[rng.randrange(len(partitions))]
    top = max(queued) + 1
    table = list(accumulate(top - length for length in queued))
    return partitions[bisect_right(table, rng.randrange(table[-1]))]
