"""``tidelog groups`` and ``tidelog consume --group`` against a running cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.testing import Cluster

ANY_TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc") as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as found:
        yield found


@pytest.fixture
def tidelog(bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(bootstrap, capfd, monkeypatch)


@pytest.fixture
def topic(bootstrap: str, tidelog: Tidelog, request: pytest.FixtureRequest) -> str:
    """Two partitions: ten records, a second apart, in the first; four in the other."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]
    assert tidelog("topics", "create", name, "--partitions", "2")[0] == 0
    with Producer(bootstrap) as producer:
        for partition, count in ((0, 10), (1, 4)):
            for number in range(count):
                producer.send(name, b"%d" % number, partition=partition, timestamp_ms=ANY_TIME_MS + number * 1_000)
    return name


def offsets_of(admin: Admin, group: str) -> dict[int, int]:
    return {at.partition: one.offset for at, one in admin.list_consumer_group_offsets(group).items()}


def commit(admin: Admin, group: str, topic: str, **offsets: int) -> None:
    admin.alter_consumer_group_offsets(group, {TopicPartition(topic, int(p[1:])): o for p, o in offsets.items()})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reset-offsets", "g", "--all-topics"), ("expected one of --to-earliest", "found none")),
        (
            ("reset-offsets", "g", "--all-topics", "--to-latest", "--to-offset", "3"),
            ("expected one of", "found several"),
        ),
        (("reset-offsets", "g", "--to-latest"), ("expected --topic or --all-topics, found neither",)),
        (("reset-offsets", "g", "--to-latest", "--topic", "t", "--all-topics"), ("found both",)),
        (("reset-offsets", "--to-latest", "--all-topics"), ("expected groups by name or --all-groups, found neither",)),
        (("reset-offsets", "g", "--all-groups", "--to-latest", "--all-topics"), ("--all-groups, found both",)),
        (("reset-offsets", "g", "--to-latest", "--topic", "t:x"), ("expected NAME or NAME:0,1, found 't:x'",)),
        (("reset-offsets", "g", "--to-latest", "--topic", "t", "--topic", "t:1"), ("each topic once", "found t twice")),
        (("reset-offsets", "g", "--to-offset", "-1", "--all-topics"), ("--to-offset", "-1")),
        (("reset-offsets", "g", "--to-datetime", "noon", "--all-topics"), ("--to-datetime", "ISO 8601", "'noon'")),
        (("reset-offsets", "g", "--by-duration", "1h", "--all-topics"), ("--by-duration", "PT1H30M", "'1h'")),
        (("reset-offsets", "g", "--by-duration", f"P{'9' * 400}D", "--all-topics"), ("--by-duration",)),
        (("reset-offsets", "g", "--from-file", "/nowhere.csv"), ("--from-file", "does not exist")),
        (("reset-offsets", "g", "--to-latest", "--all-topics", "--execute", "--dry-run"), ("found both",)),
        (("reset-offsets", "g", "--to-latest", "--all-topics", "--json", "--export"), ("--export or --json",)),
        (("delete",), ("expected groups by name or --all-groups, found neither",)),
        (("delete-offsets", "g"), ("Missing option '--topic'",)),
        (("list", "--state", "sleeping"), ("--state", "sleeping", "stable")),
        (("describe", "--sideways"), ("--sideways",)),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    tidelog: Tidelog, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code, out, err = tidelog("groups", *arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "more",
    [("--offset", "3"), ("--last", "2"), ("--from-time", "0"), ("--partition", "0"), ("-p", "0", "--offset", "1")],
)
def test_a_member_of_a_group_does_not_choose_where_to_read(tidelog: Tidelog, more: tuple[str, ...]) -> None:
    code, out, err = tidelog("consume", "t", "--group", "g", *more)
    assert (code, out) == (2, "")
    assert "expected a group to resume where it stopped" in err
    code, _, err = tidelog("consume", "t", "--set", "group_id=g")
    assert code == 2
    assert "--group names it" in err


