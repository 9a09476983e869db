"""Sinks on a real cluster in this process: two jobs on one sink, frozen drivers, lost answers, and coordinators that
are killed around the decision. A reader of what is committed sees each batch whole, and once."""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import broker_of
from tidelog import SinkJob, SinkLedger, SinkMessage, SinkWriter, TopicPartition
from tidelog.client.errors import (
    ConfigError,
    IllegalStateError,
    RecordTooLargeError,
    RequestTimedOutError,
    SinkJobFencedError,
    SinkTransactionLostError,
    TidelogError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.hashes.java_hash import coordinator_partition
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.testing import Cluster
from tidelog.testing.async_cluster import AsyncCluster
from tidelog.transactions.coordinator import TransactionCoordinator

PARTITIONS = 3
STATE_PARTITIONS = 5
CONFIG = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
}
WAIT_S = 60.0
NOT_FOUND = type(exception_for(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, config=CONFIG) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, PARTITIONS)
    return str(name)


@pytest.fixture
def ledger(cluster: Cluster, topic: str) -> Iterator[SinkLedger]:
    with cluster.sink_ledger(f"to {topic}/ä") as found:
        yield found


def committed(cluster: Cluster, topic: str) -> Counter[bytes | None]:
    """All that a reader of what is committed sees, when nothing is open any more."""
    parts = [TopicPartition(topic, i) for i in range(PARTITIONS)]
    with (
        cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
        cluster.consumer() as every,
    ):
        consumer.assign(parts)
        every.assign(parts)
        until(lambda: consumer.end_offsets(parts) == every.end_offsets(parts), "all is decided, and marked")
        ends = consumer.end_offsets(parts)
        found: Counter[bytes | None] = Counter()
        deadline = time.monotonic() + WAIT_S
        while any(consumer.position(at) < end for at, end in ends.items()):
            assert time.monotonic() < deadline, "not read to the end"
            found.update(consumer.poll_values(0.2))
        return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def rows(job: SinkJob, task: int, count: int = 20) -> list[bytes]:
    return [b"%d/%d/%d" % (job.batch, task, number) for number in range(count)]


def task(cluster: Cluster, topic: str, job: SinkJob, number: int, count: int = 20) -> SinkMessage:
    with cluster.sink_writer(job) as writer:
        writer.send_many(topic, rows(job, number, count))
        return writer.prepare()


def expected(batches: int, tasks: int, count: int = 20) -> Counter[bytes | None]:
    return Counter(
        row for batch in range(batches) for i in range(tasks) for row in rows(SinkJob("", batch, ""), i, count)
    )


def test_batches_are_seen_whole_and_once(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    for batch in range(3):
        job = pickle.loads(pickle.dumps(ledger.new_job(batch)))
        messages = [task(cluster, topic, job, number) for number in range(3)]
        assert all(message.rows == 20 and message.winner is not None for message in messages)
        lost = task(cluster, topic, job, 7)
        assert lost.attempt not in [message.attempt for message in messages]
        sent = [SinkMessage.from_json(message.to_json()) for message in messages]
        assert sent == messages
        outcome = ledger.commit_batch(sent)
        assert (outcome.already_committed, outcome.last_batch, outcome.last_job) == (False, batch, job.job)
        assert ledger.commit_batch(sent).already_committed, "asked again, it is so already"
        assert task(cluster, topic, job, 8).already_committed
    assert committed(cluster, topic) == expected(3, 3)
    found = ledger.describe()
    assert found.last == job
    assert found.current is None


def test_nothing_is_seen_before_the_decision(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)
    message = task(cluster, topic, job, 0)
    with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(PARTITIONS)])
        assert consumer.poll(1.0) == []
        found = ledger.describe()
        assert found.current == job
        assert [one.state for one in found.transactions] == ["Prepared"]
        ledger.commit_batch([message])
        seen: list[object] = []

        def is_seen() -> bool:
            seen.extend(consumer.poll_values(0.2))
            return len(seen) >= 20

        until(is_seen, "the batch is seen")


