"""The sink in real queries: streams that restart, batch writes, foreachBatch, and what Spark passes on of errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.spark_connector.foreach_batch import exactly_once, write_once
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Committed = Callable[[str], list[ConsumerRecord]]
Row = dict[str, Any]

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


@pytest.fixture
def topics(cluster: Cluster, topic: str) -> tuple[str, str]:
    """A source of two partitions and a sink of three."""
    cluster.create_topic(f"{topic}-in", partitions=2)
    cluster.create_topic(f"{topic}-out", partitions=3)
    return f"{topic}-in", f"{topic}-out"


@pytest.fixture
def source(spark: SparkSession, topics: tuple[str, str], options: Options) -> DataFrame:
    """The source as a stream, a few records a batch."""
    given = options(subscribe=topics[0], startingOffsets="earliest", maxOffsetsPerTrigger=4)
    return spark.readStream.format("tidelog").options(**given).load()


def finished(frame: DataFrame, checkpoint: str, mode: str = "append", **sink: Any) -> StreamingQuery:
    """Run all that is there now through the sink, in batches."""
    writer = frame.writeStream.format("tidelog").options(**sink).outputMode(mode)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(250)
    return query


def batches_of(query: StreamingQuery) -> list[int]:
    """Those that were run; Spark reports on a query that is idle as if the next one were."""
    return [one["batchId"] for one in query.recentProgress if "addBatch" in one["durationMs"]]


def undo_last_commit(checkpoint: str) -> int:
    """Leave the checkpoint as a driver does that dies between the sink's decision and noting it."""
    commits = Path(checkpoint) / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    return last


def values(records: list[ConsumerRecord]) -> list[str]:
    return sorted((record.value or b"").decode() for record in records)


def test_a_stream_is_written_once_and_goes_on_from_its_checkpoint(
    cluster: Cluster,
    topics: tuple[str, str],
    source: DataFrame,
    options: Options,
    fill: Fill,
    committed: Committed,
    checkpoint: str,
) -> None:
    fill(topics[0], *map(str, range(8)), partition=0, key=b"k", headers=[("h", b"1")])
    fill(topics[0], *map(str, range(8, 12)), partition=1)
    frame = source.select("key", "value")
    query = finished(frame, checkpoint, **options(topic=topics[1]))
    assert values(committed(topics[1])) == sorted(map(str, range(12)))
    assert len({record.partition for record in committed(topics[1]) if record.key == b"k"}) == 1
    undone = undo_last_commit(checkpoint)
    fill(topics[0], *map(str, range(12, 16)), partition=1)
    again = finished(frame, checkpoint, **options(topic=topics[1]))
    assert again.id == query.id
    assert batches_of(again)[0] == undone
    assert values(committed(topics[1])) == sorted(map(str, range(16)))
    with cluster.admin() as admin:
        ledger = admin.describe_sinks([query.id])[query.id]
    assert ledger.last is not None
    assert ledger.last.batch == batches_of(again)[-1] > undone
    assert ledger.transactions == ()


def test_the_result_of_each_batch_is_appended_in_complete_mode(
    topics: tuple[str, str], source: DataFrame, options: Options, fill: Fill, committed: Committed, checkpoint: str
) -> None:
    fill(topics[0], "a", "a", "b", "c", partition=0)
    fill(topics[0], "a", partition=1)
    counts = source.groupBy(source.value.alias("key")).count().selectExpr("key", "string(count) value")
    query = finished(counts, checkpoint, "complete", **options(topic=topics[1]))
    found = [((record.key or b"").decode(), (record.value or b"").decode()) for record in committed(topics[1])]
    assert max(found) == ("c", "1")
    assert ("a", "3") in found
    assert Counter(key for key, _ in found)["a"] == len(batches_of(query)) == 2


def test_several_dataframes_go_to_several_topics_once_by_foreachbatch(
    cluster: Cluster,
    topics: tuple[str, str],
    source: DataFrame,
    options: Options,
    fill: Fill,
    committed: Committed,
    checkpoint: str,
) -> None:
    """Two writes by name, one of them to two topics at a time; the run that is repeated writes neither again."""
    other = f"{topics[1]}-even"
    cluster.create_topic(other)
    fill(topics[0], *map(str, range(8)), partition=0, key=b"k")

    def split(frame: DataFrame, _: int) -> dict[str, DataFrame]:
        return {
            topics[1]: frame.select("key", "value"),
            other: frame.where("value % 2 = 0").selectExpr("string(value)"),
        }

    together = exactly_once(options(), split)
    batches = []

    def write(frame: DataFrame, batch_id: int) -> None:
        plain = frame.selectExpr("string(value) value", "key")
        together(plain, batch_id)
        write_once(plain.limit(1), batch_id, options(topic=other), name="first")
        write_once(plain.limit(0), batch_id, options(topic=other), name="empty")
        batches.append(batch_id)
        with pytest.raises(ValueError, match=r"batch .* was written under the name 'first' to this topic already"):
            write_once(plain, batch_id, options(topic=other), name="first")

    def run() -> StreamingQuery:
        query = source.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        started = query.outputMode("update").trigger(availableNow=True).start()
        assert started.awaitTermination(250)
        return started

    query = run()
    undo_last_commit(checkpoint)
    run()
    assert batches == [0, 1, 1]
    assert values(committed(topics[1])) == sorted(map(str, range(8)))
    assert all(record.key == b"k" for record in committed(topics[1]))
    assert values(committed(other)) == sorted(["0", "2", "4", "6", "0", "4"])
    with cluster.admin() as admin:
        named = [one.sink for one in admin.list_sinks() if one.sink.startswith(query.id)]
    assert named == [f"{query.id}/{rest}" for rest in ("/", f"empty/{other}", f"first/{other}")]


