"""A query's lag: the figures of Spark's Kafka source, from a query's progress.

Spark does not let Python sources add figures to ``query.lastProgress``, but reports where a batch ended and where the
log ended then; these are the differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidelog.spark_connector.offsets import SourceOffset


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, float]:
    """Return ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` over the partitions
    of one element of a progress's ``sources``; nothing before the first batch.

        offsets_behind_latest(query.lastProgress["sources"][0])

    Source: Spark's ``KafkaMicroBatchStream.metrics``.
    """
    if not source.get("endOffset") or not source.get("latestOffset"):
        return {}
    end, latest = _offset(source["endOffset"]), _offset(source["latestOffset"])
    behind = [offset - end.offsets.get(at, 0) for at, offset in latest.offsets.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _offset(found: Any) -> SourceOffset:
    return SourceOffset.from_json(json.loads(found) if isinstance(found, str) else found)
