"""Replicas move between the log directories of their broker while they are in use: nothing is lost, and the controller
knows where each one is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable

import pytest

from tests.broker.conftest import Ledger
from tidelog import errors
from tidelog.broker.logs import log_moving
from tidelog.metadata_quorum.image.image import directory_of
from tidelog.model.ids import LOST_DIRECTORY, DirectoryId, NodeId, TopicPartition
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.api import ConfigResource
from tidelog.storage.log.log_manager import LogManager
from tidelog.testing.async_cluster import AsyncCluster

PARTITIONS = 6


def logs_of(cluster: AsyncCluster, node: int) -> LogManager:
    broker = cluster.nodes[NodeId(node)].broker
    assert broker is not None
    return broker.logs


def lies_in(cluster: AsyncCluster, node: int, path: str) -> set[int]:
    (found,) = (each for each in logs_of(cluster, node).describe() if each.path == path)
    return {log.partition for log in found.logs if log.topic == "t"}


def told(cluster: AsyncCluster, node: int, partition: int) -> DirectoryId:
    """The directory that the active controller knows of a replica."""
    found = cluster.image.topic("t")
    assert found is not None
    return directory_of(found.partitions[partition], NodeId(node))


async def everything_to(cluster: AsyncCluster, node: int, number: int) -> None:
    """Move all of a broker's replicas to one of its directories, and wait until the controller knows."""
    target = logs_of(cluster, node).describe()[number]
    async with cluster.admin() as admin:
        await admin.alter_replica_log_dirs({("t", partition, node): target.path for partition in range(PARTITIONS)})
    await cluster.wait_for(lambda: lies_in(cluster, node, target.path) == set(range(PARTITIONS)), "all have moved")
    await cluster.wait_for(
        lambda: all(told(cluster, node, partition) == target.directory_id for partition in range(PARTITIONS)),
        "the controller knows",
    )
    await cluster.wait_for(lambda: not set(logs_of(cluster, node).moves.partitions()), "nothing is left behind")


async def begin(cluster: AsyncCluster, node: int, number: int, partitions: Iterable[int] = range(PARTITIONS)) -> None:
    target = logs_of(cluster, node).describe()[number].path
    async with cluster.admin() as admin:
        await admin.alter_replica_log_dirs({("t", partition, node): target for partition in partitions})


async def throttle(cluster: AsyncCluster, node: int, rate: int | None) -> None:
    """Bytes a second; None: no bound. Returns when the broker knows."""
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    async with cluster.admin() as admin:
        await admin.alter_configs({ConfigResource("broker", str(node)): {name: None if rate is None else str(rate)}})
    broker = cluster.nodes[NodeId(node)].broker
    assert broker is not None
    wanted = LONG_MAX if rate is None else rate
    await cluster.wait_for(
        lambda: broker.settings.node.replica_alter_log_dirs_io_max_bytes_per_second == wanted, "the throttle is known"
    )


def copied(cluster: AsyncCluster, node: int) -> dict[int, int]:
    """Bytes of the copies, by partition."""
    return {move.log.partition: move.copy.size_bytes for move in logs_of(cluster, node).moves.under_way.values()}


async def test_replicas_move_there_and_back_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_moving, "PIECE_BYTES", 2_000)
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(500)
            for node, number in ((1, 1), (2, 0), (1, 0)):
                await everything_to(cluster, node, number)
                await sent.more(300)
            await sent.finish()
        assert not sent.failed
        await sent.judge()
        for node in (1, 2):
            await cluster.restart(node)
            await cluster.wait_ready()
            assert lies_in(cluster, node, logs_of(cluster, node).describe()[0].path) == set(range(PARTITIONS))
        for partition in range(PARTITIONS):
            await cluster.wait_for_isr("t", partition, 3)
        await sent.judge()


