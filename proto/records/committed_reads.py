"""Skips the batches that a reader of committed records must not see. Pure.

With the batches, the leader lists the aborted transactions among them by producer id and first offset, including those
that began before the fetched range. From that offset on, the producer's transactional batches are skipped until its
next marker, which ends the transaction (the marker's content is not examined, because compaction may have emptied it).
Later batches belong to another transaction. The list covers one fetch, so nothing is remembered between fetches.
Source: Kafka's ``CompletedFetch.nextFetchedRecord``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.proto.records.batches import Batch

Aborted = Sequence[tuple[int, int]]
"""Producer id and first offset of each aborted transaction."""


class Passed(NamedTuple):
    """Stands for skipped batches; says how far they reach."""

    next_offset: int
    leader_epoch: int


def without_aborted(batches: Iterable[Batch], aborted: Aborted) -> Iterator[Batch | Passed]:
    """Yield the batches in order, those of aborted transactions as :class:`Passed`, markers as they are."""
    waiting: Final = sorted(aborted, key=lambda one: one[1], reverse=True)
    open_producers: set[int] = set()
    for batch in batches:
        while waiting and waiting[-1][1] < batch.next_offset:
            open_producers.add(waiting.pop()[0])
        if batch.has_producer_id and batch.producer_id in open_producers:
            if batch.is_control:
                open_producers.discard(batch.producer_id)
            elif batch.is_transactional:
                yield Passed(batch.next_offset, batch.leader_epoch)
                continue
        yield batch
