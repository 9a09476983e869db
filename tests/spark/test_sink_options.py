"""The sink's options: accepted ones, refused ones, and the words of refusals."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.sink_options import SinkOptions, sink_name

BOOT = {"tidelog.bootstrap.servers": "127.0.0.1:9092"}


def stream(**given: Any) -> SinkOptions:
    return SinkOptions.of(BOOT | {name.replace("__", "."): value for name, value in given.items()}, streaming=True)


def batch(**given: Any) -> SinkOptions:
    return SinkOptions.of(BOOT | {name.replace("__", "."): value for name, value in given.items()}, streaming=False)


def test_settings_go_to_whom_they_are_for() -> None:
    options = stream(
        topic=" out ",
        TIDELOG__Linger__Ms="7",
        tidelog__default__api__timeout__ms="9000",
        tidelog__request__timeout__ms="4000",
        tidelog__acks="all",
        tidelog__enable__idempotence="TRUE",
        includeHeaders="true",
    )
    assert options.topic == "out"
    assert options.producer["linger_ms"] == "7"
    assert options.producer["request_timeout_ms"] == options.ledger["request_timeout_ms"] == "4000"
    assert options.ledger["default_api_timeout_ms"] == "9000"
    assert "default_api_timeout_ms" not in options.producer
    assert "linger_ms" not in options.ledger
    assert options.sink is None
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "  "}, "topic: expected the name of a topic, found nothing"),
        ({"tidelog.transactional.id": "x"}, "Tidelog option 'transactional.id' is not supported: the sink names its"),
        ({"tidelog.transaction.timeout.ms": "1"}, "brokers' transaction.sink.timeout.ms counts"),
        ({"tidelog.transaction.two.phase.commit.enable": "true"}, "always prepared"),
        ({"tidelog.key.serializer": "x"}, "'key.serializer' is not supported: keys are columns"),
        ({"tidelog.value.serializer": "x"}, "'value.serializer' is not supported: values are columns"),
        ({"tidelog.partitioner.class": "x"}, "give the partition of each record in the column 'partition'"),
        ({"tidelog.interceptor.classes": "x"}, "they could change what is written"),
        ({"tidelog.acks": "1"}, "Tidelog option 'acks' is not supported with '1': exactly once needs 'all'."),
        ({"tidelog.enable.idempotence": "false"}, "exactly once needs 'true'"),
        (
            {"tidelog.linger.mss": "1"},
            r"among the options tidelog.…: unknown setting 'linger.mss'; did you mean linger.ms",
        ),
        ({"tidelog.linger.ms": "soon"}, "tidelog.linger.ms: expected .*found 'soon'"),
        ({"tidelog.default.api.timeout.ms": "-1"}, "tidelog.default.api.timeout.ms: expected"),
        ({"tidelog.retries": "0"}, "retries over 0"),
        ({"tidelog.delivery.timeout.ms": "10"}, "tidelog.delivery.timeout.ms: expected at least"),
        ({"tidelog.bootstrap.servers": "a:b"}, "tidelog.bootstrap.servers: expected host:port"),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_what_cannot_be_is_refused_with_its_reason(given: dict[str, str], words: str, streaming: bool) -> None:
    with pytest.raises(OptionError, match=words):
        SinkOptions.of(BOOT | given, streaming=streaming)


def test_brokers_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"Option 'tidelog.bootstrap.servers' must be specified"):
        SinkOptions.of({"topic": "out"}, streaming=True)
    with pytest.raises(OptionError, match=r"begin with 'tidelog\.' here, found 'kafka.bootstrap.servers'"):
        SinkOptions.of({"topic": "out", "kafka.bootstrap.servers": "127.0.0.1:9092"}, streaming=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"appId": "a"}, "appId is given without version"),
        ({"version": "1"}, "version is given without appId"),
        ({"appId": "a", "version": "x"}, "version: expected a whole number from 0 to"),
        ({"appId": "a", "version": "-1"}, "found '-1'"),
        ({"appId": "a", "version": str(1 << 63)}, "version: expected"),
        ({"appId": "", "version": "1"}, "appId: expected a name"),
        ({"appId": "ä" * 127, "version": "1", "topic": "out"}, "appId: expected at most 251 bytes of text"),
    ],
)
def test_a_batch_write_happens_once_by_both_of_appid_and_version(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        batch(**given)
    with pytest.raises(OptionError, match="appId and version are not valid in streaming queries"):
        stream(**given)


def test_an_appid_has_a_ledger_for_each_topic() -> None:
    named = [batch(appId="a", version=" 7 ", **topic).sink for topic in ({"topic": "t"}, {"topic": "u"}, {})]
    assert named == ["a/t", "a/u", "a/"]
    assert batch(appId="a", version=" 7 ").version == 7
    assert sink_name("a/t", None) != sink_name("a", "t")


def test_a_task_has_time_for_what_may_wait_and_what_may_be_on_its_way() -> None:
    options = stream(tidelog__max__block__ms="2000", tidelog__delivery__timeout__ms="60000")
    assert options.write_timeout_s == 62
