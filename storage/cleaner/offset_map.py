"""Which offset is a key's latest: a table of fixed size that keeps hashes in place of keys.

As Kafka's ``SkimpyOffsetMap``: 24 bytes a key (a hash of 16 bytes, and the offset), open addressing.
Two keys of one hash would be taken for one and a live record lost; with 128 bits that takes some 10**16
keys in one log to be as likely as one in a million. The hash is BLAKE2b, where Kafka's is MD5, so that
nobody can make two such keys on purpose either.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b
from typing import Final

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
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        at, known = self._find(digest)
        if known is None:
            if self.size >= self.slots:
                return False
            self.size += 1
        self._table[at : at + ENTRY_BYTES] = digest + offset.to_bytes(8, "big")
        return True

    def holds(self, key: bytes) -> bool:
        return self._find(blake2b(key, digest_size=_HASH_BYTES).digest())[1] is not None

    def get(self, key: bytes) -> int:
        """The key's latest offset, -1 if it is not here."""
        known = self._find(blake2b(key, digest_size=_HASH_BYTES).digest())[1]
        return -1 if known is None else int.from_bytes(known, "big")

    def close(self) -> None:
        self._table.close()

    def _find(self, digest: bytes) -> tuple[int, bytes | None]:
        """The place of an entry, and its offset if it is there; without it, the place where it belongs.

        Where all slots are taken by others the place means nothing.
        """
        table, slots = self._table, self.slots
        at = int.from_bytes(digest[:4], "big") % slots * ENTRY_BYTES
        for attempt in range(1, slots + _REHASHES + 1):
            entry = table[at : at + ENTRY_BYTES]
            if entry.startswith(digest):
                return at, entry[_HASH_BYTES:]
            if entry.startswith(_NO_HASH):
                return at, None
            rehash = min(attempt, _REHASHES)
            probe = int.from_bytes(digest[rehash : rehash + 4], "big") + max(0, attempt - _REHASHES)
            at = probe % slots * ENTRY_BYTES
        return 0, None
