"""``tidelog log-dirs`` against two nodes with two disks each: shown, moved, watched, ended, refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog import Admin
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas import disk_moves
from tidelog.cli.work.replicas.disk_moves import Placed, check_room, spread
from tidelog.cli.work.replicas.placement import sizes_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import DirectoryId, NodeId, TopicPartition
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.api import ConfigResource, LogDir
from tidelog.testing import Cluster

PARTITIONS = 4
SIZE = 300_000
BROKER = ConfigResource("broker", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, log_dirs=2, transport="grpc") as found:
        found.create_topic("t", PARTITIONS, 2)
        with found.producer() as producer:
            for partition in range(PARTITIONS):
                for _ in range(3):
                    producer.send("t", b"x" * (SIZE // 3), partition=partition)
            producer.flush()
        yield found


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with cluster.admin() as found:
        yield found
        found.alter_configs({BROKER: {disk_moves.THROTTLE: None}})


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


@pytest.fixture
def both(admin: Admin) -> tuple[str, str]:
    """The two directories of node 1."""
    first, second = (directory.path for directory in admin.describe_log_dirs([1])[NodeId(1)])
    return first, second


def lies_in(tidelog: Tidelog, path: str, *, future: bool = False) -> set[int]:
    (found,) = [one for one in as_json(tidelog("log-dirs", "describe", "1", "--json")) if one["path"] == path]
    return {one["partition"] for one in found["replicas"] if (one["topic"], one["is_future"]) == ("t", future)}


def rate(cluster: Cluster) -> int:
    broker = cluster.node(1).broker
    assert broker is not None
    return broker.settings.node.replica_alter_log_dirs_io_max_bytes_per_second


def test_directories_and_replicas_are_shown(tidelog: Tidelog, both: tuple[str, str]) -> None:
    code, out, err = tidelog("log-dirs", "describe")
    assert code == 0, err
    assert out.splitlines()[0].split() == [
        "node",
        "directory",
        "state",
        "replicas",
        "arriving",
        "data",
        "free",
        "total",
    ]
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["1", "1", "2", "2"]
    assert all(path in out for path in both)
    code, out, err = tidelog("log-dirs", "describe", "2", "--topic", "t")
    assert code == 0, err
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [["2", f"t-{number}"] for number in range(PARTITIONS)]
    found = as_json(tidelog("log-dirs", "describe", "--topic", "t", "--json"))
    assert [one["node"] for one in found] == [1, 1, 2, 2]
    assert all(part["bytes"] >= SIZE and part["offset_lag"] == 0 for one in found for part in one["replicas"])


def test_all_moves_off_a_disk_and_back(tidelog: Tidelog, cluster: Cluster, both: tuple[str, str]) -> None:
    here, there = both
    leaving = lies_in(tidelog, here)
    plan = as_json(
        tidelog("log-dirs", "move", "1", "--from", here, "--to", there, "--topic", "t", "--dry-run", "--json")
    )
    assert {(one["replica"], one["from"], one["to"]) for one in plan} == {(f"t-{n}", here, there) for n in leaving}
    assert lies_in(tidelog, here) == leaving
    code, out, err = tidelog("log-dirs", "move", "1", "--from", here, "--to", there, "--throttle", "5000000")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("moved ")
    assert (lies_in(tidelog, here), lies_in(tidelog, there)) == (set(), set(range(PARTITIONS)))
    until(lambda: rate(cluster) == LONG_MAX, "the throttle is removed")
    moved = as_json(tidelog("log-dirs", "move", "1", "--to", here, "--topic", "t", "--json"))
    assert (moved["moved"], moved["bytes"] >= PARTITIONS * SIZE) == ([f"t-{n}" for n in range(PARTITIONS)], True)
    assert lies_in(tidelog, here) == set(range(PARTITIONS))
    assert as_json(tidelog("log-dirs", "move", "1", "--to", here, "--topic", "t", "--json"))["moved"] == []


def test_moves_go_on_without_the_command_and_can_be_ended(
    tidelog: Tidelog, admin: Admin, cluster: Cluster, both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = both
    as_json(tidelog("log-dirs", "move", "1", "--to", here, "--topic", "t", "--json"))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk_moves, "sleep", interrupted)
        code, out, _ = tidelog("log-dirs", "move", "1", "--to", there, "--topic", "t", "--throttle", "1")
    assert code == 130
    assert "the broker continues the moves" in out
    assert lies_in(tidelog, there, future=True) == set(range(PARTITIONS))
    sizes = sizes_of(admin, [1])[1]
    assert all(sizes[TopicPartition("t", number)] >= SIZE for number in range(PARTITIONS)), "copies count as replicas"
    code, out, _ = tidelog("log-dirs", "describe", "1", "--replicas")
    assert sum(there in line.split()[3:] for line in out.splitlines()) >= PARTITIONS - 1, out
    ended = as_json(tidelog("log-dirs", "move", "1", "--topic", "t", "--cancel", "--json"))
    assert ended == {"cancelled": [f"t-{number}" for number in range(PARTITIONS)]}
    assert lies_in(tidelog, there, future=True) == set()
    assert lies_in(tidelog, here) == set(range(PARTITIONS))
    until(lambda: rate(cluster) == LONG_MAX, "the throttle is removed")
    assert "nothing to cancel" in tidelog("log-dirs", "move", "1", "--cancel")[1]


def test_progress_is_told_and_an_end_by_somebody_else_is_said(
    tidelog: Tidelog, admin: Admin, both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = both
    as_json(tidelog("log-dirs", "move", "1", "--to", here, "--topic", "t", "--json"))
    monkeypatch.setattr(disk_moves, "PROGRESS_S", 0.0)
    looks: list[float] = []

    def look(pause_s: float) -> None:
        looks.append(pause_s)
        if len(looks) == 3:
            admin.alter_replica_log_dirs({("t", number, 1): here for number in range(PARTITIONS)})

    monkeypatch.setattr(disk_moves, "sleep", look)
    code, out, err = tidelog("log-dirs", "move", "1", "--to", there, "--topic", "t", "--throttle", "1")
    assert f"0 of {PARTITIONS} replicas moved" in out
    assert code == 1
    assert "somebody else has cancelled that" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "/nowhere"], "expected one of the broker's log directories, .*, found /nowhere"),
        (["--from", "/nowhere", "--cancel"], "expected one of the broker's log directories"),
        ([], "expected --to PATH, or --cancel"),
        (["--to", "/x", "--cancel"], "expected --to PATH, or --cancel"),
    ],
)
def test_what_is_refused(tidelog: Tidelog, arguments: list[str], said: str) -> None:
    code, _, err = tidelog("log-dirs", "move", "1", *arguments)
    assert code != 0
    assert re.search(said, " ".join(err.split()))


def test_several_directories_share_what_comes_by_the_room_that_is_left() -> None:
    dirs = [
        LogDir(path, DirectoryId(b"d" * 16), ErrorCode.NONE, 100, free, ()) for path, free in (("/a", 10), ("/b", 8))
    ]
    replicas = {TopicPartition("t", number): Placed("/c", size) for number, size in enumerate((1, 5, 4, 2))}
    assert spread(replicas, dirs) == {
        TopicPartition("t", 0): "/b",
        TopicPartition("t", 1): "/a",
        TopicPartition("t", 2): "/b",
        TopicPartition("t", 3): "/a",
    }
    check_room(spread(replicas, dirs), replicas, dirs)
    with pytest.raises(CommandFailed, match=r"expected room for 0\.0 MB in /b"):
        check_room(dict.fromkeys(replicas, "/b"), replicas, dirs)
