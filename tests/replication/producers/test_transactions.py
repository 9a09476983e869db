"""Transactions in a partition: markers, the last stable offset, read_committed, producers."""

from __future__ import annotations

import asyncio

import pytest

from tests.replication.managers import Broker, Cluster, MakeCluster
from tests.replication.rig import MakeRig, Rig, TransactionFields
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, Offset, ProducerEpoch, ProducerId
from tidelog.proto.calls.api import LATEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    DescribeProducersRequest,
    ProducerDescription,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, ControlMarker, decode_control
from tidelog.storage.producers.append_checks import LogAppend, Origin


def txn(producer: int, epoch: int, sequence: int) -> TransactionFields:
    return {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": True,
        "transactional_id": f"tx-{producer}",
    }


def batches(broker: Broker) -> list[Batch]:
    log = broker.partition().log
    read = log.read(log.log_start_offset, 1 << 20, offset_end=log.log_end_offset)
    assert not isinstance(read, Refusal)
    return split_batches(read.records)


def cut(c: Cluster, a: int, b: int) -> None:
    c.fabric.cut(f"node-{a}", f"node-{b}")
    c.fabric.cut(f"node-{b}", f"node-{a}")


def heal(c: Cluster, a: int, b: int) -> None:
    c.fabric.heal(f"node-{a}", f"node-{b}")
    c.fabric.heal(f"node-{b}", f"node-{a}")


# --- markers ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_marker_is_a_control_batch_that_is_replicated_before_it_is_answered(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 3, 0))
        assert await c[1].mark(7, 4, committed=True, coordinator_epoch=9) is ErrorCode.NONE
        for node in (1, 2, 3):
            found = batches(c[node])[-1]
            assert decode_control(found) == ControlMarker(ControlKind.COMMIT, 9)
            assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 4, -1)
            assert found.is_transactional
        assert c[1].partition().high_watermark == 2
        assert c[1].manager.marking.written == 1


@in_virtual_time
async def test_epochs_of_coordinators_and_producers_fence(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 3, 0))
        assert await c[1].mark(7, 2, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await c[1].mark(7, 4, coordinator_epoch=9) is ErrorCode.NONE
        assert await c[1].mark(7, 4, coordinator_epoch=8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await c[1].mark(7, 4, coordinator_epoch=10) is ErrorCode.NONE
        late = await c[1].produce(b"late", **txn(7, 3, 1))
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert c[1].partition().log.log_end_offset == 3


@in_virtual_time
async def test_a_late_marker_of_the_second_protocol_ends_no_later_transaction(cluster: MakeCluster) -> None:
    """The marker of the transaction with epoch 3 bears 4, and so does the transaction that follows (KIP-1228)."""
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 3, 0))
        assert await c[1].mark(7, 4) is ErrorCode.NONE
        assert await c[1].mark(7, 4) is ErrorCode.NONE, "its repetition harms nothing"
        await c[1].produce(b"b", **txn(7, 4, 0))
        assert await c[1].mark(7, 4, committed=False) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert c[1].partition().last_stable_offset == 3
        assert await c[1].mark(7, 5) is ErrorCode.NONE
        assert c[1].partition().last_stable_offset == c[1].partition().high_watermark == 5


@in_virtual_time
async def test_a_marker_of_the_first_protocol_bears_its_transactions_epoch(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 3, 0))
        assert await c[1].mark(7, 3, version=1) is ErrorCode.NONE
        assert c[1].partition().last_stable_offset == 2
        assert (await c[1].produce(b"b", **txn(7, 3, 1))).error is ErrorCode.NONE


