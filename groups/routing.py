"""Which partition of ``__consumer_offsets`` a group belongs to, and which group ids there can be."""

from __future__ import annotations

from tidelog.proto.coordinator_records import STRING_BYTES_MAX


def partition_for(group_id: str, partitions: int) -> int:
    """Kafka's ``Utils.abs(groupId.hashCode()) % partitions``, so that a log of Kafka's is found where it is."""
    hashed = java_hash(group_id)
    return (0 if hashed == -(2**31) else abs(hashed)) % partitions


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, as a signed int of 32 bits."""
    hashed = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        hashed = (31 * hashed + (raw[at] << 8) + raw[at + 1]) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed


def group_id_fault(group_id: str, *, may_be_empty: bool = False) -> str | None:
    """Say why ``group_id`` cannot be a group's, or None. Offsets may be committed under the empty id, as Kafka's
    oldest consumers do (KIP-289); membership needs a name."""
    if not group_id and not may_be_empty:
        return "expected a group id, found an empty one"
    size = len(group_id.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES_MAX:
        return f"expected a group id of at most {STRING_BYTES_MAX} bytes, found {size}"
    return None
