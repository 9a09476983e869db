"""Finds hanging transactions: open for long in a partition, though no coordinator will ever write their marker.

The rules follow Kafka's ``FindHangingTransactionsCommand`` (KIP-664). Finally, the search checks the partitions again:
a transaction that ended during the search does not hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.transaction_types import ProducerState, TransactionDescription

PARTITIONS_AT_ONCE: Final = 500
"""How many partitions to put into one request."""


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition."""

    partition: TopicPartition
    producer: ProducerState
    start_offset: int


def open_transactions(
    found: Mapping[TopicPartition, Sequence[ProducerState]], *, quiet_since_ms: int | None = None
) -> list[OpenTransaction]:
    """Return the open transactions, ordered by partition and start. With ``quiet_since_ms`` (ms since 1970), only those
    whose producer was last active before then."""
    return sorted(
        (
            OpenTransaction(at, one, one.current_transaction_start_offset)
            for at, producers in found.items()
            for one in producers
            if one.current_transaction_start_offset is not None
            and (quiet_since_ms is None or one.last_timestamp_ms < quiet_since_ms)
        ),
        key=lambda one: (one.partition, one.start_offset),
    )


def without_coordinator(
    candidates: Iterable[OpenTransaction], known: Mapping[int, TransactionDescription]
) -> list[OpenTransaction]:
    """Return the transactions whose marker no coordinator will write. ``known``: the coordinators' answer for each
    producer id; its partitions still await a marker."""
    return [
        one
        for one in candidates
        if (coordinated := known.get(one.producer.producer_id)) is None
        or one.partition not in coordinated.topic_partitions
    ]


def find_hanging(
    admin: Admin, partitions: Sequence[TopicPartition], longest_ms: int, now_ms: Callable[[], int]
) -> list[OpenTransaction]:
    """Return the hanging transactions of these partitions: quiet for more than ``longest_ms``, unknown to
    coordinators."""
    quiet_since_ms = now_ms() - longest_ms
    candidates = [
        one
        for found in _in_portions(admin, partitions)
        for one in open_transactions(found, quiet_since_ms=quiet_since_ms)
    ]
    hanging = without_coordinator(candidates, coordinated(admin, {one.producer.producer_id for one in candidates}))
    still = {
        (one.partition, one.producer.producer_id, one.start_offset)
        for found in _in_portions(admin, sorted({one.partition for one in hanging}))
        for one in open_transactions(found)
    }
    return [one for one in hanging if (one.partition, one.producer.producer_id, one.start_offset) in still]


def coordinated(admin: Admin, producer_ids: Iterable[int]) -> dict[int, TransactionDescription]:
    """Return the coordinators' answers about the transactional ids that have these producer ids now."""
    wanted = sorted(producer_ids)
    if not wanted:
        return {}
    names = [one.transactional_id for one in admin.list_transactions(producer_ids=wanted)]
    found, _ = described(admin, names)
    return {one.producer_id: one for one in found.values()}


def described(
    admin: Admin, transactional_ids: Sequence[str]
) -> tuple[dict[str, TransactionDescription], dict[str, str]]:
    """Describe the ids in use; for the others, return why not. Raises any other error."""
    from tidelog.model.errors import ErrorCode, TidelogError

    if not transactional_ids:
        return {}, {}
    try:
        return admin.describe_transactions(transactional_ids), {}
    except TidelogError as wrong:
        missing = {
            name: f"{one.code.name}: {one}"
            for name, one in wrong.failures.items()
            if one.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        }
        if not missing or len(missing) < len(wrong.failures):
            raise
    found, more = described(admin, [name for name in transactional_ids if name not in missing])
    return found, {**missing, **more}


def _in_portions(
    admin: Admin, partitions: Sequence[TopicPartition]
) -> Iterable[dict[TopicPartition, tuple[ProducerState, ...]]]:
    for at in range(0, len(partitions), PARTITIONS_AT_ONCE):
        yield admin.describe_producers(partitions[at : at + PARTITIONS_AT_ONCE])
