"""Real processes: a controller whose directory was emptied, and a majority of directories that is lost."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tidelog.cli.local.cluster import LocalCluster

LINES = b"".join(b"%d\n" % number for number in range(1_000))
STILL_S = 4.0
"""Several election timeouts."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path / "cluster", nodes=3)
    made.start()
    made.wait_ready()
    yield made
    for node_id in made.running():
        made.kill(node_id)


def tidelog(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", "tidelog.cli.main", *arguments]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            out, err = process.communicate(stdin, timeout=100)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where each of its threads is
            out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def succeed(*arguments: str, stdin: bytes = b"") -> bytes:
    ran = tidelog(*arguments, stdin=stdin)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def address(cluster: LocalCluster, *node_ids: int) -> str:
    return ",".join(f"127.0.0.1:{cluster.node(node_id).ports.client}" for node_id in node_ids)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def shown(cluster: LocalCluster, node_id: int) -> Any:
    """The content of a stopped node's metadata log."""
    return json.loads(succeed("quorum", "show", "--dir", str(cluster.node(node_id).data_dir), "--json"))


def votes(cluster: LocalCluster, node_id: int) -> bool:
    """Whether a running node votes, as the last line of its log about that says."""
    said = cluster.node(node_id).log_path.read_text()
    return said.rpartition("; the voters are")[0].endswith(f"node {node_id} is a voter")


def fenced(cluster: LocalCluster, *node_ids: int) -> int:
    """How many brokers the active controller has fenced, if one of ``node_ids`` is it; -1 if not."""
    metric = rb"(?m)^kafka_controller_kafkacontroller_fencedbrokercount (\d)"
    found = [re.search(metric, cluster.node(node_id).get("/metrics")[1]) for node_id in node_ids]
    return max((int(one[1]) for one in found if one is not None), default=-1)


def forget_logs(cluster: LocalCluster) -> None:
    """Ignore earlier lines of the nodes' logs."""
    for node in cluster.nodes.values():
        node.log_path.unlink()


def test_an_emptied_voter_and_a_laggard_lose_nothing_of_what_the_third_one_knows(cluster: LocalCluster) -> None:
    cluster.kill(3)
    until(lambda: fenced(cluster, 1, 2) == 1)  # or the topic could get a replica there, and wait for it
    there = address(cluster, 1, 2)
    succeed("topics", "create", "orders", "--replicas", "2", "--bootstrap", there)
    succeed("produce", "orders", "--bootstrap", there, stdin=LINES)
    cluster.kill(1)
    cluster.kill(2)
    shutil.rmtree(cluster.node(2).data_dir)
    forget_logs(cluster)

    root = str(cluster.directory)
    refused = tidelog("cluster", "start", "2", "--dir", root)
    assert refused.returncode == 1
    assert b"expected the data of node 2, which has served before, found none" in refused.stderr

    cluster.start([2, 3], formats=True)
    time.sleep(STILL_S)
    assert cluster.running() == [2, 3]
    for node_id in (2, 3):
        assert not cluster.node(node_id).ready()
        assert "is the active controller" not in cluster.node(node_id).log_path.read_text()
    assert not votes(cluster, 2)

    cluster.start([1])
    cluster.wait_ready(timeout_s=60)
    everywhere = address(cluster, 1, 2, 3)
    read = succeed("consume", "orders", "--from-beginning", "--max", "1000", "--bootstrap", everywhere)
    assert sorted(map(int, read.split())) == list(range(1_000))

    until(lambda: votes(cluster, 2))
    assert b"\nkafka_server_raft_metrics_number_of_voters 3.0\n" in cluster.node(1).get("/metrics")[1]
    cluster.kill(3)  # now its vote is needed
    succeed("topics", "create", "later", "--replicas", "1", "--bootstrap", address(cluster, 1, 2))
    cluster.stop([1, 2])
    assert len(shown(cluster, 1)["voters"].split(",")) == 3
    assert shown(cluster, 2)["directory"] in shown(cluster, 1)["voters"]


def test_an_empty_directory_is_an_error_where_the_others_vote(cluster: LocalCluster) -> None:
    cluster.kill(2)
    shutil.rmtree(cluster.node(2).data_dir)
    config = cluster.node(2).config_path
    refused = tidelog("server", "--config", str(config), "--cluster-id", cluster.cluster_id)
    assert refused.returncode == 1
    said = refused.stderr.decode()
    assert "expected the directory with which node 2 votes, found another one" in said
    assert "--format" in said
    assert "Traceback" not in said
    assert cluster.running() == [1, 3]


def test_a_survivor_goes_on_alone_after_a_majority_is_lost(cluster: LocalCluster) -> None:
    there = address(cluster, 1, 2, 3)
    succeed("topics", "create", "orders", "--replicas", "3", "--bootstrap", there)
    succeed("produce", "orders", "--bootstrap", there, stdin=LINES)
    for node_id in (1, 2, 3):
        cluster.kill(node_id)
    for node_id in (1, 2):
        shutil.rmtree(cluster.node(node_id).data_dir)
    forget_logs(cluster)

    survivor = str(cluster.node(3).data_dir)
    before = shown(cluster, 3)
    asked = tidelog("quorum", "recover", "--dir", survivor, stdin=b"n\n")
    assert asked.returncode != 0
    assert b"Lost for good" in asked.stderr
    assert shown(cluster, 3) == before
    made = json.loads(succeed("quorum", "recover", "--dir", survivor, "--yes", "--json"))
    assert made["epoch"] == before["epoch"] + 1000
    assert made["voters"].endswith("vacant: 1, 2")

    cluster.start(formats=True)
    cluster.wait_ready(timeout_s=60)
    read = succeed("consume", "orders", "--from-beginning", "--max", "1000", "--bootstrap", there)
    assert sorted(map(int, read.split())) == list(range(1_000))
    until(lambda: votes(cluster, 1) and votes(cluster, 2))
    running = tidelog("quorum", "recover", "--dir", survivor, "--yes")
    assert running.returncode == 1
    assert b"in use by another process" in running.stderr
