"""Exactly-once writes from ``foreachBatch``: for queries in update mode, several topics, or beside other sinks.

    from tidelog.spark_connector.foreach_batch import exactly_once

    to_counts = exactly_once({"tidelog.bootstrap.servers": "127.0.0.1:9092", "topic": "counts"})
    counts.writeStream.outputMode("update").foreachBatch(to_counts).start()

When Spark reruns a batch, it is written again only if its first run was not decided: the writes are those of
``frame.write`` with ``appId`` (from the query's id and a name) and ``version`` (the batch's id).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import reduce
from types import FrameType
from typing import TYPE_CHECKING, Final

from tidelog.spark_connector.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property with the query's id. Source: Spark's ``StreamExecution``."""
_ROOT: Final = "spark_connect_session"
"""Under Spark Connect, the variable with the query's session, in the function that calls all others."""
_WRITTEN: Final = "spark.tidelog.written."
"""Settings of the batch's session: the last batch that was written, by sink. Each run of a query has a session of its
own, except under Spark Connect before 4.3; so there the run is named as well."""


def exactly_once(
    options: Mapping[str, str],
    make: Callable[[DataFrame, int], DataFrame | Mapping[str, DataFrame]] | None = None,
    *,
    name: str = "",
    query: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each batch once.

    ``options`` are those of ``frame.write.format("tidelog")``. ``make(frame, batch_id)`` returns what to write: a
    DataFrame, or several by target topic, which become visible together. Without it the batch is written as it is.
    ``name`` distinguishes this write from others of the same query to the same topic; keep it as long as the checkpoint
    is used. ``query``: under Spark Connect, the name that ``queryName`` gives the query.
    """

    def write(frame: DataFrame, batch_id: int) -> None:
        found = frame if make is None else make(frame, batch_id)
        if isinstance(found, Mapping):
            if any(option.lower() == "topic" for option in options):
                raise ValueError("expected no option topic for DataFrames that are given by topic, found one")
            if not found:
                return
            found = _together(found)
        write_once(found, batch_id, options, name=name, query=query)

    return write


def write_once(
    frame: DataFrame, batch_id: int, options: Mapping[str, str], *, name: str = "", query: str | None = None
) -> None:
    """Write ``frame`` once per batch, however often this is called for it, in a function given to ``foreachBatch``.

    Several writes to one topic need a ``name`` each. Raises ``ValueError`` for two writes of the same name in one run
    of a batch, because the second would pass for a repetition of the first; ``RuntimeError`` outside ``foreachBatch``,
    and under Spark Connect without the name ``query``; and the errors of ``frame.write``.
    """
    session = frame.sparkSession
    query_id, run = (
        _query_under_connect(query) if _is_remote(session) else (session.sparkContext.getLocalProperty(QUERY_ID), "")
    )
    if query_id is None:
        raise RuntimeError(
            "expected to be called by a function given to foreachBatch, in the thread that Spark calls it in, found no "
            "query: give frame.write the options appId and version instead"
        )
    if given := [option for option in options if option.lower() in ("appid", "version")]:
        raise ValueError(f"expected no option {given[0]}: the query's id, the name and the batch take its place")
    once = dict(options) | {"appId": f"{query_id}/{name}", "version": str(batch_id)}
    written = f"{_WRITTEN}{SinkOptions.of(once, streaming=False).sink}"
    this = f"{run}{batch_id}"
    if session.conf.get(written, None) == this:
        raise ValueError(
            f"batch {batch_id} was written under the name {name!r} to this topic already: give each write its own name"
        )
    frame.write.format("tidelog").options(**once).mode("append").save()
    session.conf.set(written, this)


def _is_remote(session: object) -> bool:
    """Return whether it is a session of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _query_under_connect(name: str | None) -> tuple[str | None, str]:
    """Return the ids of the query with this name and of its run, from the session that started it.

    Spark Connect runs the function in its own process and does not tell it the query, neither in the batch's session
    nor in its tasks. A single active query need not be the caller's, which may just have been stopped; so the caller
    has to name it. None if no query calls. Source: ``foreach_batch_worker.py`` of pyspark 4.2 and 4.3.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and _ROOT not in frame.f_locals:
        frame = frame.f_back
    if frame is None:
        return None, ""
    active = {one.name: one for one in frame.f_locals[_ROOT].streams.active}
    if not name:
        raise RuntimeError(
            "under Spark Connect, expected the name of the query: give it one by queryName('…'), and the same to "
            "exactly_once or write_once, as query='…'"
        )
    if name not in active:
        raise RuntimeError(f"expected an active query named {name!r}, found {sorted(filter(None, active))}")
    return str(active[name].id), f"{active[name].runId}/"


def _together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return one DataFrame that has the target topic of each row."""
    from pyspark.sql import functions as f

    def addressed(topic: str, frame: DataFrame) -> DataFrame:
        raw = [f.col(name).cast("binary").alias(name) for name in ("key", "value") if name in frame.columns]
        rest = [f.col(name) for name in ("headers", "partition", "timestamp") if name in frame.columns]
        return frame.select(f.lit(topic).alias("topic"), *raw, *rest)

    every = [addressed(topic, frame) for topic, frame in frames.items()]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), every)
