"""The transactional producer against a scripted coordinator, in virtual time: what commits, what is dropped, and what
an error makes of a transaction."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster, on_a_virtual_cluster
from tests.virtual_time import LoopClock
from tidelog.aio import Producer
from tidelog.client.errors import (
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    TransactionAbortedError,
    exception_for,
)
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.transaction_api import EndTxnRequest, InitProducerIdRequest
from tidelog.proto.records.batches import Batch

FENCED = type(exception_for(ErrorCode.PRODUCER_FENCED))


virtually = on_a_virtual_cluster(3, t=3, one=1)


def producer(cluster: ScriptedCluster, name: str = "client", **settings: Any) -> Producer:
    made: dict[str, Any] = {"transactional_id": "tx", "linger_ms": 0, **settings}
    network, clock = cluster.network(name), LoopClock()
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
