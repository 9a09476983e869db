"""Where Spark itself stands between the source and its user: threads of Python, tables and views of SQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.spark_connector import runtime
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Committed = Callable[[str], list[ConsumerRecord]]

pytestmark = pytest.mark.timeout(300)


def in_a_thread(work: Callable[[], None]) -> None:
    """Run it in a thread of its own. Raises what it does."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(240)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_a_thread_writes_and_streams_once_the_session_is_active_in_it(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, committed: Committed,
    checkpoint: str,
) -> None:  # fmt: skip
    """The first half is what Spark does; if it fails, ``runtime.activate`` has lost its purpose."""
    out = f"{topic}-out"
    for name in (topic, out):
        cluster.create_topic(name)
    fill(topic, "streamed")

    def write() -> None:
        frame = spark.range(1).selectExpr("'written' value")
        frame.write.format("tidelog").options(**options(topic=out)).mode("append").save()

    def stream() -> None:
        frame = (
            spark.readStream.format("tidelog").options(**options(subscribe=topic, startingOffsets="earliest")).load()
        )
        writer = frame.select("value").writeStream.format("tidelog").options(**options(topic=out))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    for work in (write, stream):
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            in_a_thread(work)

    def both() -> None:
        runtime.activate(spark)
        write()
        stream()

    in_a_thread(both)
    assert sorted(record.value or b"" for record in committed(out)) == [b"streamed", b"written"]


def test_a_table_is_refused_and_says_what_to_do_and_views_read_and_write(
    spark: SparkSession, cluster: Cluster, topic: str, fill: Fill, committed: Committed
) -> None:
    cluster.create_topic(topic)
    fill(topic, "read")
    table, view, narrow, binary = (f"{kind}_{topic.replace('-', '_')}" for kind in ("t", "v", "w", "b"))
    servers = f"`tidelog.bootstrap.servers` '{cluster.bootstrap}'"
    given = f"USING tidelog OPTIONS ({servers}, subscribe '{topic}', topic '{topic}')"

    def sql(text: str) -> list[Any]:
        return list(spark.sql(text).collect())

    lost = "Spark does not hand a table's OPTIONS to sources in Python. Use CREATE TEMPORARY VIEW"
    with pytest.raises(Exception, match=lost):
        sql(f"CREATE TABLE {table} {given}")
    assert not spark.catalog.tableExists(table)
    sql(f"CREATE TABLE {table} (key STRING, value STRING) {given}")  # Spark asks nobody about it
    try:
        for text in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES ('k', 'lost')"):
            with pytest.raises(Exception, match=f"found no option at all. If you ask a table: {lost}"):
                sql(text)
        sql(
            f"INSERT INTO {table} WITH (`tidelog.bootstrap.servers` = '{cluster.bootstrap}', topic = '{topic}') "
            "VALUES ('k', 'by table')"
        )
    finally:
        sql(f"DROP TABLE {table}")
    sql(f"CREATE TEMPORARY VIEW {view} {given}")
    sql(f"CREATE TEMPORARY VIEW {narrow} (key STRING, value STRING) {given}")
    sql(f"INSERT INTO {view} (value) VALUES (X'61')")
    sql(f"INSERT INTO {narrow} VALUES ('k', 'by view')")
    sql(f"INSERT INTO {narrow} (value) VALUES ('without key')")
    found = {bytes(row[0]) for row in sql(f"SELECT value FROM {view}")}
    assert found == {b"read", b"by table", b"a", b"by view", b"without key"}
    assert {record.value for record in committed(topic)} == found
    with pytest.raises(Exception, match="Tidelog source has a fixed schema and cannot be set with a custom one"):
        sql(f"SELECT * FROM {narrow}")
    sql(f"CREATE TEMPORARY VIEW {binary} (value BINARY) {given}")
    assert {bytes(row[0]) for row in sql(f"SELECT * FROM {binary}")} == found
