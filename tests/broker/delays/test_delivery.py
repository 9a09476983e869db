"""Delay topics on a cluster in this process: what is delivered, when, where to, and what is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tidelog.broker.coordinators.delays import mover
from tidelog.client.errors import TidelogError
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition
from tidelog.testing.async_cluster import AsyncCluster

DELAYS = {
    "delay.enable": "true",
    "message.timestamp.type": "LogAppendTime",
    "delay.target": "bills",
    "delay.targets": "letters,closed,small,nowhere,later",
    "delay.dead.letter.topic": "dlq.later",
}
OPEN = {"delay.sources": "later"}
BOUND_S = 30.0


@pytest.fixture(params=[1])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(nodes=request.param) as cluster:
        for topic in ("bills", "letters", "dlq.later"):
            await cluster.create_topic(topic, 2, config=OPEN)
        await cluster.create_topic("closed", 1)
        await cluster.create_topic("later", 1, config=DELAYS)
        yield cluster


def headers(**told: object) -> list[tuple[str, bytes]]:
    return [("tidelog-" + name.replace("_", "-"), str(value).encode()) for name, value in told.items()]


async def send(cluster: AsyncCluster, *records: tuple[bytes, Mapping[str, object]]) -> list[int]:
    async with cluster.producer() as producer:
        sent = [
            await producer.send("later", value, key=value, headers=[("own", b"1"), *headers(**told)])
            for value, told in records
        ]
        return [(await each).offset for each in sent]


async def read(cluster: AsyncCluster, topic: str, count: int, *, quiet_s: float = 0.5) -> list[ConsumerRecord]:
    """That many committed records of a topic, and a little longer, to see that there are no more."""
    found: list[ConsumerRecord] = []
    async with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(2)])
        until = time.monotonic() + BOUND_S
        while len(found) < count:
            assert time.monotonic() < until, f"expected {count} records of {topic}, found {found}"
            found += await consumer.poll(timeout=0.2)
        found += await consumer.poll(timeout=quiet_s)
    assert len(found) == count
    return found


def told(record: ConsumerRecord) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


async def test_records_come_when_they_are_due_and_in_that_order(cluster: AsyncCluster) -> None:
    began_ms = int(time.time() * 1_000)
    offsets = await send(
        cluster,
        (b"c", {"delay_ms": 900}),
        (b"a", {"delay_ms": 300}),
        (b"b", {"deliver_at": began_ms + 600, "delay_ms": 1}),
        (b"l", {"delay_ms": 0, "deliver_to": "letters"}),
    )
    found = await read(cluster, "bills", 3)
    assert {record.value for record in found} == {b"a", b"b", b"c"}
    for record in found:
        about = told(record)
        due_ms = int(about["tidelog-delay-due"])
        assert record.timestamp == due_ms
        assert about["own"] == "1"
        assert "tidelog-delay-ms" not in about
    by_value = {record.value: told(record) for record in found}
    b = by_value[b"b"]
    assert int(b["tidelog-delay-due"]) == max(began_ms + 600, int(b["tidelog-delay-timestamp"]))
    assert by_value[b"a"]["tidelog-delay-id"] == f"later-0-{offsets[1]}"
    assert int(by_value[b"c"]["tidelog-delay-due"]) - int(by_value[b"c"]["tidelog-delay-timestamp"]) == 900
    [letter] = await read(cluster, "letters", 1)
    assert letter.value == b"l"


async def test_a_leader_with_nothing_to_do_is_woken(cluster: AsyncCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "IDLE_S", 10 * BOUND_S)
    [node] = cluster.nodes.values()
    assert node.broker is not None
    for number in range(1, 3):
        until = time.monotonic() + BOUND_S
        while not node.broker.replicas.consuming.waiting:
            assert time.monotonic() < until, "it never stops looking"
            await asyncio.sleep(0.01)
        await send(cluster, (b"%d" % number, {"delay_ms": 0}))
        await read(cluster, "bills", number)


async def test_cancelled_ones_do_not_come(cluster: AsyncCluster) -> None:
    never, after = b"", b""
    async with cluster.producer() as producer:
        for delay_ms in (1_000, 4_000, 16_000):
            never, after = b"never-%d" % delay_ms, b"after-%d" % delay_ms
            sent = [
                await (await producer.send("later", value, key=b"k", headers=headers(**told)))
                for value, told in ((never, {"delay_ms": delay_ms}), (after, {"delay_ms": delay_ms + 1}))
            ]
            cancel = await (await producer.send("later", b"", key=b"k", headers=headers(cancel=sent[0].offset)))
            if cancel.timestamp < sent[0].timestamp + delay_ms:
                break  # else this machine was too slow
    values: set[bytes | None] = set()
    async with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("bills", partition) for partition in range(2)])
        until = time.monotonic() + BOUND_S
        while after not in values:
            assert time.monotonic() < until
            values |= {record.value for record in await consumer.poll(timeout=0.2)}
    assert never not in values


BAD: Mapping[bytes, tuple[Mapping[str, Any], str, str]] = {
    b"unreadable": ({"deliver_at": "tomorrow"}, "invalid", "expected a whole number from 0 on, found 'tomorrow'"),
    b"nothing": ({}, "invalid", "found neither"),
    b"far": ({"delay_ms": 400 * 86_400_000}, "invalid", "expected a delay of at most"),
    b"closed": ({"delay_ms": 0, "deliver_to": "closed"}, "undeliverable", "among delay.sources"),
    b"nowhere": ({"delay_ms": 0, "deliver_to": "nowhere"}, "undeliverable", "there is no topic 'nowhere'"),
    b"cycle": ({"delay_ms": 0, "deliver_to": "later"}, "undeliverable", "without delay.enable"),
    b"elsewhere": ({"delay_ms": 0, "deliver_to": "elsewhere"}, "undeliverable", "delay.target or delay.targets"),
    b"expired": ({"delay_ms": 0, "expires_at": 1}, "expired", "tidelog-expires-at"),
}


async def test_what_cannot_be_delivered_goes_to_the_dead_letters(cluster: AsyncCluster) -> None:
    await send(cluster, *((value, asked) for value, (asked, _, _) in BAD.items()), (b"good", {"delay_ms": 0}))
    [good] = await read(cluster, "bills", 1)
    assert good.value == b"good"
    letters = await read(cluster, "dlq.later", len(BAD))
    assert {letter.value for letter in letters} == set(BAD)
    for letter in letters:
        about, (_, reason, message) = told(letter), BAD[letter.value or b""]
        assert about["tidelog-dlq-reason"] == reason
        assert message in about["__dlq.errors.message"]
        assert about["__dlq.errors.topic"] == "later"


async def test_a_partition_waits_for_dead_letters_that_are_away(
    cluster: AsyncCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.admin() as admin:
        await admin.delete_topics(["dlq.later"])
    await send(cluster, (b"unreadable", {"deliver_at": "tomorrow"}), (b"good", {"delay_ms": 0}))
    until = time.monotonic() + BOUND_S
    while "there is no topic 'dlq.later' (delay.dead.letter.topic) for what cannot be delivered" not in caplog.text:
        assert time.monotonic() < until, "the log does not say why"
        await asyncio.sleep(0.02)
    await cluster.create_topic("dlq.later", 2, config=OPEN)
    [letter] = await read(cluster, "dlq.later", 1, quiet_s=0.1)
    [good] = await read(cluster, "bills", 1, quiet_s=0.1)
    assert (letter.value, good.value) == (b"unreadable", b"good")


async def test_a_record_that_its_target_does_not_take_does_not_hold_up_others(cluster: AsyncCluster) -> None:
    await cluster.create_topic("small", 1, config={**OPEN, "max.message.bytes": "300"})
    big, small = {"delay_ms": 300, "deliver_to": "small"}, {"delay_ms": 300}
    await send(cluster, (b"x" * 400, big), *((b"%d" % number, small) for number in range(20)))
    await read(cluster, "bills", 20)
    [dead] = await read(cluster, "dlq.later", 1)
    assert "MESSAGE_TOO_LARGE" in told(dead)["__dlq.errors.message"]


@pytest.mark.parametrize("cluster", [3], indirect=True)
async def test_every_leader_dies_once_and_each_record_comes_once(cluster: AsyncCluster) -> None:
    count = 60
    await send(cluster, *((b"%d" % number, {"delay_ms": 20 * number}) for number in range(count)))
    for node in (1, 2, 3):
        await asyncio.sleep(0.2)
        await cluster.kill(node)
        await cluster.restart(node)
    found = await read(cluster, "bills", count)
    assert sorted(int(record.value or b"") for record in found) == list(range(count))


async def test_nobody_else_may_use_the_ids_of_the_movers(cluster: AsyncCluster) -> None:
    await send(cluster, (b"a", {"delay_ms": 0}))
    await read(cluster, "bills", 1)
    async with cluster.admin() as admin:
        [group] = [found.group_id for found in await admin.list_groups() if found.group_id.startswith("__delay.")]
        with pytest.raises(TidelogError):
            await admin.alter_consumer_group_offsets(group, {TopicPartition("later", 0): 0})
    with pytest.raises(TidelogError):
        async with cluster.producer(transactional_id=f"{group}.0") as producer:
            await producer.init_transactions()


async def test_a_full_partition_takes_no_more_until_some_are_delivered(
    cluster: AsyncCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "TRIM_MS", 50)
    async with cluster.admin() as admin:
        await admin.alter_topic_configs("later", {"delay.pending.max": "2"})
    async with cluster.producer(batch_size=0, delivery_timeout_ms=5_000, request_timeout_ms=1_000) as producer:

        async def one(delay_ms: int) -> None:
            await (await producer.send("later", b"x", headers=headers(delay_ms=delay_ms)))

        await one(700)
        await one(60_000)
        with pytest.raises(TidelogError, match=r"delay\.pending\.max"):
            await one(60_000)
        until = time.monotonic() + BOUND_S
        while True:
            try:
                await one(60_000)
                break
            except TidelogError:
                assert time.monotonic() < until
                await asyncio.sleep(0.05)


async def test_a_transactional_id_that_has_expired_puts_nothing_off() -> None:
    expiring = {
        "transactional.id.expiration.ms": "1",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
    }
    async with AsyncCluster(nodes=1, config=expiring) as cluster:
        for topic in ("bills", "dlq.later"):
            await cluster.create_topic(topic, 2, config=OPEN)
        await cluster.create_topic("later", 1, config=DELAYS)
        for number in range(1, 3):
            await send(cluster, (b"%d" % number, {"delay_ms": 0}))
            found = await read(cluster, "bills", number)
            assert [record for record in found if record.timestamp != int(told(record)["tidelog-delay-due"])] == []
            async with cluster.admin() as admin:
                until = time.monotonic() + BOUND_S
                while await admin.list_transactions():
                    assert time.monotonic() < until
                    await asyncio.sleep(0.02)