async def test_a_move_goes_on_after_a_kill_and_after_a_stop() -> None:
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(300)
            await throttle(cluster, 2, 1)
            await begin(cluster, 2, 1)
            await cluster.wait_for(lambda: any(copied(cluster, 2).values()), "something is copied")
            moving = set(copied(cluster, 2))
            await cluster.kill(2)
            await cluster.restart(2)
            assert set(copied(cluster, 2)) == moving, "a kill ends no move"
            await sent.more(100)
            await cluster.stop_node(2)
            await cluster.restart(2)
            assert set(copied(cluster, 2)) == moving, "a stop ends no move"
            await throttle(cluster, 2, None)
            path = logs_of(cluster, 2).describe()[1].path
            await cluster.wait_for(lambda: lies_in(cluster, 2, path) == set(range(PARTITIONS)), "all have moved")
            await sent.more(100)
            await sent.finish()
        assert not sent.failed
        for partition in range(PARTITIONS):
            await cluster.wait_for_isr("t", partition, 3)
        await sent.judge()


async def test_back_to_where_it_is_ends_a_move() -> None:
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 1)
        await throttle(cluster, 1, 1)
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(300)
            logs = logs_of(cluster, 1)
            here = logs.describe()[0].path
            stayed = lies_in(cluster, 1, here)
            await begin(cluster, 1, 1)
            await cluster.wait_for(lambda: set(copied(cluster, 1)) == stayed, "all move")
            await begin(cluster, 1, 0, stayed)
            assert not copied(cluster, 1)
            await cluster.wait_for(
                lambda: not [name for name in cluster.node_directory(1, 1).iterdir() if "-future" in name.name],
                "the copies are gone",
            )
            assert lies_in(cluster, 1, here) == stayed
            await sent.more(100)
            await sent.finish()
        await sent.judge()


async def test_a_topic_can_be_deleted_while_it_moves() -> None:
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 1)
        await throttle(cluster, 1, 1)
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(300)
            await sent.finish()
        await begin(cluster, 1, 1)
        async with cluster.admin() as admin:
            await admin.delete_topics(["t"])
        await cluster.wait_for(lambda: not copied(cluster, 1), "no move is left")
        await cluster.wait_for(
            lambda: not [name for name in cluster.node_directory(1, 1).iterdir() if "-future" in name.name],
            "the copies are gone",
        )


async def test_a_log_that_moved_to_a_disk_that_dies_before_the_controller_knows_is_not_made_anew() -> None:
    """The controller believes it in the other directory, and the broker has nobody else to get it from."""
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 1)
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(300)
            await sent.finish()
        logs = logs_of(cluster, 1)
        here, there = logs.describe()
        moving = lies_in(cluster, 1, here.path)
        logs.moves.on_moved = lambda key, directory_id: None
        await begin(cluster, 1, 1)
        await cluster.wait_for(lambda: not lies_in(cluster, 1, here.path), "all have moved")
        assert all(told(cluster, 1, partition) == here.directory_id for partition in moving)
        await cluster.kill(1)
        meta = cluster.node_directory(1, 1) / "meta.properties"
        content = meta.read_bytes()
        meta.unlink()
        meta.mkdir()
        await cluster.restart(1)
        broker = cluster.nodes[NodeId(1)].broker
        assert broker is not None
        lost = {key.partition for key in broker.replicas.offline_partitions()}
        assert lost == set(range(PARTITIONS))
        assert not lies_in(cluster, 1, here.path), "an empty log passes for the one that moved"
        await cluster.kill(1)
        meta.rmdir()
        meta.write_bytes(content)
        await cluster.restart(1)
        await cluster.wait_for(
            lambda: all(told(cluster, 1, partition) == there.directory_id for partition in moving), "it is told now"
        )
        await cluster.wait_for(lambda: not set(logs_of(cluster, 1).moves.partitions()), "nothing is left behind")
        await sent.judge()


