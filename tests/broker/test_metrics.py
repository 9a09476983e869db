"""The metrics page: every documented name is exported, every exported one documented, and they move."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.broker.metrics import ALL_METRICS
from tidelog.testing.cluster import Cluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def scrape(cluster: Cluster, node_id: int = 1, path: str = "/metrics") -> str:
    address = cluster.node(node_id).http_address
    assert address is not None
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def values(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(config={"http.listener": "HTTP://127.0.0.1:0"})


def test_the_page_the_document_and_the_code_name_the_same_metrics(cluster: Cluster) -> None:
    documented = set(re.findall(r"^\| `(kafka_\w+|tidelog_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    assert documented == {metric.exported for metric in ALL_METRICS.values()}
    with cluster:
        cluster.create_topic("t")
        families = {family.name for family in text_string_to_metric_families(scrape(cluster))}
    ours = {name for name in families if name.startswith(("kafka_", "tidelog_"))}
    assert ours == set(ALL_METRICS)
    assert "process_resident_memory_bytes" in families


def test_figures_move_with_what_happens(cluster: Cluster) -> None:
    with cluster:
        cluster.create_topic("t", partitions=3)
        before = values(scrape(cluster))
        with cluster.producer() as producer:
            for n in range(10):
                producer.send("t", b"%d" % n)
            producer.flush()
            with cluster.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([("t", partition) for partition in range(3)])
                seen = 0
                while seen < 10:
                    seen += len(consumer.poll(1.0))
                after = values(scrape(cluster))
    assert before["kafka_server_brokertopicmetrics_messagesin_total"] == 0
    assert after["kafka_server_brokertopicmetrics_messagesin_total"] == 10
    assert after["kafka_server_brokertopicmetrics_bytesin_total"] >= 61
    assert after["kafka_server_brokertopicmetrics_bytesout_total"] >= 10
    assert after["kafka_network_requestmetrics_totaltime_seconds_countProduce"] >= 1
    assert after["kafka_server_replicamanager_partitioncount"] == 3
    assert after["kafka_server_replicamanager_leadercount"] == 3
    assert after["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert after["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert after["kafka_controller_kafkacontroller_globaltopiccount"] == 1
    assert after["kafka_controller_kafkacontroller_globalpartitioncount"] == 3
    assert after["kafka_server_kafkaserver_brokerstate"] == 3
    assert after["kafka_server_raft_metrics_current_leader"] == 1
    assert after["kafka_log_log_sizet"] > 0
    assert after["tidelog_streamsProduce"] == 1


def test_under_replicated_partitions_are_counted() -> None:
    with Cluster(3, config={"http.listener": "HTTP://127.0.0.1:0", "min.insync.replicas": "2"}) as cluster:
        cluster.create_topic("t", partitions=6)
        cluster.kill(3)
        cluster.wait_for_isr("t", 0, {1, 2})
        for partition in range(6):
            cluster.wait_for_isr("t", partition, {1, 2})
            cluster.wait_for_leader("t", partition, other_than=3)
        found = [values(scrape(cluster, node)) for node in (1, 2)]
    under = "kafka_server_replicamanager_underreplicatedpartitions"
    at_min = "kafka_server_replicamanager_atminisrpartitioncount"
    assert sum(one[under] for one in found) == 6
    assert sum(one[at_min] for one in found) == 6


def test_health_and_readiness(cluster: Cluster) -> None:
    with cluster:
        assert scrape(cluster, path="/health") == "alive\n"
        assert scrape(cluster, path="/ready") == "ready\n"
