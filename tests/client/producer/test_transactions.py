"""The transactional producer against a scripted coordinator, in virtual time: what commits, what is dropped, what an
error makes of a transaction, and outcomes that nobody knows at first."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster, on_a_virtual_cluster
from tests.client.scripted_transactions import LOST
from tests.client.virtual_time import VirtualClock
from tidelog.aio import Producer, TopicPartition
from tidelog.client.errors import (
    ClientClosedError,
    CommitFailedError,
    ConfigError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    TransactionAbortedError,
    exception_for,
)
from tidelog.client.group_types import ConsumerGroupMetadata
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.transaction_api import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tidelog.proto.records.batches import Batch

FENCED = type(exception_for(ErrorCode.PRODUCER_FENCED))


virtually = on_a_virtual_cluster(3, t=3, one=1)


def producer(cluster: ScriptedCluster, name: str = "client", **settings: Any) -> Producer:
    made: dict[str, Any] = {"transactional_id": "tx", "linger_ms": 0, **settings}
    network, clock = cluster.network(name), VirtualClock()
    return Producer(cluster.bootstrap, _network=network, _clock=clock, _rng=random.Random(1), **made)


def state(p: Producer) -> TransactionState:
    return p._core.require_transactions().state


def committed(cluster: ScriptedCluster, topic: str = "t") -> list[int]:
    found = [p.committed() for (name, _), p in sorted(cluster.partitions.items()) if name == topic]
    return sorted(int(value) for values in found for value in values if value is not None)


def requests(cluster: ScriptedCluster, kind: type[Any]) -> list[Any]:
    return [request for request in cluster.transactions.seen if isinstance(request, kind)]


# --- the usual way ------------------------------------------------------------------------------------


@virtually
async def test_what_is_sent_becomes_visible_with_the_commit_and_not_before(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        for i in range(9):
            await p.send_and_wait("t", b"%d" % i, partition=i % 3)
        assert committed(cluster) == []
        await p.commit_transaction()
        assert committed(cluster) == list(range(9))
    assert cluster.transactions.ended == [("tx", True)]


@virtually
async def test_each_transaction_has_an_epoch_of_its_own_and_begins_at_sequence_0(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        for number in range(3):
            async with p.transaction():
                await p.send("one", b"%d" % number)
                await p.send_many("one", [b"%d" % number] * 3)
    batches = [Batch(memoryview(data)) for data in cluster.partitions["one", 0].batches]
    seen = [(b.producer_epoch, b.base_sequence, b.is_transactional) for b in batches if not b.is_control]
    assert seen == [(0, 0, True), (0, 1, True), (1, 0, True), (1, 1, True), (2, 0, True), (2, 1, True)]
    assert len(requests(cluster, InitProducerIdRequest)) == 1
    assert [r.bump_epoch for r in requests(cluster, EndTxnRequest)] == [True] * 3


@virtually
async def test_commit_sends_what_still_lingers(cluster: ScriptedCluster) -> None:
    async with producer(cluster, linger_ms=60_000) as p, p.transaction():
        for i in range(30):
            await p.send("t", b"%d" % i, key=b"%d" % i)
    assert committed(cluster) == list(range(30))


@virtually
async def test_an_abort_drops_what_was_not_sent_and_hides_what_was(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send_and_wait("one", b"1")
        cluster.judge = lambda *_: asyncio.sleep(60, ErrorCode.NONE)
        left = [await p.send("one", b"2") for _ in range(2_000)]
        await p.abort_transaction()
        for future in left:
            with pytest.raises(TransactionAbortedError):
                await future
        assert p._core.accumulator.memory_free == p._core.config.buffer_memory
        cluster.judge = None
        async with p.transaction():
            await p.send("one", b"3")
        assert committed(cluster, "one") == [3]
        await asyncio.sleep(120)  # what was under way when it was aborted arrives
    assert committed(cluster, "one") == [3]


@virtually
async def test_a_transaction_of_nothing_asks_nobody(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        async with p.transaction():
            pass
        await p.begin_transaction()
        await p.abort_transaction()
        assert requests(cluster, EndTxnRequest) == []
        async with p.transaction():
            await p.send("one", b"1")
    assert committed(cluster, "one") == [1]


@virtually
async def test_the_short_paths_of_send_are_shut_between_transactions(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        with pytest.raises(IllegalStateError, match="call init_transactions"):
            await p.send("one", b"0")
        await p.init_transactions()
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="call begin_transaction"):
                await p.send("one", b"0")
            with pytest.raises(IllegalStateError, match="call begin_transaction"):
                await p.send("one", b"0", key=b"k")
            with pytest.raises(IllegalStateError, match="call begin_transaction"):
                await p.send_many("one", [b"0"])
            async with p.transaction():
                for i in range(50):
                    await p.send("one", b"1")
                    await p.send("one", b"1", key=b"%d" % i)
    assert committed(cluster, "one") == [1] * 200


@virtually
async def test_the_calls_that_do_not_fit_say_so(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        with pytest.raises(IllegalStateError, match="init_transactions"):
            await p.begin_transaction()
        await p.init_transactions()
        for call in (p.commit_transaction, p.abort_transaction, p.init_transactions):
            with pytest.raises(IllegalStateError):
                await call()
        await p.begin_transaction()
        with pytest.raises(IllegalStateError, match="in a transaction"):
            await p.begin_transaction()
        with pytest.raises(IllegalStateError, match="transaction_two_phase_commit_enable"):
            await p.prepare_transaction()
    with pytest.raises(ClientClosedError):
        await p.commit_transaction()
    async with producer(cluster, transactional_id=None) as plain:
        with pytest.raises(IllegalStateError, match="need a transactional_id"):
            await plain.init_transactions()


def test_settings_that_do_not_go_with_transactions() -> None:
    for settings, text in (
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "x" * 40_000}, "transactional_id"),
        ({"transactional_id": "x", "acks": 1}, "acks=all"),
        ({"transactional_id": "x", "enable_idempotence": False}, "enable_idempotence"),
        ({"transactional_id": "x", "max_in_flight_requests_per_connection": 6}, "max_in_flight"),
        ({"transaction_two_phase_commit_enable": True}, "transactional_id"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms"),
    ):
        with pytest.raises(ConfigError, match=text):
            Producer("x:1", **settings)


# --- the block -----------------------------------------------------------------------------------------


@virtually
async def test_an_exception_in_the_block_aborts_and_goes_on_its_way(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:

        async def block() -> None:
            async with p.transaction():
                await p.send_and_wait("one", b"1")
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            await block()
        assert state(p) is TransactionState.READY
        async with p.transaction() as same:
            assert same is p
            await p.send("one", b"2")
    assert committed(cluster, "one") == [2]
    assert cluster.transactions.ended == [("tx", False), ("tx", True)]


@virtually
async def test_a_block_that_is_cancelled_aborts(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:

        async def work() -> None:
            async with p.transaction():
                await p.send_and_wait("one", b"1")
                await asyncio.sleep(1_000)

        task = asyncio.create_task(work())
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert state(p) is TransactionState.READY
    assert cluster.transactions.ended == [("tx", False)]


@virtually
async def test_a_block_that_cannot_abort_keeps_its_exception(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:

        async def block() -> None:
            async with p.transaction():
                await p.send_and_wait("one", b"1")
                cluster.transactions.judge = lambda _: ErrorCode.PRODUCER_FENCED
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError) as caught:
            await block()
        assert "aborting the transaction failed" in caught.value.__notes__[0]
        assert state(p) is TransactionState.FATAL_ERROR
        with pytest.raises(FENCED) as fenced:
            await p.begin_transaction()
        assert fenced.value.fatal
        assert not fenced.value.abortable


@virtually
async def test_a_block_may_end_its_transaction_itself(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        async with p.transaction():
            await p.send("one", b"1")
            await p.commit_transaction()
        async with p.transaction():
            await p.send("one", b"2")
            await p.abort_transaction()
    assert committed(cluster, "one") == [1]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING])
def test_a_block_whose_producer_failed_for_good_does_not_seem_to_commit(code: ErrorCode) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster) as p:

            async def block() -> None:
                async with p.transaction():
                    await p.send_and_wait("t", b"1", partition=0)
                    cluster.judge = lambda *_: code
                    await p.send("t", b"2", partition=1)
                    await asyncio.sleep(1)  # nobody looks at what became of it
                    assert state(p) is TransactionState.FATAL_ERROR

            with pytest.raises(type(exception_for(code))) as caught:
                await block()
            assert caught.value.fatal
        assert committed(cluster) == []

    test()


# --- records that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.MESSAGE_TOO_LARGE,
    ],
)
def test_a_record_that_fails_spoils_the_transaction_and_only_that(code: ErrorCode) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster) as p:
            await p.init_transactions()
            await p.begin_transaction()
            good = await p.send_and_wait("t", b"1", partition=0)
            assert good.offset == 0
            cluster.judge = lambda node, topic, partition, batch: code if partition == 1 else None
            bad = await p.send("t", b"2", partition=1)
            with pytest.raises(type(exception_for(code))):
                await bad
            assert state(p) is TransactionState.ABORTABLE_ERROR
            for call in (lambda: p.send("t", b"3"), lambda: p.send_many("t", [b"3"]), p.commit_transaction):
                with pytest.raises(type(exception_for(code))) as caught:
                    await call()
                assert caught.value.abortable
                assert not caught.value.fatal
            await p.abort_transaction()
            cluster.judge = None
            async with p.transaction():
                await p.send("t", b"4", partition=1)
        assert committed(cluster) == [4]
        assert p.metrics()["producer-epoch-bump-total"] == 0

    test()


@virtually
async def test_commit_fails_with_the_first_error_of_a_record_nobody_looked_at(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:

        async def block() -> None:
            async with p.transaction():
                cluster.judge = lambda n, t, partition, b: ErrorCode.INVALID_RECORD if partition == 2 else None
                for i in range(300):
                    await p.send("t", b"%d" % i, partition=i % 3)

        with pytest.raises(type(exception_for(ErrorCode.INVALID_RECORD))) as caught:
            await block()
        assert caught.value.abortable
        assert state(p) is TransactionState.READY
        assert cluster.transactions.ended == [("tx", False)]
    assert committed(cluster) == []


@virtually
async def test_a_record_whose_time_runs_out_spoils_the_transaction(cluster: ScriptedCluster) -> None:
    async with producer(cluster, delivery_timeout_ms=10_000, request_timeout_ms=2_000) as p:
        await p.init_transactions()
        await p.begin_transaction()
        cluster.judge = lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS
        first = await p.send("one", b"1")
        with pytest.raises(RequestTimedOutError, match="delivery_timeout_ms") as caught:
            await p.commit_transaction()
        assert caught.value.abortable
        with pytest.raises(RequestTimedOutError, match=re.escape(str(caught.value))):
            await first
        cluster.judge = None
        await p.abort_transaction()
        async with p.transaction():
            await p.send("one", b"2")
    assert committed(cluster, "one") == [2]


@virtually
async def test_lost_answers_and_new_leaders_change_nothing(cluster: ScriptedCluster) -> None:
    async with producer(cluster, request_timeout_ms=1_000, batch_size=100) as p:
        rng = random.Random(3)
        cluster.after = lambda *_: asyncio.sleep(5, ErrorCode.NONE) if rng.random() < 0.1 else None
        for number in range(20):
            async with p.transaction():
                for i in range(50):
                    await p.send("t", b"%d" % (number * 50 + i))
                    if rng.random() < 0.02:
                        partition = rng.randrange(3)
                        cluster.move("t", partition, rng.choice(cluster.nodes))
    assert committed(cluster) == list(range(1_000))


@virtually
async def test_the_first_batch_waits_for_the_markers_of_the_transaction_before(cluster: ScriptedCluster) -> None:
    cluster.transactions.markers_take_s = 0.03
    loop = asyncio.get_running_loop()
    async with producer(cluster) as p:
        await p.init_transactions()
        began = loop.time()
        for i in range(20):
            async with p.transaction():
                await p.send("one", b"%d" % i)
        assert loop.time() - began < 20 * 0.1  # not a whole retry_backoff_ms each
        await asyncio.sleep(1)
    assert committed(cluster, "one") == list(range(20))


@virtually
async def test_send_many_that_is_cut_short_is_not_committed(cluster: ScriptedCluster) -> None:
    settings: dict[str, Any] = {"buffer_memory": 40_000, "bulk_batch_size": 20_000, "max_block_ms": 1_000}
    async with producer(cluster, **settings) as p:
        await p.init_transactions()
        await p.begin_transaction()
        cluster.judge = lambda *_: asyncio.sleep(30, ErrorCode.NONE)
        with pytest.raises(TidelogError, match="buffer_memory"):
            await p.send_many("one", [b"x" * 1_000] * 100)
        with pytest.raises(TidelogError, match="buffer_memory") as caught:
            await p.commit_transaction()
        assert caught.value.abortable
        cluster.judge = None
        await p.abort_transaction()
        async with p.transaction():
            await p.send_many("one", [b"7"] * 5)
    assert committed(cluster, "one") == [7] * 5


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

    def no_offsets(request: Any) -> ErrorCode | None:
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
