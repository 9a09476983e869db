"""Consume, transform, produce against scripted coordinators in virtual time: each input once in effect, whatever is
aborted, taken away or killed in between."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster, fill
from tests.client.scripted_transactions import LOST
from tests.virtual_time import LoopClock
from tidelog.aio import Consumer, ProducerRecord, TopicPartition, Transform
from tidelog.client.errors import CommitFailedError, ConfigError, IllegalStateError, TidelogError
from tidelog.client.record import ConsumerRecord
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.transaction_api import EndTxnRequest, TxnOffsetCommitRequest

from .test_transactions import committed, producer, virtually

T = [TopicPartition("t", i) for i in range(3)]


def member(cluster: ScriptedCluster, name: str = "reader", **settings: Any) -> Consumer:
    given: dict[str, Any] = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    }
    return Consumer(
        cluster.bootstrap,
        _network=cluster.network(name),
        _clock=LoopClock(),
        _rng=random.Random(1),
        **given | settings,
    )


def offsets(cluster: ScriptedCluster) -> dict[int, int]:
    return {number: offset for (_, number), (offset, _, _) in sorted(cluster.groups.group("g").offsets.items())}


async def polled(c: Consumer, count: int) -> list[ConsumerRecord]:
    out: list[ConsumerRecord] = []
    async with asyncio.timeout(60):
        while len(out) < count:
            out += await c.poll(1, max_records=count - len(out))
    return out


# --- a transaction with a consumer -------------------------------------------------------------------


@virtually
async def test_what_was_read_is_committed_with_what_was_written(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 10, topic="t", partition=partition)
    async with producer(cluster) as p, member(cluster) as c:
        c.subscribe(["t"])
        async with p.transaction(consumer=c):
            for record in await polled(c, 30):
                await p.send("one", record.value)
            assert offsets(cluster) == {}
        assert offsets(cluster) == {0: 10, 1: 10, 2: 10}
        assert len(committed(cluster, "one")) == 30
        async with p.transaction(consumer=c):
            pass
        assert len([r for r in cluster.transactions.seen if isinstance(r, TxnOffsetCommitRequest)]) == 1
    async with member(cluster) as c:
        c.subscribe(["t"])
        assert await c.poll(5) == []


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("inside", [True, False])
def test_after_an_abort_the_same_records_come_again(reset: str, inside: bool) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        fill(cluster, 5)
        async with producer(cluster) as p, member(cluster, auto_offset_reset=reset) as c:
            c.subscribe(["one"])
            while c.assignment() != {TopicPartition("one", 0)}:
                await c.poll(0.1, max_records=0)
            await c.position(TopicPartition("one", 0))
            fill(cluster, 10)
            start = 0 if reset == "earliest" else 5

            async def work() -> None:
                early = [] if inside else await polled(c, 4)
                async with p.transaction(consumer=c):
                    records = await polled(c, 4) if inside else early
                    assert [r.offset for r in records] == list(range(start, start + 4))
                    await p.send("t", b"1")
                    raise ZeroDivisionError

            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await work()
            async with p.transaction(consumer=c):
                assert [r.offset for r in await polled(c, 2)] == [start, start + 1]
            assert offsets(cluster) == {0: start + 2}
            start += 2
            with pytest.raises(ZeroDivisionError):
                await work()
            c.seek(TopicPartition("one", 0), start + 1)  # past a record that no try mends
            start += 1
            with pytest.raises(ZeroDivisionError):
                await work()

    test()


@virtually
async def test_an_iteration_commits_up_to_the_record_in_hand(cluster: ScriptedCluster) -> None:
    fill(cluster, 10)
    seen = []
    async with producer(cluster) as p, member(cluster) as c:
        c.subscribe(["one"])
        failed = False
        async for record in c:
            seen.append(record.offset)
            try:
                async with p.transaction(consumer=c):
                    await p.send("t", b"%d" % record.offset)
                    if record.offset == 6 and not failed:
                        failed = True
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            assert offsets(cluster) == {0: record.offset + 1}
            if record.offset == 9:
                break
    assert seen == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9]
    assert committed(cluster) == list(range(10))


@virtually
async def test_partitions_that_were_given_up_during_the_transaction_abort_it(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 10, topic="t", partition=partition)
    async with producer(cluster) as p, member(cluster) as c, member(cluster, "other") as other:
        c.subscribe(["t"])
        other.subscribe(["t"])

        async def work() -> None:
            async with p.transaction(consumer=c):
                for record in await polled(c, 30):
                    await p.send("one", record.value)
                polls = asyncio.create_task(polled(other, 10))
                async with asyncio.timeout(60):
                    while len(c.assignment()) == 3:
                        for record in await c.poll(0.1):
                            await p.send("one", record.value)
                polls.cancel()
                await asyncio.wait([polls])

        with pytest.raises(CommitFailedError) as caught:
            await work()
        assert caught.value.abortable
        assert offsets(cluster) == {}
        assert committed(cluster, "one") == []


@virtually
async def test_a_generation_that_is_over_aborts_it(cluster: ScriptedCluster) -> None:
    fill(cluster, 10)
    async with producer(cluster) as p, member(cluster) as c:
        c.subscribe(["one"])
        records = await polled(c, 5)
        group = cluster.groups.group("g")
        group.generation += 1

        async def work() -> None:
            async with p.transaction(consumer=c):
                await p.send("t", records[0].value)

        with pytest.raises(CommitFailedError, match="no longer in the group"):
            await work()
        group.generation -= 1
        async with p.transaction(consumer=c):
            assert [r.offset for r in await polled(c, 10)] == list(range(10))
        assert offsets(cluster) == {0: 10}


@virtually
async def test_who_was_put_out_of_the_group_commits_nothing_though_the_group_is_empty(
    cluster: ScriptedCluster,
) -> None:
    fill(cluster, 10)
    async with producer(cluster) as p, member(cluster) as c:
        c.subscribe(["one"])
        records = await polled(c, 10)
        cluster.groups.remove("g", c.group_metadata().member_id)
        await asyncio.sleep(10)  # a heartbeat tells
        assert c.group_metadata().generation_id == -1

        async def work() -> None:
            async with p.transaction(consumer=c):
                await p.send("t", records[0].value)

        with pytest.raises(CommitFailedError, match="not in group g now") as caught:
            await work()
        assert caught.value.abortable
        assert offsets(cluster) == {}
        async with p.transaction(consumer=c):
            assert [r.offset for r in await polled(c, 10)] == list(range(10))
        assert offsets(cluster) == {0: 10}


@virtually
async def test_consumers_that_do_not_fit(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p, member(cluster, enable_auto_commit=True) as c:
        with pytest.raises(IllegalStateError, match="enable_auto_commit"):
            p.transaction(consumer=c)
        lone = Consumer(cluster.bootstrap, _network=cluster.network())
        with pytest.raises(TidelogError, match="group_id"):
            p.transaction(consumer=lone)


# --- the program --------------------------------------------------------------------------------------------


def transform(cluster: ScriptedCluster, function: Any, name: str = "job", **more: Any) -> Transform:
    given: dict[str, Any] = {"topics": ["t"], "group_id": "g", "producer_settings": {"linger_ms": 0}}
    return Transform(
        function,
        cluster.bootstrap,
        _network=cluster.network(name),
        _clock=LoopClock(),
        _rng=random.Random(name),
        **given | more,
    )


async def until_written(cluster: ScriptedCluster, count: int) -> None:
    async with asyncio.timeout(600):
        while len(committed(cluster, "one")) < count:
            await asyncio.sleep(0.5)


@virtually
async def test_one_none_or_several_outputs_for_each_record(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 10, topic="t", partition=partition)

    def triple(record: ConsumerRecord) -> Iterator[ProducerRecord]:
        for _ in range(record.offset % 3):
            yield ProducerRecord("one", b"%d" % record.offset, key=record.key)

    job = transform(cluster, triple, transactional_id="mine")
    task = asyncio.create_task(job.run())
    await until_written(cluster, 27)
    job.stop()
    counts = await task
    assert (counts.read, counts.written, counts.aborts) == (30, 27, 0)
    assert Counter(committed(cluster, "one")) == {o: 3 * (o % 3) for o in range(10) if o % 3}
    assert offsets(cluster) == {0: 10, 1: 10, 2: 10}
    assert set(cluster.transactions.all) == {"mine"}


@virtually
async def test_an_error_of_the_function_ends_it_and_a_restart_goes_on(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=0)
    broken = True

    async def once(record: ConsumerRecord) -> ProducerRecord | None:
        await asyncio.sleep(0.01)
        if record.offset == 7 and broken:
            raise ZeroDivisionError
        return ProducerRecord("one", record.value)

    with pytest.raises(ZeroDivisionError):
        await transform(cluster, once, consumer_settings={"max_poll_records": 2}).run()
    assert len(committed(cluster, "one")) == 6
    broken = False
    job = transform(cluster, once)
    task = asyncio.create_task(job.run())
    await until_written(cluster, 10)
    job.stop()
    await task
    assert len(committed(cluster, "one")) == len(set(committed(cluster, "one"))) == 10


@virtually
async def test_what_trying_again_does_not_mend_ends_it(cluster: ScriptedCluster) -> None:
    fill(cluster, 3, topic="t", partition=0)
    cluster.judge = lambda node, topic, partition, batch: ErrorCode.INVALID_RECORD if topic == "one" else None
    job = transform(cluster, lambda record: ProducerRecord("one", record.value))
    with pytest.raises(TidelogError) as caught:
        await job.run()
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert job.counts.aborts == 10
    cluster.judge = None
    with pytest.raises(TypeError, match="ProducerRecord"):
        await transform(cluster, lambda record: [record.value]).run()


def test_settings_that_are_not_for_the_user() -> None:
    with pytest.raises(ConfigError, match="enable_auto_commit"):
        Transform(lambda _: None, "x:1", topics="t", group_id="g", consumer_settings={"enable.auto.commit": True})


@pytest.mark.parametrize("seed", range(8))
def test_each_input_once_through_crashes_rebalances_and_lost_answers(seed: int) -> None:
    """Members come and are killed; coordinators move, refuse and lose answers; leaders move."""

    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        rng = random.Random(seed)
        settings = {
            "producer_settings": {"linger_ms": 0, "request_timeout_ms": 2_000},
            "consumer_settings": {
                "max_poll_records": 5,
                "session_timeout_ms": 6_000,
                "heartbeat_interval_ms": 500,
                "partition_assignment_strategy": rng.choice(["range", "cooperative-sticky"]),
            },
        }

        lost_end: list[ErrorCode | str] = [LOST, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
        lost_commit: list[ErrorCode | str] = [LOST, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.ILLEGAL_GENERATION]

        def verdict(request: object) -> ErrorCode | str | None:
            if not trouble or rng.random() > 0.15:
                return None
            if isinstance(request, EndTxnRequest):
                return rng.choice(lost_end)
            if isinstance(request, TxnOffsetCommitRequest):
                return rng.choice(lost_commit)
            return ErrorCode.CONCURRENT_TRANSACTIONS

        trouble = True
        cluster.transactions.judge = verdict
        cluster.transactions.markers_take_s = 0.02
        cluster.after = lambda *_: asyncio.sleep(4, ErrorCode.NONE) if trouble and rng.random() < 0.03 else None

        async def slow(record: ConsumerRecord) -> ProducerRecord:
            await asyncio.sleep(rng.random() * 0.2)
            return ProducerRecord("one", record.value)

        async def run(job: Transform) -> None:
            while not done:
                try:
                    await job.run()
                except TidelogError:
                    await asyncio.sleep(1)

        done = False
        jobs: dict[str, tuple[Transform, asyncio.Task[None]]] = {}
        number = 0
        for partition in range(3):
            fill(cluster, 60, topic="t", partition=partition, per_batch=3)
        async with asyncio.timeout(2_000):
            while len(committed(cluster, "one")) < 180:
                if len(jobs) < 2 or (len(jobs) < 3 and rng.random() < 0.3):
                    number += 1
                    job = transform(cluster, slow, f"job{number}", **settings)
                    jobs[f"job{number}"] = (job, asyncio.create_task(run(job)))
                elif trouble and rng.random() < 0.3:
                    name = rng.choice(sorted(jobs))
                    _, task = jobs.pop(name)
                    task.cancel()
                    await asyncio.wait([task])
                if trouble and rng.random() < 0.2:
                    cluster.move(rng.choice(["t", "one"]), 0, rng.choice(cluster.nodes))
                await asyncio.sleep(rng.uniform(0.5, 6))
                trouble = number < 12
        done = True
        for job, task in jobs.values():
            job.stop()
            task.cancel()
            await asyncio.wait([task])
        inputs = Counter(value for partition in range(3) for value in cluster.partitions["t", partition].committed())
        assert Counter(cluster.partitions["one", 0].committed()) == inputs
        assert offsets(cluster) == dict.fromkeys(range(3), 60)

    test()
