"""What a restore refuses to touch, check by check: a backup goes back into the cluster that it was made from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidelog import TopicPartition
from tidelog.client.backup import restoring
from tidelog.client.backup.creating import BackupMaker
from tidelog.client.backup.restoring import BackupRestorer
from tidelog.proto.backups.manifest import BackupError
from tidelog.proto.backups.place import Directory
from tidelog.testing import Cluster

AT = TopicPartition("t", 0)


async def made(cluster: Cluster, directory: Path) -> None:
    async with BackupMaker(cluster.bootstrap) as maker:
        await maker.create_backup(Directory(directory))


async def restored(cluster: Cluster, directory: Path) -> None:
    async with BackupRestorer(cluster.bootstrap) as restorer:
        await restorer.restore(Directory(directory))


def test_topics_groups_and_records_of_others_are_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "PATIENCE_S", 1)
    with Cluster(nodes=1, transport="grpc") as cluster, cluster.admin() as admin, cluster.producer() as producer:

        def refused(said: str) -> None:
            with pytest.raises(BackupError, match=said):
                asyncio.run(restored(cluster, tmp_path / "b"))

        cluster.create_topic("t", 1)
        producer.send("t", b"one").result()
        admin.alter_consumer_group_offsets("readers", {AT: 1})
        asyncio.run(made(cluster, tmp_path / "b"))
        asyncio.run(restored(cluster, tmp_path / "b"))  # as an attempt that ended before it said so
        admin.alter_consumer_group_offsets("others", {AT: 0})
        refused("expected an empty cluster, found groups 'others'")
        admin.delete_consumer_groups(["others"])
        admin.alter_consumer_group_offsets("readers", {AT: 0})
        refused("expected a cluster without a group 'readers'")
        admin.alter_consumer_group_offsets("readers", {AT: 1})
        producer.send("t", b"two").result()
        refused("t-0: expected at most the backup's records, up to offset 1, found 2: somebody has written")
        admin.delete_topics(["t"])
        cluster.create_topic("t", 1)
        refused("expected a cluster without a topic 't'")
