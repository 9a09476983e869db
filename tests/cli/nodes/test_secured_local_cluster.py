"""``tidelog cluster start --security``: a secured cluster on this machine, in one command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import admin as confluent_admin

from tidelog import Admin
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.root import run
from tidelog.client.errors import TidelogError
from tidelog.model.settings.properties import parse_properties


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDELOG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path / "home"
    if LocalCluster.exists(tmp_path / "home"):
        LocalCluster.open(tmp_path / "home").stop()


@pytest.mark.parametrize("kind", ["tls", "tls+scram"])
def test_one_command_makes_a_secured_cluster(kind: str, home: Path) -> None:
    assert run(["cluster", "start", "--nodes", "1", "--free-ports", "--security", kind]) == 0
    assert run(["topics", "create", "t"]) == 0  # commands find the user's file
    client = home / "security" / "client.properties"
    for path in (client, home / "security" / "ca-key.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    cluster = LocalCluster.open(home)
    with pytest.raises(TidelogError), Admin(cluster.bootstrap, request_timeout_ms=2_000) as stranger:
        stranger.list_topics(timeout=3)
    given = {name: line.value for name, line in parse_properties(client.read_text()).items()}
    other: dict[str, str | int | float | bool] = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": given["security.protocol"],
        "ssl.ca.location": given["ssl.truststore.location"],
    }
    if kind == "tls":
        other |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), given["ssl.keystore.location"])
    else:
        other |= {name: given[name] for name in ("sasl.mechanism", "sasl.username", "sasl.password")}
    assert "t" in confluent_admin.AdminClient(other).list_topics(timeout=30).topics
    if kind == "tls+scram":
        assert run(["cluster", "stop"]) == 0
        assert run(["cluster", "start"]) == 0
        assert run(["topics", "describe", "t"]) == 0
    else:
        assert run(["cluster", "add"]) == 0
        assert run(["topics", "create", "of-both", "--replicas", "2"]) == 0


def test_its_machines_may_have_workers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has one certificate, and is one node to who starts, adds, stops and kills it; a killed worker comes back."""
    options = ["--nodes", "1", "--workers", "2", "--free-ports", "--security", "tls"]
    assert run(["cluster", "start", *options]) == 0
    assert run(["cluster", "add"]) == 0
    assert run(["topics", "create", "t", "--partitions", "8", "--replicas", "2"]) == 0
    assert run(["cluster", "start", "--workers", "3"]) != 0
    assert "of nodes with 2 workers, not 3" in capsys.readouterr().err

    def nodes() -> dict[int, dict[str, object]]:
        capsys.readouterr()
        assert run(["cluster", "status", "--json"]) == 0
        return {row["node"]: row for row in json.loads(capsys.readouterr().out)["nodes"]}

    def wait_for(wanted: dict[int, str]) -> None:
        deadline = time.monotonic() + 60
        while {number: row["state"] for number, row in nodes().items()} != wanted:
            assert time.monotonic() < deadline, nodes()
            time.sleep(0.1)

    ready = dict.fromkeys((1, 1001, 2, 1002), "ready")
    before = nodes()
    assert before.keys() == ready.keys()
    assert run(["cluster", "kill", "1002"]) == 0
    deadline = time.monotonic() + 60
    while nodes()[1002]["pid"] in (None, before[1002]["pid"]):
        assert time.monotonic() < deadline
    wait_for(ready)
    assert nodes()[2]["pid"] == before[2]["pid"]
    assert run(["cluster", "kill", "1003"]) != 0
    assert run(["cluster", "kill", "2"]) == 0
    wait_for(ready | {2: "stopped", 1002: "stopped"})
    capsys.readouterr()
    assert run(["topics", "describe", "t"]) == 0, "each partition has a replica on the other machine"
    assert "none" not in capsys.readouterr().out
    assert run(["cluster", "start", "2"]) == 0
    wait_for(ready)
    assert run(["cluster", "stop"]) == 0
    wait_for(dict.fromkeys(ready, "stopped"))


def test_a_cluster_that_is_there_is_not_secured_afterwards(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalCluster.create(home, nodes=1)
    assert run(["cluster", "start", "--security", "tls"]) != 0
    assert "--security is for a new one" in capsys.readouterr().err
