"""The source's readers on a cluster, asked as Spark asks them: limits, rates, growth, what is committed, what is lost.

No JVM takes part; tests/spark/queries/test_source_queries.py has the same readers in real queries.
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, UnknownTopicOrPartitionError
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.compression import Compression
from tidelog.spark_connector import reading
from tidelog.spark_connector.losses import DataLoss
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.source import BatchReader
from tidelog.testing import Cluster

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Batch = Callable[[dict[str, str]], list[str]]
Stream = Callable[..., Any]

T = 1_700_000_000_000


def by_partition(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


# --- limits of batch queries ------------------------------------------------------------------------------


@pytest.fixture
def timed(cluster: Cluster, topic: str, fill: Fill) -> str:
    """Two partitions: one of five records a second apart from T on, one of two."""
    cluster.create_topic(topic, partitions=2)
    for number in range(5):
        fill(topic, f"a{number}", partition=0, timestamp_ms=T + 1_000 * number)
    for number in range(2):
        fill(topic, f"b{number}", partition=1, timestamp_ms=T + 1_000 * number)
    return topic


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "a0 a1 a2 a3 a4 b0 b1"),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, "a0 a1 a2 a3 a4 b0 b1"),
        ({"startingOffsets": (3, -2), "endingOffsets": (4, -1)}, "a3 b0 b1"),
        ({"startingOffsets": (2, 2)}, "a2 a3 a4"),
        ({"endingOffsets": (0, 1)}, "b0"),
        ({"startingTimestamp": T + 1_000}, "a1 a2 a3 a4 b1"),
        ({"startingTimestamp": T + 999, "endingTimestamp": T + 3_000}, "a1 a2 b1"),
        ({"startingTimestamp": T + 2_000, "startingOffsetsByTimestampStrategy": "latest"}, "a2 a3 a4"),
        ({"startingOffsetsByTimestamp": (T + 4_000, T)}, "a4 b0 b1"),
        ({"endingOffsetsByTimestamp": (T + 4_000, T + 1)}, "a0 a1 a2 a3 b0"),
        ({"endingTimestamp": T + 10_000}, "a0 a1 a2 a3 a4 b0 b1"),
        ({"startingTimestamp": T + 1_000, "startingOffsets": (5, 2)}, "a1 a2 a3 a4 b1"),
        ({"minPartitions": 5}, "a0 a1 a2 a3 a4 b0 b1"),
        ({"maxRecordsPerPartition": 2}, "a0 a1 a2 a3 a4 b0 b1"),
        ({"assign": "1"}, "b0 b1"),
    ],
)
def test_a_batch_query_reads_from_limit_to_limit(
    timed: str, options: Options, batch: Batch, given: dict[str, Any], expected: str
) -> None:
    found = {name: by_partition(timed, *value) if isinstance(value, tuple) else value for name, value in given.items()}
    if "assign" in found:
        chosen = options(assign=json.dumps({timed: [1]}))
    else:
        chosen = options(subscribe=timed, **found)
    assert batch(chosen) == expected.split()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"startingTimestamp": T + 2_000},
            f"No offset matched from request of topic-partition TOPIC-1 and timestamp {T + 2_000}",
        ),
        ({"startingOffsets": (0,)}, "Specified: [TOPIC-0] Assigned: [TOPIC-0, TOPIC-1]"),
        ({"startingOffsetsByTimestamp": (T,)}, "or you didn't specify all the partitions. Specified: [TOPIC-0]"),
        (
            {"startingOffsets": (9, 0)},
            "The resolved start offset 9 is greater than the resolved end offset 5 for topic",
        ),
    ],
)
def test_limits_that_no_partition_has(
    timed: str, options: Options, batch: Batch, given: dict[str, Any], words: str
) -> None:
    found = {name: by_partition(timed, *value) if isinstance(value, tuple) else value for name, value in given.items()}
    with pytest.raises(ValueError, match=re.escape(words.replace("TOPIC", timed))):
        batch(options(subscribe=timed, **found))


def test_an_end_beyond_the_log_is_a_loss(timed: str, options: Options, batch: Batch) -> None:
    given = options(subscribe=timed, endingOffsets=by_partition(timed, 9, 1))
    with pytest.raises(DataLoss, match=f"Partition {timed}-0 ends at offset 5, before the batch's end 9"):
        batch(given)
    assert batch(given | {"failOnDataLoss": "false"}) == ["a0", "a1", "a2", "a3", "a4", "b0"]


def test_topics_that_are_not_there(cluster: Cluster, timed: str, options: Options, batch: Batch) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no-such-topic: this cluster has no such topic"):
        batch(options(subscribe=f"{timed},no-such-topic"))
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{timed}-7.: assigned, but there is no such partition"):
        batch(options(assign=json.dumps({timed: [0, 7]})))
    assert batch(options(subscribePattern="^no-such-topic")) == []


def test_a_cluster_that_is_down_is_told_in_one_line(batch: Batch, options: Options, topic: str) -> None:
    given = options(subscribe=topic) | {
        "tidelog.bootstrap.servers": "127.0.0.1:1",
        "tidelog.default.api.timeout.ms": "300",
    }
    with pytest.raises(BrokerNotAvailableError, match=r"no broker of 127\.0\.0\.1:1 answered within 300 ms") as raised:
        batch(given)
    assert "\n" not in str(raised.value)


def test_a_task_that_reaches_no_broker_ends_in_time_and_says_why(timed: str, options: Options) -> None:
    """The driver's network has brokers, the executor's has none."""
    given = options(subscribe=timed, **{"consumer.pollTimeoutMs": 1500})
    (task, *_) = BatchReader(SourceOptions.of(given, streaming=False)).partitions()
    away = BatchReader(SourceOptions.of(given | {"tidelog.bootstrap.servers": "127.0.0.1:1"}, streaming=False))
    words = (
        r"0: nothing came within 1\.5 s at offset 0, expected to read up to 5: no broker could be reached: 127.0.0.1:1"
    )
    with pytest.raises(RequestTimedOutError, match=words):
        list(away.read(task))


# --- what is read -------------------------------------------------------------------------------------


def test_rows_have_all_that_a_record_has(cluster: Cluster, topic: str, options: Options, stream: Stream) -> None:
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        producer.send(topic, b"\x00v", key=b"", timestamp_ms=T, headers=[("a", b"1"), ("a", None), ("é", b"")])
        producer.send(topic, None, key=b"k", timestamp_ms=T + 1)
        producer.flush()
    one = stream(options(subscribe=topic, startingOffsets="earliest", includeHeaders="true"))
    first, second = one.rows(one.at, one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit()))
    assert list(first) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert first["timestamp"].timestamp() * 1_000 == T
    assert {**first, "timestamp": 0} == {
        "key": b"",
        "value": b"\x00v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "é", "value": b""}],
    }
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (b"k", None, None, 1)


def test_the_leaders_time_is_told_apart(
    cluster: Cluster, topic: str, options: Options, stream: Stream, fill: Fill
) -> None:
    cluster.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    fill(topic, "x", timestamp_ms=5)
    one = stream(options(subscribe=topic, startingOffsets="earliest"))
    (row,) = one.rows(one.at, one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit()))
    assert row["timestampType"] == 1
    assert row["timestamp"].timestamp() > 1e9


@pytest.mark.parametrize("kind", Compression)
def test_large_and_many_records_of_every_codec(
    cluster: Cluster, topic: str, options: Options, stream: Stream, monkeypatch: pytest.MonkeyPatch, kind: Compression
) -> None:
    """More rows and more bytes than one Arrow batch takes."""
    monkeypatch.setattr(reading, "ROWS_PER_BATCH", 1_000)
    monkeypatch.setattr(reading, "BYTES_PER_BATCH", 50_000)
    cluster.create_topic(topic)
    sent = [f"{number:07d}" * (9_000 if number % 2_000 == 5 else 1) for number in range(6_000)]
    with cluster.producer(compression_type=kind.kafka_name, linger_ms=50, batch_size=100_000) as producer:
        for text in sent:
            producer.send(topic, text.encode(), partition=0)
        producer.flush()
    one = stream(
        options(subscribe=topic, startingOffsets="earliest", **{"tidelog.max.partition.fetch.bytes": "150000"})
    )
    (task,) = one.reader.partitions(one.at, one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit()))
    batches = list(one.reader.read(task))
    assert [value.decode() for batch in batches for value in batch.column("value").to_pylist()] == sent
    assert max(batch.num_rows for batch in batches) <= 2_000
    assert len(batches) >= 3


def test_only_what_is_committed_is_read_and_ranges_end_where_it_is_decided(
    cluster: Cluster, topic: str, options: Options, stream: Stream, fill: Fill
) -> None:
    cluster.create_topic(topic)
    one = stream(options(subscribe=topic, startingOffsets="earliest"))
    with (
        cluster.producer(transactional_id=f"{topic}-a") as first,
        cluster.producer(transactional_id=f"{topic}-b") as second,
    ):
        first.init_transactions()
        second.init_transactions()
        first.begin_transaction()
        first.send(topic, b"aborted", partition=0)
        first.flush()
        first.abort_transaction()
        assert one.trigger() == [], "an aborted record and a marker"
        first.begin_transaction()
        first.send(topic, b"committed", partition=0)
        first.flush()
        second.begin_transaction()
        second.send(topic, b"open", partition=0)
        second.flush()
        first.commit_transaction()
        fill(topic, "plain")
        assert one.trigger() == ["committed"], "nothing behind the first record of an open transaction"
        assert one.trigger() == []
        second.commit_transaction()
        assert one.trigger() == ["open", "plain"]


def test_a_compacted_topic_is_read_over_its_gaps(cluster: Cluster, topic: str, options: Options, batch: Batch) -> None:
    """The last records of the range are gone, and what follows is no data: reading must end all the same."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0",
                "segment.ms": "100", "min.compaction.lag.ms": "0"}  # fmt: skip
    cluster.create_topic(topic, config=settings)
    with cluster.producer() as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % 3), partition=0).result(10)
        producer.flush()
    given = options(subscribe=topic, endingOffsets=by_partition(topic, 27))
    found = batch(given)
    assert found
    assert set(found) <= {str(number) for number in range(27)}
    assert batch(given | {"endingOffsets": by_partition(topic, 30)})[-3:] == ["27", "28", "29"]


