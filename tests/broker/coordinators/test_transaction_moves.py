"""Transactions while coordinators and leaders move: killed between any two steps, partitions without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.broker.conftest import TransactionalProducer, TransactionCalls
from tidelog.model.errors import ErrorCode
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.group_api import GroupPartition, OffsetFetchGroup, OffsetFetchRequest
from tidelog.testing.async_cluster import AsyncCluster

NONE = ErrorCode.NONE
CONFIG = {
    "min.insync.replicas": "2",
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}


@pytest.fixture
async def three() -> AsyncIterator[TransactionCalls]:
    async with AsyncCluster(3, config=CONFIG) as cluster, TransactionCalls(cluster) as made:
        await cluster.create_topic("t", 6)
        yield made


async def offsets(calls: TransactionCalls, group: str) -> dict[tuple[str, int], int]:
    """The group's committed offsets, once none of them is undecided."""
    asked = OffsetFetchGroup(group, (GroupPartition("t", 0),))
    async with asyncio.timeout(100):
        while True:
            answer = await calls.ask(group, OffsetFetchRequest((asked,), require_stable=True))
            if answer.groups[0].offsets[0].error is NONE:
                found: dict[tuple[str, int], int] = await calls.committed(group)
                return found
            await asyncio.sleep(0.01)


async def all_decided(calls: TransactionCalls, partitions: int = 6) -> list[list[bytes]]:
    """The records that count in each partition, once no transaction is open anywhere."""
    async with asyncio.timeout(100):
        while True:
            if all(calls.cluster.leader_of("t", partition) in calls.cluster.nodes for partition in range(partitions)):
                found = [calls.decided("t", partition) for partition in range(partitions)]
                if not any(open_ for _, open_ in found):
                    return [values for values, _ in found]
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("step", "committed"),
    [(0, True), (1, False), (2, True), (3, True), (3, False), (4, True), (4, False), (5, True)],
)
async def test_the_coordinator_is_killed_between_two_steps(three: TransactionCalls, step: int, committed: bool) -> None:
    cluster = three.cluster

    async def killed(at: int) -> None:
        if at == step:
            await cluster.kill(await three.transaction_coordinator("x"))

    producer = await three.open("x")
    await three.coordinator("g")
    await killed(0)
    assert await producer.write(0, b"one") is NONE
    await killed(1)
    assert await producer.write(1, b"two") is NONE
    await killed(2)
    assert await producer.commit_offsets("g", 7) is NONE
    await killed(3)
    assert await producer.end(committed=committed) is NONE
    await killed(4)
    assert await producer.write(0, b"three") is NONE
    await killed(5)
    assert await producer.end(committed=True) is NONE
    await three.wait_for_state("x", "CompleteCommit")
    found = await all_decided(three)
    expected = [[b"one", b"three"], [b"two"]] if committed else [[b"three"], []]
    assert found == [*expected, [], [], [], []]
    assert await offsets(three, "g") == ({("t", 0): 7} if committed else {})


async def test_the_coordinator_is_killed_while_the_end_is_on_its_way(three: TransactionCalls) -> None:
    """The client asks again; whatever was decided first stands."""
    for turn in range(4):
        producer = await three.open("x")
        value = b"%d" % turn
        assert await asyncio.gather(*(producer.write(at, value) for at in range(6))) == [NONE] * 6
        home = await three.transaction_coordinator("x")
        ending = asyncio.ensure_future(producer.end(committed=True))
        for _ in range(turn * 3):
            await asyncio.sleep(0)
        await three.cluster.kill(home)
        assert await ending is NONE
        await three.wait_for_state("x", "CompleteCommit")
        assert [values[-1] for values in await all_decided(three)] == [value] * 6
        await three.cluster.restart(home)
        for partition in range(6):
            await three.cluster.wait_for_isr("t", partition, 3)


async def test_markers_follow_their_partitions_to_new_leaders(three: TransactionCalls) -> None:
    """The leader dies with the decision made and the marker not written."""
    producer = await three.open("x")
    assert await asyncio.gather(*(producer.write(at, b"v") for at in range(6))) == [NONE] * 6
    home = await three.transaction_coordinator("x")
    (moved, *_) = [at for at in range(6) if three.cluster.leader_of("t", at) != home]
    victim = three.cluster.leader_of("t", moved)
    assert victim is not None
    three.cluster.partition(home, victim)
    counters = three.broker(home).transactions.coordinator.counters
    appends = counters.appends
    ending = asyncio.ensure_future(producer.end(committed=True))
    await three.cluster.wait_for(lambda: counters.appends > appends, "the decision is written")
    await three.cluster.kill(victim)
    assert await ending is NONE
    assert await all_decided(three) == [[b"v"]] * 6
    await three.wait_for_state("x", "CompleteCommit")


