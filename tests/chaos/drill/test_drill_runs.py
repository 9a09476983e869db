"""Drills on a real cluster, and clusters that a drill refuses."""

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
from tidelog.chaos.laboratory.processes.secured import CLIENT_USER, secure
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.root import run
from tidelog.model.settings.properties import format_properties
from tidelog.testing.secured import ADMIN

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
    found = survey(cluster.bootstrap, {})
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
    assert not any(topic.startswith(TOPIC_PREFIX) for topic in survey(cluster.bootstrap, {}).topics)
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
    assert 0 < measures["every_partition_s"] < measures["whole_s"] + 30
    assert 0 < measures["election_s"] < measures["whole_s"] + 30  # seen by asking: maybe after the first records
    assert [moment["kind"] for moment in told["timeline"] if moment["kind"] in ("fault", "heal")] == [
        "fault", "heal", "heal"
    ]  # fmt: skip
    assert any("out of service" in (node.directory / "server.log").read_text() for node in cluster.nodes.values())
    assert picture.stat().st_size > 10_000
    assert cluster.running() == [1, 2, 3]


def test_a_rack_is_lost_and_the_others_carry_on(drill: Drill) -> None:
    limits = ("--leader-within", "30", "--whole-within", "60", "--away", "1")  # a machine may be busy
    code, out, err = drill("rack-loss", *limits, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert "the racks: rack-1 (node 1), rack-2 (node 2), rack-3 (node 3)" in told["steps"][0]
    (fault,) = (moment["text"] for moment in told["timeline"] if moment["kind"] == "fault")
    assert fault.startswith("rack rack-")
    measures = told["measures"]
    assert measures["acknowledged"] == measures["sent"] == measures["read"] > 300
    assert (measures["lost"], measures["duplicated"], measures["errors"], told["unhealthy"]) == (0, 0, 0, [])
    assert measures["partitions_meanwhile"] == 6


def test_a_cluster_without_racks_is_told_so(cluster: LocalCluster, drill: Drill) -> None:
    code, out, err = drill("rack-loss", "-b", cluster.bootstrap, "--dry-run")
    assert (code, out) == (2, "")
    assert "expected a rack of each broker (broker.rack), found none of 1, 2, 3" in err
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


def test_a_drill_on_a_secured_cluster_logs_in_as_other_commands_do(drill: Drill, tmp_path: Path) -> None:
    """By a file of settings, on a running cluster with TLS, passwords and access control; a user without rights, and a
    client without a login, are refused before anything is done."""
    made = LocalCluster.create(tmp_path / "cluster", nodes=3)
    settings = secure(made, "tls+scram")
    by_user = {}
    for user in (ADMIN, CLIENT_USER):
        words = settings.client_settings(user)
        by_user[user] = tmp_path / f"{user}.properties"
        by_user[user].write_text(
            format_properties(
                {
                    "security.protocol": words["security_protocol"],
                    "ssl.truststore.location": str(words["ssl_cafile"]),
                    "sasl.mechanism": str(words["sasl_mechanism"]),
                    "sasl.username": str(words["sasl_username"]),
                    "sasl.password": str(words["sasl_password"]),
                }
            )
        )
    try:
        made.start()
        made.wait_ready()
        before = {node.node_id: node.pid for node in made.nodes.values()}
        asked = ("leader-loss", "-b", made.bootstrap, "--confirm", made.cluster_id)
        code, _, err = drill(*asked)
        assert (code, "no broker answers" in err) == (2, True), err
        code, _, err = drill(*asked, "--command-config", str(by_user[CLIENT_USER]))
        assert (code, "a drill needs a user that may do that" in err) == (2, True), err
        assert {node.node_id: node.pid for node in made.nodes.values()} == before
        limits = ("--leader-within", "60", "--whole-within", "90", "--away", "0")  # a machine may be busy
        code, out, err = drill(*asked, *limits, "--json", "--command-config", str(by_user[ADMIN]))
        assert code == 0, err
        measures = json.loads(out)["measures"]
        assert measures["acknowledged"] == measures["sent"] == measures["read"] > 300
        assert (measures["lost"], measures["duplicated"], measures["errors"]) == (0, 0, 0)
        assert {node.node_id: node.pid for node in made.nodes.values()} != before
    finally:
        for node in made.nodes:
            made.kill(node)


def test_security_is_for_a_cluster_that_the_drill_makes(drill: Drill) -> None:
    code, _, err = drill("leader-loss", "-b", "127.0.0.1:1", "--security", "tls")
    assert (code, "expected --security only without --bootstrap" in err) == (2, True), err
