"""The partition chosen by a key's hash, as in every Kafka client."""

from __future__ import annotations

from typing import Final

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned. Source: ``org.apache.kafka.common.utils.Utils.murmur2``."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the key's partition. Source: ``BuiltInPartitioner.partitionForKey``."""
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count
