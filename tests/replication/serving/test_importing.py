"""Records of a restore: a thread writes them, and until then they count for nothing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.replication.managers import Broker, Cluster, MakeCluster
from tests.replication.rig import TOPIC_ID
from tests.virtual_time import in_virtual_time
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse
from tidelog.proto.records.encoder import encode_values
from tidelog.storage.disk.files import SystemFile

Answer = asyncio.Task[ImportRecordsResponse]


class Writing:
    """A disk that keeps its writes until the test lets it go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, action: Callable[[], None]) -> None:
        self.begun.set()
        await self.let_go.wait()
        action()


@asynccontextmanager
async def restoring(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Cluster, Writing, Callable[[], Answer]]]:
    """A partition with one replica, on a disk that is about to get two records."""
    monkeypatch.setattr("tidelog.replication.serving.importing.BULK_BYTES", 1)
    async with cluster() as c:
        c.create(leader=1, isr=(1,))
        c.change(replicas=(NodeId(1),))
        writing = c[1].run_blocking = Writing()

        def send() -> Answer:
            records = bytes(encode_values([b"a", b"b"], 1_000))
            request = ImportRecordsRequest(TOPIC_ID, 0, LeaderEpoch(-1), Offset(0), records, 30_000)
            return asyncio.ensure_future(c[1].manager.importing.take(request))

        yield c, writing, send


def facts(broker: Broker) -> tuple[int, int]:
    """The high watermark, and how long the log's file is."""
    partition = broker.partition()
    return partition.high_watermark, partition.log._chain.active.log.get().size()


@in_virtual_time
async def test_they_are_answered_and_shown_once_they_are_written(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with restoring(cluster, monkeypatch) as (c, writing, send):
        sent, reading = send(), c[1].poll(wait_ms=20_000)
        await writing.begun.wait()
        await asyncio.sleep(10)  # and the loop goes on
        assert facts(c[1]) == (0, 0)
        assert not sent.done()
        assert not reading.done()
        writing.let_go.set()
        assert (await sent).error is ErrorCode.NONE
        assert facts(c[1])[0] == 2
        assert (await reading).partitions[0].high_watermark == 2
        assert c[1].values() == [b"a", b"b"]


@in_virtual_time
async def test_repeated_meanwhile_they_are_written_once(cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with restoring(cluster, monkeypatch) as (c, writing, send):
        sent = send()
        await writing.begun.wait()
        assert (await send()).log_end_offset == 2, "this one does not wait for the thread"
        assert facts(c[1])[0] == 2
        writing.let_go.set()
        assert (await sent).error is ErrorCode.NONE
        assert c[1].values() == [b"a", b"b"]


@in_virtual_time
async def test_a_full_disk_fails_as_with_any_other_write(cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: SystemFile, buffers: Sequence[Buffer], offset: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(SystemFile, "pwritev_once", full)
    async with restoring(cluster, monkeypatch) as (c, writing, send):
        writing.let_go.set()
        answer = await send()
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "no room" in answer.error_message
        assert c[1].partition().offline
        assert c[1].partition().high_watermark == 0


@in_virtual_time
async def test_a_leadership_that_ends_meanwhile_does_not_answer_for_them(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with restoring(cluster, monkeypatch) as (c, writing, send):
        sent = send()
        await writing.begun.wait()
        c.change(leader=NodeId(-1))
        writing.let_go.set()
        assert (await sent).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert c[1].partition().high_watermark == 0
