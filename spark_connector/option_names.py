"""The names of options that are not client settings, and the message for an unknown name.

Pure. Spark ignores options that a source does not know, so a typo would silently change what a query reads: a stream
with ``startingOffset`` would begin at the latest record. So unknown names are refused. The names of source and sink are
both known, since one set of options may serve both, and so are those that Spark itself passes on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "tidelog."
"""Prefix of options that are client settings, by Kafka's names."""
_KAFKA_PREFIX: Final = "kafka."

SOURCE: Final = (
    "assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets",
    "startingOffsetsByTimestampStrategy", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "includeHeaders", "consumer.pollTimeoutMs",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxBrokerOutage",
)  # fmt: skip
SINK: Final = ("topic", "appId", "version")
_SPARKS: Final = (
    "path", "checkpointLocation", "queryName", "outputMode", "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)  # fmt: skip
"""Options of Spark's own readers and writers, which they pass on. Source: ``DataStreamWriter``,
``AsyncProgressTrackingMicroBatchExecution``."""
_SPARKS_PREFIXES: Final = ("spark.", "_")
_WITHOUT_MEANING: Final = {"groupidprefix": "the source is in no group: leave it out"}
_MEANT: Final = {"maxrecordspertrigger": "maxoffsetspertrigger"}
"""Names that look more like another option than like the one that is meant."""
_KNOWN: Final = {name.lower(): name for name in (*SOURCE, *SINK, *_SPARKS)}


def unknown(given: Iterable[str]) -> str | None:
    """Return a message about the first unknown name, with the option that was probably meant; None if all are known."""
    for name in sorted(given, key=str.lower):
        lower = name.lower()
        if lower in _KNOWN or lower.startswith((PREFIX, *_SPARKS_PREFIXES)):
            continue
        if lower.startswith(_KAFKA_PREFIX):
            meant = PREFIX + lower.removeprefix(_KAFKA_PREFIX)
            return f"options that begin with 'kafka.' begin with '{PREFIX}' here, found '{name}': give '{meant}'"
        if lower in _WITHOUT_MEANING:
            return f"option '{name}' has no meaning here: {_WITHOUT_MEANING[lower]}"
        near = difflib.get_close_matches(_MEANT.get(lower, lower), list(_KNOWN), n=1, cutoff=0.6)
        hint = f"did you mean '{_KNOWN[near[0]]}'?" if near else "leave it out"
        return f"unknown option '{name}'; {hint} (settings of the client begin with '{PREFIX}')"
    return None


def of_a_table(given: Iterable[str]) -> str | None:
    """Return what to do if these are the options of a table's creation, or of a query on a table, which has none: Spark
    gives a Python source a table's ``OPTIONS`` only when the table is created. Source: ``V2SessionCatalog`` and
    ``PythonTable`` of Spark 4.3."""
    names = list(given)
    lost = (
        "Spark does not hand a table's OPTIONS to sources in Python. Use CREATE TEMPORARY VIEW … USING tidelog OPTIONS "
        "(…), or give a table's options with each query: WITH (…) behind its name in SQL, option(…) before table(…)"
    )
    if not names:
        return (
            f"Option '{PREFIX}bootstrap.servers' must be specified, found no option at all. If you ask a table: {lost}"
        )
    return lost if any(name.lower().startswith("option.") for name in names) else None
