"""``tidelog brokers drain`` against four nodes: moved, interrupted, gone on with, taken back, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog import Admin, NewTopic, TopicPartition, errors
from tidelog.cli.work.replicas import moving
from tidelog.cli.work.replicas.moving import clear_throttles, uncordon
from tidelog.cli.work.replicas.placement import placement_of
from tidelog.cli.work.replicas.reassignment_plan import as_file
from tidelog.cli.work.replicas.safe_moves import drain_plan
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster

SIZE = 600_000
Interruptible = Callable[[list[str]], list[str]]
Places = dict[str, dict[int, tuple[int, ...]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, transport="grpc") as found:
        yield found


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with cluster.admin() as found:
        yield found
        found.delete_topics([topic.name for topic in found.list_topics()])
        clear_throttles(found)
        uncordon(found, cordoned(found))


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def cordoned(admin: Admin) -> list[int]:
    return [int(broker.node_id) for broker in admin.describe_cluster().brokers if broker.cordoned]


def replicas_of(admin: Admin, topic: str) -> dict[int, tuple[int, ...]]:
    return {part.partition: tuple(map(int, part.replicas)) for part in admin.describe_topics([topic])[0].partitions}


def fenced(cluster: Cluster, node: int) -> bool:
    """Every other broker knows it."""
    views = [cluster.node(other).view for other in range(1, 5) if other != node]
    return all(view.image.brokers[NodeId(node)].fenced for view in views)


def fill(cluster: Cluster, topic: str, partitions: int) -> None:
    with cluster.producer() as producer:
        for number in range(partitions):
            for _ in range(SIZE // 60_000):
                producer.send(topic, bytes(60_000), partition=number)
        producer.flush()


def throttles(admin: Admin, topic: str) -> set[str]:
    resources = [ConfigResource("topic", topic), *(ConfigResource("broker", str(node)) for node in range(1, 5))]
    return {
        f"{at.resource_type} {name}"
        for at, values in admin.describe_configs(resources).items()
        for name, config in values.items()
        if ".replication.throttled." in name and config.source != "DEFAULT_CONFIG"
    }


def untouched(admin: Admin, before: Places) -> bool:
    return not admin.list_partition_reassignments() and all(
        replicas_of(admin, topic) == replicas for topic, replicas in before.items()
    )


@contextmanager
def draining(cluster: Cluster, interruptible: Interruptible, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``tidelog brokers drain 3``, as a process that can be interrupted."""
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "--bootstrap", cluster.bootstrap, "brokers", "drain"]
    with subprocess.Popen(interruptible([*command, "3", *options]), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_everything_on_the_broker_moves_and_nothing_else(cluster: Cluster, admin: Admin, tidelog: Tidelog) -> None:
    before: dict[int, tuple[int, ...]] = {0: (3, 1), 1: (1, 2), 2: (2, 3), 3: (3, 4)}
    admin.create_topics([NewTopic("orders", assignments=before)])
    fill(cluster, "orders", 4)
    plan = as_json(tidelog("brokers", "drain", "3", "--dry-run", "--json"))
    assert (plan["partitions"], plan["replicas"], plan["under_way"]) == (3, 3, 0)
    assert plan["bytes"] >= 3 * SIZE
    assert replicas_of(admin, "orders") == before
    assert cordoned(admin) == []
    code, out, err = tidelog("brokers", "drain", "3", "--throttle", "100000000", "--at-once", "1")
    assert code == 0, err
    assert "to move: 3 replicas, " in out
    assert "broker 3 is empty" in out
    until(lambda: all(3 not in found for found in replicas_of(admin, "orders").values()), "moved")
    after = replicas_of(admin, "orders")
    assert after[1] == before[1]
    for number in (0, 2, 3):
        assert set(after[number]) > set(before[number]) - {3}
        assert 3 not in after[number]
    until(lambda: all(set(cluster.isr_of("orders", at)) == set(after[at]) for at in after), "all in sync")
    assert throttles(admin, "orders") == set()
    assert as_json(tidelog("brokers", "drain", "3", "--json")) == {
        "drained": [3], "partitions": 0, "bytes": 0, "throttles_removed": True
    }  # fmt: skip


def test_interrupted_taken_back_and_gone_on_with(
    cluster: Cluster, admin: Admin, tidelog: Tidelog, interruptible: Interruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[int, tuple[int, ...]] = {0: (3, 1), 1: (3, 1), 2: (3, 1)}
    admin.create_topics([NewTopic("slow", assignments=before)])
    fill(cluster, "slow", 3)
    monkeypatch.setattr(moving, "PROGRESS_S", 0)

    def interrupted() -> str:
        with draining(cluster, interruptible, "--throttle", "1000", "--at-once", "2") as process:
            until(lambda: len(admin.list_partition_reassignments()) == 2, "two partitions are being moved")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[0]
        assert process.returncode == 130
        return said

    said = interrupted()
    assert cordoned(admin) == [3], "until the drain is taken back"
    assert "interrupted: 2 partitions still moving, 1 not started. Run the command again to continue" in said
    assert {"topic leader.replication.throttled.replicas", "broker follower.replication.throttled.rate"} <= throttles(
        admin, "slow"
    )
    back = as_json(tidelog("brokers", "drain", "3", "--cancel", "--json"))
    assert back == {"cancelled": ["slow-0", "slow-1"], "throttles_removed": True}
    assert cordoned(admin) == []
    until(lambda: all(set(found) == {1, 3} for found in replicas_of(admin, "slow").values()), "taken back")
    assert throttles(admin, "slow") == set()
    assert "nothing to cancel" in tidelog("brokers", "drain", "3", "--cancel")[1]

    interrupted()
    code, out, err = tidelog("brokers", "drain", "3", "--throttle", "100000000")
    assert code == 0, err
    assert "already in progress: slow-0, slow-1" in out
    assert "of 3 partitions moved, " in out, "progress"
    assert "moved 3 partitions, " in out
    until(lambda: all(3 not in found for found in replicas_of(admin, "slow").values()), "moved")
    assert throttles(admin, "slow") == set()


def test_a_drained_broker_gets_nothing_new_until_that_is_ended(
    cluster: Cluster, admin: Admin, tidelog: Tidelog, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic("orders", assignments={0: [3, 1], 1: [3, 2]})])
    assert tidelog("brokers", "drain", "3", "4")[0] == 0
    assert cordoned(admin) == [3, 4]
    assert {row["node"]: row["cordoned"] for row in as_json(tidelog("brokers", "list", "--json"))} == {
        1: False, 2: False, 3: True, 4: True
    }  # fmt: skip
    assert "live, cordoned" in tidelog("brokers", "list")[1]
    admin.create_topics([NewTopic("later", 12, 2)])
    assert {node for found in replicas_of(admin, "later").values() for node in found} == {1, 2}
    with pytest.raises(errors.InvalidReplicationFactorError, match="shutting down or cordoned, found 3"):
        admin.create_topics([NewTopic("wide", 1, 3)])
    plan = as_json(tidelog("rebalance", "--json"))
    assert [row["node"] for row in plan["brokers"]] == [1, 2]
    moves = tmp_path / "moves.json"
    moves.write_text(json.dumps(as_file({TopicPartition("later", 0): (1, 3)})))
    code, _, err = tidelog("reassign", "--execute", "--file", str(moves))
    assert code == 1
    assert "expected brokers that are not cordoned, found 3" in err
    code, _, err = tidelog("reassign", "--generate", "--topic", "later", "--broker-list", "1,4")
    assert code == 1
    assert "found [4], which are drained" in err
    proposed = as_json(tidelog("reassign", "--generate", "--topic", "later", "--json"))["proposed"]
    assert {node for part in proposed["partitions"] for node in part["replicas"]} == {1, 2}
    ((directory,),) = admin.describe_log_dirs([4]).values()
    assert directory.is_cordoned
    with pytest.raises(errors.InvalidReplicaAssignmentError, match="found all of this broker's cordoned"):
        admin.alter_replica_log_dirs({("later", 0, 4): directory.path})
    code, _, err = tidelog("brokers", "undrain", "9")
    assert (code, cordoned(admin)) == (1, [3, 4])
    assert "expected brokers among [1, 2, 3, 4], found 9" in err
    assert as_json(tidelog("brokers", "undrain", "3", "4", "--json")) == {"undrained": [3, 4]}
    assert "none of these brokers was drained" in tidelog("brokers", "undrain", "4")[1]
    admin.create_topics([NewTopic("wide", 1, 4)])
    ((directory,),) = admin.describe_log_dirs([4]).values()
    assert not directory.is_cordoned


def test_a_topic_made_meanwhile_moves_too(admin: Admin, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.create_topics([NewTopic("first", assignments={0: [3, 1]})])
    late = iter([NewTopic("second", assignments={0: [3, 2]})])

    def planned(*arguments: Any, **options: Any) -> Any:
        found = drain_plan(*arguments, **options)
        admin.create_topics(list(late))
        return found

    monkeypatch.setattr("tidelog.cli.commands.placement.brokers.drain_plan", planned)
    assert as_json(tidelog("brokers", "drain", "3", "--json"))["partitions"] == 2
    until(lambda: 3 not in replicas_of(admin, "second")[0], "the other topic moved")


def test_a_plan_from_an_old_view_is_made_anew(admin: Admin, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition gets another replica between the plan and the wish."""
    admin.create_topics([NewTopic("wide", assignments={0: [3, 1]})])
    at = TopicPartition("wide", 0)
    wider = iter([{at: [3, 1, 2]}])

    def planned(*arguments: Any, **options: Any) -> Any:
        found = drain_plan(*arguments, **options)
        for wish in wider:
            admin.alter_partition_reassignments(wish)
            until(lambda: not admin.list_partition_reassignments(), "the third replica is in sync")
        return found

    monkeypatch.setattr("tidelog.cli.commands.placement.brokers.drain_plan", planned)
    assert as_json(tidelog("brokers", "drain", "3", "--json"))["partitions"] == 1
    until(lambda: set(replicas_of(admin, "wide")[0]) == {1, 2, 4}, "three replicas, as before")


def test_what_the_controller_refuses_is_told_and_the_rest_moves(
    admin: Admin, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic("some", assignments={0: [3, 1], 1: [3, 1]})])
    monkeypatch.setattr(
        "tidelog.cli.commands.placement.brokers.drain_plan",
        lambda *_, **__: {TopicPartition("some", 0): (99, 1), TopicPartition("some", 1): (2, 1)},
    )
    code, _, err = tidelog("brokers", "drain", "3")
    assert code == 1
    assert "moved 1 partition, refused: some-0: expected registered brokers, found 99" in err
    until(lambda: replicas_of(admin, "some") == {0: (3, 1), 1: (2, 1)}, "the other has moved")


def test_a_target_that_dies_is_named_and_another_takes_its_place(
    cluster: Cluster, admin: Admin, tidelog: Tidelog, interruptible: Interruptible
) -> None:
    admin.create_topics([NewTopic("orders", assignments={0: [3, 1]})])
    fill(cluster, "orders", 1)
    (target,) = as_json(tidelog("brokers", "drain", "3", "--dry-run", "--json"))["to"]
    with draining(cluster, interruptible, "--throttle", "1000") as process:
        until(lambda: bool(admin.list_partition_reassignments()), "the move has begun")
        cluster.kill(target)
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "waiting for" in line)
            assert f"waiting for broker {target}, which is not live: start it, or interrupt" in line
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            code, _, err = tidelog("brokers", "drain", "3", "--throttle", "100000000")
            assert code == 0, err
            other = {2: 4, 4: 2}[target]
            until(lambda: set(replicas_of(admin, "orders")[0]) == {1, other}, "moved to the other one")
        finally:
            cluster.restart(target)


def test_a_topic_that_is_deleted_while_it_is_asked_about_is_left_out(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(name, assignments={0: [3, 1]}) for name in ("stays", "goes")])
    listed = admin.list_topics(internal=True)
    monkeypatch.setattr(admin, "list_topics", lambda **_: listed)
    admin.delete_topics(["goes"])
    until(lambda: {at.topic for at in placement_of(admin)} == {"stays"}, "the other is gone")
    clear_throttles(admin)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("9",), "expected brokers among [1, 2, 3, 4], found 9"),
        (("3", "4"), "expected at most as many replicas as eligible brokers, 2, found 3: add a broker"),
        (("3", "--dead"), "--dead: expected brokers that are down, found 3, which is live: leave out --dead"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    admin: Admin, tidelog: Tidelog, arguments: tuple[str, ...], text: str
) -> None:
    before: Places = {"wide": {0: (1, 2, 3)}, "narrow": {0: (3,)}}
    admin.create_topics([NewTopic(name, assignments=found) for name, found in before.items()])
    code, _, err = tidelog("brokers", "drain", *arguments, "--throttle", "1000")
    assert code == 1
    assert text in err
    assert untouched(admin, before)
    assert throttles(admin, "wide") == set()


def test_a_dead_broker_is_drained_only_if_that_is_said(cluster: Cluster, admin: Admin, tidelog: Tidelog) -> None:
    before: Places = {"two": {0: (3, 1), 1: (1, 2)}, "one": {0: (3,)}}
    admin.create_topics([NewTopic(name, assignments=found) for name, found in before.items()])
    fill(cluster, "two", 1)
    cluster.kill(3)
    until(lambda: fenced(cluster, 3), "broker 3 is fenced")
    try:
        code, _, err = tidelog("brokers", "drain", "3")
        assert code == 1
        assert "expected a live broker, found 3, which is down: start it" in err
        code, _, err = tidelog("brokers", "drain", "3", "--dead")
        assert code == 1
        assert "expected a leader for each partition that moves, found none for one-0: start broker 3" in err
        assert untouched(admin, before)
        admin.delete_topics(["one"])
        assert as_json(tidelog("brokers", "drain", "3", "--dead", "--json"))["partitions"] == 1
        until(lambda: 3 not in replicas_of(admin, "two")[0], "moved")
        assert "broker 3 is no longer registered" in tidelog("brokers", "unregister", "3")[1]
    finally:
        cluster.restart(3)


def test_a_drain_that_would_end_below_min_insync_replicas_is_refused(
    cluster: Cluster, admin: Admin, tidelog: Tidelog
) -> None:
    """Broker 4 is down, so that brokers 1 and 3 alone are in sync."""
    before: Places = {"strict": {0: (3, 4, 1)}}
    admin.create_topics([NewTopic("strict", assignments=before["strict"], configs={"min.insync.replicas": "3"})])
    cluster.kill(4)
    until(lambda: fenced(cluster, 4), "broker 4 is fenced")
    try:
        code, _, err = tidelog("brokers", "drain", "3")
        assert code == 1
        assert "strict-0: expected 3 in-sync replicas afterwards (min.insync.replicas), found 2, 1" in err
        assert "first start broker 4" in err
        assert untouched(admin, before)
        admin.alter_configs({ConfigResource("topic", "strict"): {"min.insync.replicas": "2"}})
        assert as_json(tidelog("brokers", "drain", "3", "--json"))["partitions"] == 1
        until(lambda: set(replicas_of(admin, "strict")[0]) == {1, 2, 4}, "moved")
    finally:
        cluster.restart(4)
    until(lambda: len(cluster.isr_of("strict", 0)) == 3, "in sync")
