"""Exactly once out of ``foreachBatch``: for queries in update mode, for several topics, beside other sinks.

    from tidelog.spark_connector.foreach_batch import exactly_once

    to_counts = exactly_once({"tidelog.bootstrap.servers": "127.0.0.1:9092", "topic": "counts"})
    counts.writeStream.outputMode("update").foreachBatch(to_counts).start()

A batch that Spark runs again is written again only if its first run was not decided: the writes are those of
``frame.write`` with ``appId`` (from the query's id and a name) and ``version`` (the batch's id).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from tidelog.spark_connector.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that has the query's id. Source: Spark's ``StreamExecution``."""
_WRITTEN: Final = "spark.tidelog.written."
"""Settings of one run's session: the batch that this run has written last, by sink."""


def exactly_once(
    options: Mapping[str, str],
    make: Callable[[DataFrame, int], DataFrame | Mapping[str, DataFrame]] | None = None,
    *,
    name: str = "",
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each batch once.

    ``options`` are those of ``frame.write.format("tidelog")``. ``make(frame, batch_id)`` says what is written: a
    DataFrame, or several by the topic that each goes to; those become visible together. Without it the batch is written
    as it is. ``name`` tells this write from others of the same query to the same topic; a name stays with its write for
    as long as the checkpoint is used.
    """

    def write(frame: DataFrame, batch_id: int) -> None:
        found = frame if make is None else make(frame, batch_id)
        if isinstance(found, Mapping):
            if any(option.lower() == "topic" for option in options):
                raise ValueError("expected no option topic for DataFrames that are given by topic, found one")
            if not found:
                return
            found = _together(found)
        write_once(found, batch_id, options, name=name)

    return write


def write_once(frame: DataFrame, batch_id: int, options: Mapping[str, str], *, name: str = "") -> None:
    """Write ``frame`` once, in a function given to ``foreachBatch``, as often as this is called for the batch.

    Several writes to one topic need a ``name`` each. Raises ``ValueError`` for two of the same name in one run of a
    batch, of which the second would be taken for a repetition of the first; ``RuntimeError`` outside ``foreachBatch``;
    what ``frame.write`` raises.
    """
    session = frame.sparkSession
    query = session.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise RuntimeError(
            "expected to be called by a function given to foreachBatch, found no query: "
            "give frame.write the options appId and version instead"
        )
    if given := [option for option in options if option.lower() in ("appid", "version")]:
        raise ValueError(f"expected no option {given[0]}: the query's id, the name and the batch take its place")
    once = dict(options) | {"appId": f"{query}/{name}", "version": str(batch_id)}
    written = f"{_WRITTEN}{SinkOptions.of(once, streaming=False).sink}"
    if session.conf.get(written, None) == str(batch_id):
        raise ValueError(
            f"batch {batch_id} was written under the name {name!r} to this topic already: give each write its own name"
        )
    frame.write.format("tidelog").options(**once).mode("append").save()
    session.conf.set(written, str(batch_id))


def _together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """One DataFrame that says of each row where it goes."""
    from pyspark.sql import functions as f

    def addressed(topic: str, frame: DataFrame) -> DataFrame:
        raw = [f.col(name).cast("binary").alias(name) for name in ("key", "value") if name in frame.columns]
        rest = [f.col(name) for name in ("headers", "partition", "timestamp") if name in frame.columns]
        return frame.select(f.lit(topic).alias("topic"), *raw, *rest)

    every = [addressed(topic, frame) for topic, frame in frames.items()]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), every)
