"""The metrics page: every documented name is exported, every exported one documented, and they move."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import until
from tidelog import Admin, ClientQuotaEntity, NewTopic, OffsetAndMetadata, TopicPartition
from tidelog.broker.metrics import ALL_METRICS, AUTHENTICATIONS_REFUSED, GROUP_PARTITIONS_BEHIND, TLS_EXPIRY
from tidelog.broker.node.metric_sources import SCHEDULED, busy_time_s
from tidelog.client.errors import SaslAuthenticationError, TopicAuthorizationFailedError
from tidelog.model.link_position import GROUP_PREFIX, Position
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing.cluster import Cluster

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


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
        everybody = ClientQuotaEntity(user="")
        keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
        with cluster.admin() as admin, cluster.producer() as producer, cluster.consumer() as consumer:
            admin.alter_client_quotas({everybody: dict.fromkeys(keys, 1e9)})
            admin.create_topics([NewTopic("linked", 1, 1, {"link.name": "dr"})])
            now_ms = time.time_ns() // 1_000_000
            position = Position(5, 0, "", 12, now_ms - 4_000, now_ms - 9_000, "it has lost records")
            kept = OffsetAndMetadata(position.offset, position.epoch, position.metadata)
            admin.alter_consumer_group_offsets(GROUP_PREFIX + "dr", {TopicPartition("linked", 0): kept})
            admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0)})
            producer.send("t", b"x" * 1_000).result(20)
            consumer.assign([("t", 0)])
            consumer.seek_to_beginning()
            assert consumer.poll(20)
        found = values(scrape(cluster))
        assert found["kafka_server_produce_byte_rateANONYMOUS"] > 0 < found["kafka_server_fetch_byte_rateANONYMOUS"]
        links = {name: found[f"tidelog_link_{name}dr"] for name in ("lag_records", "partitions", "partitions_stopped")}
        assert links == {"lag_records": 7, "partitions": 1, "partitions_stopped": 1}
        assert 9 <= found["tidelog_link_lag_secondsdr"] > found["tidelog_link_heard_secondsdr"] >= 4
        families = {family.name for family in text_string_to_metric_families(scrape(cluster))}
    ours = {name for name in families if name.startswith(("kafka_", "tidelog_"))}
    # Without TLS, failures, and ten looks at a group.
    missing = {TLS_EXPIRY.name, AUTHENTICATIONS_REFUSED.name, GROUP_PARTITIONS_BEHIND.name}
    assert ours == set(ALL_METRICS) - missing
    assert "process_resident_memory_bytes" in families


def test_free_disk_and_the_loops_busy_share(cluster: Cluster) -> None:
    with cluster:
        found = values(scrape(cluster))
        directories = cluster.node(1).config.directories
        for directory in directories:
            disk = os.statvfs(directory)
            assert found[f"tidelog_disk_total_bytes{directory}"] == disk.f_blocks * disk.f_frsize
            free = found[f"tidelog_disk_free_bytes{directory}"]
            assert abs(free - disk.f_bavail * disk.f_frsize) < 2**30, "others write to it too"
        assert 0 < found["tidelog_loop_busy_ratio"] <= 1
        began_s = time.monotonic()
        while (after := values(scrape(cluster)))["tidelog_loop_busy_seconds_total"] < (
            found["tidelog_loop_busy_seconds_total"] + 0.05
        ):
            assert time.monotonic() - began_s < 30
        passed_s = time.monotonic() - began_s
        assert after["tidelog_loop_busy_seconds_total"] - found["tidelog_loop_busy_seconds_total"] < passed_s + 0.1
        time.sleep(0.5)
        assert values(scrape(cluster))["tidelog_loop_busy_ratio"] < 0.9, "it slept"


@pytest.mark.skipif(not Path(SCHEDULED).exists(), reason="only Linux tells how long a thread waited for a processor")
def test_a_thread_that_waits_for_a_processor_is_busy() -> None:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on the same processor
    try:
        began_s, busy_s, used_s = time.monotonic(), busy_time_s(), time.thread_time()
        while (waited_s := busy_time_s() - busy_s - (time.thread_time() - used_s)) < 0.1:
            assert time.monotonic() - began_s < 60
        assert waited_s <= time.monotonic() - began_s
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, mine)


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
    assert after["kafka_network_requestmetrics_totaltime_seconds_countFetchConsumer"] >= 1
    assert after["kafka_network_requestchannel_requestqueuesize"] == 0
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


def test_lag_and_unclean_elections_are_counted() -> None:
    """A throttled follower lacks what was committed without it. Then it leads, without what its leader had."""
    lag, unclean = (
        "kafka_server_replicafetchermanager_maxlag",
        "kafka_controller_controllerstats_uncleanleaderelections_total",
    )
    config = {"http.listener": "HTTP://127.0.0.1:0", "replica.fetch.max.bytes": "1024"}
    with Cluster(nodes=3, config=config) as cluster, cluster.admin() as admin:
        throttle = {"leader.replication.throttled.replicas": "*", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic("t", assignments={0: [2, 3]}, configs=throttle)])
        leader = ConfigResource("broker", "2")
        admin.alter_configs({leader: {"leader.replication.throttled.rate": "1"}})
        cluster.wait_for_leader("t", 0)
        cluster.kill(3)
        until(lambda: cluster.isr_of("t", 0) == (2,), "the follower is out of sync")
        with cluster.producer() as producer:
            for _ in range(40):
                producer.send("t", b"x" * 100).result(20)
        cluster.restart(3)
        until(lambda: 0 < values(scrape(cluster, 3))[lag] <= 40, "the follower knows what it lacks")
        assert values(scrape(cluster, 2))[lag] == 0, "it leads"

        cluster.kill(3)
        cluster.kill(2)
        cluster.restart(3)
        until(lambda: cluster.leader_of("t", 0) is None, "nobody has all of it")
        assert sum(values(scrape(cluster, node))[unclean] for node in (1, 3)) == 0
        admin.elect_leaders([TopicPartition("t", 0)], unclean=True)
        until(lambda: cluster.leader_of("t", 0) == 3, "the follower leads")
        assert sum(values(scrape(cluster, node))[unclean] for node in (1, 3)) == 1
        cluster.restart(2)


def test_bytes_and_records_are_counted_by_topic(cluster: Cluster) -> None:
    family = "kafka_server_brokertopicmetrics_"
    with cluster:
        for topic, value in (("a", bytes(1_000)), ("b", bytes(3_000))):
            cluster.create_topic(topic, partitions=2)
            with cluster.producer() as producer, cluster.consumer(auto_offset_reset="earliest") as consumer:
                for partition in range(2):
                    producer.send(topic, value, partition=partition).result(20)
                consumer.assign([(topic, partition) for partition in range(2)])
                seen = 0
                while seen < 2:
                    seen += len(consumer.poll(1.0))
        found = values(scrape(cluster))
        assert found[f"{family}messagesin_totala"] == found[f"{family}messagesin_totalb"] == 2
        for name in ("bytesin_total", "bytesout_total"):
            assert 2_000 < found[f"{family}{name}a"] < 6_000 < found[f"{family}{name}b"]
            assert found[f"{family}{name}a"] + found[f"{family}{name}b"] == found[f"{family}{name}"]
        with cluster.admin() as admin:
            admin.delete_topics(["a"])
        deadline_s = time.monotonic() + 60
        while f"{family}bytesin_totala" in values(scrape(cluster)):
            assert time.monotonic() < deadline_s, "no replica of it is left"
        assert f"{family}bytesin_totalb" in values(scrape(cluster))


def test_a_fetch_in_line_for_memory_is_in_the_request_queue(cluster: Cluster) -> None:
    name = "kafka_network_requestchannel_requestqueuesize"
    with cluster, cluster.consumer() as consumer:
        cluster.create_topic("t")
        broker = cluster.node(1).broker
        assert broker is not None
        budget = broker.fetch_budget
        cluster._call(lambda: budget.use(budget.bytes_max))
        consumer.assign([("t", 0)])
        deadline_s = time.monotonic() + 60
        while values(scrape(cluster))[name] < 1:
            consumer.poll(0.1)
            assert time.monotonic() < deadline_s
        cluster._call(lambda: budget.give(budget.bytes_max))
        assert values(scrape(cluster))[name] == 0


def test_refused_logins_are_counted_at_both_kinds_of_listener() -> None:
    from confluent_kafka import admin as rd

    name = "kafka_server_socket_server_metrics_failed_authentication_total"
    with Cluster(security="scram", config={"http.listener": "HTTP://127.0.0.1:0"}) as cluster:
        denied = "kafka_server_authorizer_metrics_authorization_denied_total"
        before = values(scrape(cluster))
        assert before[name] == before[denied] == 0
        wrong: dict[str, Any] = {**cluster.client_settings(), "sasl_password": "guess"}
        with Admin(cluster.bootstrap, **wrong) as admin, pytest.raises(SaslAuthenticationError):
            admin.list_topics()
        after = values(scrape(cluster))[name]
        assert after > 0
        stranger = rd.AdminClient(
            {
                "bootstrap.servers": cluster.kafka_bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": "guess",
                "log_level": 0,
            }
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while values(scrape(cluster))[name] == after:
            assert time.monotonic() < deadline
            stranger.poll(0.1)
        by_token: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": lambda: "x",
        }
        with Admin(cluster.bootstrap, **by_token) as admin, pytest.raises(SaslAuthenticationError):
            admin.list_topics()
        found = scrape(cluster)
        by_cause = 'tidelog_authentications_refused_total{cause="%s",mechanism="%s"} '
        for mechanism, cause in (("SCRAM-SHA-512", "credentials"), ("OAUTHBEARER", "mechanism")):
            assert by_cause % (cause, mechanism) in found
        cluster.add_user("alice", "hers")
        alice = cluster.client_settings("alice")
        with Admin(cluster.bootstrap, **alice) as admin, pytest.raises(TopicAuthorizationFailedError):
            admin.create_topics([NewTopic("t", 1)])
        assert values(scrape(cluster))[denied] > 0


def test_under_replicated_partitions_are_counted() -> None:
    with Cluster(3, config={"http.listener": "HTTP://127.0.0.1:0", "min.insync.replicas": "2"}) as cluster:
        cluster.create_topic("t", partitions=6)
        cluster.kill(3)
        cluster.wait_for_isr("t", 0, {1, 2})
        for partition in range(6):
            cluster.wait_for_isr("t", partition, {1, 2})
            cluster.wait_for_leader("t", partition, other_than=3)
        names = ("underreplicatedpartitions", "atminisrpartitioncount")
        deadline = time.monotonic() + 60
        while True:  # each node learns of the ISR in its own time
            pages = [values(scrape(cluster, node)) for node in (1, 2)]
            found = [sum(page[f"kafka_server_replicamanager_{name}"] for page in pages) for name in names]
            if found == [6, 6]:
                break
            assert time.monotonic() < deadline, found


def test_health_and_readiness(cluster: Cluster) -> None:
    with cluster:
        assert scrape(cluster, path="/health").splitlines()[0] == "alive"
        assert scrape(cluster, path="/ready") == "ready\n"
