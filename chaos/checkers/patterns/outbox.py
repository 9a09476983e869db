"""What a relay owes the programs that write rows of an outbox. Pure.

Each committed row is in its topic once, with its key and its id; rows of one aggregate are there in the order of their
commits; no row of a transaction that was rolled back is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Row(NamedTuple):
    """A row as its program wrote it. ``kind``: its ``aggregatetype``, ``key``: its ``aggregateid``."""

    id: str
    kind: str
    key: str
    value: bytes


class Sent(NamedTuple):
    """A record, as a reader of what is committed got it."""

    id: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class OutboxJudge:
    def __init__(self, topic_of: Callable[[str], str]) -> None:
        """``topic_of``: the topic of rows of this kind."""
        self.committed: dict[str, Row] = {}
        """By id, in the order of the commits."""
        self.sent: list[Sent] = []
        self._topic_of = topic_of

    def missing(self) -> list[str]:
        came = {sent.id for sent in self.sent}
        return [row_id for row_id in self.committed if row_id not in came]

    def judge(self) -> list[str]:
        return [
            *(f"outbox: {self.committed[row_id]} was committed, and never came" for row_id in self.missing()),
            *self._each_once(),
            *self._in_order(),
        ]

    def _each_once(self) -> Iterator[str]:
        seen: set[str] = set()
        for sent in self.sent:
            row = self.committed.get(sent.id)
            if row is None:
                yield f"outbox: {sent} came, and no committed row has its id"
                continue
            if sent.id in seen:
                yield f"outbox: {row} came again as {sent}"
            seen.add(sent.id)
            if (sent.topic, sent.key, sent.value) != (self._topic_of(row.kind), row.key.encode(), row.value):
                yield f"outbox: {row} came as {sent}"

    def _in_order(self) -> Iterator[str]:
        number = {row_id: at for at, row_id in enumerate(self.committed)}
        last: dict[tuple[str, bytes | None], Sent] = {}
        for sent in sorted(self.sent, key=lambda each: (each.topic, each.partition, each.offset)):
            if sent.id not in number:
                continue
            before = last.get((sent.topic, sent.key))
            if before is not None and number[before.id] > number[sent.id]:
                yield f"outbox: {sent} came after {before}, and was committed before it"
            last[sent.topic, sent.key] = sent