async def test_with_other_replicas_it_is_called_lost_and_filled_again() -> None:
    async with AsyncCluster(3, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        async with Ledger(cluster, "t", PARTITIONS) as sent:
            await sent.more(300)
            logs = logs_of(cluster, 3)
            here = logs.describe()[0].path
            moving = lies_in(cluster, 3, here)
            logs.moves.on_moved = lambda key, directory_id: None
            await begin(cluster, 3, 1)
            await cluster.wait_for(lambda: not lies_in(cluster, 3, here), "all have moved")
            await cluster.kill(3)
            cluster_directory = cluster.node_directory(3, 1)
            (cluster_directory / "meta.properties").unlink()
            (cluster_directory / "meta.properties").mkdir()
            await cluster.restart(3)
            await cluster.wait_for(
                lambda: all(told(cluster, 3, partition) == LOST_DIRECTORY for partition in moving), "they are lost"
            )
            await sent.more(100)
            await cluster.kill(3)
            shutil.rmtree(cluster_directory)
            await cluster.restart(3)
            for partition in range(PARTITIONS):
                await cluster.wait_for_isr("t", partition, 3)
            await sent.more(100)
            await sent.finish()
        assert not sent.failed
        await sent.judge()


async def test_what_is_refused_and_what_is_remembered() -> None:
    async with AsyncCluster(2, log_dirs=2) as cluster:
        await cluster.create_topic("t", 1, 1)
        leader = await cluster.wait_for_leader("t", 0)
        other = 3 - leader
        here, there = logs_of(cluster, other).describe()
        async with cluster.admin() as admin:
            with pytest.raises(errors.LogDirNotFoundError, match=r"expected one of .*, found /nowhere") as raised:
                await admin.alter_replica_log_dirs({("t", 0, leader): "/nowhere", ("u", 0, leader): here.path})
            assert set(raised.value.failures) == {f"t-0 on broker {leader}", f"u-0 on broker {leader}"}
            with pytest.raises(errors.UnknownTopicOrPartitionError):
                await admin.alter_replica_log_dirs({("t", 1, leader): logs_of(cluster, leader).describe()[0].path})
            for chosen in (here, there, here):  # the last word counts
                with pytest.raises(errors.ReplicaNotAvailableError, match=f"it will lie in {chosen.path}"):
                    await admin.alter_replica_log_dirs({("t", 0, other): chosen.path})
            with pytest.raises(errors.ReplicaNotAvailableError):
                await admin.alter_replica_log_dirs({("t", 0, other): there.path})
            await admin.alter_partition_reassignments({TopicPartition("t", 0): [other]})
            await cluster.wait_for(lambda: lies_in(cluster, other, there.path) == {0}, "it lies where it was to")
            cluster.break_log_dir(other, 0)
            await cluster.wait_for(lambda: has_failed(cluster, other), "the directory is given up")
            with pytest.raises(errors.KafkaStorageError, match="is out of service"):
                await admin.alter_replica_log_dirs({("t", 0, other): here.path})


async def test_replicas_without_records_move_too() -> None:
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", PARTITIONS, 1)
        await everything_to(cluster, 1, 1)
        await everything_to(cluster, 1, 0)


async def test_it_copies_no_faster_than_allowed() -> None:
    async with AsyncCluster(1, log_dirs=2) as cluster:
        await cluster.create_topic("t", 1, 1)
        logs = logs_of(cluster, 1)
        async with cluster.producer(batch_size=10_000, linger_ms=0) as producer:
            for _ in range(200):
                await producer.send_and_wait("t", b"x" * 10_000)
        (log,) = [log for log in logs.logs() if log.topic == "t"]
        await throttle(cluster, 1, 1_000_000)
        target = next(found for found in logs.describe() if not log.directory.startswith(f"{found.path}/"))
        loop = asyncio.get_running_loop()
        async with cluster.admin() as admin:
            began = loop.time()
            await admin.alter_replica_log_dirs({("t", 0, 1): target.path})
            seen = set()
            async with asyncio.timeout(60):
                while not log.directory.startswith(f"{target.path}/"):
                    (found,) = (await admin.describe_log_dirs([1])).values()
                    seen |= {(one.is_future, one.offset_lag > 0) for each in found for one in each.replicas}
                    await asyncio.sleep(0.05)
        assert loop.time() - began >= log.size_bytes / 1_000_000 - 0.5
        assert (True, True) in seen
        assert (False, True) not in seen


def has_failed(cluster: AsyncCluster, node: int) -> bool:
    return bool(logs_of(cluster, node).failures) or bool(
        [info for info in logs_of(cluster, node).describe() if info.failure]
    )
