"""``tidelog status``: healthy, with a broker gone, without a quorum; and nodes' own findings."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.health import look as health_look
from tidelog.broker.health.facts import Broker, Facts
from tidelog.cli.commands.nodes import status as module
from tidelog.cli.root import run
from tidelog.model.ids import TopicPartition
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports


@pytest.fixture
def status(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    def call(cluster: Cluster, *options: str) -> tuple[int, Any]:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", cluster.bootstrap)
        capfd.readouterr()
        code = run(["status", *options])
        out, err = capfd.readouterr()
        assert not err
        return code, json.loads(out) if "--json" in options else out

    return call


def rules_of(found: Any) -> dict[str, str]:
    """Rule → severity; without those about this machine and its disk, which other programs use too."""
    machine = {"disk-space", "loop-busy", "open-files", "leaders-elsewhere"}
    return {one["rule"]: one["severity"] for one in found["findings"] if one["rule"] not in machine}


def test_a_cluster_from_health_to_the_loss_of_its_quorum(
    status: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(3, transport="grpc", config={"min.insync.replicas": "2"}) as cluster:
        cluster.create_topic("t", partitions=3)
        deadline = time.monotonic() + 60
        while rules_of(found := status(cluster, "--json")[1]):  # a follower that has not caught up yet
            assert time.monotonic() < deadline, found
        assert "3 of 3 brokers; 3 controllers; 3 partitions, each with a leader" in found["summary"]
        assert set(found["not_checked"]) == {f"metrics of node {node}" for node in (1, 2, 3)}, "no http.listener"

        controller = cluster.controller()
        first, second = (node for node in (1, 2, 3) if node != controller)
        cluster.kill(first)
        deadline = time.monotonic() + 60
        wanted = {"brokers-fenced": "warning", "partitions-under-replicated": "warning"}
        while rules_of(found := status(cluster, "--json")[1]) != wanted:
            assert time.monotonic() < deadline, found
        code, text = status(cluster, "--verbose")
        assert code in (3, 4), "a full disk would be critical"
        assert f"1 of 3 brokers fenced: broker {first}" in text
        assert "3 partitions with a replica out of sync: t-0, t-1, t-2" in text
        assert "start the broker that is missing" in text
        assert "metrics of node" in text

        cluster.kill(second)
        monkeypatch.setattr(module, "ASK_TIMEOUT_MS", 1_000)
        deadline = time.monotonic() + 60
        while rules_of(found := status(cluster, "--json")[1]).get("no-active-controller") != "critical":
            assert time.monotonic() < deadline, found
        assert found["status"] == "critical"
        assert found["findings"][0]["do"]


def test_metrics_groups_and_a_nodes_own_findings(status: Callable[..., tuple[int, Any]]) -> None:
    (port,) = free_ports(1)
    with Cluster(1, transport="grpc", config={"http.listener": f"HTTP://127.0.0.1:{port}"}) as cluster:
        cluster.create_topic("t")
        with cluster.producer() as producer, cluster.consumer(group_id="g", enable_auto_commit=False) as consumer:
            producer.send("t", b"x").result(60)
            consumer.assign([("t", 0)])
            consumer.commit({TopicPartition("t", 0): 0})
        code, found = status(cluster, "--json")
        assert "1 of 1 broker; 1 of 1 controller" in found["summary"]
        assert (found["not_checked"], found["rules_not_asked"]) == ({}, {})
        assert found["groups_not_judged"] == 1
        code, found = status(cluster, "--json", "--window", "1")
        behind = next(one for one in found["findings"] if one["rule"] == "groups-behind")
        assert behind["what"] == "group g has no reader and lags: 1 record behind in t-0"
        assert behind["since_ms"] <= found["time_ms"]
        assert code == (4 if found["status"] == "critical" else 3)

        node = cluster.node(1)
        broker = node.broker
        assert broker is not None
        cluster.wait_for(lambda: broker.cleaning is not None, "the cleaner")
        with urllib.request.urlopen(f"http://{node.http_address}/health", timeout=60) as answer:
            before = answer.read().decode().splitlines()
        assert before[0] == "alive"
        assert not [line for line in before if "cleaner" in line]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.cleaning, "running", False)
            with urllib.request.urlopen(f"http://{node.http_address}/health", timeout=60) as answer:
                assert answer.status == 200, "a restart by the prober would not help"
                text = answer.read().decode()
        assert "\ncritical: node 1: the log cleaner has stopped, or hangs: look at the node's log" in text


def test_watching_goes_on_until_interrupted(
    status: Callable[..., tuple[int, Any]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    with Cluster(1, transport="grpc") as cluster:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", cluster.bootstrap)
        real = health_look.look_at

        def look(asker: Any) -> Any:
            looked.append(1)
            if len(looked) > 3:
                raise KeyboardInterrupt
            return real(asker)

        monkeypatch.setattr(health_look, "look_at", look)
        assert run(["status", "--watch", "0.1", "--json"]) == 130
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["summary"][:15] for line in lines] == ["1 of 1 broker; "] * 3


def test_the_machine_of_workers_is_shown() -> None:
    brokers = {node: Broker(node, fenced=False, machine=f"10.0.0.{node % 1000}") for node in (1, 1001, 2)}
    shown = list(module._nodes(Facts(1_000, controller=1, brokers=brokers)))
    assert ["machine 10.0.0.1" in line for line in shown] == [True, False, True]
    assert "machine" not in shown[1]
    del brokers[2]  # all on one machine
    assert not any("machine" in line for line in module._nodes(Facts(1_000, controller=1, brokers=brokers)))
