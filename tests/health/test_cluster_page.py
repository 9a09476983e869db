"""``/cluster/health`` of a node says what ``tidelog status`` says, as far as the node knows it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tidelog import Admin, ConfigResource
from tidelog.broker.health.look import as_object, look_at
from tidelog.broker.health.progress import Windows
from tidelog.cli.work.health_facts import Asker
from tidelog.testing import Cluster

RULES = (
    "no-active-controller", "brokers-fenced", "partitions-offline", "partitions-under-min-isr",
    "partitions-under-replicated", "reassignments",
)  # fmt: skip


def page(cluster: Cluster, node: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{cluster.node(node).http_address}/cluster/health", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def told(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(one["severity"], one["rule"], one["what"]) for one in found["findings"] if one["rule"] in RULES]


def wait_for(cluster: Cluster, node: int, *rules: str) -> tuple[int, dict[str, Any]]:
    deadline = time.monotonic() + 60
    while True:
        status, found = page(cluster, node)
        if {rule for _, rule, _ in told(found)} == set(rules):
            return status, found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def status_of(admin: Admin) -> dict[str, Any]:
    return as_object(look_at(Asker(admin, {}, Windows())))


def test_a_nodes_page_agrees_with_status_and_its_status_code_says_if_it_is_critical() -> None:
    config = {"min.insync.replicas": "2", "http.listener": "HTTP://127.0.0.1:0"}
    with Cluster(3, config=config) as cluster, cluster.admin() as admin:
        cluster.create_topic("t", partitions=4)
        controller = cluster.controller()
        assert controller is not None
        first, second = (node for node in (1, 2, 3) if node != controller)
        status, found = wait_for(cluster, controller)
        assert "3 of 3 brokers; 3 of 3 controllers; 4 partitions, each with a leader" in found["summary"]
        assert {"groups-behind", "feature-levels"} <= found["rules_not_asked"].keys()
        if found["status"] != "critical":  # this machine's disk may be full
            assert status == 200

        cluster.kill(first)
        _, found = wait_for(cluster, controller, "brokers-fenced", "partitions-under-replicated")
        assert told(found) == told(status_of(admin))
        admin.alter_configs({ConfigResource("topic", "t"): {"min.insync.replicas": "3"}})
        status, found = wait_for(cluster, controller, "brokers-fenced", "partitions-under-min-isr")
        assert (status, found["status"]) == (503, "critical")
        assert told(found) == told(status_of(admin))
        cluster.kill(second)
        status, found = wait_for(
            cluster, controller, "no-active-controller", "brokers-fenced", "partitions-under-min-isr"
        )
        assert status == 503
        assert all(one["since_ms"] or one["before_ms"] for one in found["findings"])
