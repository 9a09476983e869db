"""The in-process cluster as a user's test has it: blocking, with kills, cuts and restarts as calls."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import tidelog
from tidelog.client.errors import TidelogError
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import CreateTopicsRequest, CreateTopicsResponse
from tidelog.proto.transport.network import Connection
from tidelog.testing import AsyncCluster, Cluster

ONE_NODE_READY_S = 0.3
"""The product's own bound for one node (issue 2)."""


def test_the_ten_lines_of_a_first_test() -> None:
    with tidelog.testing.Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3, config={"min.insync.replicas": "2"})
        with cluster.producer() as producer:
            sent = [producer.send("orders", b"%d" % n, key=b"%d" % n) for n in range(100)]
            leader = cluster.leader_of("orders", 0)
            assert leader is not None
            cluster.kill(leader)
            sent += [producer.send("orders", b"%d" % n, key=b"%d" % n) for n in range(100, 200)]
            for future in sent:
                future.result(30)
        cluster.restart(leader)
        cluster.wait_for_isr("orders", 0, 3)
        with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([("orders", partition) for partition in range(3)])
            seen: list[int] = []
            while len(seen) < 200:
                seen += [int(record.value or b"") for record in consumer.poll(10.0)]
    assert sorted(seen) == list(range(200))


def test_one_node_is_ready_in_time() -> None:
    with Cluster():
        pass  # imports are paid for here

    def once() -> float:
        cluster = Cluster()
        begun = time.perf_counter()
        cluster.start()
        took = time.perf_counter() - begun
        cluster.stop()
        return took

    # The best of several: other processes of this machine are not what is measured.
    assert min(once() for _ in range(5)) < ONE_NODE_READY_S


@pytest.mark.parametrize("transport", ["memory", "grpc"])
def test_both_transports_and_stopping_in_good_order(transport: str) -> None:
    with Cluster(3, transport=transport) as cluster:
        cluster.create_topic("t", 3)
        cluster.stop_node(2)
        assert cluster.running == [1, 3]
        assert all(cluster.leader_of("t", partition) != 2 for partition in range(3))
        cluster.restart(2)
        cluster.wait_ready()
        assert cluster.running == [1, 2, 3]
        cluster.wait_for_isr("t", 0, {1, 2, 3})


@pytest.mark.parametrize("transport", ["memory", "grpc"])
def test_a_partitioned_node_and_healing(transport: str) -> None:
    with Cluster(3, transport=transport, config={"min.insync.replicas": "2"}) as cluster:
        cluster.create_topic("t", 1)
        old = cluster.wait_for_leader("t", 0)
        cluster.isolate(old, clients=True)
        with cluster.producer() as producer:
            producer.send("t", b"x").result(30)
        assert cluster.wait_for_leader("t", 0, other_than=old) != old
        cluster.heal()
        cluster.wait_ready()
        cluster.wait_for_isr("t", 0, 3)


@pytest.mark.parametrize("transport", ["memory", "grpc"])
def test_a_one_way_cut_holds_one_direction_only(transport: str) -> None:
    with Cluster(3, transport=transport) as cluster:
        cluster.create_topic("t", 1)
        leader = cluster.wait_for_leader("t", 0)
        follower = next(n for n in cluster.node_ids if n != leader)
        cluster.partition(leader, follower, one_way=True)
        with cluster.producer(acks=1) as producer:
            producer.send("t", b"x").result(30)
            end = cluster.node(leader).broker
            assert end is not None
            cluster.wait_for(lambda: _end_of(cluster, leader) == 1, "the leader has it")
            assert _end_of(cluster, follower) == 0
            cluster.heal()
            cluster.wait_for(lambda: _end_of(cluster, follower) == 1, "the follower has it")


def test_a_directory_that_was_given_is_kept_and_can_be_used_again(tmp_path: Path) -> None:
    first = Cluster(1, directory=tmp_path, seed=1)
    with first:
        first.create_topic("t", 2)
        with first.producer() as producer:
            producer.send("t", b"kept", partition=1).result(30)
    assert (tmp_path / "node1").is_dir()
    with Cluster(1, directory=tmp_path, seed=1) as again, again.consumer(auto_offset_reset="earliest") as consumer:
        assert again.cluster_id == first.cluster_id
        consumer.assign([("t", 1)])
        records = consumer.poll(10.0)
        assert [record.value for record in records] == [b"kept"]


