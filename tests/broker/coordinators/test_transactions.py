"""Transactions on running nodes: the answers of each call, the fate of records and offsets, refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.conftest import TransactionalProducer, TransactionCalls
from tidelog.broker.node.metric_sources import NodeSource
from tidelog.broker.traffic import Latency
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, ProducerEpoch, ProducerId
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.proto.calls.api import DeleteTopicsRequest
from tidelog.proto.calls.group_api import (
    TRANSACTION_COORDINATOR,
    GroupPartition,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    DescribeProducersRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from tidelog.testing.async_cluster import GRPC, MEMORY, AsyncCluster

NONE = ErrorCode.NONE
TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}


@pytest.fixture
async def calls() -> AsyncIterator[TransactionCalls]:
    async with AsyncCluster(1, config=TWO_PHASE | QUICK) as cluster, TransactionCalls(cluster) as made:
        await cluster.create_topic("t", 4)
        yield made


@pytest.fixture
async def three() -> AsyncIterator[TransactionCalls]:
    async with AsyncCluster(3) as cluster, TransactionCalls(cluster) as made:
        await cluster.create_topic("t", 6)
        yield made


async def unstable(calls: TransactionCalls, group: str, partition: int = 0) -> bool:
    """Whether the group's offset of ``t`` is undecided."""
    asked = OffsetFetchGroup(group, (GroupPartition("t", partition),))
    answer = await calls.ask(group, OffsetFetchRequest((asked,), require_stable=True))
    return bool(answer.groups[0].offsets[0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT)


async def committed(calls: TransactionCalls, group: str) -> dict[tuple[str, int], int]:
    """Once nothing of ``t-0`` is undecided."""
    async with asyncio.timeout(100):
        while await unstable(calls, group):
            await asyncio.sleep(0.005)
    found: dict[tuple[str, int], int] = await calls.committed(group)
    return found


# --- the whole path ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [MEMORY, GRPC])
async def test_the_life_of_transactions_over_three_nodes(transport: str) -> None:
    async with AsyncCluster(3, transport=transport) as cluster, TransactionCalls(cluster) as calls:
        await cluster.create_topic("t", 6)
        producer = await calls.open("x")
        first = (producer.producer_id, producer.epoch)
        assert await asyncio.gather(*(producer.write(partition, b"a%d" % partition) for partition in range(6))) == (
            [NONE] * 6
        )
        assert await producer.commit_offsets("g", 5) is NONE
        described = await calls.describe("x")
        assert described.state == "Ongoing"
        assert {(at.topic, at.partition) for at in described.partitions} > {("t", number) for number in range(6)}
        assert {at.topic for at in described.partitions} == {"t", GROUP_OFFSETS_TOPIC}
        assert await calls.committed("g") == {}
        assert await producer.end(committed=True) is NONE
        assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 1)
        assert await committed(calls, "g") == {("t", 0): 5}
        await calls.wait_for_state("x", "CompleteCommit")
        assert [calls.decided("t", partition) for partition in range(6)] == [
            ([b"a%d" % partition], set()) for partition in range(6)
        ]

        assert await producer.write(0, b"b0") is NONE
        assert await producer.commit_offsets("g", 6) is NONE
        assert await producer.end(committed=False) is NONE
        await calls.wait_for_state("x", "CompleteAbort")
        assert calls.decided("t", 0) == ([b"a0"], set())
        assert await committed(calls, "g") == {("t", 0): 5}


async def test_many_transactions_at_once(three: TransactionCalls) -> None:
    producers = await asyncio.gather(*(three.open(f"x{number}") for number in range(12)))

    async def work(number: int, producer: TransactionalProducer) -> None:
        for turn in range(6):
            value = b"%d-%d" % (number, turn)
            written = await asyncio.gather(*(producer.write((number + at) % 6, value) for at in range(3)))
            assert written == [NONE] * 3
            assert await producer.commit_offsets(f"g{number}", turn) is NONE
            assert await producer.end(committed=turn % 3 != 1) is NONE

    await asyncio.gather(*(work(number, producer) for number, producer in enumerate(producers)))
    for number in range(12):
        await three.wait_for_state(f"x{number}", "CompleteCommit")
        assert await committed(three, f"g{number}") == {("t", 0): 5}
    kept = {b"%d-%d" % (number, turn) for number in range(12) for turn in range(6) if turn % 3 != 1}
    found = [three.decided("t", partition) for partition in range(6)]
    assert sorted(value for values, _ in found for value in values) == sorted([*kept] * 3)
    assert not any(open_ for _, open_ in found)


async def test_the_topic_is_made_on_first_use(three: TransactionCalls) -> None:
    assert three.cluster.image.topic(TRANSACTION_STATE_TOPIC) is None
    found = await three.find("x", key_type=TRANSACTION_COORDINATOR)
    assert found.error is NONE, "the answer waits until the topic has its leaders"
    image = three.cluster.nodes[NodeId(1)].view.image
    topic = image.topic(TRANSACTION_STATE_TOPIC)
    assert topic is not None
    assert len(topic.partitions) == 50
    assert all(len(partition.replicas) == 3 for partition in topic.partitions.values())
    assert dict(image.config("topic", TRANSACTION_STATE_TOPIC)) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


# --- permission -------------------------------------------------------------------------------------


async def test_a_new_instance_fences_the_old_one_and_ends_what_it_left(calls: TransactionCalls) -> None:
    old = await calls.open("x")
    assert await old.write(0, b"old") is NONE
    assert await old.commit_offsets("g", 1) is NONE
    new = await calls.open("x")
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    assert await old.end(committed=True) is ErrorCode.PRODUCER_FENCED
    assert await old.add(1) == [ErrorCode.PRODUCER_FENCED]
    for partition in (0, 1):
        assert await old.write(partition, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await old.commit_offsets("g", 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert calls.decided("t", 0) == ([], set())
    assert await committed(calls, "g") == {}
    assert await new.write(0, b"new") is NONE
    assert await new.end(committed=True) is NONE
    await calls.wait_for_state("x", "CompleteCommit")
    assert calls.decided("t", 0) == ([b"new"], set())


async def test_what_comes_after_the_end_opens_nothing(calls: TransactionCalls) -> None:
    """A produce or an offset commit that was on its way while its transaction ended (KIP-890)."""
    producer = await calls.open("x")
    assert await producer.write(0, b"in") is NONE
    late = calls_of(producer)
    assert await producer.end(committed=True) is NONE
    await calls.wait_for_state("x", "CompleteCommit")
    for partition in (0, 1):
        assert await late.write(partition, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await late.commit_offsets("g", 9) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await late.add(2) == [ErrorCode.PRODUCER_FENCED]
    assert [calls.decided("t", partition)[1] for partition in range(3)] == [set()] * 3
    assert not await unstable(calls, "g")


def calls_of(producer: TransactionalProducer) -> TransactionalProducer:
    """The same identity, as one who does not hear of the next."""
    twin = type(producer)(producer.calls, producer.transactional_id)
    twin.become(producer.producer_id, producer.epoch)
    return twin


async def test_a_member_of_an_older_generation_commits_nothing(calls: TransactionCalls) -> None:
    member = calls.member("g")
    await member.join()
    producer = await calls.open("x")
    wrong = await producer.commit_offsets("g", 7, generation=member.generation + 1, member=member.member_id)
    assert wrong is ErrorCode.ILLEGAL_GENERATION
    assert await producer.commit_offsets("g", 7, generation=1, member="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    right = await producer.commit_offsets("g", 7, generation=member.generation, member=member.member_id)
    assert right is NONE
    assert await producer.end(committed=True) is NONE
    assert await committed(calls, "g") == {("t", 0): 7}


async def test_the_first_protocol_adds_what_the_leader_then_finds(calls: TransactionCalls) -> None:
    producer = await calls.open("x")
    assert await producer.add(0, 1) == [NONE, NONE]
    assert await producer.add(0, 1, verify_only=True) == [NONE, NONE]
    assert await producer.add(2, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]
    added = AddOffsetsToTxnRequest("x", producer.producer_id, producer.epoch, "g")
    assert (await calls.ask_transactions("x", added)).error is NONE
    assert GROUP_OFFSETS_TOPIC in {at.topic for at in (await calls.describe("x")).partitions}


async def test_partitions_that_do_not_exist_take_no_part(calls: TransactionCalls) -> None:
    producer = await calls.open("x")
    assert await producer.add(0, 77) == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await producer.commit_offsets("g", 1, partition=77) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(at.topic, at.partition) for at in (await calls.describe("x")).partitions] == [("t", 0)]


async def test_bad_requests_are_told_apart(calls: TransactionCalls) -> None:
    async def init(**fields: Any) -> ErrorCode:
        answer = await calls.ask_transactions("x", InitProducerIdRequest(**fields))
        error: ErrorCode = answer.error
        return error

    assert await init(transactional_id="") is ErrorCode.INVALID_REQUEST
    too_long = await init(transactional_id="x", transaction_timeout_ms=10**9)
    assert too_long is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    nobody = EndTxnRequest("unknown", ProducerId(5), ProducerEpoch(0), True)
    assert (await calls.ask_transactions("unknown", nobody)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = await calls.open("x")
    assert await producer.end(committed=True) is ErrorCode.INVALID_TXN_STATE
    assert (await calls.describe("else")).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_idempotent_producers_have_ids_of_their_own(calls: TransactionCalls) -> None:
    plain = await calls.node(1).call(InitProducerIdRequest(), timeout_s=10)
    producer = await calls.open("x")
    assert plain.error is NONE
    assert plain.producer_id != producer.producer_id


# --- how it ends ------------------------------------------------------------------------------------


async def test_a_transaction_that_takes_too_long_is_aborted(calls: TransactionCalls) -> None:
    producer = await calls.open("x", timeout_ms=1_000)
    assert await producer.write(0, b"slow") is NONE
    assert await producer.commit_offsets("g", 3) is NONE
    await calls.wait_for_state("x", "CompleteAbort")
    assert calls.decided("t", 0) == ([], set())
    assert await committed(calls, "g") == {}
    assert await producer.end(committed=True) in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE}
    assert await producer.write(0, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_prepared_transaction_waits_for_its_decision(calls: TransactionCalls) -> None:
    producer = await calls.open("x", timeout_ms=1_000, enable_two_phase_commit=True)
    slow = await calls.open("y", timeout_ms=1_000)
    assert await producer.write(0, b"kept") is NONE
    assert await producer.prepare() is NONE
    assert await slow.write(1, b"late") is NONE
    await calls.wait_for_state("y", "CompleteAbort")
    assert (await calls.describe("x")).state == "Prepared"
    assert calls.decided("t", 0) == ([], {producer.producer_id})
    decider = calls_of(producer)
    assert await decider.end(committed=True) is NONE
    await calls.wait_for_state("x", "CompleteCommit")
    assert calls.decided("t", 0) == ([b"kept"], set())


async def test_the_end_is_told_before_the_markers_and_twice_alike(calls: TransactionCalls) -> None:
    producer = await calls.open("x")
    assert await producer.write(0, b"a") is NONE
    twin = calls_of(producer)
    assert await producer.end(committed=True) is NONE
    assert await twin.end(committed=True) is NONE
    assert (twin.producer_id, twin.epoch) == (producer.producer_id, producer.epoch)


async def test_a_deleted_topic_holds_no_transaction_up(calls: TransactionCalls) -> None:
    await calls.cluster.create_topic("gone", 2)
    producer = await calls.open("x")
    assert await producer.write(0, b"a") is NONE
    assert await producer.write(1, b"a", topic="gone") is NONE
    deleted = await calls.node(1).call(DeleteTopicsRequest(("gone",)), timeout_s=10)
    assert deleted.topics[0].error is NONE
    assert await producer.end(committed=True) is NONE
    await calls.wait_for_state("x", "CompleteCommit")
    assert calls.decided("t", 0) == ([b"a"], set())


# --- administration ---------------------------------------------------------------------------------


async def test_transactions_are_listed_and_their_producers_described(calls: TransactionCalls) -> None:
    producer = await calls.open("x")
    assert await producer.write(0, b"a") is NONE
    idle = await calls.open("y")
    listed = (await calls.ask_transactions("x", ListTransactionsRequest())).transactions
    assert {(found.transactional_id, found.state) for found in listed} == {("x", "Ongoing"), ("y", "Empty")}
    some = await calls.ask_transactions("x", ListTransactionsRequest(producer_ids=(idle.producer_id,)))
    assert [found.transactional_id for found in some.transactions] == ["y"]
    asked = DescribeProducersRequest((GroupPartition("t", 0), GroupPartition("t", 77)))
    found = (await calls.node(1).call(asked, timeout_s=10)).partitions
    assert found[1].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (described,) = found[0].producers
    assert (described.producer_id, described.transaction_start_offset) == (producer.producer_id, 0)


async def test_an_administrator_ends_what_no_coordinator_knows(calls: TransactionCalls) -> None:
    """A hanging transaction: its partitions are open and its coordinator has nothing of it (KIP-664)."""
    producer = await calls.open("x")
    assert await producer.write(0, b"hangs") is NONE
    assert await producer.commit_offsets("g", 3) is NONE
    at = calls.broker(1).groups.coordinator.partition_for("g")
    places = (GroupPartition("t", 0), GroupPartition(GROUP_OFFSETS_TOPIC, at), GroupPartition("t", 77))
    marker = TransactionMarker(
        producer.producer_id, producer.epoch, committed=False, coordinator_epoch=-1, partitions=places,
        transaction_version=1,
    )  # fmt: skip
    answer = await calls.node(1).call(WriteTxnMarkersRequest((marker,)), timeout_s=10)
    assert [(result.topic, result.error) for result in answer.markers[0].results] == [
        ("t", NONE),
        (GROUP_OFFSETS_TOPIC, NONE),
        ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert calls.decided("t", 0) == ([], set())
    assert not await unstable(calls, "g")


@pytest.mark.parametrize(
    ("producer", "epoch", "topic"),
    [
        (-1, 0, "t"),
        (5, -1, "t"),
        (5, 32_768, "t"),
        (5, 2**31 - 1, GROUP_OFFSETS_TOPIC),
        (5, 0, TRANSACTION_STATE_TOPIC),
    ],
)
async def test_what_cannot_be_a_marker_is_refused(
    calls: TransactionCalls, producer: int, epoch: int, topic: str
) -> None:
    await calls.open("x")
    await calls.coordinator("g")
    bad, good = (
        TransactionMarker(ProducerId(number), ProducerEpoch(at_epoch), True, -(2**31), (GroupPartition(name, 0),))
        for number, at_epoch, name in ((producer, epoch, topic), (6, 32_767, "t"))
    )
    answer = await calls.node(1).call(WriteTxnMarkersRequest((bad, good)), timeout_s=10)
    assert [(found.producer_id, found.results[0].error) for found in answer.markers] == [
        (producer, ErrorCode.INVALID_REQUEST),
        (6, NONE),
    ]


async def test_figures_of_transactions_move(calls: TransactionCalls) -> None:
    def figures() -> dict[str, float]:
        return {
            reading.metric.exported + "".join(reading.labels): reading.value
            for reading in NodeSource(calls.cluster.nodes[NodeId(1)]).readings()
            if re.search("transaction|txn|sink", reading.metric.name) and not isinstance(reading.value, Latency)
        }

    assert not any(figures().values())
    producer = await calls.open("x")
    for committed in (True, False):
        assert await producer.write(0, b"a") is NONE
        assert await producer.commit_offsets("g", 1) is NONE
        assert await producer.end(committed=committed) is NONE
    await calls.wait_for_state("x", "CompleteAbort")
    assert await producer.write(0, b"open") is NONE
    assert await calls_of(producer).add(77) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    found = figures()
    assert found["tidelog_transactional_idsOngoing"] == 1
    assert found["tidelog_transaction_partitionsactive"] == 50
    assert found["tidelog_transactions_begun_total"] == 3
    assert found["tidelog_transactions_committed_total"] == 1
    assert found["tidelog_transactions_aborted_total"] == 1
    assert found["tidelog_transactions_completed_total"] == 2
    assert found["tidelog_transaction_partition_questions_total"] >= 5
    assert found["tidelog_transaction_partition_loads_total"] == 50
    assert found["tidelog_transaction_appends_total"] >= 8
    assert found["tidelog_transaction_markers_waiting"] == 0
    assert found["kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize"] == 0


async def test_nothing_wakes_for_what_is_over(calls: TransactionCalls) -> None:
    producer = await calls.open("x")
    assert await producer.write(0, b"a") is NONE
    assert await producer.end(committed=True) is NONE
    await calls.wait_for_state("x", "CompleteCommit")
    transactions = calls.broker(1).transactions
    assert not transactions.markers._timer.is_set
    assert (transactions.markers.waiting, transactions.markers.leaderless) == (0, 0)
    names = ("batch for a broker", "transaction verification")
    assert not [task for task in asyncio.all_tasks() if task.get_name() in names]