async def test_markers_wait_for_a_partition_without_a_leader() -> None:
    config = CONFIG | {"min.insync.replicas": "1"}
    async with AsyncCluster(3, config=config) as cluster, TransactionCalls(cluster) as calls:
        await cluster.create_topic("t", 6, replication_factor=1)
        producer = await calls.open("x")
        home = await calls.transaction_coordinator("x")
        written = [at for at in range(6) if cluster.leader_of("t", at) != home][:1]
        victim = cluster.leader_of("t", written[0])
        assert victim is not None
        assert await producer.write(written[0], b"v") is NONE
        await cluster.kill(victim)
        await cluster.wait_for(lambda: cluster.leader_of("t", written[0]) is None, "its only replica is gone")
        assert await producer.end(committed=True) is NONE
        home = await calls.transaction_coordinator("x")
        markers = calls.broker(home).transactions.markers
        await cluster.wait_for(lambda: markers.leaderless == 1, "the marker waits for a leader")
        assert (await calls.describe("x")).state == "PrepareCommit"
        await cluster.restart(victim)
        await calls.wait_for_state("x", "CompleteCommit")
        assert markers.leaderless == 0
        assert (await all_decided(calls))[written[0]] == [b"v"]


async def test_a_prepared_transaction_outlives_kills_and_timeouts(three: TransactionCalls) -> None:
    producer = await three.open("x", timeout_ms=2_000, enable_two_phase_commit=True)
    assert await producer.write(0, b"kept") is NONE
    assert await producer.commit_offsets("g", 7) is NONE
    assert await producer.prepare() is NONE
    over = asyncio.get_running_loop().time() + 2.5
    for _ in range(2):
        home = await three.transaction_coordinator("x")
        await three.cluster.kill(home)
        assert (await three.describe("x")).state == "Prepared"
        await three.cluster.restart(home)
        for partition in range(6):
            await three.cluster.wait_for_isr("t", partition, 3)
    await three.cluster.wait_for(lambda: asyncio.get_running_loop().time() > over, "its timeout is over")
    assert (await three.describe("x")).state == "Prepared"
    assert await producer.prepare() is NONE, "asked again it is answered alike"
    assert await producer.end(committed=True) is NONE
    await three.wait_for_state("x", "CompleteCommit")
    assert (await all_decided(three))[0] == [b"kept"]
    assert await offsets(three, "g") == {("t", 0): 7}


async def test_a_timeout_counts_on_under_a_new_coordinator(three: TransactionCalls) -> None:
    producer = await three.open("x", timeout_ms=500)
    assert await producer.write(0, b"slow") is NONE
    await three.cluster.kill(await three.transaction_coordinator("x"))
    await three.wait_for_state("x", "CompleteAbort")
    assert await all_decided(three) == [[]] * 6
    assert await producer.write(0, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_offsets_of_an_open_transaction_move_with_their_group(three: TransactionCalls) -> None:
    producer = await three.open("x")
    assert await producer.commit_offsets("g", 7) is NONE
    home = await three.coordinator("g")
    await three.cluster.kill(home)
    asked = OffsetFetchGroup("g", (GroupPartition("t", 0),))
    answer = await three.ask("g", OffsetFetchRequest((asked,), require_stable=True))
    assert answer.groups[0].offsets[0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert await three.committed("g") == {}
    assert await producer.end(committed=True) is NONE
    assert await offsets(three, "g") == {("t", 0): 7}


async def test_producers_and_kills_of_any_node(three: TransactionCalls) -> None:
    """Each transaction is in all of its partitions and offsets, or in none."""
    stop = asyncio.Event()
    sure: list[list[tuple[bytes, bool]]] = [[] for _ in range(4)]

    producers = [await three.open(f"x{number}") for number in range(4)]

    async def work(number: int, producer: TransactionalProducer) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            value = b"%d-%d" % (number, turn)
            wants = turn % 3 != 1
            written = await asyncio.gather(*(producer.write((number + at) % 6, value) for at in range(3)))
            ok = written == [NONE] * 3 and await producer.commit_offsets(f"g{number}", turn) is NONE
            ended = await producer.end(committed=ok and wants)
            assert ended is NONE, (number, turn, written, ended)
            sure[number].append((value, ok and wants))

    workers = [asyncio.ensure_future(work(number, producers[number])) for number in range(4)]

    async def go_on() -> None:
        """All of them have ended two more transactions."""
        due = [len(of_one) + 2 for of_one in sure]
        await three.cluster.wait_for(
            lambda: (
                any(worker.done() for worker in workers)
                or all(len(of_one) >= least for of_one, least in zip(sure, due, strict=True))
            ),
            "producers go on",
        )
        assert not [worker for worker in workers if worker.done()]

    try:
        for victim in (1, 2, 3):
            await go_on()
            await three.cluster.kill(victim)
            await go_on()
            await three.cluster.restart(victim)
            for partition in range(6):
                await three.cluster.wait_for_isr("t", partition, 3)
    finally:
        stop.set()
        await asyncio.gather(*workers)
    for number in range(4):
        await three.wait_for_state(f"x{number}", "CompleteCommit", "CompleteAbort")
    found = await all_decided(three)
    committed = {value for of_one in sure for value, counts in of_one if counts}
    assert sorted(value for values in found for value in values) == sorted([*committed] * 3)
    assert sum(map(len, sure)) > 20
    for number in range(4):
        last = max((int(value.split(b"-")[1]) for value, counts in sure[number] if counts), default=None)
        assert await offsets(three, f"g{number}") == ({} if last is None else {("t", 0): last})
    assert three.cluster.image.topic(GROUP_OFFSETS_TOPIC) is not None
