"""Which offset is a key's latest: a table of fixed size that keeps hashes in place of keys.

As Kafka's ``SkimpyOffsetMap``: 24 bytes a key (a hash of 16 bytes, and the offset), open addressing.
Two keys of one hash would be taken for one and a live record lost; with 128 bits that takes some 10**16
keys in one log to be as likely as one in a million. The hash is BLAKE2b, where Kafka's is MD5, so that
nobody can make two such keys on purpose either.
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
"""Probes that take another part of the hash; after them, one slot after the other."""
_NO_HASH: Final = bytes(_HASH_BYTES)


class OffsetMap:
    """At most ``slots`` keys. The memory is taken from the system as it fills, and given back by :meth:`close`."""

    def __init__(self, slots: int) -> None:
        assert slots > 0, f"a map of {slots} slots"
        self.slots = slots
        self.size = 0
        self._table = mmap.mmap(-1, slots * ENTRY_BYTES)

    def put(self, key: bytes, offset: int) -> bool:
        """Note a key's offset, which is higher than any before it. False, and nothing noted, where there is no room."""
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
        """The key's latest offset, -1 if it is not here."""
        at = _probe(self._table, self.slots, _hash_of(key))
        if at is None or at < 0:
            return -1
        return int.from_bytes(self._table[at + _HASH_BYTES : at + ENTRY_BYTES], "big")

    def close(self) -> None:
        self._table.close()


def probe(table: mmap.mmap, slots: int, digest: bytes) -> int | None:
    """The place of a hash's entry in the table; -1 less the place where it belongs if it is not there;
    None where there is no place left. The compiled codec has a twin."""
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
