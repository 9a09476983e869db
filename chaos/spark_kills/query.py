"""A streaming query of the kill matrix, as the text that its driver receives."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


class Kind(enum.Enum):
    """A query's processing between its source and its sink."""

    COPY = "copy"
    FAIL_FIRST = "fail-first"
    """First attempts of tasks raise when some of their rows are in the sink's log."""
    COUNT = "count"
    """Counts rows by group, in Complete mode: every batch writes all of them."""
    APPEND_COUNT = "append-count"
    """Counts rows by a window of their own time, in Append mode with a watermark: each window is written once."""
    FOREACH_BATCH = "foreach-batch"
    """The connector's helper for ``foreachBatch``."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``source`` and ``sink``: options for reading and writing, without the topics. ``signs``: a directory for
    the files, named by batches, of :attr:`~tidelog.chaos.spark_kills.points.Action.SIGN`."""

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