# --- streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "earliest"}, ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]),
        ({"startingOffsets": (4, -1)}, ["a4"]),
        ({"startingTimestamp": T + 1_000}, ["a1", "a2", "a3", "a4", "b1"]),
    ],
)
def test_where_a_stream_begins(
    timed: str, options: Options, stream: Stream, fill: Fill, given: dict[str, Any], expected: list[str]
) -> None:
    found = {name: by_partition(timed, *value) if isinstance(value, tuple) else value for name, value in given.items()}
    one = stream(options(subscribe=timed, **found))
    fill(timed, "later", partition=1)
    assert one.trigger() == [*expected, "later"]


def test_an_idle_stream_gives_back_its_offsets_as_they_were(timed: str, options: Options, stream: Stream) -> None:
    """Spark compares texts: anything else would start empty batches without end."""
    one = stream(options(subscribe=timed, startingOffsets="earliest", maxOffsetsPerTrigger=4))
    seen = []
    for _ in range(4):
        one.trigger()
        seen.append(json.dumps(one.at))
    again = json.dumps(one.reader.latestOffset(json.loads(seen[-1]), one.reader.getDefaultReadLimit()))
    assert again == seen[-1] == seen[-2]
    assert one.reader.partitions(one.at, one.at) == []


def test_the_first_batch_is_the_same_after_a_restart_that_begins_elsewhere(
    timed: str, options: Options, stream: Stream, fill: Fill
) -> None:
    """Spark keeps the end of the first batch, but asks anew where it begins."""
    given = options(subscribe=timed, startingOffsets="latest")
    one = stream(given)
    fill(timed, "x", partition=0)
    end = one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit())
    fill(timed, "y", partition=0)
    again = stream(given)
    assert again.at != one.at
    assert [row["value"] for row in again.rows(again.at, end)] == [b"x"]
    again.at = end
    assert again.trigger() == ["y"]


