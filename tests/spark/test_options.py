"""The source's options and refusals, in the words of Spark's Kafka source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.model.ids import TopicPartition
from tidelog.spark_connector import option_names
from tidelog.spark_connector.options import Kind, OptionError, SourceOptions, check_general
from tidelog.spark_connector.sink_options import SinkOptions

SERVERS = {"tidelog.bootstrap.servers": "localhost:9092"}
GIVEN = SERVERS | {"subscribe": "orders"}
BOTH = '{"orders":{"0":5,"1":-2}}'


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (SERVERS, "One of the following options must be specified for Tidelog source: subscribe, subscribepattern, "),
        (GIVEN | {"assign": '{"orders":[0]}'}, "Only one of the following options can be specified for Tidelog source"),
        (SERVERS | {"assign": "orders"}, "No topicpartitions to assign as specified value for option 'assign' is 'o"),
        (SERVERS | {"assign": "{}"}, "No topicpartitions to assign"),
        (SERVERS | {"assign": '{"orders":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"orders":0}'),
        (SERVERS | {"assign": '{"orders":[-1]}'}, "Expected e.g."),
        (SERVERS | {"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ','"),
        (SERVERS | {"subscribePattern": " "}, "Pattern to subscribe is empty"),
        (SERVERS | {"subscribePattern": "a("}, "subscribePattern: expected a regular expression, found 'a('"),
        ({"subscribe": "orders"}, "Option 'tidelog.bootstrap.servers' must be specified for configuring Tidelog"),
        (
            {"subscribe": "orders", "kafka.bootstrap.servers": "a:1"},
            "options that begin with 'kafka.' begin with 'tidelog.' here, found 'kafka.bootstrap.servers'",
        ),
        ({"subscribe": "o", "tidelog.bootstrap.servers": "a:b"}, "expected host:port with a port of 1 to 65535"),
        (GIVEN | {"minPartitions": "0"}, "minPartitions must be positive"),
        (GIVEN | {"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        (GIVEN | {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger: expected a whole number, found 'many'"),
        (
            GIVEN | {"maxBytesPerTrigger": "1x"},
            "maxBytesPerTrigger: expected a size such as 1048576, 500k, 64m or 1g, found '1x'",
        ),
        (GIVEN | {"maxBytesPerTrigger": "0m"}, "maxBytesPerTrigger must be positive"),
        (
            GIVEN | {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"},
            "The value of minOffsetPerTrigger(10) is higher than the maxOffsetsPerTrigger(9).",
        ),
        (GIVEN | {"maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a time such as"),
        (GIVEN | {"failOnDataLoss": "perhaps"}, "failOnDataLoss: expected true or false, found 'perhaps'"),
        (GIVEN | {"includeHeaders": "1"}, "includeHeaders: expected true or false"),
        (GIVEN | {"startingOffsets": "first"}, 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got first'),
        (GIVEN | {"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets for orders-0: expected 0 or more, -1 or"),
        (GIVEN | {"startingTimestamp": "noon"}, "Expected a single long value, got noon"),
        (GIVEN | {"startingOffsetsByTimestamp": "[]"}, 'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}'),
        (GIVEN | {"startingOffsetsByTimestampStrategy": "guess"}, "expected error or latest, found 'guess'"),
        (GIVEN | {"tidelog.auto.offset.reset": "latest"}, "Tidelog option 'auto.offset.reset' is not supported"),
        (GIVEN | {"tidelog.enable.auto.commit": "true"}, "Tidelog option 'enable.auto.commit' is not supported"),
        (GIVEN | {"tidelog.value.deserializer": "x"}, "use DataFrame operations to explicitly deserialize them"),
        (GIVEN | {"tidelog.isolation.level": "read_uncommitted"}, "the source reads what is committed, and nothing e"),
        (GIVEN | {"tidelog.group.id": "g"}, "Tidelog option 'group.id' is not supported"),
        (GIVEN | {"tidelog.fetch.max.byte": "1"}, "among the options tidelog.…: unknown setting 'fetch.max.byte'"),
        (GIVEN | {"tidelog.fetch.max.bytes": "-1"}, "tidelog.fetch.max.bytes: expected"),
    ],
)
def test_what_is_refused_in_any_query(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as streaming:
        SourceOptions.of(given, streaming=True)
    with pytest.raises(OptionError) as either:
        check_general(given)
    for raised in (streaming, either):
        assert words in str(raised.value)
    with pytest.raises(OptionError):
        SourceOptions.of(given, streaming=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Tidelog"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "startingOffsets for orders-0 can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Tidelog"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "ending offset for orders-0 can't be earliest for batch queries"),
        (
            {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"1":2}}'},
            "The specified start offset and end offset should have the same topic-partitions.",
        ),
        (
            {"startingOffsets": '{"orders":{"0":3}}', "endingOffsets": '{"orders":{"0":2}}'},
            "The specified start offset 3 is greater than the end offset 2 for topic orders partition 0.",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":3}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":2}}',
            },
            "The specified start timestamp 3 is greater than the end timestamp 2 for topic orders partition 0.",
        ),
    ],
)
def test_what_is_refused_in_batch_queries(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as raised:
        SourceOptions.of(GIVEN | given, streaming=False)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("endingOffsets", "ending offset not valid in streaming queries"),
        ("endingOffsetsByTimestamp", "ending timestamp not valid in streaming queries"),
        ("endingTimestamp", "ending timestamp not valid in streaming queries"),
    ],
)
def test_streams_have_no_end(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SourceOptions.of(GIVEN | {name: "latest"}, streaming=True)
    check_general(GIVEN | {name: "latest"})  # it may be a batch query


def test_defaults_are_those_of_the_kafka_source() -> None:
    stream = SourceOptions.of(GIVEN, streaming=True)
    query = SourceOptions.of(GIVEN, streaming=False)
    assert (stream.starting.kind, query.starting.kind, query.ending.kind) == (Kind.LATEST, Kind.EARLIEST, Kind.LATEST)
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert (stream.min_partitions, stream.max_offsets_per_trigger, stream.min_offsets_per_trigger) == (None, None, None)
    assert (stream.fetch_retries, stream.fetch_retry_interval_ms, query.poll_timeout_ms) == (3, 1_000, 120_000)
    assert stream.poll_timeout_ms == stream.broker_outage_ms_max == 300_000


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_a_timestamp_wins_over_timestamps_and_those_over_offsets(edge: str) -> None:
    given = GIVEN | {f"{edge}Offsets": BOTH.replace("-2", "3")}
    found = []
    for more in ({}, {f"{edge}OffsetsByTimestamp": '{"orders":{"0":7}}'}, {f"{edge.upper()}TIMESTAMP": " 9 "}):
        given |= more
        query = SourceOptions.of(given, streaming=False)
        found.append(query.starting if edge == "starting" else query.ending)
    assert [limit.kind for limit in found] == [Kind.OFFSETS, Kind.TIMESTAMPS, Kind.TIMESTAMP]
    assert found[0].by_partition == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 3}
    assert found[1].by_partition == {TopicPartition("orders", 0): 7}
    assert found[2].timestamp == 9


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("5min", 300_000), ("2h", 7_200_000), ("70", 70), ("3s", 3_000), ("1d", 86_400_000)],
)
def test_times_are_written_as_spark_writes_them(text: str, ms: float) -> None:
    assert SourceOptions.of(GIVEN | {"maxTriggerDelay": text}, streaming=True).max_trigger_delay_ms == ms


def test_names_of_options_have_no_case_and_the_clients_settings_go_to_the_client() -> None:
    found = SourceOptions.of(
        {
            "TIDELOG.Bootstrap.Servers": "a:1,b:2",
            "SubscribePattern": "or.*",
            "tidelog.fetch.max.bytes": "9000",
            "tidelog.request.timeout.ms": "77",
        },
        streaming=True,
    )
    assert (found.bootstrap, found.selection.pattern) == ("a:1,b:2", "or.*")
    assert found.client == {"default_api_timeout_ms": "30000", "fetch_max_bytes": "9000", "request_timeout_ms": "77"}


def test_what_a_query_on_sparks_kafka_source_may_have_given_is_taken() -> None:
    given = GIVEN | {"tidelog.isolation.level": "read_committed", "kafkaConsumer.pollTimeoutMs": "7"}
    found = SourceOptions.of(given, streaming=True)
    assert found.poll_timeout_ms == 7
    assert SourceOptions.of(given | {"consumer.pollTimeoutMs": "8"}, streaming=True).poll_timeout_ms == 8
    assert found.client == SourceOptions.of(GIVEN, streaming=True).client


# --- names ------------------------------------------------------------------------------------------

SOURCE = {"tidelog.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
SINK = {"tidelog.bootstrap.servers": "localhost:9092", "topic": "orders"}
LOST = "Spark does not hand a table's OPTIONS to sources in Python. Use CREATE TEMPORARY VIEW"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("startingOffset", "unknown option 'startingOffset'; did you mean 'startingOffsets'?"),
        ("STARTINGOFFSET", "unknown option 'STARTINGOFFSET'; did you mean 'startingOffsets'?"),
        ("maxRecordsPerTrigger", "unknown option 'maxRecordsPerTrigger'; did you mean 'maxOffsetsPerTrigger'?"),
        ("failOnDataloss2", "did you mean 'failOnDataLoss'?"),
        ("bootstrap.servers", "unknown option 'bootstrap.servers'"),
        ("zzz", "unknown option 'zzz'; leave it out (settings of the client begin with 'tidelog.')"),
        ("kafka.Security.Protocol", "found 'kafka.Security.Protocol': give 'tidelog.security.protocol'"),
        ("groupIdPrefix", "option 'groupIdPrefix' has no meaning here: the source is in no group"),
    ],
)
def test_a_name_that_nobody_knows_is_refused_by_source_and_sink(name: str, words: str) -> None:
    for streaming in (True, False):
        with pytest.raises(OptionError, match=re.escape(words)):
            SourceOptions.of(SOURCE | {name: "1"}, streaming=streaming)
        with pytest.raises(OptionError, match=re.escape(words)):
            SinkOptions.of(SINK | {name: "1"}, streaming=streaming)
    with pytest.raises(OptionError, match=re.escape(words)):
        check_general(SOURCE | {name: "1"})


def test_what_spark_hands_down_and_what_the_other_side_takes_is_let_through() -> None:
    handed = {"path": "x", "checkpointLocation": "x", "QUERYNAME": "x", "spark.x": "x", "__internal": "x"}
    assert SourceOptions.of(SOURCE | SINK | handed, streaming=True).selection.topics == ("orders",)
    assert SinkOptions.of(SOURCE | SINK | handed, streaming=True).topic == "orders"
    assert SinkOptions.of(SINK | {"STARTINGoffsets": "earliest"}, streaming=False).topic == "orders"


def test_options_that_spark_has_lost_with_a_table() -> None:
    created = SOURCE | {"provider": "tidelog", "owner": "ann", "option.subscribe": "orders"}
    with pytest.raises(OptionError, match=re.escape(LOST)):
        check_general(created)
    with pytest.raises(
        OptionError, match=re.escape(f"must be specified, found no option at all. If you ask a table: {LOST}")
    ):
        SourceOptions.of({}, streaming=False)
    with pytest.raises(
        OptionError, match=re.escape(f"must be specified, found no option at all. If you ask a table: {LOST}")
    ):
        SinkOptions.of({}, streaming=False)


def test_every_option_of_the_page_is_known_and_every_known_one_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Za-z.]+)`", page))
    assert set(option_names.SOURCE) <= named
    assert set(option_names.SINK) <= named
    rows = re.findall(r"^\| ((?:`[A-Za-z.…]+`,? ?)+) \|.*\| (?:both|streams|batch) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row) if not name.startswith("tidelog.")}
    assert len(listed) > 15
    assert listed <= {*option_names.SOURCE, *option_names.SINK}
