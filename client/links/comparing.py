"""Compares a partition's batches at two places: a link's source and target, or two replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tidelog.client.links.batches import same, same_records
from tidelog.proto.records.batches import Batch

Read = Callable[[int], Awaitable[list[Batch]]]
"""Returns some batches from an offset on; none at the end of the log."""


@dataclass(slots=True)
class Comparison:
    """``batches`` and ``size``: how many of the source's are the same at the target, and their bytes. ``epoch``: the
    source's leader epoch of the last one, -1 if there was none. ``fault``: the first difference, or ""."""

    batches: int = 0
    size: int = 0
    epoch: int = -1
    fault: str = ""


async def compare(
    source: Read,
    target: Read,
    start: int,
    end: int,
    mask: int,
    *,
    compacts: bool,
    names: tuple[str, str] = ("source", "target"),
    epochs: bool = False,
) -> Comparison:
    """Compare the batches from ``start`` to ``end``, and with ``epochs`` also their leader epochs. If one of the logs
    is compacted, batches and records may be missing on either side; those that both have must be the same. Batches
    without records are ignored. ``names``: names for the two sides in a fault."""
    found = Comparison()
    theirs, ours = _Row(source, start, end), _Row(target, start, end)
    while True:
        there, here = await theirs.first(), await ours.first()
        if there is None and here is None:
            return found
        if there is not None and here is not None and there.base_offset == here.base_offset:
            if not same(here, there, mask) and not (compacts and same_records(here, there)):
                found.fault = f"at offset {there.base_offset}, {names[0]} and {names[1]} have different records"
                return found
            if epochs and here.leader_epoch != there.leader_epoch:
                found.fault = (
                    f"at offset {there.base_offset}, {names[0]} has leader epoch {there.leader_epoch}, {names[1]} "
                    f"{here.leader_epoch}"
                )
                return found
            found.batches += 1
            found.size += there.size
            found.epoch = there.leader_epoch
            theirs.pop()
            ours.pop()
            continue
        of_source = here is None or (there is not None and there.base_offset < here.base_offset)
        lone = there if of_source else here
        assert lone is not None
        if not compacts:
            found.fault = f"at offset {lone.base_offset}, only the {names[0] if of_source else names[1]} has records"
            return found
        (theirs if of_source else ours).pop()


class _Row:
    """The batches of one side in order."""

    def __init__(self, read: Read, start: int, end: int) -> None:
        self._read = read
        self._start = start
        self._at = start
        self._end = end
        self._batches: list[Batch] = []
        self._index = 0

    async def first(self) -> Batch | None:
        while True:
            while self._index < len(self._batches):
                batch = self._batches[self._index]
                if batch.base_offset >= self._end:
                    return None
                if batch.next_offset > self._start and batch.record_count:
                    return batch
                self._index += 1
            if self._batches:
                self._at = max(self._at, self._batches[-1].next_offset)
            if self._at >= self._end:
                return None
            self._batches, self._index = await self._read(self._at), 0
            if not self._batches:
                return None

    def pop(self) -> None:
        self._index += 1