def test_a_stream_that_began_idle_replays_its_empty_first_batch(
    timed: str, options: Options, stream: Stream, fill: Fill
) -> None:
    given = options(subscribe=timed)
    one = stream(given)
    end = one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit())
    fill(timed, "x", partition=0)
    again = stream(given)
    assert again.rows(again.at, end) == []
    again.at = end
    assert again.trigger() == ["x"]


def test_a_trigger_takes_no_more_than_its_limit(timed: str, options: Options, stream: Stream) -> None:
    one = stream(options(subscribe=timed, startingOffsets="earliest", maxOffsetsPerTrigger=4))
    found = [one.trigger() for _ in range(4)]
    assert [len(texts) for texts in found] == [3, 4, 0, 0]
    assert sorted(itertools.chain(*found)) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]
    assert one.reader.reportLatestOffset()["offsets"] == {timed: {"0": 5, "1": 2}}


def test_a_trigger_takes_no_more_bytes_than_its_limit(
    cluster: Cluster, topic: str, options: Options, stream: Stream, fill: Fill
) -> None:
    """But at least a batch of each partition; the lower of two limits counts."""
    cluster.create_topic(topic, partitions=2)
    for value in ("a", "b", "c" * 3_000, "d", "e"):
        fill(topic, value, partition=0)
    fill(topic, "x", partition=1)
    one = stream(options(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1k"))
    found = [[text[0] for text in one.trigger()] for _ in range(4)]
    assert found == [["a", "b", "x"], ["c"], ["d", "e"], []]
    both = stream(options(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1m", maxOffsetsPerTrigger=3))
    assert [text[0] for text in both.trigger()] == ["a", "b", "x"]
    once = stream(options(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1"))
    once.reader.prepareForTriggerAvailableNow()
    fill(topic, "too late", partition=1)
    assert [[text[0] for text in once.trigger()] for _ in range(6)] == [["a", "x"], ["b"], ["c"], ["d"], ["e"], []]


def test_a_trigger_waits_for_enough(cluster: Cluster, topic: str, options: Options, stream: Stream, fill: Fill) -> None:
    cluster.create_topic(topic)
    now = [0.0]
    one = stream(options(subscribe=topic, minOffsetsPerTrigger=3, maxTriggerDelay="10s"), lambda: now[0])
    assert one.trigger() == [], "the first never waits"
    fill(topic, "a", "b")
    assert one.trigger() == []
    fill(topic, "c")
    assert one.trigger() == ["a", "b", "c"]
    fill(topic, "d")
    assert one.trigger() == []
    now[0] = 10_000.0
    assert one.trigger() == ["d"]


def test_available_now_reads_what_was_there_and_no_more(
    timed: str, options: Options, stream: Stream, fill: Fill
) -> None:
    one = stream(options(subscribe=timed, startingOffsets="earliest", maxOffsetsPerTrigger=6, minOffsetsPerTrigger=5))
    one.reader.prepareForTriggerAvailableNow()
    fill(timed, "too late", partition=0)
    assert one.trigger() + one.trigger() == ["a0", "a1", "a2", "a3", "b0", "a4", "b1"]
    end = one.at
    assert one.trigger() == []
    assert one.at == end


def test_a_topic_that_grows(cluster: Cluster, timed: str, options: Options, stream: Stream, fill: Fill) -> None:
    one = stream(options(subscribe=timed, maxOffsetsPerTrigger=10))
    assert one.trigger() == []
    with cluster.admin() as admin:
        admin.create_partitions({timed: 3})
    cluster.wait_for_leader(timed, 2)
    fill(timed, "new", partition=2)
    assert one.trigger() == ["new"]


def test_a_pattern_finds_a_topic_that_comes_later(
    cluster: Cluster, topic: str, options: Options, stream: Stream, fill: Fill
) -> None:
    cluster.create_topic(f"{topic}.eu")
    one = stream(options(subscribePattern=f"^{topic}\\."))
    fill(f"{topic}.eu", "1")
    assert one.trigger() == ["1"]
    cluster.create_topic(f"{topic}.us")
    fill(f"{topic}.us", "2")
    assert one.trigger() == ["2"]


def test_tasks_get_the_options_alone(timed: str, options: Options, stream: Stream) -> None:
    one = stream(options(subscribe=timed, startingOffsets="earliest"))
    end = one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit())
    (task, *_) = pickle.loads(pickle.dumps(one.reader.partitions(one.at, end)))
    copy = pickle.loads(pickle.dumps(one.reader))
    assert copy._cluster is None
    assert sum(piece.num_rows for piece in copy.read(task)) == 5


# --- losses -------------------------------------------------------------------------------------------


def test_records_that_were_deleted_before_they_were_read(
    cluster: Cluster, timed: str, options: Options, stream: Stream
) -> None:
    given = options(subscribe=timed, startingOffsets="earliest")
    strict, lenient = stream(given), stream(given | {"failOnDataLoss": "false"})
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(timed, 0): 3})
        admin.list_offsets({TopicPartition(timed, 0): OffsetSpec.earliest()})
    with pytest.raises(DataLoss, match="was 0 but the log starts at 3") as raised:
        strict.trigger()
    assert "set the source option failOnDataLoss to false" in str(raised.value)
    assert lenient.trigger() == ["a3", "a4", "b0", "b1"]


def test_records_that_are_deleted_between_planning_and_reading(
    cluster: Cluster, timed: str, options: Options, stream: Stream
) -> None:
    given = options(subscribe=timed, startingOffsets="earliest")
    strict, lenient = stream(given), stream(given | {"failOnDataLoss": "false"})
    tasks = [
        one.reader.partitions(one.at, one.reader.latestOffset(one.at, one.reader.getDefaultReadLimit()))
        for one in (strict, lenient)
    ]
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(timed, 0): 3})
    with pytest.raises(DataLoss, match=rf"Could not read records in offset \[0, 5\) for topic partition {timed}-0"):
        list(strict.reader.read(tasks[0][0]))
    (found,) = lenient.reader.read(tasks[1][0])
    assert found.column("value").to_pylist() == [b"a3", b"a4"]


def test_a_topic_that_was_made_anew(cluster: Cluster, timed: str, options: Options, stream: Stream, fill: Fill) -> None:
    given = options(subscribe=timed, startingOffsets="earliest")
    strict, lenient = stream(given), stream(given | {"failOnDataLoss": "false"})
    assert strict.trigger() == lenient.trigger() != []
    planned = strict.reader.partitions(strict.reader.initialOffset(), strict.at)
    with cluster.admin() as admin:
        admin.delete_topics([timed])
    cluster.create_topic(timed, partitions=2)
    fill(timed, *(f"new {number}" for number in range(9)), partition=0)
    with pytest.raises(DataLoss, match=f"Topic {timed} has been deleted and created again"):
        strict.trigger()
    with pytest.raises(DataLoss, match="Could not read records in offset"):
        list(strict.reader.read(planned[0]))
    assert lenient.trigger() == [f"new {number}" for number in range(9)]
    fill(timed, "more")
    assert lenient.trigger() == ["more"]


def test_a_topic_that_was_deleted(cluster: Cluster, timed: str, options: Options, stream: Stream, fill: Fill) -> None:
    other = f"{timed}-other"
    cluster.create_topic(other)
    fill(other, "o1")
    given = options(subscribe=f"{timed},{other}", startingOffsets="earliest")
    strict, lenient = stream(given), stream(given | {"failOnDataLoss": "false"})
    patterned = stream(options(subscribePattern=f"^{timed}$|^{other}$", startingOffsets="earliest"))
    assert len(strict.trigger()) == len(lenient.trigger()) == len(patterned.trigger()) == 8
    with cluster.admin() as admin:
        admin.delete_topics([timed])
    fill(other, "o2")
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{timed}: this cluster has no such topic"):
        strict.trigger()
    with pytest.raises(DataLoss, match=rf"Partitions \[{timed}-0, {timed}-1\] have been deleted"):
        patterned.trigger()
    assert lenient.trigger() == ["o2"]
    fill(other, "o3")
    assert lenient.trigger() == ["o3"]


def test_a_checkpoint_ahead_of_the_log(timed: str, options: Options, stream: Stream, fill: Fill) -> None:
    """Of another cluster, or one that was set back."""
    given = options(subscribe=timed, startingOffsets="earliest")
    strict, lenient = stream(given), stream(given | {"failOnDataLoss": "false"})
    for one in (strict, lenient):
        one.trigger()
        one.at["offsets"][timed]["0"] = 50
    with pytest.raises(DataLoss, match=f"Partition {timed}-0 offset was changed from 50 to 5"):
        strict.trigger()
    fill(timed, "b2", partition=1)
    assert lenient.trigger() == ["b2"]
    fill(timed, "a5", partition=0)
    assert lenient.trigger() == ["a5"]


def test_a_pattern_that_matches_nothing_is_warned_of_once_each_time_that_it_comes_to_match_nothing(
    cluster: Cluster, topic: str, stream: Stream, options: Options, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    reading = stream(options(subscribePattern=f"^{topic}-.*", startingOffsets="earliest", failOnDataLoss="false"))

    def warnings() -> int:
        said = [one.getMessage() for one in caplog.records if "there is nothing to read" in one.getMessage()]
        assert all(f"subscribePattern '^{topic}-.*' matches no topic of {cluster.bootstrap}" in one for one in said)
        return len(said)

    assert (reading.trigger(), reading.trigger(), warnings()) == ([], [], 1)
    cluster.create_topic(f"{topic}-a")
    fill(f"{topic}-a", "x")
    assert (reading.trigger(), warnings()) == (["x"], 1)
    with cluster.admin() as admin:
        admin.delete_topics([f"{topic}-a"])
    assert (reading.trigger(), reading.trigger(), warnings()) == ([], [], 2)
