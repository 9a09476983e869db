"""Which partition of a coordinator's topic holds what is known of a name, as Kafka reckons it."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def coordinator_partition(name: str, partitions: int) -> int:
    """Kafka's ``Utils.abs(name.hashCode()) % partitions``, so that a log of Kafka's is found where it is."""
    hashed = java_hash(name)
    return (0 if hashed == -(2**31) else abs(hashed)) % partitions


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, as a signed int of 32 bits."""
    hashed = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        hashed = (31 * hashed + (raw[at] << 8) + raw[at + 1]) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed
