"""The producer against a scripted broker that fails: order, no duplicates, retries."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.client.scripted_broker import ScriptedCluster
from tests.virtual_time import LoopClock, run_virtual
from tidelog.aio import Producer
from tidelog.client.errors import (
    RecordTooLargeError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.decoder import decode_records

from .test_producer import assert_each_once_and_in_order, numbers, producer


@pytest.mark.parametrize("seed", range(6))
async def test_order_and_no_duplicate_through_lost_connections(cluster: ScriptedCluster, seed: int) -> None:
    rng = random.Random(seed)
    count = 3_000
    async with producer(cluster, batch_size=200, linger_ms=0, retry_backoff_ms=1, reconnect_backoff_ms=1) as p:
        futures = []
        for i in range(count):
            futures.append(await p.send("t", b"%d" % i))
            if rng.random() < 0.01:
                await asyncio.sleep(rng.random() * 0.003)
                cluster.fabric.break_connections("client", f"node{rng.randint(1, 3)}")
        for future in futures:
            await future
        assert p.metrics()["connection-lost-total"] > 0
    assert_each_once_and_in_order(cluster, count)


@pytest.mark.parametrize("seed", range(6))
async def test_order_and_no_duplicate_through_leader_changes(cluster: ScriptedCluster, seed: int) -> None:
    rng = random.Random(seed)
    count = 3_000
    async with producer(cluster, batch_size=200, linger_ms=0, retry_backoff_ms=1) as p:
        futures = []
        for i in range(count):
            futures.append(await p.send("t", b"%d" % i))
            if rng.random() < 0.01:
                await asyncio.sleep(rng.random() * 0.003)
                cluster.move("t", rng.randrange(3), rng.randint(1, 3))
        for future in futures:
            await future
        assert p.metrics()["record-retry-total"] > 0
    assert_each_once_and_in_order(cluster, count)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
@pytest.mark.parametrize("appended", [True, False])
async def test_retriable_errors_are_retried(cluster: ScriptedCluster, code: ErrorCode, appended: bool) -> None:
    rng = random.Random(5)

    def judge(*_: object) -> ErrorCode | None:
        return code if rng.random() < 0.1 else None

    if appended:
        cluster.after = judge
    else:
        cluster.judge = judge
    async with producer(cluster, batch_size=100, linger_ms=0, retry_backoff_ms=1) as p:
        for i in range(1_000):
            await p.send("t", b"%d" % i)
        await p.flush()
    assert_each_once_and_in_order(cluster, 1_000)


async def test_a_leader_that_lost_the_producers_state_gets_a_new_epoch(cluster: ScriptedCluster) -> None:
    async with producer(cluster, batch_size=100, linger_ms=0, retry_backoff_ms=1) as p:
        for i in range(1_000):
            await p.send("one", b"%d" % i)
            if i % 250 == 249:
                await p.flush()
                cluster.partitions["one", 0].producers.clear()
        await p.flush()
        assert p.metrics()["producer-epoch-bump-total"] >= 3
    assert_each_once_and_in_order(cluster, 1_000, "one")


async def test_a_duplicate_is_a_success(cluster: ScriptedCluster) -> None:
    cluster.after = lambda *_: ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    async with producer(cluster) as p:
        assert (await p.send_and_wait("one", b"0")).offset == -1
    assert numbers(cluster, "one") == {0: [0]}


async def test_a_batch_over_the_brokers_limit_is_split(cluster: ScriptedCluster) -> None:
    cluster.message_max = 400
    async with producer(cluster, batch_size=4_000, linger_ms=20) as p:
        futures = [await p.send("one", b"%d" % i) for i in range(500)]
        offsets = [(await future).offset for future in futures]
        assert p.metrics()["batch-split-total"] > 5
    assert offsets == list(range(500))
    assert_each_once_and_in_order(cluster, 500, "one")


async def test_a_record_that_the_broker_finds_too_large_fails_and_the_next_goes_through(
    cluster: ScriptedCluster,
) -> None:
    cluster.message_max = 400
    async with producer(cluster, retry_backoff_ms=1) as p:
        big = await p.send("one", b"9" * 1_000)
        small = await p.send("one", b"0", partition=0)
        with pytest.raises(RecordTooLargeError, match="one-0"):
            await big
        assert (await small).offset == 0


async def test_a_refusal_for_good_fails_the_batch_with_its_reason_and_the_rest_goes_on(
    cluster: ScriptedCluster,
) -> None:
    refused: list[int] = []

    def judge(_node: int, _topic: str, _partition: int, batch: Batch) -> ErrorCode | None:
        values = [int(r.value or b"") for r in decode_records(batch)]
        if 17 in values:
            refused.extend(values)
            return ErrorCode.INVALID_RECORD
        return None

    cluster.judge = judge
    async with producer(cluster, batch_size=1, linger_ms=0, retry_backoff_ms=1) as p:
        futures = [await p.send("one", b"%d" % i) for i in range(40)]
        for i, future in enumerate(futures):
            if i == 17:
                with pytest.raises(type(exception_for(ErrorCode.INVALID_RECORD)), match="one-0"):
                    await future
            else:
                assert (await future).partition == 0
    assert refused == [17]
    assert numbers(cluster, "one")[0] == [i for i in range(40) if i != 17]


async def test_the_answer_of_a_former_leader_is_not_waited_for(cluster: ScriptedCluster) -> None:
    never: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    cluster.judge = lambda node, *_: never if node == 1 else None
    async with producer(cluster, linger_ms=0, retry_backoff_ms=1, metadata_max_age_ms=20) as p:
        stuck = await p.send("one", b"0")
        async with asyncio.timeout(5):
            while not cluster.in_flight.get(("one", 0)):
                await asyncio.sleep(0.001)
        cluster.move("one", 0, 2)
        assert (await asyncio.wait_for(stuck, 5)).offset == 0  # request_timeout_ms is 30 s
    assert numbers(cluster, "one") == {0: [0]}
    never.cancel()


def test_a_producer_without_a_connection_for_30_seconds_resumes_by_itself() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=3)
        cluster.topic("t", 3)
        await cluster.start()
        loop = asyncio.get_running_loop()
        p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), _rng=random.Random(3))
        await p.start()
        futures = [await p.send("t", b"%d" % i) for i in range(100)]
        for node in (1, 2, 3):
            await cluster.kill(node)
        futures += [await p.send("t", b"%d" % i) for i in range(100, 200)]
        await asyncio.sleep(30)
        assert sum(future.done() for future in futures) <= 100
        for node in (1, 2, 3):
            await cluster.start_node(node)
        back = loop.time()
        for future in futures:
            await future
        assert loop.time() - back < 3  # reconnect_backoff_max_ms and one round of metadata
        await p.close()
        assert_each_once_and_in_order(cluster, 200)
        await cluster.stop()

    run_virtual(main())


@pytest.mark.parametrize("mute", ["client-to-node", "node-to-client"])
def test_an_unanswered_request_is_sent_again_after_request_timeout_and_not_written_twice(mute: str) -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=1)
        cluster.topic("one", 1)
        await cluster.start()
        p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), request_timeout_ms=5_000)
        await p.start()
        await p.send_and_wait("one", b"0")
        ends = ("client", "node1") if mute == "client-to-node" else ("node1", "client")
        cluster.fabric.cut(*ends)
        sent = await p.send("one", b"1")
        await asyncio.sleep(4)
        assert not sent.done()
        await asyncio.sleep(3)
        cluster.fabric.heal()
        assert (await sent).offset == 1
        assert p.metrics()["record-retry-total"] >= 1
        await p.close()
        assert_each_once_and_in_order(cluster, 2, "one")
        await cluster.stop()

    run_virtual(main())


@pytest.mark.parametrize("noticed_ms", [60, 250, 500, 780, 900, 1_600, 3_000])
def test_a_new_leader_is_found_soon_however_late_the_old_ones_death_is_noticed(noticed_ms: int) -> None:
    """Backoffs of connections and retries have grown to a second by then; nobody waits for the end of one."""

    async def main() -> None:
        cluster = ScriptedCluster(nodes=2)
        cluster.topic("one", 1)
        await cluster.start()
        p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), _rng=random.Random(7))
        await p.start()
        await p.send_and_wait("one", b"0")
        cluster.unnoticed.add(1)
        await cluster.kill(1)
        sent = await p.send("one", b"1")
        await asyncio.sleep(noticed_ms / 1_000)
        assert not sent.done()
        cluster.unnoticed.clear()
        cluster.move("one", 0, 2)
        noticed = asyncio.get_running_loop().time()
        await sent
        assert asyncio.get_running_loop().time() - noticed < 0.15  # retry_backoff_ms is 100
        await p.close()
        assert_each_once_and_in_order(cluster, 2, "one")
        await cluster.stop()

    run_virtual(main())
