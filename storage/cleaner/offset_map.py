"""The latest offset of each key: a fixed-size table that stores hashes instead of keys.

As Kafka's ``SkimpyOffsetMap``: 24 bytes per key (a 16-byte hash and the offset), open addressing. Two keys with the
same hash would count as one and a live record would be lost; with 128 bits, a log needs some 10**16 keys before the
probability reaches one in a million. The hash is BLAKE2b (Kafka's is MD5), so that nobody can craft a collision either.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from tidelog.proto.records.compiled_codec import COMPILED

ENTRY_BYTES: Final = 24
_HASH_BYTES: Final = 16
_REHASHES: Final = 12
"""Probes that use another part of the hash; after them, probing is linear."""
_NO_HASH: Final = bytes(_HASH_BYTES)


class OffsetMap:
    """A map of at most ``slots`` keys. Takes memory from the system as it fills; :meth:`close` releases it."""

    def __init__(self, slots: int) -> None:
        assert slots > 0, f"a map of {slots} slots"
        self.slots = slots
        self.size = 0
        self._table = mmap.mmap(-1, slots * ENTRY_BYTES)

    def put(self, key: bytes, offset: int) -> bool:
        """Store a key's offset, which is higher than any before it. Returns False, and stores nothing, if the map is
        full."""
        digest = _hash_of(key)
        at = _probe(self._table, self.slots, digest)
        if at is None:
            return False
        if at < 0:
            at = -1 - at
            self.size += 1
        self._table[at : at + ENTRY_BYTES] = digest + offset.to_bytes(8, "big")
        return True

    def get(self, key: bytes) -> int:
        """Return the key's latest offset, or -1 if it is unknown."""
        at = _probe(self._table, self.slots, _hash_of(key))
        if at is None or at < 0:
            return -1
        return int.from_bytes(self._table[at + _HASH_BYTES : at + ENTRY_BYTES], "big")

    def close(self) -> None:
        self._table.close()


def probe(table: mmap.mmap, slots: int, digest: bytes) -> int | None:
    """Return the slot of a hash's entry; -1 minus the slot where it belongs if it is missing; None if the table is
    full. The compiled codec has an equivalent."""
    for attempt in range(slots + _REHASHES + 1):
        part = min(attempt, _REHASHES)
        number = int.from_bytes(digest[part : part + 4], "big") + max(0, attempt - _REHASHES)
        at = number % slots * ENTRY_BYTES
        found = table[at : at + _HASH_BYTES]
        if found == digest:
            return at
        if found == _NO_HASH:
            return -1 - at
    return None


def _hash_of(key: bytes) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()


_probe: Final[Callable[[mmap.mmap, int, bytes], int | None]] = probe if COMPILED is None else COMPILED.probe
