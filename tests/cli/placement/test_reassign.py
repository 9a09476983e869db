"""``tidelog reassign`` and ``tidelog elect``: their files and plans, and both against three nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import Admin, NewTopic, TopicPartition
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas import reassignment_plan as plan
from tidelog.cli.work.replicas.spreading import Target
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster


def written(path: Path, found: object) -> Path:
    path.write_text(found if isinstance(found, str) else json.dumps(found), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ("no json", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ([], 'expected an object with "version" 1'),
        ({"version": 2, "partitions": []}, 'expected an object with "version" 1'),
        ({"version": 1, "partitions": []}, "a list with at least one object, found []"),
        ({"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}, 'a "partition" of 0 or more'),
        ({"partitions": [{"topic": "t", "partition": True, "replicas": [1]}]}, 'a "partition" of 0 or more'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}, 'expected "replicas", a list'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}, 'expected "replicas", a list'),
        (
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["d"]}]},
            'absolute path or "any"',
        ),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}]}, 'as many "log_dirs"'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": "any"}]}, 'as many "log_dirs"'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}, "found t-0 twice"),
    ],
)
def test_a_file_that_is_none_says_why(tmp_path: Path, found: object, text: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        plan.read_assignment(written(tmp_path / "file.json", found))
    assert text in str(refused.value)


def test_a_file_of_kafkas_tool_is_read(tmp_path: Path) -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"foo","partition":1,"replicas":[1,2,4],"log_dirs":["any","any","any"]},'
        '{"topic":"foo","partition":0,"replicas":[4,3,2]}]}'
    )
    found = plan.read_assignment(written(tmp_path / "file.json", text))
    assert found.replicas == {TopicPartition("foo", 1): (1, 2, 4), TopicPartition("foo", 0): (4, 3, 2)}
    assert found.directories == {}
    assert plan.read_assignment(written(tmp_path / "again.json", plan.as_file(found.replicas))) == found
    named = written(tmp_path / "file.json", text.replace('["any","any","any"]', '["any","/d/1/","/d/2"]'))
    found = plan.read_assignment(named)
    at = TopicPartition("foo", 1)
    assert found.directories == {2: {at: "/d/1"}, 4: {at: "/d/2"}}
    assert plan.read_assignment(written(tmp_path / "again.json", plan.as_file(*found))) == found
    topics = written(tmp_path / "topics.json", '{"topics": [{"topic": "foo"}, {"topic": "bar"}, {"topic": "foo"}]}')
    assert plan.read_topics(topics) == ["foo", "bar"]


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 40))
def test_a_proposal_spreads_evenly(factor: int, brokers: int, partitions: int) -> None:
    current = {TopicPartition("t", number): tuple(range(90, 90 + factor)) for number in range(partitions)}
    nodes = [Target(10 + number, None) for number in range(brokers)]
    if factor > brokers:
        with pytest.raises(CommandFailed, match=f"expected at most as many replicas as eligible brokers, {brokers}"):
            plan.propose(current, nodes)
        return
    found = plan.propose(current, nodes)
    assert found.keys() == current.keys()
    held = dict.fromkeys(range(10, 10 + brokers), 0)
    for replicas in found.values():
        assert len(set(replicas)) == factor
        for node in replicas:
            held[node] += 1
    assert max(held.values()) - min(held.values()) <= 1


def test_the_throttle_names_who_sends_and_who_takes() -> None:
    moves = {
        TopicPartition("t", 1): plan.Move((1, 2), (2, 4)),
        TopicPartition("t", 0): plan.Move((1, 2), (5, 1, 2)),
        TopicPartition("u", 0): plan.Move((7, 8), (8, 7)),
    }
    rates = {"leader.replication.throttled.rate": "500", "follower.replication.throttled.rate": "500"}
    assert plan.throttles(moves, 500) == {
        ConfigResource("topic", "t"): {
            "leader.replication.throttled.replicas": "0:1,0:2,1:1,1:2",
            "follower.replication.throttled.replicas": "0:5,1:4",
        },
        **{ConfigResource("broker", node): rates for node in "1245"},
    }
    many = {TopicPartition("t", number): plan.Move((1001, 1002), (1003,)) for number in range(5_000)}
    (of_topic,) = (values for at, values in plan.throttles(many, 1).items() if at.resource_type == "topic")
    assert set(of_topic.values()) == {"*"}


# --- Against nodes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as found:
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def until_done(tidelog: Tidelog, file: Path) -> Any:
    deadline = time.monotonic() + 30
    while (result := tidelog("reassign", "--verify", "--file", str(file), "--json"))[0] != 0:
        assert result[0] == 1
        assert time.monotonic() < deadline, result[1]
    return as_json(result)


def throttled(admin: Admin, topic: str) -> dict[str, str | None]:
    resources = [ConfigResource("topic", topic), ConfigResource("broker", "1"), ConfigResource("broker", "2")]
    found = admin.describe_configs(resources)
    return {
        f"{at.name} {name}": config.value
        for at, values in found.items()
        for name, config in values.items()
        if ".replication.throttled." in name and config.source != "DEFAULT_CONFIG"
    }


def test_from_a_proposal_to_its_end(cluster: Cluster, tidelog: Tidelog, tmp_path: Path) -> None:
    with cluster.admin() as admin, cluster.producer() as producer:
        admin.create_topics([NewTopic("orders", assignments={0: [1, 2], 1: [2, 1]})])
        for number in range(200):
            producer.send("orders", bytes(1_000), partition=number % 2)
        producer.flush()
        proposal = as_json(tidelog("reassign", "--generate", "--topic", "orders", "--broker-list", "2,3", "--json"))[
            "proposed"
        ]
        assert {node for item in proposal["partitions"] for node in item["replicas"]} == {2, 3}
        file = written(tmp_path / "move.json", proposal)
        code, out, err = tidelog("reassign", "--execute", "--file", str(file), "--throttle", "200000")
        assert code == 0, err
        assert "started: orders-0, orders-1" in out
        assert "throttled to 200,000 bytes a second" in out
        before = written(tmp_path / "back.json", out[out.index("{") : out.rindex("}") + 1])
        assert [item["replicas"] for item in json.loads(before.read_text())["partitions"]] == [[1, 2], [2, 1]]
        assert throttled(admin, "orders")["2 follower.replication.throttled.rate"] == "200000"
        done = until_done(tidelog, file)
        assert done["throttles_removed"]
        assert [part["state"] for part in done["partitions"]] == ["complete"] * 2
        assert throttled(admin, "orders") == {}
        for number, item in enumerate(proposal["partitions"]):
            found = admin.describe_topics(["orders"])[0].partitions[number]
            assert (list(found.replicas), set(found.isr)) == (item["replicas"], set(item["replicas"]))
        assert tidelog("reassign", "--list")[1] == "no replicas are moving\n"
        code, out, _ = tidelog("reassign", "--verify", "--file", str(before))
        assert code == 1
        assert "other replicas" in out


def test_what_is_under_way_is_listed_added_to_and_cancelled(cluster: Cluster, tidelog: Tidelog, tmp_path: Path) -> None:
    """Node 3 is down, so it cannot end by itself."""
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("stuck", assignments={0: [1, 2], 1: [1, 2]})])
        cluster.kill(3)
        first, second = (
            written(tmp_path / f"{number}.json", plan.as_file({TopicPartition("stuck", number): (3, 1)}))
            for number in range(2)
        )
        as_json(tidelog("reassign", "--execute", "--file", str(first), "--json"))
        (found,) = as_json(tidelog("reassign", "--list", "--json"))
        assert found == {"topic": "stuck", "partition": 0, "replicas": [3, 1, 2], "adding": [3], "removing": [2]}
        code, _, err = tidelog("reassign", "--execute", "--file", str(second))
        assert code == 1
        assert "use --additional" in err
        run_more = ("reassign", "--execute", "--file", str(second), "--additional", "--throttle", "1000000", "--json")
        assert as_json(tidelog(*run_more))["begun"] == ["stuck-1"]
        settings = throttled(admin, "stuck")
        assert settings["stuck leader.replication.throttled.replicas"] == "0:1,0:2,1:1,1:2"
        assert settings["stuck follower.replication.throttled.replicas"] == "0:3,1:3"
        code, out, _ = tidelog("reassign", "--verify", "--file", str(first))
        assert code == 1
        assert "under way" in out
        assert throttled(admin, "stuck") == settings
        cancelled = as_json(tidelog("reassign", "--cancel", "--file", str(first), "--json"))
        assert cancelled == {"cancelled": ["stuck-0"], "throttles_removed": False}
        cancelled = as_json(tidelog("reassign", "--cancel", "--file", str(second), "--json"))
        assert cancelled == {"cancelled": ["stuck-1"], "throttles_removed": True}
        assert throttled(admin, "stuck") == {}
        code, out, _ = tidelog("reassign", "--cancel", "--file", str(second))
        assert (code, out.splitlines()[0]) == (0, "none of these partitions is moving")
        cluster.restart(3)


def test_electing(cluster: Cluster, tidelog: Tidelog) -> None:
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("led", assignments={0: [1, 2], 1: [2, 1]})])
        assert tidelog("elect", "--topic", "led") == (0, "no election was needed\n", "")
        admin.alter_partition_reassignments({TopicPartition("led", 0): [2, 1]})
        assert as_json(tidelog("elect", "--topic", "led", "--json")) == [{"topic": "led", "partition": 0, "leader": 2}]
        admin.alter_partition_reassignments({TopicPartition("led", 1): [1, 2]})
        deadline = time.monotonic() + 20
        while tidelog("elect", "--all")[0] != 0:  # a node of another test may have to catch up first
            assert time.monotonic() < deadline
        assert tidelog("elect", "--all") == (0, "no election was needed\n", "")
        code, _, err = tidelog("elect", "--topic", "led", "--partition", "7")
        assert code == 1
        assert "UNKNOWN_TOPIC_OR_PARTITION: led-7" in err
        assert as_json(tidelog("elect", "--topic", "led", "--unclean", "--yes", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("reassign",), "expected one of --generate, --execute"),
        (("reassign", "--execute"), "--execute: expected a --reassignment-json-file"),
        (("reassign", "--generate"), "--generate: expected --topic"),
        (("reassign", "--generate", "--topic", "led", "--broker-list", "1,x"), "expected node ids"),
        (("elect",), "expected either --all or --topic"),
        (("elect", "--all", "--topic", "led"), "expected either --all or --topic"),
        (("elect", "--all", "--partition", "1"), "expected one --topic with --partition"),
    ],
)
def test_a_call_that_cannot_be_meant(tidelog: Tidelog, arguments: tuple[str, ...], text: str) -> None:
    code, _, err = tidelog(*arguments)
    assert code == 2
    assert text in err


def test_a_partition_or_node_that_is_not_there_is_refused(tidelog: Tidelog, tmp_path: Path) -> None:
    file = written(tmp_path / "no.json", plan.as_file({TopicPartition("nobody", 3): (1,)}))
    code, _, err = tidelog("reassign", "--execute", "--file", str(file))
    assert code == 1
    assert "expected partitions that exist, found nobody-3" in err
    code, _, err = tidelog("reassign", "--generate", "--topic", "nobody", "--broker-list", "1,9")
    assert code == 1
    assert "expected nodes among [1, 2, 3], found [9]" in err