def test_the_transactions_of_a_sink_are_where_its_ledger_is(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)
    messages = [task(cluster, topic, job, number) for number in range(4)]
    partition = coordinator_partition(job.sink, STATE_PARTITIONS)
    leader = cluster.leader_of(TRANSACTION_STATE_TOPIC, partition)
    with cluster.admin() as admin:
        found = admin.describe_sinks([job.sink])[job.sink]
        listed = {one.transactional_id: one.coordinator for one in admin.list_transactions(states=["Prepared"])}
        names = {one.transactional_id for one in found.transactions}
        assert len(names) == 4
        assert {listed[name] for name in names} == {leader} == {found.coordinator.node_id}
        assert {one.coordinator.node_id for one in admin.describe_transactions(names).values()} == {leader}
        mine = [one for one in admin.list_sinks() if one.sink == job.sink]
        assert [(one.batch, one.transaction_count, one.coordinator) for one in mine] == [(0, 4, leader)]
    ledger.commit_batch(messages)


def test_a_new_job_takes_over_and_the_frozen_driver_comes_too_late(
    cluster: Cluster, topic: str, ledger: SinkLedger
) -> None:
    frozen = ledger.new_job(0)
    old = [task(cluster, topic, frozen, number) for number in range(2)]
    with cluster.sink_writer(frozen) as writing:
        writing.send(topic, b"never seen")
        fresh = ledger.new_job(0)
        with cluster.sink_ledger(frozen.sink) as thawed:
            new = [task(cluster, topic, fresh, number) for number in range(2)]
            with pytest.raises(SinkJobFencedError) as fenced:
                thawed.commit_batch(old)
            assert fenced.value.fatal
            with pytest.raises(SinkJobFencedError):
                task(cluster, topic, frozen, 3)
            with cluster.admin() as admin:  # until then, partitions take records that will be aborted
                until(
                    lambda: not list(admin.list_transactions(states=["PrepareAbort"])),
                    "what the old job wrote is aborted",
                )
            for _ in range(2):
                with pytest.raises(SinkJobFencedError) as late:
                    more(writing, topic)
                assert late.value.fatal
            assert not ledger.commit_batch(new).already_committed
            assert thawed.commit_batch(old).already_committed
            outcome = thawed.abort_job(old)
            assert outcome is not None
            assert outcome.already_committed
            assert outcome.last_job == fresh.job
    assert committed(cluster, topic) == expected(1, 2)


def more(writer: SinkWriter, topic: str) -> None:
    writer.send_many(topic, [b"never seen"] * 100)
    writer.prepare()


def test_an_aborted_job_is_not_seen_and_does_not_come_back(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)
    messages = [task(cluster, topic, job, 0)]
    outcome = ledger.abort_job(messages)
    assert outcome is not None
    assert not outcome.already_committed
    with pytest.raises(SinkJobFencedError):
        ledger.commit_batch(messages)
    with pytest.raises(SinkJobFencedError):
        task(cluster, topic, job, 1)
    again = ledger.new_job(0)
    assert not ledger.commit_batch([task(cluster, topic, again, 0)]).already_committed
    assert committed(cluster, topic) == expected(1, 1)
    assert ledger.abort_job([]) is None


