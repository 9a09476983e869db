"""The partition of ``__consumer_offsets`` that a group belongs to, and the valid group ids."""

from __future__ import annotations

from tidelog.model.hashes.java_hash import coordinator_partition
from tidelog.proto.logs.coordinator_records import STRING_BYTES_MAX


def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition that coordinates the group."""
    return coordinator_partition(group_id, partitions)


def group_id_fault(group_id: str, *, may_be_empty: bool = False) -> str | None:
    """Return why ``group_id`` is invalid, or None. Offsets may be committed under the empty id, as Kafka's oldest
    consumers do (KIP-289); membership needs a name."""
    if not group_id and not may_be_empty:
        return "expected a group id, found an empty one"
    size = len(group_id.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES_MAX:
        return f"expected a group id of at most {STRING_BYTES_MAX} bytes, found {size}"
    return None