def test_a_temporary_directory_is_gone_afterwards() -> None:
    before = set(threading.enumerate())
    with Cluster() as cluster:
        directory = cluster.node_directory(1)
        assert directory.is_dir()
    assert not directory.parent.exists()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith(("quorum", "disk"))]


def test_wrong_arguments_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="nodes: expected at least 1, found 0"):
        Cluster(0)
    with pytest.raises(ValueError, match="transport: expected memory or grpc, found 'carrier pigeon'"):
        Cluster(transport="carrier pigeon")
    with pytest.raises(ValueError, match="controllers: expected 1 to 2, found 3"):
        Cluster(2, controllers=3)
    with pytest.raises(RuntimeError, match="does not run"):
        Cluster().leader_of("t", 0)
    with Cluster() as cluster:
        with pytest.raises(ValueError, match="expected a node of"):
            cluster.kill(7)
        with pytest.raises(TidelogError, match="expected"):
            cluster.create_topic("t", 1, 2)


def test_a_node_that_goes_down_by_itself_fails_the_test_that_uses_it() -> None:
    cluster = Cluster()
    cluster.start()
    node = cluster.node(1)
    cluster._call(lambda: node._supervisor.fail("on purpose", RuntimeError("broken")))
    with pytest.raises(AssertionError, match="node 1 went down by itself: on purpose"):
        cluster.wait_for(lambda: False, "nothing")
    with pytest.raises(AssertionError, match="node 1 went down by itself: on purpose"):
        cluster.stop()


async def test_the_asyncio_form() -> None:
    async with AsyncCluster(3) as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send_and_wait("t", b"x")
        leader = await cluster.wait_for_leader("t", 0)
        await cluster.kill(leader)
        assert await cluster.wait_for_leader("t", 0, other_than=leader) != leader


class LosesTheFirstAnswer:
    """A connection behind which the controller is replaced once the first request took effect."""

    def __init__(self, real: Connection) -> None:
        self._real = real
        self.close = real.close
        self.asked = 0

    async def call(self, request: CreateTopicsRequest, *, timeout_s: float) -> CreateTopicsResponse:
        answer = await self._real.call(request, timeout_s=timeout_s)
        self.asked += 1
        lost = replace(answer.topics[0], error=ErrorCode.REQUEST_TIMED_OUT)
        return answer if self.asked > 1 else CreateTopicsResponse((lost,))


async def test_a_topic_is_created_though_the_controller_changed_meanwhile() -> None:
    async with AsyncCluster() as cluster:
        address = cluster._addresses[NodeId(1)]["CLIENT"]
        connection = LosesTheFirstAnswer(cluster.client_network().connect(address))
        await cluster._create_topic_by(cast("Connection", connection), "t", 1, None, None)
        assert connection.asked == 2
        assert cluster.leader_of("t", 0) == 1
        with pytest.raises(TidelogError, match="exists"):
            await cluster.create_topic("t")


def test_importing_the_package_loads_no_node() -> None:
    code = (
        "import sys, tidelog.testing, tidelog.testing.plugin\n"
        "print([name for name in sys.modules if name.startswith(('tidelog.broker', 'tidelog.storage', 'grpc'))])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _end_of(cluster: Cluster, node_id: int) -> int:
    broker = cluster.node(node_id).broker
    assert broker is not None
    return sum(replica.partition.log.log_end_offset for replica in broker.replicas.replicas.values())


@pytest.mark.parametrize("transport", ["memory", "grpc"])
def test_nodes_know_clients_by_their_client_id(transport: str) -> None:
    with Cluster(transport=transport) as cluster:
        cluster.create_topic("t")
        with cluster.admin(client_id="named-admin") as admin:
            admin.alter_client_quotas({ClientQuotaEntity(client_id=""): {"request_percentage": 1e9}})
            broker = cluster.node(1).broker
            assert broker is not None
            cluster.wait_for(lambda: broker.client_quotas.any_set, "the quota is in force")
            admin.list_topics()
        with cluster.producer(client_id="named-producer") as producer:
            producer.send("t", b"x").result(30)
        with cluster.consumer(client_id="named-consumer", auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert consumer.poll(30.0)
        sensors = broker.client_quotas.request.sensors
        names = {"named-admin", "named-producer", "named-consumer"}
        cluster.wait_for(lambda: names <= {client_id for _, client_id in sensors}, f"sensors of {names}")