def test_a_batch_without_rows(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    with pytest.raises(NOT_FOUND):
        ledger.describe()
    job = ledger.new_job(0)
    with cluster.sink_writer(job) as writer:
        writer.send_many(topic, [])
        message = writer.prepare()
    assert (message.attempt, message.already_committed) == (None, False)
    assert not ledger.commit_batch([message]).already_committed
    assert not ledger.commit_batch([], batch=1).already_committed
    assert ledger.commit_batch([], batch=0).already_committed
    begun = ledger.new_job(2)
    with cluster.sink_writer(begun) as writer:
        assert writer.begin()
        message = writer.prepare()
    assert message.attempt is None, "what was begun for nothing is no winner"
    assert not ledger.commit_batch([message]).already_committed
    with pytest.raises(ValueError, match="batch="):
        ledger.commit_batch([])


def test_a_writer_that_is_left_aborts(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)

    def fail() -> None:
        with cluster.sink_writer(job) as writer:
            writer.send(topic, b"never seen")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    until(lambda: not ledger.describe().transactions, "it is aborted and forgotten")
    with cluster.sink_writer(job) as writer:
        writer.send(topic, b"never seen")
        message = writer.prepare()
        with pytest.raises(IllegalStateError, match="prepared"):
            writer.send(topic, b"more")
        assert writer.prepare() == message
        writer.abort()
    with pytest.raises(SinkTransactionLostError) as lost:
        ledger.commit_batch([message])
    assert lost.value.abortable
    with cluster.sink_writer(job) as writer, pytest.raises(RecordTooLargeError):
        writer.send(topic, bytes(2_000_000))
    assert not ledger.commit_batch([task(cluster, topic, job, 0)]).already_committed
    assert committed(cluster, topic) == expected(1, 1)


def test_bad_input(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)
    with pytest.raises(ConfigError, match="transactional_id"):
        cluster.sink_writer(job, transactional_id="mine")
    for bad in (SinkJob("", 0, "j"), SinkJob("s", -1, "j"), SinkJob("s", 0, "a/b"), SinkJob("s" * 256, 0, "j")):
        with pytest.raises(ValueError, match="expected"):
            cluster.sink_writer(bad)
    mine, other = SinkMessage(*job), SinkMessage(job.sink, 0, "other")
    with pytest.raises(ValueError, match="one job"):
        ledger.commit_batch([mine, other])
    with pytest.raises(ValueError, match="of sink"):
        ledger.commit_batch([SinkMessage("another", 0, "j")])
    with pytest.raises(ValueError, match="batch 1"):
        ledger.commit_batch([mine], batch=1)
    for text in ("{}", "[1]", '{"sink": "s", "batch": "0", "job": "j"}', "no"):
        with pytest.raises(ValueError, match="SinkMessage"):
            SinkMessage.from_json(text)
    with cluster.producer(transactional_id="__sink/s/0/j/a") as producer:
        with pytest.raises(TidelogError, match="ledgers of sinks") as refused:
            producer.init_transactions()
        assert refused.value.fatal


def test_a_sink_is_deleted_when_nothing_is_open(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    job = ledger.new_job(0)
    messages = [task(cluster, topic, job, 0)]
    with cluster.admin() as admin:
        with pytest.raises(TidelogError, match="abort its job"):
            admin.delete_sink(job.sink)
        admin.abort_sink_job(job)
        until(lambda: not ledger.describe().transactions, "it is aborted")
        admin.delete_sink(job.sink)
        with pytest.raises(NOT_FOUND):
            admin.delete_sink(job.sink)
    with pytest.raises(SinkTransactionLostError):
        ledger.commit_batch(messages)


def test_what_takes_too_long_has_to_be_run_again(tmp_path: Path) -> None:
    config = {**CONFIG, "transaction.sink.timeout.ms": "500", "transaction.sink.prepared.timeout.ms": "1500"}
    with Cluster(config=config) as cluster, cluster.sink_ledger("s") as ledger:
        cluster.create_topic("t", PARTITIONS)
        job = ledger.new_job(0)
        with cluster.sink_writer(job) as slow:
            slow.send("t", b"never seen")
            until(lambda: bool(ledger.describe().transactions), "it has begun")
            until(lambda: not ledger.describe().transactions, "it has timed out")
            for _ in range(2):
                with pytest.raises(SinkTransactionLostError) as lost:
                    more(slow, "t")
                assert lost.value.abortable
        prepared = task(cluster, "t", job, 0)
        until(lambda: not ledger.describe().transactions, "it has timed out though it was prepared")
        with pytest.raises(SinkTransactionLostError):
            ledger.commit_batch([prepared])
        again = ledger.new_job(0)
        assert not ledger.commit_batch([task(cluster, "t", again, 0)]).already_committed
        assert committed(cluster, "t") == expected(1, 1)


def run_batch(cluster: Cluster, topic: str, sink: str, batch: int, tasks: int) -> None:
    """A driver that does not give up: what a program does that is started again after each failure, a random pause
    later, so that two on one sink do not take over from each other for ever."""
    deadline = time.monotonic() + WAIT_S
    pause_s = 0.1
    with cluster.sink_ledger(sink) as ledger:
        while True:
            assert time.monotonic() < deadline, f"batch {batch} of {sink} is not decided"
            job = ledger.new_job(batch)
            try:
                messages = [task(cluster, topic, job, number) for number in range(tasks)]
                ledger.commit_batch(messages)
            except RequestTimedOutError:
                pass
            except TidelogError as error:
                assert error.abortable or error.fatal, error
            else:
                return
            time.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, 5.0)


def test_two_drivers_on_one_sink_write_each_batch_once(cluster: Cluster, topic: str, ledger: SinkLedger) -> None:
    sink = ledger.new_job(0).sink
    batches = 4

    def drive(_: int) -> None:
        for batch in range(batches):
            run_batch(cluster, topic, sink, batch, 2)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(drive, range(2)):
            assert done is None
    assert committed(cluster, topic) == expected(batches, 2)
    found = ledger.describe()
    assert found.last is not None
    assert found.last.batch == batches - 1


def test_coordinators_die_between_any_two_steps(topic: str, cluster: Cluster, ledger: SinkLedger) -> None:
    """The sink's coordinator is killed while batches are written and decided; all is there, once."""
    sink = ledger.new_job(0).sink
    partition = coordinator_partition(sink, STATE_PARTITIONS)
    batches = 6
    with ThreadPoolExecutor(1) as pool:

        def run_all() -> None:
            for batch in range(batches):
                run_batch(cluster, topic, sink, batch, 2)

        running = pool.submit(run_all)
        kills = 0
        while not running.done() and kills < 3:
            node = cluster.wait_for_leader(TRANSACTION_STATE_TOPIC, partition)
            cluster.kill(node)
            cluster.wait_for_leader(TRANSACTION_STATE_TOPIC, partition, other_than=node)
            cluster.restart(node)
            cluster.wait_ready()
            kills += 1
        running.result(WAIT_S)
    assert kills
    assert committed(cluster, topic) == expected(batches, 2)


@pytest.mark.parametrize("lost", ["begin_sink_transaction", "prepare", "commit_batch", "abort_job"])
async def test_lost_answers(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator decides, and its answer does not arrive: asking again finds out."""
    serve = getattr(TransactionCoordinator, lost)
    asked: list[Any] = []

    def lose_the_first(self: TransactionCoordinator, request: object, context: object) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = serve(self, request, context)
        if answer.done() and answer.result().error is not ErrorCode.NONE:
            return answer  # the topic is being made
        asked.append(request)
        return asyncio.get_running_loop().create_future() if len(asked) == 1 else answer

    monkeypatch.setattr(TransactionCoordinator, lost, lose_the_first)
    async with (
        AsyncCluster(config={**CONFIG, "transaction.state.log.num.partitions": "1"}) as cluster,
        cluster.sink_ledger("s", request_timeout_ms=300) as ledger,
    ):
        await cluster.create_topic("t", 1)
        async with cluster.sink_writer(ledger.new_job(0), request_timeout_ms=300) as writer:
            await writer.send("t", b"1")
            message = await writer.prepare()
            if lost == "abort_job":
                outcome = await ledger.abort_job([message])
                assert outcome is not None
                assert not outcome.already_committed
            else:
                outcome = await ledger.commit_batch([message])
                assert outcome.already_committed is (lost == "commit_batch")
                assert outcome.last_job == message.job
        assert len(asked) >= 2
        assert len(set(asked)) == 1, "the same request"
        async with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            found = await consumer.poll(1.0 if lost == "abort_job" else 10.0)
            assert [record.value for record in found] == ([] if lost == "abort_job" else [b"1"])


@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_the_coordinator_dies_around_the_decision(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has written the decision, while that is being replicated, and after that, before it has answered."""
    serve = TransactionCoordinator.commit_batch
    killing: list[asyncio.Task[None]] = []
    cluster = AsyncCluster(3, config=CONFIG)

    def die(coordinator: TransactionCoordinator) -> None:
        found = [n for n, node in cluster.nodes.items() if broker_of(node).transactions.coordinator is coordinator]
        killing.append(asyncio.get_running_loop().create_task(cluster.kill(found[0])))

    def commit(self: TransactionCoordinator, request: Any, context: Any) -> asyncio.Future[Any]:
        if killing:
            return serve(self, request, context)
        if when == "before":
            die(self)
        elif when == "during":
            serve(self, request, context)
            die(self)
        else:
            serve(self, request, context).add_done_callback(lambda _: die(self))
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(TransactionCoordinator, "commit_batch", commit)
    async with cluster, cluster.sink_ledger("s", request_timeout_ms=500) as ledger:
        await cluster.create_topic("t", PARTITIONS)
        job = ledger.new_job(0)
        messages = []
        for number in range(2):
            async with cluster.sink_writer(job) as writer:
                await writer.send_many("t", rows(job, number))
                messages.append(await writer.prepare())
            async with cluster.sink_writer(job) as loser:
                await loser.send("t", b"never seen")
                await loser.prepare()
        outcome = await ledger.commit_batch(messages)
        assert len(killing) == 1
        if when != "during":
            assert outcome.already_committed is (when == "after")
        assert outcome.last_job == job.job
        await killing[0]
        found: Counter[bytes | None] = Counter()
        async with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition("t", i) for i in range(PARTITIONS)])
            async with asyncio.timeout(WAIT_S):
                while found.total() < 40:
                    found.update(record.value for record in await consumer.poll(1.0))
            assert await consumer.poll(0.3) == []
        assert found == expected(1, 2)
