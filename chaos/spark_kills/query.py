"""A streaming query of the kill matrix, as the text that its driver is handed."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


class Kind(enum.Enum):
    """The work of a query on the way from its source to its sink."""

    COPY = "copy"
    FAIL_FIRST = "fail-first"
    """First attempts of tasks raise when some of their rows are in the sink's log."""
    COUNT = "count"
    """Counts rows by group, in Complete mode: all of them are written with every batch."""
    APPEND_COUNT = "append-count"
    """Counts rows by a window of their own time, in Append mode with a watermark: each window is written once."""
    FOREACH_BATCH = "foreach-batch"
    """The connector's helper for ``foreachBatch``."""


@dataclass(frozen=True, slots=True)
class Query:
    """``source`` and ``sink``: options of reading and writing, but for the topics. ``signs``: a directory where files
    named by batches tell of :attr:`~tidelog.chaos.spark_kills.points.Action.SIGN`."""

    kind: Kind
    bootstrap: str
    source_topic: str
    sink_topic: str
    checkpoint: str
    signs: str
    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"kind": self.kind.value})

    @classmethod
    def from_json(cls, text: str) -> Query:
        found = json.loads(text)
        return cls(**found | {"kind": Kind(found["kind"])})