@in_virtual_time
async def test_a_marker_where_nothing_is_open_is_written_and_makes_the_epoch_known(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        assert await c[1].mark(7, 4) is ErrorCode.NONE
        assert (await c[1].produce(b"a", **txn(7, 3, 0))).error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert c[1].partition().log.log_end_offset == 1
        assert not c[1].partition().log.aborted_within(0, 1)


@in_virtual_time
async def test_markers_of_many_transactions_in_one_request(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2)
        for partition in (0, 1):
            for producer in (7, 8):
                await c[1].produce(b"x", partition=partition, **txn(producer, 0, 0))
        both = (GroupPartition("t", 0), GroupPartition("t", 1), GroupPartition("t", 5))
        request = WriteTxnMarkersRequest(
            (
                TransactionMarker(ProducerId(7), ProducerEpoch(1), True, 0, both),
                TransactionMarker(ProducerId(8), ProducerEpoch(0), True, 0, both[:1]),
                TransactionMarker(ProducerId(8), ProducerEpoch(1), False, 0, both[:2]),
            )
        )
        answer = await c[1].manager.write_markers(request)
        assert [marker.producer_id for marker in answer.markers] == [7, 8, 8]
        assert [[found.error for found in marker.results] for marker in answer.markers] == [
            [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [ErrorCode.INVALID_PRODUCER_EPOCH],
            [ErrorCode.NONE, ErrorCode.NONE],
        ]
        assert [found.partition for found in answer.markers[0].results] == [0, 1, 5]
        assert c[1].partition(1).last_stable_offset == 4
        elsewhere = await c[2].manager.write_markers(request)
        assert elsewhere.markers[0].results[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_virtual_time
async def test_a_marker_waits_for_the_in_sync_replicas(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, min_insync_replicas=2)
        await c[1].produce(b"a", **txn(7, 0, 0))
        cut(c, 1, 2)
        cut(c, 1, 3)
        pending = asyncio.ensure_future(c[1].mark(7, 1))
        await asyncio.sleep(1)
        assert not pending.done()
        assert c[1].partition().last_stable_offset == 0, "appended, not committed"
        given_up = asyncio.ensure_future(c[1].mark(7, 1))
        await asyncio.sleep(0.1)
        given_up.cancel()
        await asyncio.sleep(0.1)
        assert c[1].manager.producing.budget.waiting == 1
        c.change(leader=NodeId(2))
        assert await pending is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert c[1].manager.producing.budget.waiting == 0
        c.change(leader=NodeId(1), isr=(1,))
        assert await c[1].mark(7, 1) is ErrorCode.NOT_ENOUGH_REPLICAS


@in_virtual_time
async def test_markers_that_wait_are_bounded(cluster: MakeCluster) -> None:
    async with cluster(produce_waiters_max=1) as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 0, 0))
        cut(c, 1, 2)
        waiting = asyncio.ensure_future(c[1].mark(7, 1))
        await asyncio.sleep(0.1)
        assert await c[1].mark(7, 1) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        heal(c, 1, 2)
        assert await waiting is ErrorCode.NONE


# --- what consumers see -------------------------------------------------------------------------------


@in_virtual_time
async def test_read_committed_ends_at_the_last_stable_offset_and_names_what_was_aborted(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"plain")  # 0
        await c[1].produce(b"a", **txn(7, 0, 0))  # 1
        await c[1].produce(b"b", **txn(8, 0, 0))  # 2
        await c[1].mark(7, 1, committed=False)  # 3
        await c[1].produce(b"plain")  # 4
        answer = (await c[1].poll(0, read_committed=True)).partitions[0]
        assert (answer.high_watermark, answer.last_stable_offset) == (5, 2)
        assert [batch.base_offset for batch in split_batches(b"".join(answer.records))] == [0, 1]
        assert list(answer.aborted) == [(7, 1)], "its marker lies beyond what is returned"
        answer = (await c[1].poll(0)).partitions[0]
        assert len(split_batches(b"".join(answer.records))) == 5
        assert not answer.aborted
        await c[1].mark(8, 1, committed=False)  # 5
        answer = (await c[1].poll(0, read_committed=True)).partitions[0]
        assert answer.last_stable_offset == 6
        assert list(answer.aborted) == [(7, 1), (8, 2)]
        answer = (await c[1].poll(4, read_committed=True)).partitions[0]
        assert list(answer.aborted) == [(8, 2)]
        one = (await c[1].poll(0, read_committed=True, bytes_max=1)).partitions[0]
        assert [batch.base_offset for batch in split_batches(b"".join(one.records))] == [0]
        assert not one.aborted


@in_virtual_time
async def test_a_waiting_fetch_hears_of_the_marker_and_of_nothing_before(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        loop = asyncio.get_running_loop()
        waiting = c[1].poll(0, wait_ms=60_000, read_committed=True)
        await c[1].produce(b"a", **txn(7, 0, 0))
        await c[1].produce(b"plain")
        await asyncio.sleep(1)
        assert not waiting.done()
        begun = loop.time()
        await c[1].mark(7, 1)
        answer = (await waiting).partitions[0]
        assert loop.time() - begun < 0.01
        assert [batch.base_offset for batch in split_batches(b"".join(answer.records))] == [0, 1, 2]


@in_virtual_time
async def test_a_marker_counts_once_it_is_committed(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 0, 0))
        cut(c, 1, 2)
        pending = asyncio.ensure_future(c[1].mark(7, 1, committed=False))
        await asyncio.sleep(0.1)
        assert c[1].partition().log.producers.first_open_offset is None
        assert c[1].partition().last_stable_offset == 0
        waiting = c[1].poll(0, wait_ms=60_000, read_committed=True)
        await asyncio.sleep(1)
        assert not waiting.done()
        heal(c, 1, 2)
        assert await pending is ErrorCode.NONE
        assert list((await waiting).partitions[0].aborted) == [(7, 0)]


@in_virtual_time
async def test_the_latest_offset_of_read_committed(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"plain")
        await c[1].produce(b"a", **txn(7, 0, 0))
        item = ListOffsetsPartition("t", 0, LATEST_TIMESTAMP)
        found = [
            c[1].manager.list_offsets(ListOffsetsRequest((item,), read_committed=isolated)).results[0].offset
            for isolated in (False, True)
        ]
        assert found == [2, 1]


@in_virtual_time
async def test_records_deleted_within_an_open_transaction(cluster: MakeCluster) -> None:
    """As in Kafka, the last stable offset is then the log's start."""
    async with cluster() as c:
        c.create(leader=1)
        for sequence in range(4):
            await c[1].produce(b"a", **txn(7, 0, sequence))
        c[1].partition().log.advance_log_start(2)
        assert c[1].partition().last_stable_offset == 2


@in_virtual_time
async def test_the_next_leader_knows_what_the_last_one_knew(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a", **txn(7, 0, 0))
        await c[1].produce(b"b", **txn(8, 0, 0))
        await c[1].mark(7, 1, committed=False, coordinator_epoch=5)
        await asyncio.sleep(1)
        c[1].kill()
        c.change(leader=NodeId(2), isr=(2, 3))
        answer = (await c[2].poll(0, read_committed=True)).partitions[0]
        assert answer.last_stable_offset == 1
        assert list(answer.aborted) == [(7, 0)]
        assert await c[2].mark(7, 1, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert (await c[2].produce(b"more", **txn(8, 0, 1))).error is ErrorCode.NONE
        assert not c[2].asked, "its transaction is open here as well"
        assert await c[2].mark(8, 1, committed=False) is ErrorCode.NONE
        assert c[2].partition().last_stable_offset == c[2].partition().high_watermark
        await c[1].start()
        c.tell(*c.states.values())
        await c[2].produce(b"last")
        await asyncio.sleep(5)
        known = [c[node].partition().log.aborted_within(0, 6) for node in (1, 2, 3)]
        assert known[0] == known[1] == known[2]
        assert [found[:3] for found in known[0]] == [(0, 7, 2), (1, 8, 4)]


@in_virtual_time
async def test_producers_as_described(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"plain")
        await c[1].produce(b"a", b"b", **txn(7, 3, 0))
        await c[1].mark(8, 2, coordinator_epoch=6)
        now_ms = c[1].manager.clock.now_ms()
        places = (GroupPartition("t", 0), GroupPartition("t", 9))
        found = c[1].manager.describe_producers(DescribeProducersRequest(places)).partitions
        assert (found[0].error, found[0].leader) == (ErrorCode.NONE, 1)
        assert [each.producer_id for each in found[0].producers] == [7, 8]
        first = found[0].producers[0]
        assert first == ProducerDescription(ProducerId(7), ProducerEpoch(3), 1, first.last_timestamp_ms, -1, Offset(1))
        assert 0 <= now_ms - first.last_timestamp_ms < 1_000
        second = found[0].producers[1]
        assert (second.coordinator_epoch, second.last_sequence, second.transaction_start_offset) == (6, -1, -1)
        assert found[1].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elsewhere = c[2].manager.describe_producers(DescribeProducersRequest(places)).partitions[0]
        assert (elsewhere.error, elsewhere.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
        assert elsewhere.error_message
        anybody = c[2].manager.describe_producers(DescribeProducersRequest(places, any_replica=True)).partitions
        assert (anybody[0].error, anybody[0].leader, anybody[1].error) == (ErrorCode.NONE, 1, found[1].error)
        known = [(each.producer_id, each.transaction_start_offset) for each in anybody[0].producers]
        assert known == [(7, 1), (8, -1)]


# --- logs that part ways --------------------------------------------------------------------------------


def marker(r: Rig, node: int, producer: int, epoch: int, *, abort: bool = False) -> LogAppend:
    from tidelog.proto.records.control_batches import encode_control_batch

    raw = encode_control_batch(
        ControlKind.ABORT if abort else ControlKind.COMMIT,
        timestamp=r.now_ms,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=0,
    )
    made = r[node].p.append(split_batches(raw), 1, r.now_ms, r.now_ms, origin=Origin.COORDINATOR)
    assert isinstance(made, LogAppend), made
    r[node].p.advance(r.now_ms)
    return made


def open_one(r: Rig, node: int, producer: int, *values: bytes, sequence: int = 0) -> LogAppend:
    return r.wrote(node, *values, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True)


@pytest.mark.parametrize("abort", [True, False])
def test_a_marker_that_is_cut_away_leaves_the_transaction_open(rig: MakeRig, abort: bool) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    open_one(r, 1, 7, b"a")
    r.sync(2, 3)
    marker(r, 1, 7, 1, abort=abort)
    assert r[1].p.last_stable_offset == 0
    r.lead(2, (2, 3))
    open_one(r, 2, 7, b"b", sequence=1)
    r.sync(1, 3)
    for node in (1, 2, 3):
        assert r[node].p.last_stable_offset == 0
        assert r[node].log.aborted_within(0, 0) == []
        producer = r[node].log.producers.get(7)
        assert producer is not None
        assert producer.epoch == 0
    marker(r, 2, 7, 1, abort=True)
    r.sync(1, 3)
    for node in (1, 2, 3):
        assert r[node].p.last_stable_offset == 3
        assert [each[:3] for each in r[node].log.aborted_within(0, 3)] == [(0, 7, 2)]


def test_an_open_transaction_that_is_cut_away_is_gone(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    open_one(r, 1, 8, b"kept")
    r.sync(2, 3)
    open_one(r, 1, 7, b"lost")
    marker(r, 1, 8, 1, abort=True)
    r.lead(2, (2, 3))
    marker(r, 2, 8, 1)
    r.wrote(2, b"x")
    r.sync(1, 3)
    for node in (1, 2, 3):
        assert r[node].p.last_stable_offset == r[node].p.high_watermark == 3
        assert r[node].log.producers.get(7) is None
        assert r[node].log.aborted_within(0, 3) == []


def test_a_kill_of_the_next_leader_loses_nothing(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    open_one(r, 1, 7, b"a")
    open_one(r, 1, 8, b"b")
    marker(r, 1, 7, 1, abort=True)
    r.sync(2)
    r.restart(2)
    r.lead(2, (2,))
    assert r[2].p.last_stable_offset == 1
    assert [each[:2] for each in r[2].log.aborted_within(0, 1)] == [(0, 7)]
