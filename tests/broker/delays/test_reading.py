"""What a leader makes of reads of a delay topic that find nothing: a record is never taken for deleted by mistake."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tidelog.broker.coordinators.delays.reading import DelayLog, NotRead
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicId, TopicIdPartition
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.proto.transport.frames import FetchedPartition, FetchRequest, FetchResponse
from tidelog.replication.manager import ReplicaManager

KEY = TopicIdPartition(TopicId(b"t" * 16), 0)


class OneBatch:
    """A partition whose log begins at an offset, and of which reads find so much."""

    def __init__(self, log_start: int, records: bytes = b"") -> None:
        self._found = FetchedPartition(*KEY, ErrorCode.NONE, log_start_offset=Offset(log_start), records=[records])

    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        answered.set_result(FetchResponse(ErrorCode.NONE, [self._found]))
        return answered


def log_of(partition: OneBatch) -> DelayLog:
    return DelayLog(cast(ReplicaManager, partition), KEY, LeaderEpoch(1))


async def test_a_record_that_is_not_found_is_deleted_only_below_the_logs_start() -> None:
    builder = BatchBuilder()
    builder.append(5, None, b"v")
    partition = OneBatch(0, bytes(builder.build()))
    found = await log_of(partition).look_up(Offset(0))
    assert found is not None
    assert found.value == b"v"
    assert await log_of(OneBatch(1)).look_up(Offset(0)) is None
    with pytest.raises(NotRead, match="expected a record at 7, found none"):
        await log_of(OneBatch(1)).look_up(Offset(7))


class Batches:
    """A partition with batches of one record each."""

    def __init__(self, value: bytes, count: int) -> None:
        self.batches = []
        for offset in range(count):
            builder = BatchBuilder()
            builder.append(5, None, value)
            batch = builder.build()
            batch[:8] = offset.to_bytes(8)
            self.batches.append(bytes(batch))
        self.read: list[int] = []

    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        [wanted] = request.partitions
        self.read.append(wanted.fetch_offset)
        found = FetchedPartition(
            *KEY, ErrorCode.NONE, log_start_offset=Offset(0), records=[self.batches[wanted.fetch_offset]]
        )
        answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        answered.set_result(FetchResponse(ErrorCode.NONE, [found]))
        return answered


@pytest.mark.parametrize(("size", "kept"), [(1_000_000, 8), (10, 30)])
async def test_records_are_kept_up_to_a_size(size: int, kept: int) -> None:
    count = 30
    partition = Batches(b"v" * size, count)
    log = DelayLog(cast(ReplicaManager, partition), KEY, LeaderEpoch(1))
    for offset in [*range(count), *reversed(range(count))]:
        found = await log.look_up(Offset(offset))
        assert found is not None
        assert found.offset == offset
    assert partition.read == [*range(count), *reversed(range(count - kept))]
