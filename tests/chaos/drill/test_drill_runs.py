"""Drills on a real cluster, and what is refused to hold one on."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.chaos.drill.drills import DRILLS
from tidelog.chaos.drill.objectives import Limits
from tidelog.chaos.drill.reach import ProcessReach
from tidelog.chaos.drill.run import Asked, hold, survey
from tidelog.chaos.drill.stage import FAULT, Moment
from tidelog.chaos.drill.target import TOPIC_PREFIX
from tidelog.chaos.drill.traffic import Load
from tidelog.cli.local_cluster import LocalCluster
from tidelog.cli.root import run

Drill = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path_factory.mktemp("drill") / "cluster", nodes=3)
    try:
        made.start()
        made.wait_ready()
        yield made
    finally:
        for node in made.nodes:
            made.kill(node)


@pytest.fixture
def drill(capfd: pytest.CaptureFixture[str]) -> Drill:
    """Runs ``tidelog drill``; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        before = signal.getsignal(signal.SIGTERM)
        code = run(["drill", *arguments])
        sys.stdout.flush()
        assert signal.getsignal(signal.SIGTERM) == before
        return code, *capfd.readouterr()

    return call


def test_an_interrupted_drill_puts_everything_back(cluster: LocalCluster) -> None:
    """The node that it killed runs again, in sync, and its topic is gone."""
    found = survey(cluster.bootstrap)
    told: list[Moment] = []

    def interrupt(moment: Moment) -> None:
        told.append(moment)
        if moment.kind == FAULT:
            assert len(cluster.running()) == 2
            raise KeyboardInterrupt

    one = DRILLS["leader-loss"]
    asked = Asked(one, cluster.bootstrap, ProcessReach(cluster), Limits(), Load(), 0.0, cluster)
    with pytest.raises(KeyboardInterrupt):
        hold(asked, found, interrupt)
    assert cluster.running() == [1, 2, 3]
    assert not any(topic.startswith(TOPIC_PREFIX) for topic in survey(cluster.bootstrap).topics)
    assert told[-1].text == "every node runs, and the topic is deleted"


def test_a_full_disk_costs_nothing(cluster: LocalCluster, drill: Drill, tmp_path: Path) -> None:
    """A broker's disk takes nothing more, others lead its partitions, nothing is lost; and it comes back."""
    picture = tmp_path / "drill.png"
    limits = ("--leader-within", "30", "--whole-within", "60", "--away", "0")  # a machine may be busy
    code, out, err = drill(
        "disk-full", "-b", cluster.bootstrap, "--confirm", cluster.cluster_id, *limits, "--json", "--plot", str(picture)
    )
    assert code == 0, err
    told = json.loads(out)
    measures = told["measures"]
    assert measures["acknowledged"] == measures["sent"] == measures["read"] > 500
    assert (measures["lost"], measures["duplicated"], measures["errors"], told["unhealthy"]) == (0, 0, 0, [])
    assert 0 < measures["election_s"] <= measures["every_partition_s"] < measures["whole_s"] + 30
    assert [moment["kind"] for moment in told["timeline"] if moment["kind"] in ("fault", "heal")] == [
        "fault", "heal", "heal"
    ]  # fmt: skip
    assert any("out of service" in (node.directory / "server.log").read_text() for node in cluster.nodes.values())
    assert picture.stat().st_size > 10_000
    assert cluster.running() == [1, 2, 3]


def test_a_running_cluster_must_be_confirmed(cluster: LocalCluster, drill: Drill) -> None:
    for wrong in ((), ("--confirm", "production")):
        code, _, err = drill("leader-loss", "-b", cluster.bootstrap, *wrong)
        assert code == 2
        assert "expected --confirm with its id" in err
        assert f"--confirm {cluster.cluster_id}" in err
    assert cluster.running() == [1, 2, 3]


def test_a_dry_run_only_looks(cluster: LocalCluster, drill: Drill) -> None:
    code, out, _ = drill("quorum-loss", "-b", cluster.bootstrap, "--dry-run")
    assert code == 0
    assert "kill (kill -9) 2 of 3 controllers" in out
    assert "lost: none" in out
    assert cluster.running() == [1, 2, 3]


def test_a_cluster_that_is_not_healthy_is_refused(cluster: LocalCluster, drill: Drill) -> None:
    cluster.kill(3)
    try:
        code, _, err = drill("rolling-restart", "-b", cluster.bootstrap, "--confirm", str(cluster.directory))
    finally:
        cluster.start([3])
        cluster.wait_ready([3])
    assert code == 2
    assert f"node 3 does not run; `tidelog cluster start --dir {cluster.directory}` starts it" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-b", "127.0.0.1:1"), "no broker listens at 127.0.0.1:1"),
        (("--confirm", "x"), "expected --confirm with --bootstrap"),
        (("--by-hand",), "expected --by-hand with --bootstrap"),
        (("-b", "127.0.0.1:1", "--stop-command", "x {node}"), "--stop-command and --start-command together"),
        (("--plot", "nonesuch/x.png"), "--plot: expected an existing directory"),
        (("--set", "nonsense=1"), "unknown setting 'nonsense'"),
        (("--whole-within", "0"), "Invalid value for '--whole-within'"),
        (("--nodes", "2"), "Invalid value for '--nodes'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_done(
    drill: Drill, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = drill("leader-loss", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_another_clusters_directory_is_refused(cluster: LocalCluster, drill: Drill, tmp_path: Path) -> None:
    LocalCluster.create(tmp_path / "other", nodes=1)
    code, _, err = drill("leader-loss", "-b", cluster.bootstrap, "--confirm", "x", "--dir", str(tmp_path / "other"))
    assert code == 2
    assert f"expected cluster {cluster.cluster_id}" in err
    code, _, err = drill("leader-loss", "--dir", str(cluster.directory))
    assert code == 2
    assert "holds a cluster" in err
