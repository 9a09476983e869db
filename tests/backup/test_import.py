"""Records that come with their offsets: what a leader takes, and what it refuses without a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.admin.types import OffsetSpec
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse
from tidelog.proto.records.batches import patch_batch
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.testing import Cluster

AT = TopicPartition("t", 0)
NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as found:
        found.create_topic("t", 1, 3)
        yield found


def batch(offset: int, epoch: int = 77) -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, b"k", str(offset).encode())
    builder.append(1_000, b"k", str(offset + 1).encode())
    out = builder.build()
    patch_batch(out, 0, base_offset=offset, leader_epoch=epoch)
    return bytes(out)


def test_offsets_are_kept_gaps_too_and_what_is_repeated_or_does_not_fit_changes_nothing(cluster: Cluster) -> None:
    async def work() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin._cluster.refreshed()
            (topic,) = await admin.describe_topics(["t"])
            epoch, leader = topic.partitions[0].leader_epoch, topic.partitions[0].leader

            async def put(
                records: bytes, end: int = 0, *, epoch: int = epoch, topic_id: TopicId = topic.topic_id
            ) -> ImportRecordsResponse:
                request = ImportRecordsRequest(topic_id, 0, LeaderEpoch(epoch), Offset(end), records)
                return await admin._cluster.call(request, timeout_ms=10_000, node=leader)

            async def ends() -> int:
                return (await admin.list_offsets({AT: OffsetSpec.latest()}))[AT].offset

            assert (await put(batch(3), 2)).error is ErrorCode.OFFSET_OUT_OF_RANGE
            spoiled = bytearray(batch(3))
            spoiled[-1] ^= 1
            assert (await put(bytes(spoiled))).error is ErrorCode.CORRUPT_MESSAGE
            assert (await put(b"no batch")).error is ErrorCode.CORRUPT_MESSAGE
            assert (await put(batch(3), epoch=epoch + 1)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
            assert (await put(batch(3), topic_id=TopicId(b"x" * 16))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await ends() == 0
            assert await put(batch(3)) == ImportRecordsResponse(NONE, Offset(5))
            assert await put(batch(10) + batch(12), 5) == ImportRecordsResponse(NONE, Offset(14))
            assert (await put(batch(10) + batch(12), 5)).error is NONE
            assert await ends() == 14

    asyncio.run(work())
    for node in (None, cluster.leader_of("t", 0)):
        if node is not None:  # the follower has the same
            cluster.kill(node)
        with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([AT])
            found: list[int] = []
            while len(found) < 6:
                found += [record.offset for record in consumer.poll(1)]
        assert found == [3, 4, 10, 11, 12, 13]