def test_a_batch_write_takes_all_columns_and_is_read_back(
    spark: SparkSession, topics: tuple[str, str], options: Options
) -> None:
    frame = spark.range(2_000).selectExpr(
        f"'{topics[1]}' topic",
        "IF(id % 3 = 0, NULL, CONCAT('key ', id)) key",
        "IF(id = 7, REPEAT('x', 900000), STRING(id)) value",
        "IF(id % 2 = 0, NULL, INT(id % 3)) partition",
        "TIMESTAMP_MILLIS(1700000000000 + id) timestamp",
        "IF(id % 5 = 0, NULL, ARRAY(STRUCT('n' AS key, BINARY(STRING(id)) AS value))) headers",
        "id ignored",
    )
    frame.repartition(3).write.format("tidelog").options(**options()).mode("append").save()
    given = options(subscribe=topics[1], includeHeaders="true")
    read = spark.read.format("tidelog").options(**given).load()
    back = read.selectExpr("string(key) key", "string(value) value", "timestamp", "headers")
    wanted = frame.select("key", "value", "timestamp", "headers")
    assert back.count() == 2_000
    assert back.exceptAll(wanted).count() == 0
    wrong = frame.join(read.selectExpr("string(value) value", "partition found"), "value")
    assert wrong.where("partition <> found").count() == 0


def test_a_version_of_an_application_is_written_once(
    spark: SparkSession, topics: tuple[str, str], options: Options, committed: Committed
) -> None:
    def write(version: int, *texts: str) -> None:
        frame = spark.createDataFrame([(text,) for text in texts], "value string")
        given = options(topic=topics[1], appId="nightly", version=version)
        frame.write.format("tidelog").options(**given).mode("append").save()

    write(1, "a", "b")
    write(1, "a", "b")
    write(2)
    assert values(committed(topics[1])) == ["a", "b"]


def test_what_is_wrong_comes_out_in_one_line_of_sparks_words(
    spark: SparkSession, topics: tuple[str, str], options: Options, committed: Committed
) -> None:
    rows = spark.createDataFrame([("a", topics[1]), ("b", None)], "value string, topic string")

    def refused(frame: DataFrame, mode: str = "append", **given: Any) -> str:
        with pytest.raises(Exception) as found:  # noqa: PT011  # Spark's own classes differ by where it notices
            frame.write.format("tidelog").options(**given).mode(mode).save()
        return str(found.value)

    assert "null topic present in the data. Use the topic option for setting a default topic." in refused(
        rows, **options()
    )
    assert "topic option required when no 'topic' attribute is present." in refused(rows.drop("topic"), **options())
    assert "value attribute unsupported type bigint. value must be a(n) string or binary" in refused(
        spark.range(1).selectExpr("id value"), **options(topic=topics[1])
    )
    assert "Option 'tidelog.bootstrap.servers' must be specified" in refused(rows)
    assert "Save mode Overwrite not allowed for Tidelog" in refused(rows, "overwrite", **options())
    assert 'cannot be written in the "Ignore" mode' in refused(rows, "ignore", **options())
    assert committed(topics[1]) == []


def test_update_mode_is_for_foreachbatch(
    topics: tuple[str, str], source: DataFrame, options: Options, checkpoint: str
) -> None:
    counts = source.groupBy("value").count().selectExpr("value")
    with pytest.raises(Exception, match=r"(?i)update"):
        finished(counts, checkpoint, "update", **options(topic=topics[1]))


def test_a_stream_whose_sink_topic_is_gone_ends_and_says_so(
    cluster: Cluster, topics: tuple[str, str], source: DataFrame, options: Options, fill: Fill, checkpoint: str
) -> None:
    fill(topics[0], "a")
    given = options(topic="no such topic")
    with pytest.raises(Exception, match="no such topic"):
        finished(source.select("value"), checkpoint, **given)