def test_a_file_of_offsets_that_cannot_be_right(tidelog: Tidelog, tmp_path: Path) -> None:
    wrong = tmp_path / "offsets.csv"
    wrong.write_text("t,0,1\nt,one,2\n")
    code, out, err = tidelog("groups", "reset-offsets", "g", "--from-file", str(wrong))
    assert (code, out) == (1, "")
    assert f"{wrong}:2: expected a partition from 0 to 2147483647, found 'one'" in err
    wrong.write_bytes(b"t,0,1\n\xff\n")
    code, _, err = tidelog("groups", "reset-offsets", "g", "--from-file", str(wrong))
    assert (code, err.count("\n")) == (1, 1)
    assert "expected UTF-8, found b'\\xff'" in err
    assert tidelog("groups", "reset-offsets", "g", "--from-file", str(wrong), "--topic", "t")[0] == 2


def test_a_group_reads_on_where_it_stopped(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    reading = ("consume", topic, "--group", "g-reads-on", "--from-beginning")
    code, out, err = tidelog(*reading, "--max", "5")
    assert code == 0, err
    first = out.splitlines()
    assert len(first) == 5
    assert sum(offsets_of(admin, "g-reads-on").values()) == 5, "what was not printed must not be committed"
    code, out, _ = tidelog(*reading, "--until-end")
    assert code == 0
    assert sorted(first + out.splitlines()) == sorted([*map(str, range(10)), *map(str, range(4))])
    assert offsets_of(admin, "g-reads-on") == {0: 10, 1: 4}
    assert tidelog(*reading, "--until-end") == (0, "", "")


def test_a_group_is_described_while_it_reads_and_after(
    tidelog: Tidelog, bootstrap: str, admin: Admin, topic: str
) -> None:
    commit(admin, "g-described", topic, p0=7)
    with Consumer(bootstrap, group_id="g-described", client_id="me", enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        rows = as_json(tidelog("groups", "describe", "g-described", "--json"))
        assert [(r["partition"], r["current_offset"], r["log_end_offset"], r["lag"]) for r in rows] == [
            (0, 7, 10, 3),
            (1, None, 4, None),
        ]
        assert {(r["group"], r["topic"], r["client_id"]) for r in rows} == {("g-described", topic, "me")}
        assert all(r["consumer_id"].startswith("me-") and r["host"] for r in rows)
        _, out, err = tidelog("groups", "describe", "g-described")
        header, _, *lines = out.splitlines()
        columns = (
            "group",
            "topic",
            "partition",
            "current offset",
            "log end offset",
            "lag",
            "consumer id",
            "host",
            "client id",
        )
        assert [name.strip() for name in header.split("  ") if name.strip()] == list(columns)
        assert (len(lines), err) == (2, "")
        (member,) = as_json(tidelog("groups", "describe", "g-described", "--members", "--json"))
        assert member["assignment"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        assert member["subscription"] == [topic]
        assert f"{topic}(0,1)" in tidelog("groups", "describe", "g-described", "--members")[1]
        (state,) = as_json(tidelog("groups", "describe", "g-described", "--state", "--json"))
        assert (state["state"], state["members"], state["assignor"]) == ("Stable", 1, "range")
        assert state["coordinator"]["node"] == 1
        assert "Stable" in tidelog("groups", "describe", "g-described", "--state")[1]
        listed = {one["group"]: one for one in as_json(tidelog("groups", "list", "--json"))}
        assert listed["g-described"] == {
            "group": "g-described", "state": "Stable", "type": "classic", "protocol": "consumer",
        }  # fmt: skip
        assert "g-described" not in tidelog("groups", "list", "--state", "empty")[1]

        for refused in (
            ("reset-offsets", "g-described", "--all-topics", "--to-earliest", "--execute"),
            ("delete", "g-described"),
            ("delete-offsets", "g-described", "--topic", topic),
        ):
            code, out, err = tidelog("groups", *refused)
            assert (code, out, err.count("\n")) == (1, "", 1), err
            assert "stop its consumers first" in err
        assert offsets_of(admin, "g-described") == {0: 7}
    code, out, err = tidelog("groups", "describe", "g-described")
    assert (code, err) == (0, "g-described has no active members\n")
    assert "g-described" in tidelog("groups", "list", "--state", "empty", "--type", "classic")[1]


@pytest.mark.parametrize(
    ("how", "moved"),
    [
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-latest",), {0: 10, 1: 4}),
        (("--to-current",), {0: 6, 1: 2}),
        (("--to-offset", "3"), {0: 3, 1: 3}),
        (("--to-offset", "7"), {0: 7, 1: 4}),
        (("--shift-by", "-2"), {0: 4, 1: 0}),
        (("--shift-by", "3"), {0: 9, 1: 4}),
        (("--to-datetime", "2023-11-14T22:13:22"), {0: 2, 1: 2}),
        (("--to-datetime", str(ANY_TIME_MS + 5_500)), {0: 6, 1: 4}),
        (("--by-duration", "PT1H"), {0: 10, 1: 4}),
    ],
)
def test_offsets_are_reset(
    tidelog: Tidelog, admin: Admin, topic: str, how: tuple[str, ...], moved: dict[int, int]
) -> None:
    group = f"g-{topic}"
    commit(admin, group, topic, p0=6, p1=2)
    reset = ("groups", "reset-offsets", group, "--all-topics", *how)
    planned = as_json(tidelog(*reset, "--json"))
    assert planned["executed"] is False
    assert {one["partition"]: one["new_offset"] for one in planned["offsets"]} == moved
    assert {one["partition"]: one["current_offset"] for one in planned["offsets"]} == {0: 6, 1: 2}
    assert tidelog(*reset, "--dry-run")[1].endswith("nothing was changed: use --execute to apply the plan\n")
    assert offsets_of(admin, group) == {0: 6, 1: 2}
    assert as_json(tidelog(*reset, "--execute", "--json"))["executed"] is True
    assert offsets_of(admin, group) == moved


def test_a_reset_of_some_partitions_and_of_a_group_that_is_new(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    code, out, err = tidelog(
        "groups", "reset-offsets", "g-new", "--topic", f"{topic}:1", "--to-offset", "9", "--execute"
    )
    assert code == 0
    assert "group g-new does not exist yet" in err
    assert f"g-new: {topic}-1: 9 is beyond the end; using 4" in err
    assert "nothing was changed" not in out
    assert offsets_of(admin, "g-new") == {1: 4}
    reset = ("groups", "reset-offsets", "g-new", "--execute")
    code, _, err = tidelog(*reset, "--topic", f"{topic}:0", "--shift-by", "1")
    assert (code, err.count("\n")) == (1, 1)
    assert f"{topic}-0: expected a committed offset to shift, found none" in err
    code, _, err = tidelog(*reset, "--topic", f"{topic}:7", "--to-earliest")
    assert code == 1
    assert f"{topic}-7: expected a partition from 0 to 1" in err
    code, _, err = tidelog(*reset, "--topic", "t-nowhere", "--to-earliest")
    assert code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION: t-nowhere" in err
    code, _, err = tidelog("groups", "reset-offsets", "g-nobody", "--all-topics", "--to-earliest")
    assert code == 1
    assert "g-nobody: expected committed offsets, found none; name topics with --topic" in err


def test_exported_offsets_are_read_again(tidelog: Tidelog, admin: Admin, topic: str, tmp_path: Path) -> None:
    commit(admin, "g-export", topic, p0=6, p1=2)
    commit(admin, "g-export-2", topic, p0=1)
    export = ("groups", "reset-offsets", "--to-current", "--all-topics", "--export")
    code, out, _ = tidelog(*export, "g-export")
    assert (code, out) == (0, f"{topic},0,6\n{topic},1,2\n")
    _, both, _ = tidelog(*export, "g-export", "g-export-2")
    assert both == f"g-export,{topic},0,6\ng-export,{topic},1,2\ng-export-2,{topic},0,1\n"
    saved = tmp_path / "offsets.csv"
    saved.write_text(both)
    commit(admin, "g-export", topic, p0=0, p1=0)
    commit(admin, "g-export-2", topic, p0=0)
    back = ("groups", "reset-offsets", "g-export", "g-export-2", "--from-file", str(saved), "--execute")
    assert tidelog(*back)[0] == 0
    assert (offsets_of(admin, "g-export"), offsets_of(admin, "g-export-2")) == ({0: 6, 1: 2}, {0: 1})


def test_groups_and_offsets_are_deleted(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    commit(admin, "g-gone", topic, p0=6, p1=2)
    commit(admin, "g-gone-2", topic, p0=6, p1=2)
    code, out, _ = tidelog("groups", "delete-offsets", "g-gone", "--topic", f"{topic}:1")
    assert (code, out) == (0, f"deleted the offsets of g-gone for {topic}-1\n")
    assert offsets_of(admin, "g-gone") == {0: 6}
    code, _, err = tidelog("groups", "delete-offsets", "g-gone", "--topic", f"{topic}:1")
    assert code == 1
    assert f"g-gone: expected partitions with committed offsets, found none for {topic}-1" in err
    code, out, err = tidelog("groups", "delete", "g-gone", "g-nobody", "g-gone-2")
    assert (code, out) == (1, "deleted g-gone, g-gone-2\n")
    assert "GROUP_ID_NOT_FOUND: g-nobody" in err
    listed = tidelog("groups", "list")[1]
    assert "g-gone" not in listed


def test_a_group_that_is_not_there(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    commit(admin, "g-there", topic, p0=1)
    code, out, err = tidelog("groups", "describe", "g-there", "g-nobody", "--json")
    assert code == 1
    assert [row["group"] for row in json.loads(out)] == ["g-there"]
    assert err.startswith("tidelog: GROUP_ID_NOT_FOUND: g-nobody")
    code, _, err = tidelog("groups", "delete-offsets", "g-nobody", "--topic", topic)
    assert (code, err.count("\n")) == (1, 1)
    assert "GROUP_ID_NOT_FOUND: g-nobody" in err


def test_offsets_of_a_deleted_topic_are_no_obstacle(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    """The cluster drops them with the topic; until it has, they are shown without a log end."""
    assert tidelog("topics", "create", f"{topic}-gone")[0] == 0
    commit(admin, "g-topic-gone", topic, p0=1)
    admin.alter_consumer_group_offsets("g-topic-gone", {TopicPartition(f"{topic}-gone", 0): 0})
    assert tidelog("topics", "delete", f"{topic}-gone")[0] == 0
    rows = as_json(tidelog("groups", "describe", "g-topic-gone", "--json"))
    assert {row["log_end_offset"] for row in rows if row["topic"] != topic} <= {None}
    code, _, _ = tidelog("groups", "reset-offsets", "g-topic-gone", "--all-topics", "--to-earliest", "--execute")
    assert code == 0
    assert admin.list_consumer_group_offsets("g-topic-gone")[TopicPartition(topic, 0)].offset == 0


def test_an_interrupted_member_has_committed_what_it_printed(
    bootstrap: str, admin: Admin, topic: str, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "consume", topic, "--group", "g-interrupted"]
    command += ["--from-beginning", "--bootstrap", bootstrap]
    with subprocess.Popen(interruptible(command), stdout=subprocess.PIPE) as consume:
        try:
            assert consume.stdout is not None
            lines = [consume.stdout.readline() for _ in range(14)]
            assert sorted(lines) == sorted(b"%d\n" % n for n in [*range(10), *range(4)])
            with Producer(bootstrap) as producer:
                producer.send(topic, b"later", partition=1)
            assert consume.stdout.readline() == b"later\n"
            consume.send_signal(signal.SIGINT)
            assert consume.wait(30) == 0
        finally:
            consume.kill()
    committed = offsets_of(admin, "g-interrupted")
    assert (committed[0], committed[1] in (4, 5)) == (10, True)
    assert admin.describe_consumer_groups(["g-interrupted"])["g-interrupted"].members == ()


def test_all_groups_at_once(tidelog: Tidelog, admin: Admin, topic: str) -> None:
    commit(admin, "g-all-1", topic, p0=1)
    commit(admin, "g-all-2", topic, p0=2, p1=2)
    planned = as_json(tidelog("groups", "reset-offsets", "--all-groups", "--topic", topic, "--to-latest", "--json"))
    moves = {(one["group"], one["partition"], one["current_offset"]) for one in planned["offsets"]}
    assert {("g-all-1", 0, 1), ("g-all-1", 1, None), ("g-all-2", 0, 2), ("g-all-2", 1, 2)} <= moves
    described = as_json(tidelog("groups", "describe", "--json"))
    assert {"g-all-1", "g-all-2"} <= {row["group"] for row in described}
    deleted = as_json(tidelog("groups", "delete", "--all-groups", "--json"))["deleted"]
    assert {"g-all-1", "g-all-2"} <= set(deleted)
    assert as_json(tidelog("groups", "list", "--json")) == []
    assert tidelog("groups", "delete", "--all-groups") == (0, "there are no groups\n", "")
    assert as_json(tidelog("groups", "describe", "--json")) == []
