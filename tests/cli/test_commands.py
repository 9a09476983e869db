"""The command's sub-commands against a running cluster: tables for people, JSON for programs, exit codes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog import Admin, NewTopic, Producer
from tidelog.cli.work.workload import RecordsLost, end_to_end
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports

from .in_process import Tidelog, as_json, runs_commands


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc") as cluster:
        yield cluster.bootstrap


@pytest.fixture
def tidelog(bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(bootstrap, capfd, monkeypatch)


def test_topics_from_creation_to_deletion(tidelog: Tidelog) -> None:
    made = as_json(tidelog("topics", "create", "t-life", "--partitions", "2", "--set", "retention.ms=5000", "--json"))
    assert (made["created"], made["partitions"], made["replication_factor"]) == (True, 2, 1)
    listed = {topic["name"]: topic for topic in as_json(tidelog("topics", "list", "--json"))}
    assert listed["t-life"]["id"] == made["id"]
    assert as_json(tidelog("topics", "alter", "t-life", "--partitions", "3", "--json"))["partitions"] == 3
    rows = as_json(tidelog("topics", "describe", "t-life", "--json"))
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert all(row["leader"] == 1 and row["isr"] == [1] and row["end_offset"] == 0 for row in rows)
    code, out, _ = tidelog("topics", "describe", "t-life")
    assert code == 0
    assert out.splitlines()[0].split()[:3] == ["topic", "partition", "leader"]
    assert tidelog("topics", "delete", "t-life")[0] == 0
    assert "t-life" not in tidelog("topics", "list")[1]


def test_a_topic_that_is_there(tidelog: Tidelog) -> None:
    assert tidelog("topics", "create", "t-there")[0] == 0
    code, _, err = tidelog("topics", "create", "t-there")
    assert code == 1
    assert err.startswith("tidelog: TOPIC_ALREADY_EXISTS")
    assert err.count("\n") == 1
    assert tidelog("topics", "create", "t-there", "--if-not-exists")[0] == 0
    code, out, _ = tidelog("topics", "create", "t-not-there", "--dry-run")
    assert code == 0
    assert "could be" in out
    assert "t-not-there" not in tidelog("topics", "list")[1]


def test_configs_are_shown_and_changed(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-configs")
    assert tidelog("configs", "alter", "--topic", "t-configs", "--set", "retention.ms=1234")[0] == 0

    def retention() -> dict[str, Any]:
        found = as_json(tidelog("configs", "describe", "--topic", "t-configs", "--json"))
        configs: dict[str, dict[str, Any]] = {config["name"]: config for config in found}
        return configs["retention.ms"]

    assert (retention()["value"], retention()["source"]) == ("1234", "DYNAMIC_TOPIC_CONFIG")
    assert tidelog("configs", "alter", "--topic", "t-configs", "--reset", "retention.ms")[0] == 0
    assert retention()["value"] == "604800000"
    broker = as_json(tidelog("configs", "describe", "--broker", "1", "--json"))
    assert {config["name"]: config["value"] for config in broker}["node.id"] == "1"


def test_a_groups_own_settings_are_kept_within_the_bounds(tidelog: Tidelog) -> None:
    assert tidelog("configs", "alter", "--group", "g", "--set", "consumer.session.timeout.ms=50000")[0] == 0

    def shown() -> dict[str, tuple[str, str]]:
        found = as_json(tidelog("configs", "describe", "--group", "g", "--json"))
        return {config["name"]: (config["value"], config["source"]) for config in found}

    heartbeat = ("5000", "DEFAULT_CONFIG")
    assert shown() == {
        "consumer.session.timeout.ms": ("50000", "DYNAMIC_GROUP_CONFIG"),
        "consumer.heartbeat.interval.ms": heartbeat,
        "consumer.assignment.interval.ms": ("1000", "DEFAULT_CONFIG"),
    }
    code, _, err = tidelog("configs", "alter", "--group", "g", "--set", "consumer.session.timeout.ms=44999")
    assert code == 1
    assert "expected 45000 to 60000 (group.consumer.min.session.timeout.ms, group.consumer.max." in err
    assert tidelog("configs", "alter", "--group", "g", "--reset", "consumer.session.timeout.ms")[0] == 0
    assert shown()["consumer.session.timeout.ms"] == ("45000", "DEFAULT_CONFIG")


def test_what_was_changed_is_shown_alone(tidelog: Tidelog) -> None:
    """Also a setting that was given by another of its units."""
    with Cluster(nodes=1, transport="grpc", config={"log.retention.hours": "7"}) as cluster:
        tidelog("topics", "create", "t", "--bootstrap", cluster.bootstrap)
        here = ("configs", "describe", "--changed", "--topic", "t", "--bootstrap", cluster.bootstrap)
        before = {one["name"]: (one["value"], one["source"]) for one in as_json(tidelog(*here, "--json"))}
        assert before["retention.ms"] == (str(7 * 3_600_000), "STATIC_BROKER_CONFIG")
        assert not before.keys() & {"segment.ms", "cleanup.policy"}
        alter = ("configs", "alter", "--topic", "t", "--set", "segment.ms=604800001", "--bootstrap", cluster.bootstrap)
        assert tidelog(*alter)[0] == 0
        after = {one["name"]: (one["value"], one["source"]) for one in as_json(tidelog(*here, "--json"))}
        assert after == before | {"segment.ms": ("604800001", "DYNAMIC_TOPIC_CONFIG")}
        assert {"segment.ms", "retention.ms"} <= {line.split()[0] for line in tidelog(*here)[1].splitlines()}
        node = ("configs", "describe", "--changed", "--broker", "1", "--bootstrap", cluster.bootstrap, "--json")
        shown = {one["name"]: one["source"] for one in as_json(tidelog(*node))}
        assert (shown["log.retention.hours"], shown["node.id"]) == ("STATIC_BROKER_CONFIG", "STATIC_BROKER_CONFIG")
        assert "DEFAULT_CONFIG" not in shown.values()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topics", "create", "t-x", "--set", "retention.mss=1"), ("retention.mss", "did you mean retention.ms")),
        (("topics", "create", "t-x", "--set", "retention.ms=soon"), ("retention.ms", "whole number", "soon")),
        (("topics", "create", "t-x", "--replicas", "5"), ("INVALID_REPLICATION_FACTOR", "5")),
        (("topics", "create", "a/b"), ("INVALID_TOPIC", "a/b")),
        (("topics", "describe", "t-nowhere"), ("UNKNOWN_TOPIC_OR_PARTITION", "t-nowhere")),
        (("topics", "delete", "t-nowhere"), ("UNKNOWN_TOPIC_OR_PARTITION", "t-nowhere")),
        (("topics", "offsets", "t-nowhere"), ("UNKNOWN_TOPIC_OR_PARTITION", "t-nowhere")),
        (("topics", "offsets", "-p", "77"), ("expected partitions that exist", "77")),
        (("consume", "t-nowhere"), ("UNKNOWN_TOPIC_OR_PARTITION", "t-nowhere")),
    ],
)
def test_what_a_cluster_refuses_is_one_line_and_exit_code_1(
    tidelog: Tidelog, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code, out, err = tidelog(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topcs",), ("No such command", "topcs")),
        (("topics", "create"), ("Missing argument",)),
        (("topics", "create", "x", "--partitions", "0"), ("--partitions", "1<=x")),
        (("topics", "offsets", "--time", "newest"), ("--time", "earliest, latest, max-timestamp", "'newest'")),
        (("topics", "create", "x", "--set", "retention.ms"), ("name=value", "'retention.ms'")),
        (("topics", "create", "x", "--assign", "1", "--partitions", "2"), ("--assign", "both")),
        (("configs", "describe"), ("--topic, --group, --broker and --all-brokers",)),
        (("consume", "x", "--offset", "3", "--from-beginning"), ("expected one of",)),
        (("consume", "x", "--from-time", "yesterday"), ("ISO 8601", "yesterday")),
        (("produce", "x", "--set", "acs=1"), ("acs", "did you mean acks")),
        (("produce", "x", "--header", "novalue"), ("NAME=VALUE",)),
        (("server",), ("--config",)),
        (("server", "--config", "/nowhere/x.properties"), ("does not exist",)),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    tidelog: Tidelog, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code, out, err = tidelog(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_nobody_at_the_address_is_told_at_once(tidelog: Tidelog) -> None:
    (port,) = free_ports(1)
    started = time.monotonic()
    code, _, err = tidelog("topics", "list", "--bootstrap", f"127.0.0.1:{port}")
    assert code == 1
    assert f"no broker listens at 127.0.0.1:{port}: Connection refused" in err
    assert time.monotonic() - started < 2
    code, _, err = tidelog("topics", "list", "--bootstrap", "127.0.0.1:http")
    assert code == 2
    assert "expected host:port" in err


def test_lines_go_in_and_come_out(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-lines")
    sent = as_json(tidelog("produce", "t-lines", "--json", stdin="one\nzwölf\n\nlast".encode()))
    assert sent == {"sent": 4, "acknowledged": 4, "failed": 0}
    code, out, _ = tidelog("consume", "t-lines", "--from-beginning", "--until-end")
    assert (code, out) == (0, "one\nzwölf\n\nlast\n")
    assert tidelog("consume", "t-lines", "--offset", "2", "--max", "2")[1] == "\nlast\n"
    assert tidelog("consume", "t-lines", "--last", "1", "--max", "1")[1] == "last\n"
    assert tidelog("consume", "t-lines", "--timeout", "0.2")[1] == ""


def test_keys_headers_nulls_and_bytes_survive_a_round_trip(tidelog: Tidelog, tmp_path: Path) -> None:
    tidelog("topics", "create", "t-from", "--partitions", "3")
    tidelog("topics", "create", "t-to", "--partitions", "3")
    tidelog(
        "produce", "t-from", "--key-separator", ":", "--null-marker", "NULL", "--header", "origin=test", "--set",
        "compression_type=lz4", stdin=b"a:1\nb:NULL\nNULL:\xff\xfe\nc:x:y\n",
    )  # fmt: skip
    code, out, _ = tidelog("consume", "t-from", "--from-beginning", "--until-end", "--json")
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert {(record["key"], str(record["value"])) for record in records} == {
        ("a", "1"), ("b", "None"), (None, "{'base64': '//4='}"), ("c", "x:y"),
    }  # fmt: skip
    assert all(record["headers"] == [["origin", "test"]] for record in records)
    copy = tmp_path / "records.jsonl"
    copy.write_text(out)
    assert tidelog("produce", "t-to", "--json-lines", "--file", str(copy))[0] == 0
    again = tidelog("consume", "t-to", "--from-beginning", "--until-end", "--json")[1]
    assert sorted(again.splitlines()) == sorted(out.splitlines())
    details = tidelog("consume", "t-to", "--from-beginning", "--until-end", "--details")[1]
    assert "origin=test" in details
    assert "null: \\xff\\xfe" in details


def test_a_line_that_cannot_be_read_is_named(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-wrong-lines")
    code, _, err = tidelog("produce", "t-wrong-lines", "--key-separator", ":", stdin=b"a:1\nnokey\n")
    assert code == 1
    assert "line 2: expected KEY:VALUE, found 'nokey'; records sent before it: 1, acknowledged: 1" in err
    code, _, err = tidelog("produce", "t-wrong-lines", "--json-lines", stdin=b'{"valu": 1}\n')
    assert code == 1
    assert "line 1" in err
    assert "'valu'" in err


def test_records_are_found_by_time(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-times")
    lines = b"".join(b'{"value":"v%d","timestamp":%d}\n' % (n, 1_700_000_000_000 + n * 1000) for n in range(5))
    assert tidelog("produce", "t-times", "--json-lines", stdin=lines)[0] == 0
    assert tidelog("consume", "t-times", "--from-time", "1700000003000", "--until-end")[1] == "v3\nv4\n"
    assert tidelog("consume", "t-times", "--from-time", "2023-11-14T22:13:22Z", "--until-end")[1] == "v2\nv3\nv4\n"


def test_offsets_are_looked_up(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-offsets", "--partitions", "2")
    lines = b"".join(
        b'{"value":"v","timestamp":%d,"partition":0}\n' % (1_700_000_000_000 + ms) for ms in (0, 9_000, 2_000, 3_000)
    )
    assert tidelog("produce", "t-offsets", "--json-lines", stdin=lines)[0] == 0
    tidelog("topics", "delete-records", "t-offsets", "--before", "1", "--partition", "0")

    def look_up(*arguments: str) -> list[tuple[int | None, int | None]]:
        rows = as_json(tidelog("topics", "offsets", "t-offsets", *arguments, "--json"))
        assert [(row["topic"], row["partition"], row["leader"]) for row in rows] == [
            ("t-offsets", number, 1) for number in range(len(rows))
        ]
        return [(row["offset"], row["timestamp"]) for row in rows]

    assert look_up() == look_up("--time", "latest") == [(4, None), (0, None)]
    assert look_up("--time", "earliest") == [(1, None), (0, None)]
    assert look_up("--time", "max-timestamp") == [(1, 1_700_000_009_000), (None, None)]
    assert look_up("--time", "1700000001000") == [(1, 1_700_000_009_000), (None, None)]
    assert look_up("--time", "2023-11-14T22:13:30Z", "-p", "0") == [(None, None)]
    assert {"t-offsets"} <= {row["topic"] for row in as_json(tidelog("topics", "offsets", "--json"))}
    code, out, _ = tidelog("topics", "offsets", "t-offsets", "--time", "max-timestamp")
    assert code == 0
    assert [line.split() for line in out.splitlines() if line.startswith("t-offsets")] == [
        ["t-offsets", "0", "1", "1700000009000"],
        ["t-offsets", "1", "-", "-"],
    ]


def test_records_before_an_offset_are_deleted(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-purge")
    tidelog("produce", "t-purge", stdin=b"0\n1\n2\n3\n")
    assert as_json(tidelog("topics", "delete-records", "t-purge", "--before", "3", "--json")) == [
        {"partition": 0, "first_offset": 3}
    ]
    assert tidelog("consume", "t-purge", "--from-beginning", "--until-end")[1] == "3\n"
    code, _, err = tidelog("consume", "t-purge", "--offset", "1", "--max", "1")
    assert code == 1
    assert "expected an offset from 3 to 4, found 1" in err


def test_the_cluster_describes_itself(tidelog: Tidelog) -> None:
    found = as_json(tidelog("cluster", "describe", "--json"))
    assert found["controller"] == 1
    assert [broker["state"] for broker in found["brokers"]] == ["live"]
    assert tidelog("cluster", "describe")[1].startswith("cluster ")


def test_end_to_end_latency_is_not_measured_with_the_records_of_others(bootstrap: str) -> None:
    """Another writer's record is read in the place of ours."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as other:
        admin.create_topics([NewTopic("t-shared", 1, 1)])
        ended = threading.Event()

        def write() -> None:
            while not ended.is_set():
                other.send("t-shared", b"other").result(60)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with pytest.raises(RecordsLost, match=r"expected record \d+ of t-shared-0 .* does something else write"):
                end_to_end(bootstrap, "t-shared", count=100_000, size=10, settings={})
        finally:
            ended.set()
            writer.join()


def test_perf_measures(tidelog: Tidelog) -> None:
    tidelog("topics", "create", "t-perf")
    made = as_json(tidelog("perf", "produce", "t-perf", "--seconds", "0.2", "--json"))
    assert made["records"] > 0
    assert made["records_per_second"] > 0
    read = as_json(tidelog("perf", "consume", "t-perf", "--json"))
    assert read["records"] >= made["records"]
    waited = as_json(tidelog("perf", "latency", "t-perf", "--seconds", "0.5", "--rate", "50", "--json"))
    assert waited["records"] >= 20
    assert 0 < waited["milliseconds"]["p50"] <= waited["milliseconds"]["max"]
    arrived = as_json(tidelog("perf", "end-to-end", "t-perf", "--count", "20", "--set", "acks=1", "--json"))
    assert arrived["records"] == 20
    assert 0 < arrived["milliseconds"]["p50"] <= arrived["milliseconds"]["max"]
    code, _, err = tidelog("perf", "end-to-end", "t-nowhere")
    assert code == 1
    assert "t-nowhere" in err
    code, _, err = tidelog("perf", "consume", "t-nowhere")
    assert code == 1
    assert "t-nowhere" in err


def test_help_and_version(tidelog: Tidelog) -> None:
    code, out, _ = tidelog("--help")
    assert code == 0
    for command in ("server", "cluster", "topics", "groups", "configs", "produce", "consume", "log", "perf", "demo"):
        assert f"\n  {command} " in out
    import tidelog as package

    assert tidelog("--version")[1].strip().endswith(package.__version__)
