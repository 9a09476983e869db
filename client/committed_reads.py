"""Which of the batches that a fetch brought a reader of what is committed gets to see. Pure.

The leader says with the batches which transactions among them were aborted: producer id and first offset, those
included that began before what was fetched. From that offset on the producer's transactional batches are passed
over, until its next marker, which ends that transaction (compaction may have emptied it, so it is not looked
into); what it writes after that belongs to another one. The list covers one fetch, so nothing is remembered
between them. Source: Kafka's ``CompletedFetch.nextFetchedRecord``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.proto.records import Batch

Aborted = Sequence[tuple[int, int]]
"""Producer id and first offset of each aborted transaction."""


class Passed(NamedTuple):
    """In place of batches that nobody is to see: how far they reach."""

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
