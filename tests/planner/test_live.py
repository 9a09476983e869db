"""Costs of work from the metrics of a running cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from tidelog import Admin
from tidelog.broker import metrics as m
from tidelog.broker.health.facts import NodeMetrics
from tidelog.cli.commands.administration import plan as module
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.root import run
from tidelog.cli.work.planner.coefficients import load as load_costs
from tidelog.cli.work.planner.live import (
    INTERVALS_LEAST,
    WORK,
    ClusterMetrics,
    Interval,
    fitted_to_cluster,
    found_error,
    interval,
    watch,
    work_cores,
)
from tidelog.cli.work.planner.measuring import Load, running
from tidelog.cli.work.planner.shipped import SHIPPED
from tidelog.cli.work.workload import create_topic

from .test_coefficients import FITTED

LOADED = [
    Interval(seen, False, False, seen.memory_bytes)
    for given, seen in FITTED
    if given.batches >= 200 and seen.copies == 3
]
RATES = ("batches", "append_mb", "replicated_mb", "read_mb")


def costing(found: Interval, work: float, idle: float) -> Interval:
    """The same work on a machine on which it costs this many times what it costs by default."""
    cores = found.seen.nodes * (work_cores(found, SHIPPED) * work + SHIPPED.idle_cores * idle)
    return found._replace(seen=found.seen._replace(cores=cores))


def test_a_slower_machine_gets_higher_costs_and_they_keep_their_proportions() -> None:
    """Of loads that are alike, nobody can tell what an idle node takes, so that becomes as much slower."""
    alike = [costing(LOADED[0], 2.5, 2.5)] * INTERVALS_LEAST
    costs = asdict(fitted_to_cluster(alike, SHIPPED, "mine"))
    for name in (*WORK, "idle_cores"):
        assert costs[name] == pytest.approx(2.5 * asdict(SHIPPED)[name], rel=1e-6), name
    assert costs["source"] == "mine"


def test_a_load_that_varies_tells_idle_time_from_work() -> None:
    one = LOADED[0].seen
    parts = [one._replace(**{name: getattr(one, name) / by for name in RATES}) for by in (1, 1, 2, 4, 8)]
    varied = [costing(LOADED[0]._replace(seen=seen), 2.0, 5.0) for seen in parts]
    costs = fitted_to_cluster(varied, SHIPPED, "")
    assert costs.append_s == pytest.approx(2 * SHIPPED.append_s, rel=0.01)
    assert costs.idle_cores == pytest.approx(5 * SHIPPED.idle_cores, rel=0.01)
    assert max(abs(found_error(each, costs)) for each in varied) < 0.01


def test_a_cluster_that_does_too_little_is_refused() -> None:
    idle = next(seen for given, seen in FITTED if not given.batches)
    little = [Interval(idle, False, False, idle.memory_bytes)] * INTERVALS_LEAST
    with pytest.raises(CommandFailed, match=r"at least 3 times what they need when idle, found 0\.0\d times"):
        fitted_to_cluster(little, SHIPPED, "")
    with pytest.raises(CommandFailed, match="expected at least 5 intervals, found 4"):
        fitted_to_cluster(LOADED[:4], SHIPPED, "")


def page(cpu_s: float, appended: float, copied: float, sent: float, uptime_s: float, *tls: str) -> NodeMetrics:
    values: dict[str, Mapping[tuple[str, ...], float]] = {
        "process_cpu_seconds_total": {(): cpu_s},
        "process_resident_memory_bytes": {(): 100e6},
        m.BYTES_IN.exported: {("",): appended, ("t",): appended},
        m.REPLICATION_BYTES_IN.exported: {(): copied},
        m.BYTES_OUT.exported: {("",): sent},
        m.BATCHES_IN.exported: {(): appended / 1e3},
        m.PARTITION_COUNT.exported: {(): 1_000.0},
        m.KAFKA_CONNECTIONS.exported: {(): 10.0},
        m.UPTIME.exported: {(): uptime_s},
        m.TLS_EXPIRY.exported: {(name,): 1e6 for name in tls},
    }
    return NodeMetrics(1, values)


def test_what_nodes_did_is_the_difference_of_their_pages() -> None:
    before = {node: page(10, 0, 0, 0, 100) for node in (1, 2)}
    after = {node: page(11, 5e6, 10e6, 15e6, 110, "KAFKA") for node in (1, 2)}
    found = interval(before, after, 10.0, SHIPPED)
    assert found.seen == (2, 0.2, 1_000.0, 1.0, 2.0, 3.0, 3.0, 3.0, 100e6)
    assert (found.tls_clients, found.tls_nodes) == (True, False)
    assert found.rest_bytes == 100e6 - 1_000 * SHIPPED.replica_bytes - 10 * SHIPPED.connection_tls_bytes
    plain, both = (found._replace(tls_clients=False), found._replace(tls_nodes=True))
    assert work_cores(plain, SHIPPED) < work_cores(found, SHIPPED) < work_cores(both, SHIPPED)


def test_a_restart_meanwhile_is_refused() -> None:
    looks = iter([{1: page(10, 0, 0, 0, 100)}, {1: page(1, 0, 0, 0, 3)}])
    with pytest.raises(CommandFailed, match="found node 1 restarted"):
        list(watch(lambda: next(looks), SHIPPED, 1, 0.0))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(tmp_path_factory.mktemp("live") / "cluster", nodes=1)
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=60)
        yield cluster
    finally:
        cluster.kill(1)


def test_a_real_node_under_load_gives_costs_that_predict_another_load(
    node: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(load: Load, count: int, seconds: float) -> list[Interval]:
        with Admin(node.bootstrap) as admin:
            create_topic(admin, topic := f"load-{load.batch_bytes}", copies=1)
            with running(node.bootstrap, topic, load):
                return list(watch(ClusterMetrics(admin, {}).look, SHIPPED, count, seconds))

    found = watched(Load(200, 4_000, 1, readers=1), INTERVALS_LEAST, 0.4)
    monkeypatch.setattr(module, "watch", lambda *_: iter(found))  # its intervals have two seconds and more
    path = tmp_path / "live.json"
    assert run(["plan", "calibrate", "--bootstrap", node.bootstrap, "--output", str(path), "--json"]) == 0
    costs = load_costs(path)
    assert json.loads(capsys.readouterr().out)["coefficients"] == asdict(costs)
    assert costs.source == f"taken from the metrics of {node.bootstrap} into live.json"
    assert 20e6 < costs.base_bytes < 200e6
    assert 0.2 < costs.append_s / SHIPPED.append_s < 5
    (other,) = watched(Load(150, 50_000, 1), 1, 1.5)
    assert 1 / 3 < 1 + found_error(other, costs) < 3, "24 % at most were measured, in intervals of eight seconds"


def test_a_real_node_that_rests_is_refused(node: LocalCluster) -> None:
    with (
        Admin(node.bootstrap) as admin,
        pytest.raises(CommandFailed, match="calibrate while the cluster has more load"),
    ):
        fitted_to_cluster([*watch(ClusterMetrics(admin, {}).look, SHIPPED, INTERVALS_LEAST, 0.1)], SHIPPED, "")
