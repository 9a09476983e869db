"""The partition of a coordinator's topic that holds a name's state, computed as in Kafka."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def coordinator_partition(name: str, partitions: int) -> int:
    """Return Kafka's ``Utils.abs(name.hashCode()) % partitions``, so that Kafka's own logs can be read."""
    hashed = java_hash(name)
    return (0 if hashed == -(2**31) else abs(hashed)) % partitions


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit int."""
    hashed = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        hashed = (31 * hashed + (raw[at] << 8) + raw[at + 1]) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed
