"""The transactional producer against a scripted coordinator, in virtual time: ends whose outcome nobody knows at first,
fencing, and offsets in transactions."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.scripted_broker import ScriptedCluster
from tests.client.scripted_transactions import LOST
from tidelog.aio import TopicPartition
from tidelog.client.errors import (
    CommitFailedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.client.group_types import ConsumerGroupMetadata
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.transaction_api import EndTxnRequest, TxnOffsetCommitRequest
from tidelog.proto.records.batches import Batch

from .test_transactions import FENCED, committed, producer, requests, state, virtually

# --- the coordinator -------------------------------------------------------------------------------------


@virtually
async def test_a_coordinator_that_moves_or_loads_is_asked_again(cluster: ScriptedCluster) -> None:
    codes = [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    ]
    trouble: list[ErrorCode] = []
    cluster.transactions.judge = lambda _: trouble.pop() if trouble else None
    async with producer(cluster) as p:
        trouble += codes
        await p.init_transactions()
        assert not trouble
        async with p.transaction():
            await p.send("one", b"1")
            cluster.transactions.node = cluster.groups.transactions_node = 3
            trouble += codes
        assert not trouble

        async def block() -> None:
            async with p.transaction():
                await p.send_and_wait("one", b"2")
                trouble.extend(codes)
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            await block()
        assert not trouble
    assert committed(cluster, "one") == [1]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_whose_answer_is_lost_is_asked_for_until_it_is_known(commit: bool) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        verdicts: list[str | ErrorCode | None] = [ErrorCode.NOT_COORDINATOR, LOST, LOST]
        async with producer(cluster, request_timeout_ms=1_000) as p:
            await p.init_transactions()
            await p.begin_transaction()
            await p.send_and_wait("one", b"1")
            cluster.transactions.judge = lambda _: verdicts.pop() if verdicts else None
            await (p.commit_transaction() if commit else p.abort_transaction())
            assert len(requests(cluster, EndTxnRequest)) == 4
            assert len(set(requests(cluster, EndTxnRequest))) == 1
            assert cluster.transactions.ended == [("tx", commit)]
            async with p.transaction():
                await p.send("one", b"2")
        assert committed(cluster, "one") == ([1, 2] if commit else [2])

    test()


@virtually
async def test_a_commit_that_takes_long_goes_on_and_is_waited_for_by_calling_again(cluster: ScriptedCluster) -> None:
    async with producer(cluster, request_timeout_ms=1_000) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        cluster.transactions.judge = lambda _: ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(RequestTimedOutError, match="call it again"):
            await p.commit_transaction(timeout=5)
        with pytest.raises(IllegalStateError, match="commit is in progress"):
            await p.abort_transaction()
        with pytest.raises(IllegalStateError, match="commit is in progress"):
            await p.send("one", b"2")
        cluster.transactions.judge = None
        await asyncio.sleep(10)  # it ends meanwhile
        await p.commit_transaction()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await p.commit_transaction()
        async with p.transaction():
            await p.send("one", b"3")
    assert committed(cluster, "one") == [1, 3]


@virtually
async def test_a_commit_that_is_cancelled_is_not_taken_for_an_abort(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        cluster.transactions.judge = lambda _: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await p.commit_transaction()
        cluster.transactions.judge = None
        await p.commit_transaction()
    assert committed(cluster, "one") == [1]


@virtually
async def test_a_commit_that_was_given_up_does_not_go_on_beside_the_abort(cluster: ScriptedCluster) -> None:
    """The offsets that the commit waits for fail, and the caller aborts before the commit has noticed."""

    def no_offsets(request: object) -> ErrorCode | None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if isinstance(request, TxnOffsetCommitRequest) else None

    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        cluster.transactions.judge = no_offsets

        async def send_offsets_or_abort() -> None:
            offsets = {TopicPartition("t", 0): 5}
            with pytest.raises(RequestTimedOutError):
                await p.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("g"), timeout=5)
            await p.abort_transaction()

        sending = asyncio.create_task(send_offsets_or_abort())
        await asyncio.sleep(1)
        with pytest.raises(RequestTimedOutError, match="call it again"):
            await p.commit_transaction(timeout=1)
        await sending
        assert [request.committed for request in requests(cluster, EndTxnRequest)] == [False]
        assert cluster.transactions.ended == [("tx", False)]
        async with p.transaction():
            await p.send("one", b"2")
    assert committed(cluster, "one") == [2]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_producer_that_was_taken_over_from_is_told_and_stays_so(code: ErrorCode) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster) as old, producer(cluster, "new") as new:
            await old.init_transactions()
            await old.begin_transaction()
            await old.send_and_wait("one", b"1")
            await new.init_transactions()
            if code is ErrorCode.PRODUCER_FENCED:
                with pytest.raises(FENCED) as caught:
                    await old.commit_transaction()
            else:
                with pytest.raises(type(exception_for(code))) as late:
                    await old.send_and_wait("one", b"2")
                assert late.value.abortable
                with pytest.raises(FENCED) as caught:
                    await old.abort_transaction()
            assert caught.value.fatal
            for call in (old.begin_transaction, old.abort_transaction, old.commit_transaction):
                with pytest.raises(FENCED):
                    await call()
            async with new.transaction():
                await new.send("one", b"3")
        assert committed(cluster, "one") == [3]
        assert cluster.transactions.ended == [("tx", False), ("tx", True)]

    test()


@virtually
async def test_the_block_of_a_fenced_producer_says_that_it_is_fenced(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as old, producer(cluster, "new") as new:

        async def block() -> None:
            async with old.transaction():
                await old.send_and_wait("one", b"1")
                await new.init_transactions()
                await old.send("one", b"2")

        with pytest.raises(FENCED) as caught:
            await block()
        assert caught.value.fatal


@virtually
async def test_a_transaction_that_took_too_long_is_over(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        cluster.transactions.time_out("tx")
        with pytest.raises(type(exception_for(ErrorCode.INVALID_TXN_STATE)), match="timed out") as caught:
            await p.commit_transaction()
        assert caught.value.abortable
        await p.abort_transaction()
        async with p.transaction():
            await p.send("one", b"2")
        await p.begin_transaction()
        await p.send_and_wait("one", b"3")
        cluster.transactions.time_out("tx")
        with pytest.raises(type(exception_for(ErrorCode.INVALID_PRODUCER_EPOCH))):
            await p.send_and_wait("one", b"4")
        await p.abort_transaction()
        async with p.transaction():
            await p.send("one", b"5")
    assert committed(cluster, "one") == [2, 5]


@virtually
async def test_a_new_producer_id_comes_with_the_end_of_a_transaction(cluster: ScriptedCluster) -> None:
    cluster.transactions.epoch_max = 2
    async with producer(cluster) as p:
        await p.init_transactions()
        for i in range(10):
            async with p.transaction():
                await p.send("one", b"%d" % i)
    assert committed(cluster, "one") == list(range(10))
    ids = {Batch(memoryview(data)).producer_id for data in cluster.partitions["one", 0].batches}
    assert len(ids) == 4


@virtually
async def test_closing_aborts_what_is_open(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        left = await p.send("one", b"2")
        await p.close()
        with pytest.raises(TidelogError):
            await left
    assert cluster.transactions.ended == [("tx", False)]


@virtually
async def test_closing_does_not_wait_for_ever_for_a_coordinator_that_is_gone(cluster: ScriptedCluster) -> None:
    loop = asyncio.get_running_loop()
    p = producer(cluster)
    await p.start()
    await p.init_transactions()
    await p.begin_transaction()
    await p.send_and_wait("one", b"1")
    for node in cluster.nodes:
        await cluster.kill(node)
    began = loop.time()
    await p.close()
    assert loop.time() - began < 10


# --- offsets -------------------------------------------------------------------------------------------------

OFFSETS = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 8}


@virtually
async def test_offsets_count_if_the_transaction_commits(cluster: ScriptedCluster) -> None:
    group = ConsumerGroupMetadata("g")
    async with producer(cluster) as p:

        async def block() -> None:
            async with p.transaction():
                await p.send_offsets_to_transaction({TopicPartition("t", 0): 99}, group)
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            await block()
        assert cluster.groups.group("g").offsets == {}
        cluster.groups.node = 2
        trouble = [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        cluster.transactions.judge = lambda _: trouble.pop() if trouble else None
        async with p.transaction():
            await p.send_offsets_to_transaction(OFFSETS, group)
            await p.send_offsets_to_transaction({}, group)
            assert cluster.groups.group("g").offsets == {}
    assert cluster.groups.group("g").offsets == {("t", 0): (7, -1, ""), ("t", 1): (8, -1, "")}


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        (ErrorCode.ILLEGAL_GENERATION, False),
        (ErrorCode.UNKNOWN_MEMBER_ID, False),
        (ErrorCode.FENCED_INSTANCE_ID, False),
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.PRODUCER_FENCED, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True),
    ],
)
def test_offsets_that_are_refused(code: ErrorCode, fatal: bool) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster) as p:
            await p.init_transactions()
            await p.begin_transaction()
            cluster.transactions.judge = lambda r: code if isinstance(r, TxnOffsetCommitRequest) else None
            with pytest.raises(TidelogError) as caught:
                await p.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("g", 3, "m"))
            assert isinstance(caught.value, CommitFailedError) == (
                code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
            )
            assert (caught.value.fatal, caught.value.abortable) == (fatal, not fatal)
            with pytest.raises(type(caught.value)):
                await p.commit_transaction()
            if not fatal:
                await p.abort_transaction()
                assert state(p) is TransactionState.READY

    test()


@virtually
async def test_offsets_that_nobody_takes_in_time_or_that_are_given_up_spoil_it(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        cluster.transactions.judge = lambda r: (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isinstance(r, TxnOffsetCommitRequest) else None
        )
        with pytest.raises(RequestTimedOutError) as caught:
            async with p.transaction():
                await p.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("g"), timeout=3)
        assert caught.value.abortable
        await p.begin_transaction()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await p.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("g"))
        assert state(p) is TransactionState.ABORTABLE_ERROR
        await p.abort_transaction()
    assert cluster.transactions.ended == [("tx", False)] * 2


@virtually
async def test_a_commit_waits_for_offsets_that_are_under_way(cluster: ScriptedCluster) -> None:
    slow = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 5
    cluster.transactions.judge = lambda r: slow.pop() if isinstance(r, TxnOffsetCommitRequest) and slow else None
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        sending = asyncio.create_task(p.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("g")))
        await asyncio.sleep(0)
        await p.commit_transaction()
        await sending
    kinds = [type(r) for r in cluster.transactions.seen]
    assert kinds.index(EndTxnRequest) > max(i for i, k in enumerate(kinds) if k is TxnOffsetCommitRequest)
    assert cluster.groups.group("g").offsets
