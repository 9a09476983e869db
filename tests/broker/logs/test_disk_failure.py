"""A failed log directory goes out of service alone: its replicas move, the node and its other directories go on."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.broker.conftest import Ledger
from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import DescribeLogDirsRequest, MetadataRequest
from tidelog.testing.async_cluster import AsyncCluster

PARTITIONS = 8


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_one_directory_fails_alone(error: int) -> None:
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        broker = cluster.nodes[NodeId(1)].broker
        assert broker is not None
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(200)
            lost = {log.partition for log in broker.logs.describe()[0].logs}
            assert 0 < len(lost) < PARTITIONS
            cluster.break_log_dir(1, 0, error)
            for partition in range(PARTITIONS):
                whole = {1, 2, 3} - ({1} if partition in lost else set())
                await cluster.wait_for_isr("t", partition, whole)
            await cluster.wait_for(
                lambda: all(cluster.leader_of("t", p) != 1 for p in lost), "the failed replicas lead nothing"
            )
            await sent.more(200)
            await sent.finish()
        assert not sent.failed
        await sent.judge()
        assert broker.standing is BrokerStanding.RUNNING
        assert cluster.failures == []
        address = cluster.nodes[NodeId(1)].client_address
        assert address is not None
        connection = cluster.client_network().connect(address)
        dirs = (await connection.call(DescribeLogDirsRequest(), timeout_s=10)).dirs
        assert [found.error for found in dirs] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
        assert {replica.partition for replica in dirs[1].replicas} == set(range(PARTITIONS)) - lost
        known = (await connection.call(MetadataRequest(("t",)), timeout_s=10)).topics[0].partitions
        assert {p.partition for p in known if 1 in p.offline_replicas} == lost
        await connection.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_a_node_without_a_directory_that_works_goes_down_and_is_back_when_it_has_one(error: int) -> None:
    async with AsyncCluster(3) as cluster:
        await cluster.create_topic("t", 2, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", 2) as sent:
            await sent.more(100)
            cluster.break_log_dir(1, 0, error)
            await sent.more(100)
            await cluster.wait_for(lambda: NodeId(1) not in cluster.nodes, "the node has gone down")
            for partition in range(2):
                await cluster.wait_for_isr("t", partition, {2, 3})
            await cluster.restart(1)
            for partition in range(2):
                await cluster.wait_for_isr("t", partition, 3)
            await sent.more(100)
            await sent.finish()
        assert not sent.failed
        await sent.judge()


@pytest.mark.parametrize("number", [0, 1])
async def test_a_node_whose_metadata_log_lies_in_the_failed_directory_goes_down(number: int, tmp_path: Path) -> None:
    settings = {"metadata.log.dir": str(tmp_path / "node1" / "data1")}
    cluster = AsyncCluster(1, log_dirs=2, directory=tmp_path, config=settings)
    await cluster.start()
    await cluster.create_topic("t", 4, 1)
    broker = cluster.nodes[NodeId(1)].broker
    assert broker is not None
    failing = broker.logs.describe()[number]
    assert failing.path.endswith(f"data{number}")
    broker.logs.fail(failing.logs[0], OSError(errno.EIO, "broken"))
    if number == 0:
        assert cluster.failures == []
        await cluster.stop()
    else:
        with pytest.raises(AssertionError, match=r"went down by itself: log directory .*data1 is out of service"):
            await cluster.stop()


async def test_a_replaced_disk_is_filled_again() -> None:
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(200)
            cluster.break_log_dir(2, 1)
            await cluster.wait_for(
                lambda: any(2 not in cluster.isr_of("t", p) for p in range(PARTITIONS)), "the controller was told"
            )
            await cluster.restart(2)
            for partition in range(PARTITIONS):
                await cluster.wait_for_isr("t", partition, 3)
            await sent.finish()
        assert not sent.failed
        await sent.judge()


async def test_a_directory_that_is_broken_at_the_start_is_left_out() -> None:
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(100)
            await cluster.kill(3)
            (cluster.node_directory(3, 0) / "meta.properties").unlink()
            (cluster.node_directory(3, 0) / "meta.properties").mkdir()
            await cluster.restart(3)
            await cluster.wait_ready()
            await sent.more(100)
            await sent.finish()
        broker = cluster.nodes[NodeId(3)].broker
        assert broker is not None
        assert [found.failure is None for found in broker.logs.describe()] == [False, True]
        assert not sent.failed
        await sent.judge()


@pytest.mark.parametrize("log_dirs", [1, 2])
async def test_disks_replaced_by_empty_ones_are_filled_again(log_dirs: int) -> None:
    async with AsyncCluster(3, log_dirs=log_dirs) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(200)
            await cluster.kill(3)
            cluster.wipe_logs(3)
            await cluster.restart(3)
            for partition in range(PARTITIONS):
                await cluster.wait_for_isr("t", partition, 3)
            await sent.more(100)
            await sent.finish()
        assert not sent.failed
        await sent.judge()


async def test_one_of_two_disks_replaced_does_not_lead_with_an_empty_log() -> None:
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", 4, 1)
        async with cluster.producer() as producer:
            for partition in range(4):
                await producer.send_and_wait("t", b"precious", partition=partition)
        broker = cluster.nodes[NodeId(1)].broker
        assert broker is not None
        lost = {log.partition for log in broker.logs.describe()[0].logs}
        assert 0 < len(lost) < 4
        await cluster.kill(1)
        shutil.rmtree(cluster.node_directory(1, 0))
        await cluster.restart(1)
        await cluster.wait_for(
            lambda: all(cluster.leader_of("t", p) == 1 for p in set(range(4)) - lost), "what is left is led"
        )
        assert all(cluster.leader_of("t", p) is None for p in lost), "an empty log must not pass for the topic's"
