"""Clusters of real processes: one directory, real kills, and reasons for a node to refuse its start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local import process as local_process
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.root import run
from tidelog.model.settings.config_def import ConfigError
from tidelog.testing import ports


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A default directory of our own; whatever still runs in it is killed afterwards."""
    place = tmp_path / "home"
    monkeypatch.setenv("TIDELOG_HOME", str(place))
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    yield place
    if LocalCluster.exists(place):
        kill_all(LocalCluster.open(place))


def kill_all(cluster: LocalCluster) -> None:
    for node_id in cluster.nodes:
        cluster.kill(node_id)


def tidelog(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command as a user runs it: a process of its own."""
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=100)


def test_start_produce_kill_start_consume_stop(home: Path) -> None:
    """The README's example, with a kill -9 in it."""
    started = tidelog("cluster", "start", "--nodes", "1", "--free-ports", "--json")
    assert started.returncode == 0, started.stderr
    found = json.loads(started.stdout)
    (node,) = found["nodes"]
    assert (found["started"], node["state"]) == ([1], "ready")
    assert found["directory"] == str(home)
    with urllib.request.urlopen(f"http://127.0.0.1:{node['ports']['http']}/metrics", timeout=10) as page:
        assert b"# TYPE" in page.read()
    assert tidelog("topics", "create", "greetings").returncode == 0
    sent = tidelog("produce", "greetings", stdin=b"hello\nworld\n")
    assert sent.returncode == 0, sent.stderr
    killed = json.loads(tidelog("cluster", "kill", "1", "--json").stdout)
    assert killed == {"killed": 1, "pid": node["pid"]}
    (stopped,) = json.loads(tidelog("cluster", "status", "--json").stdout)["nodes"]
    assert (stopped["state"], stopped["pid"]) == ("stopped", None)
    assert tidelog("cluster", "kill", "1").returncode == 1
    again = tidelog("cluster", "start", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["nodes"][0]["ports"] == node["ports"]
    read = tidelog("consume", "greetings", "--from-beginning", "--max", "2")
    assert (read.returncode, read.stdout) == (0, b"hello\nworld\n")
    assert tidelog("cluster", "start").stdout.startswith(b"all nodes were running")
    stop = tidelog("cluster", "stop", "--delete-data", "--json")
    assert stop.returncode == 0, stop.stderr
    ended = json.loads(stop.stdout)
    assert (ended["stopped"], ended["killed"], ended["deleted"]) == ([1], [], True)
    assert not home.exists()


def test_a_node_that_is_about_to_end_when_it_is_asked_for_is_started_again(home: Path) -> None:
    assert tidelog("cluster", "start", "--nodes", "1", "--free-ports").returncode == 0
    cluster = LocalCluster.open(home)
    before = cluster.node(1).pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "cluster", "start", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starting:
        time.sleep(2.0)  # it finds the node running
        assert starting.poll() is None, "it says that it does not serve"
        os.kill(before, signal.SIGKILL)
        out, _ = starting.communicate(timeout=240)
    assert starting.returncode == 0
    assert json.loads(out)["started"] == [1]
    assert cluster.node(1).pid not in (None, before)


def test_a_node_runs_with_the_tuned_allocator(home: Path) -> None:
    cluster = LocalCluster.create(home, nodes=1)
    cluster.start()
    cluster.wait_ready()
    pid = cluster.node(1).pid
    assert pid is not None
    if Path("/proc/self/environ").exists():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"MALLOC_MMAP_THRESHOLD_=" in environment
        assert b"MALLOC_TRIM_THRESHOLD_=" in environment


def test_a_pid_that_belongs_to_another_process_now_is_not_touched(home: Path) -> None:
    cluster = LocalCluster.create(home, nodes=1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        (home / "node-1" / "process.json").write_text(json.dumps({"pid": stranger.pid, "started": "long ago"}))
        assert cluster.node(1).pid is None
        assert cluster.stop() == []
        assert not cluster.kill(1)
        assert tidelog("cluster", "stop").returncode == 0
        assert stranger.poll() is None
        stranger.kill()


def test_a_taken_port_is_named_before_anything_starts(home: Path) -> None:
    cluster = LocalCluster.create(home, nodes=1)
    port = cluster.node(1).ports.replication
    taken = socket.create_server(("127.0.0.1", port))
    with taken, pytest.raises(CommandFailed, match=f"port {port} of 127.0.0.1 is taken"):
        cluster.start()
    assert cluster.node(1).pid is None


def test_wrong_settings_and_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.hous.*did you mean log\.retention\.hours"):
        LocalCluster.create(tmp_path / "a", settings={"log.retention.hous": "1"})
    with pytest.raises(ConfigError, match="listeners: the cluster's layout sets it"):
        LocalCluster.create(tmp_path / "a", settings={"listeners": "CLIENT://127.0.0.1:1"})
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").touch()
    with pytest.raises(CommandFailed, match="expected an empty or missing directory"):
        LocalCluster.create(tmp_path / "b")
    with pytest.raises(CommandFailed, match="no cluster here"):
        LocalCluster.open(tmp_path / "b")
    (tmp_path / "b" / "cluster.json").write_text("{")
    with pytest.raises(CommandFailed, match="expected a cluster's layout"):
        LocalCluster.open(tmp_path / "b")
    with pytest.raises(CommandFailed, match="expected 1 to 9 nodes, found 12"):
        LocalCluster.create(tmp_path / "c", nodes=12)


def test_an_existing_cluster_keeps_its_size_and_settings(home: Path) -> None:
    LocalCluster.create(home, nodes=1)
    other = tidelog("cluster", "start", "--nodes", "3")
    assert other.returncode == 1
    assert b"holds a cluster of 1 node, not 3" in other.stderr
    other = tidelog("cluster", "start", "--set", "num.partitions=4")
    assert other.returncode == 1
    assert b"already holds a cluster;" in other.stderr


def test_a_node_is_added_with_the_settings_of_the_first_and_serves(home: Path) -> None:
    started = tidelog("cluster", "start", "--nodes", "1", "--free-ports", "--set", "num.partitions=7")
    assert started.returncode == 0, started.stderr
    added = tidelog("cluster", "add", "--json")
    assert added.returncode == 0, added.stderr
    found = json.loads(added.stdout)
    assert (found["added"], [node["state"] for node in found["nodes"]]) == (2, ["ready", "ready"])
    ports_of = [set(vars_of(LocalCluster.open(home).node(number).ports)) for number in (1, 2)]
    assert ports_of[0].isdisjoint(ports_of[1])
    text = (home / "node-2" / "server.properties").read_text()
    assert "process.roles=broker\n" in text
    assert "num.partitions=7\n" in text
    brokers = json.loads(tidelog("brokers", "list", "--json").stdout)
    assert {row["node"]: row["state"] for row in brokers} == {1: "live", 2: "live"}
    assert tidelog("cluster", "stop", "2").returncode == 0
    assert tidelog("cluster", "start", "2").returncode == 0
    assert tidelog("cluster", "stop", "1").returncode == 0
    refused = tidelog("cluster", "add")
    assert refused.returncode == 1
    assert b"expected a majority of the controllers to be running, found node 2" in refused.stderr
    assert not (home / "node-3").exists()


def test_a_node_is_not_added_over_data_nor_beyond_the_last_id(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "x", nodes=8)
    (tmp_path / "x" / "node-9" / "data").mkdir(parents=True)
    with pytest.raises(CommandFailed, match="node-9: expected nothing there, found a node's data"):
        cluster.add()
    (tmp_path / "x" / "node-9" / "data").rmdir()
    assert cluster.add() == 9
    assert LocalCluster.open(tmp_path / "x").nodes.keys() == set(range(1, 10))
    with pytest.raises(CommandFailed, match="expected node ids of at most 9, found 10"):
        cluster.add()


def test_ports_differ_and_are_none_that_a_connection_could_be_given(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "x", nodes=9)
    found = [port for node in cluster.nodes.values() for port in vars_of(node.ports)]
    assert len(set(found)) == 36
    assert max(found) < ports._ephemeral_low()


def vars_of(node_ports: object) -> list[int]:
    return [getattr(node_ports, name) for name in ("client", "replication", "controller", "http")]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of one node that has run, with its directory formatted."""
    cluster = LocalCluster.create(tmp_path / "mine", nodes=1)
    cluster.start()
    cluster.wait_ready()
    assert cluster.stop() == []
    yield cluster
    kill_all(cluster)


def test_a_directory_of_another_cluster_is_refused(stopped: LocalCluster, tmp_path: Path) -> None:
    other = LocalCluster.create(tmp_path / "other", nodes=1)
    config = stopped.node(1).config_path
    refused = tidelog("server", "--config", str(config), "--cluster-id", other.cluster_id)
    assert refused.returncode == 1
    text = refused.stderr.decode()
    assert stopped.cluster_id in text
    assert other.cluster_id in text
    assert "Traceback" not in text


def test_a_directory_of_another_node_is_refused(stopped: LocalCluster) -> None:
    node = stopped.node(1)
    voters = f"7@127.0.0.1:{node.ports.controller}"
    refused = tidelog(
        "server", "--config", str(node.config_path), "--set", "node.id=7", "--set", f"controller.quorum.voters={voters}"
    )
    assert refused.returncode == 1
    text = refused.stderr.decode()
    assert "7" in text
    assert "node" in text
    assert "Traceback" not in text


def test_a_typo_in_the_configuration_names_file_line_and_the_likely_setting(stopped: LocalCluster) -> None:
    config = stopped.node(1).config_path
    config.write_text(config.read_text() + "log.segment.byte=100000000\n")
    refused = tidelog("server", "--config", str(config))
    assert refused.returncode == 2
    text = refused.stderr.decode()
    lines = len(config.read_text().splitlines())
    assert f"line {lines}" in text
    assert "log.segment.byte" in text
    assert "did you mean log.segment.bytes" in text
    assert text.count("\n") == 1


def test_a_server_says_which_port_is_taken(stopped: LocalCluster) -> None:
    node = stopped.node(1)
    with socket.create_server(("127.0.0.1", node.ports.client)):
        refused = tidelog("server", "--config", str(node.config_path), "--cluster-id", stopped.cluster_id)
    assert refused.returncode == 1
    text = refused.stderr.decode()
    assert f"127.0.0.1:{node.ports.client}" in text
    assert "Traceback" not in text


def test_last_words_of_a_node_that_cannot_start_reach_the_user(stopped: LocalCluster) -> None:
    node = stopped.node(1)
    node.config_path.write_text(node.config_path.read_text() + "num.partitions=many\n")
    stopped.start()
    with pytest.raises(CommandFailed, match=r"node 1 ended while starting: .*num\.partitions.*'many'"):
        stopped.wait_ready()


def test_a_paused_node_does_not_serve_and_a_resumed_one_does(home: Path) -> None:
    cluster = LocalCluster.create(home, nodes=1)
    cluster.start()
    cluster.wait_ready()
    assert cluster.pause(1)
    with pytest.raises(OSError, match="timed out"):
        cluster.node(1).get("/ready", timeout_s=0.3)
    assert cluster.resume(1)
    cluster.wait_ready()
    mark = cluster.node(1).mark
    assert mark is not None
    assert local_process.send_signal(mark, signal.SIGTERM)
    assert cluster.node(1).wait_gone(20)


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.cli.local.secured import default_directory

    monkeypatch.delenv("TIDELOG_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere/data")
    assert default_directory() == Path("/somewhere/data/tidelog")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_directory() == Path(os.path.expanduser("~/.local/share/tidelog"))
    monkeypatch.setenv("TIDELOG_HOME", "/elsewhere")
    assert default_directory() == Path("/elsewhere")


def test_a_stopped_local_cluster_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalCluster.create(home, nodes=1)
    assert run(["topics", "list"]) == 1
    assert f"the local cluster in {home} is stopped; `tidelog cluster start`" in capsys.readouterr().err


def test_run_without_a_cluster_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "status"]) == 1
    assert "no cluster here; `tidelog cluster start` creates one" in capsys.readouterr().err


def test_a_node_that_the_cluster_will_not_have_makes_no_cluster(home: Path) -> None:
    refused = tidelog("cluster", "start", "7", "--nodes", "5")
    assert (refused.returncode, refused.stderr) == (1, b"tidelog: expected a node from 1 to 5, found 7\n")
    refused = tidelog("cluster", "start", "--set", "num.partitions=many")
    assert refused.returncode == 2
    assert b"num.partitions: expected a whole number" in refused.stderr
    assert b"line" not in refused.stderr
    assert not home.exists()


def test_a_taken_port_of_one_node_keeps_all_from_starting(home: Path) -> None:
    cluster = LocalCluster.create(home, nodes=3)
    with (
        socket.create_server(("127.0.0.1", cluster.node(3).ports.http)),
        pytest.raises(CommandFailed, match=r"node 3: port .* is taken"),
    ):
        cluster.start()
    assert cluster.running() == []


def test_a_minority_is_told_what_is_missing(home: Path) -> None:
    LocalCluster.create(home, nodes=3)
    done = tidelog("cluster", "start", "2")
    assert done.returncode == 1
    assert b"node 2 is running but not ready: a majority of 3 controllers must run, found 2;" in done.stderr


def test_a_directory_that_was_moved_does_not_start_empty(stopped: LocalCluster, tmp_path: Path) -> None:
    moved = stopped.directory.rename(tmp_path / "moved")
    cluster = LocalCluster.open(moved)
    with pytest.raises(CommandFailed, match=r"expected log\.dirs to name .*moved/node-1/data.*found .*mine"):
        cluster.start()
    assert not stopped.directory.exists()
    config = cluster.node(1).config_path
    config.write_text(config.read_text().replace(str(stopped.directory), str(moved)))
    cluster.start()
    cluster.wait_ready()
    kill_all(cluster)


def test_an_interrupted_start_leaves_no_process(
    home: Path, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "cluster", "start", "2", "--free-ports"]
    with subprocess.Popen(interruptible(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not (home / "node-2" / "process.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert LocalCluster.open(home).running() == []


def test_a_cluster_is_laid_out_once_when_it_is_started_twice_at_once(home: Path) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "cluster", "start", "--nodes", "1", "--free-ports"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(out.split(b",")[0] for out, _ in said) == [b"1 node started", b"all nodes were running"]


def test_half_a_layout_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            LocalCluster.create(tmp_path / "x", nodes=3)
    assert list((tmp_path / "x").iterdir()) == []
    LocalCluster.create(tmp_path / "x", nodes=3)
