"""The rows of the kill matrix: the content of the source, and the expected output of each kind of query. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.chaos.spark_kills.query import Kind

PARTITIONS: Final = 2
ROWS: Final = 360
"""Rows in each partition of the source."""
VALUE_BYTES: Final = 100
GROUPS: Final = 7
BASE_MS: Final = 1_700_000_000_000
STEP_MS: Final = 20
"""Time between two rows of a partition; those of the other partitions have the same times."""
DELAY_MS: Final = 1_000
"""How far the watermark stays behind."""
WINDOW_MS: Final = 1_000


class SourceRow(NamedTuple):
    partition: int
    offset: int

    @property
    def key(self) -> bytes:
        return b"g%d" % ((self.offset + self.partition) % GROUPS)

    @property
    def value(self) -> bytes:
        return (b"%d:%05d:" % self).ljust(VALUE_BYTES, b".")

    @property
    def timestamp_ms(self) -> int:
        return BASE_MS + self.offset * STEP_MS


def source_rows() -> Iterator[SourceRow]:
    for partition in range(PARTITIONS):
        for offset in range(ROWS):
            yield SourceRow(partition, offset)


def expected(kind: Kind, ends: Mapping[int, Mapping[int, int]]) -> dict[bytes, int | None]:
    """Return the expected rows of the sink, each with its batch if that is known. ``ends``: the ends of the batches."""

    def batch_of(row: SourceRow) -> int:
        return next(batch for batch in sorted(ends) if row.offset < ends[batch].get(row.partition, 0))

    match kind:
        case Kind.COUNT:
            found: dict[bytes, int | None] = {}
            for batch, end in ends.items():
                counts = Counter(row.key for row in source_rows() if row.offset < end.get(row.partition, 0))
                found |= {b"%b:%d" % group: batch for group in counts.items()}
            return found
        case Kind.APPEND_COUNT:
            windows = Counter(row.timestamp_ms // WINDOW_MS for row in source_rows())
            last = max(row.timestamp_ms for row in source_rows()) - DELAY_MS
            closed = [one for one in windows.items() if (one[0] + 1) * WINDOW_MS <= last]
            return dict.fromkeys(b"%d:%d" % one for one in closed)
        case _:
            return {row.value: batch_of(row) for row in source_rows()}
