"""The first batch of a transaction in a partition, and events between the question about it and its append."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.replication.managers import Broker, MakeCluster, until
from tests.replication.rig import TransactionFields
from tests.virtual_time import in_virtual_time, run_virtual
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicId
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import ProducePartition, ProduceRequest
from tidelog.replication.partition.replica import Replica
from tidelog.replication.serving.verifying import Asking, GuardedAppend

TOPIC_ID = TopicId(bytes(range(16)))
P = 7


def txn(epoch: int, sequence: int, transactional_id: str | None = "tx") -> TransactionFields:
    return {
        "producer_id": P,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": True,
        "transactional_id": transactional_id,
    }


class Coordinator:
    """Answers when the test says so."""

    def __init__(self, broker: Broker) -> None:
        self.waiting: list[asyncio.Future[ErrorCode]] = []
        broker.answer_verify = self._ask

    def _ask(self, asked: AddPartitionsTransaction) -> asyncio.Future[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.waiting.pop(0).set_result(code)


def idle(broker: Broker) -> bool:
    """Nothing of what was asked is left behind."""
    replica = next(iter(broker.manager.replicas.values()))
    verifying = broker.manager.producing.verifying
    return not replica.verifying and not verifying.askings and not broker.manager.producing.budget.waiting


@in_virtual_time
async def test_the_coordinator_is_asked_once_and_before_the_append(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        first = c[1].begin(b"a", **txn(0, 0))
        await until(lambda: coordinator.waiting)
        assert c[1].partition().log.log_end_offset == 0
        asked = c[1].asked[0]
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("tx", P, 0)
        assert [(each.topic, each.partition) for each in asked.partitions] == [("t", 0)]
        assert not asked.verify_only
        coordinator.answer()
        assert (await first).error is ErrorCode.NONE
        assert (await c[1].produce(b"b", **txn(0, 1))).base_offset == 1
        assert len(c[1].asked) == 1
        assert idle(c[1])


@in_virtual_time
async def test_the_first_protocol_asks_whether_the_partition_is_there(cluster: MakeCluster) -> None:
    """Its sequence goes on through all transactions: one other than 0 may be the first that is seen here."""
    async with cluster() as c:
        c.create(leader=1)
        assert (await c[1].produce(b"a", first_protocol=True, **txn(0, 5))).error is ErrorCode.NONE
        assert c[1].asked[0].verify_only


@in_virtual_time
async def test_batches_behind_the_first_wait_in_order_and_retries_are_duplicates(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        sent = [c[1].begin(b"%d" % n, **txn(0, n)) for n in range(3)]
        sent.append(c[1].begin(b"1", **txn(0, 1)))
        await until(lambda: coordinator.waiting)
        other = await c[1].produce(b"plain")
        assert other.base_offset == 0, "nobody else waits"
        coordinator.answer()
        answers = await asyncio.gather(*sent)
        assert [answer.error for answer in answers] == [ErrorCode.NONE] * 4
        assert [answer.base_offset for answer in answers] == [1, 2, 3, 2]
        assert c[1].values() == [b"plain", b"0", b"1", b"2"]
        assert len(c[1].asked) == 1
        assert idle(c[1])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
@in_virtual_time
async def test_a_refusal_of_the_coordinator_appends_nothing(
    cluster: MakeCluster, answer: ErrorCode, told: ErrorCode
) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c[1].answer_verify = lambda asked: answer
        sent = [c[1].begin(b"%d" % n, **txn(0, n)) for n in range(2)]
        assert [found.error for found in await asyncio.gather(*sent)] == [told, told]
        assert c[1].partition().log.log_end_offset == 0
        assert idle(c[1])
        c[1].answer_verify = lambda asked: ErrorCode.NONE
        late = await c[1].produce(b"1", **txn(0, 1))
        assert late.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "its transaction begins with sequence 0"
        assert (await c[1].produce(b"0", **txn(0, 0))).error is ErrorCode.NONE
        assert (await c[1].produce(b"1", **txn(0, 1))).error is ErrorCode.NONE


@in_virtual_time
async def test_while_the_former_transaction_is_completed_it_is_asked_again(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        answers = [ErrorCode.CONCURRENT_TRANSACTIONS] * 4
        c[1].answer_verify = lambda asked: answers.pop() if answers else ErrorCode.NONE
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert (await c[1].produce(b"a", **txn(0, 0))).error is ErrorCode.NONE
        assert len(c[1].asked) == 5
        assert loop.time() - begun == pytest.approx(0.030, abs=0.005)


@in_virtual_time
async def test_it_is_not_asked_again_for_nobody(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c[1].answer_verify = lambda asked: ErrorCode.CONCURRENT_TRANSACTIONS
        answer = await c[1].produce(b"a", timeout_ms=500, **txn(0, 0))
        assert answer.error is ErrorCode.REQUEST_TIMED_OUT
        await until(lambda: idle(c[1]))
        asked = len(c[1].asked)
        await asyncio.sleep(5)
        assert len(c[1].asked) == asked
        assert c[1].partition().log.log_end_offset == 0
        sent = c[1].begin(b"a", **txn(0, 0))
        await asyncio.sleep(0.1)
        sent.cancel()
        await until(lambda: idle(c[1]))


@in_virtual_time
async def test_the_marker_of_the_former_transaction_may_come_meanwhile(cluster: MakeCluster) -> None:
    """The next transaction begins as soon as the decision on the last one is durable; its first batch is often here
    before the last one's marker, and the coordinator answers once that is written."""
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"last", **txn(0, 0))
        coordinator = Coordinator(c[1])
        sent = [c[1].begin(b"%d" % n, **txn(1, n)) for n in range(2)]
        await until(lambda: coordinator.waiting)
        assert c[1].partition().last_stable_offset == 0
        assert await c[1].mark(P, 1) is ErrorCode.NONE
        coordinator.answer()
        assert {found.error for found in await asyncio.gather(*sent)} == {ErrorCode.NONE}
        assert c[1].partition().last_stable_offset == 2
        assert idle(c[1])


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("epoch", [0, 1])
@in_virtual_time
async def test_a_marker_meanwhile_clears_the_guard(cluster: MakeCluster, committed: bool, epoch: int) -> None:
    """The transaction ended while the produce was on its way: appended behind the marker it would hang for good."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        sent = [c[1].begin(b"%d" % n, first_protocol=not epoch, **txn(0, n)) for n in range(2)]
        await until(lambda: coordinator.waiting)
        assert await c[1].mark(P, epoch, committed=committed, version=1 + epoch) is ErrorCode.NONE
        coordinator.answer()
        assert {found.error for found in await asyncio.gather(*sent)} == {ErrorCode.INVALID_TXN_STATE}
        partition = c[1].partition()
        assert partition.log.log_end_offset == 1
        assert partition.last_stable_offset == 1
        assert idle(c[1])


@in_virtual_time
async def test_a_batch_behind_the_marker_begins_anew(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        old = c[1].begin(b"old", first_protocol=True, **txn(0, 0))
        await until(lambda: coordinator.waiting)
        assert await c[1].mark(P, 0, version=1) is ErrorCode.NONE
        new = c[1].begin(b"new", first_protocol=True, **txn(0, 0))
        assert (await old).error is ErrorCode.INVALID_TXN_STATE
        await until(lambda: len(coordinator.waiting) == 2)
        coordinator.answer()
        coordinator.answer()
        assert (await new).base_offset == 1
        assert idle(c[1])


@in_virtual_time
async def test_epochs_of_one_producer(cluster: MakeCluster) -> None:
    """A newer one ends what the older one waits for; an older one is not asked for."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        old = c[1].begin(b"old", **txn(3, 0))
        await until(lambda: len(coordinator.waiting) == 1)
        new = c[1].begin(b"new", **txn(4, 0))
        assert (await old).error is ErrorCode.INVALID_PRODUCER_EPOCH
        await until(lambda: len(coordinator.waiting) == 2)
        late = await c[1].produce(b"late", **txn(3, 0))
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        coordinator.answer()
        assert c[1].partition().log.log_end_offset == 0, "the answer for the older one"
        coordinator.answer()
        assert (await new).error is ErrorCode.NONE
        assert c[1].values() == [b"new"]
        late = await c[1].produce(b"late", **txn(3, 0))
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert len(c[1].asked) == 2
        assert idle(c[1])


@in_virtual_time
async def test_an_append_that_breaks_off_leaves_callers_that_can_be_forgotten(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        troubles: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        coordinator, verifying = Coordinator(c[1]), c[1].manager.producing.verifying
        sent = [c[1].begin(b"%d" % n, **txn(0, n)) for n in range(2)]
        await until(lambda: coordinator.waiting)
        asking = next(iter(c[1].manager.replicas.values())).verifying[P]
        assert isinstance(asking, Asking)
        waits = [entry.wait for entry in asking.waiting]

        def broken(entry: GuardedAppend, replica: Replica) -> bool:
            waits[1].future.cancel()  # as when its connection ends
            return False

        verifying._append = broken
        coordinator.answer()
        with pytest.raises(asyncio.CancelledError):
            await sent[1]
        sent[0].cancel()
        await asyncio.sleep(0.1)
        assert not troubles
        assert idle(c[1])


@in_virtual_time
async def test_leadership_that_moves_meanwhile_and_comes_back(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        sent = c[1].begin(b"a", **txn(0, 0))
        await until(lambda: coordinator.waiting)
        c.change(leader=NodeId(2))
        assert (await sent).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        c.change(leader=NodeId(1))
        coordinator.answer()
        await asyncio.sleep(0.1)
        assert c[1].partition().log.log_end_offset == 0
        assert idle(c[1])


@in_virtual_time
async def test_records_cut_off_meanwhile_clear_the_guard(cluster: MakeCluster) -> None:
    """The same leader as before: its answer is about a log that is not this one."""
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"x")
        coordinator = Coordinator(c[1])
        sent = c[1].begin(b"a", **txn(0, 0))
        await until(lambda: coordinator.waiting)
        c[1].partition().log.truncate_to(0)
        coordinator.answer()
        assert (await sent).error is ErrorCode.INVALID_TXN_STATE


@in_virtual_time
async def test_several_partitions_of_one_request_are_asked_for_together(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3)
        await c[1].produce(b"x", partition=1, **txn(0, 0))
        records = encode_values([b"a"], 0, producer_id=P, producer_epoch=0, base_sequence=0, is_transactional=True)
        later = encode_values([b"a"], 0, producer_id=P, producer_epoch=0, base_sequence=1, is_transactional=True)
        request = ProduceRequest(
            -1, 1_000, [ProducePartition(TOPIC_ID, n, later if n == 1 else records) for n in range(3)], "tx"
        )
        future = c[1].manager.produce(request)
        assert isinstance(future, asyncio.Future)
        assert c[1].partition(1).log.log_end_offset == 2, "its transaction is open: appended at the call"
        assert c[1].partition(0).log.log_end_offset == 0
        assert [answer.error for answer in await future] == [ErrorCode.NONE] * 3
        assert [[each.partition for each in asked.partitions] for asked in c[1].asked] == [[1], [0, 2]]


@in_virtual_time
async def test_what_is_refused_without_asking(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        for acks, fields, code in (
            (-1, txn(0, 0, transactional_id=None), ErrorCode.INVALID_TXN_STATE),
            (1, txn(0, 0), ErrorCode.INVALID_REQUIRED_ACKS),
            (-1, txn(0, 4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ):
            assert (await c[1].produce(b"a", acks=acks, **fields)).error is code
        both = b"".join(
            bytes(encode_values([b"a"], 0, producer_id=pid, producer_epoch=0, base_sequence=0, is_transactional=tx))
            for pid, tx in ((P, True), (P + 1, True))
        )
        request = ProduceRequest(-1, 1_000, [ProducePartition(TOPIC_ID, 0, both)], "tx")
        assert (await c[1].answers(request))[0].error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        plain = encode_values([b"a"], 0, producer_id=P, producer_epoch=0, base_sequence=0, is_transactional=True)
        plain += encode_values([b"a"], 0)
        request = ProduceRequest(-1, 1_000, [ProducePartition(TOPIC_ID, 0, plain)], "tx")
        assert (await c[1].answers(request))[0].error is ErrorCode.INVALID_TXN_STATE
        assert not c[1].asked
        c[1].manager.producing.verifying.verify = None
        assert (await c[1].produce(b"a", **txn(0, 0))).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert c[1].partition().log.log_end_offset == 0


@in_virtual_time
async def test_a_batch_that_the_log_refuses_leaves_those_behind_it_out(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, max_message_bytes=200)
        sent = [c[1].begin(b"x" * 300, **txn(0, 0)), c[1].begin(b"b", **txn(0, 1))]
        answers = [found.error for found in await asyncio.gather(*sent)]
        assert answers == [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert c[1].partition().log.log_end_offset == 0
        assert idle(c[1])


@in_virtual_time
async def test_a_retry_of_what_is_there_needs_no_coordinator(cluster: MakeCluster) -> None:
    """Also when its transaction has ended, in the first protocol, whose epoch stays."""
    async with cluster() as c:
        c.create(leader=1)
        assert (await c[1].produce(b"a", first_protocol=True, **txn(0, 0))).error is ErrorCode.NONE
        assert await c[1].mark(P, 0, version=1) is ErrorCode.NONE
        c[1].answer_verify = lambda asked: ErrorCode.TRANSACTION_ABORTABLE
        again = await c[1].produce(b"a", first_protocol=True, **txn(0, 0))
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 0)
        assert len(c[1].asked) == 1


@in_virtual_time
async def test_askings_are_bounded(cluster: MakeCluster) -> None:
    async with cluster(produce_waiters_max=3) as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        sent = [c[1].begin(b"a", **(txn(0, 0) | {"producer_id": n})) for n in range(4)]
        await until(lambda: len(coordinator.waiting) == 3)
        assert (await sent[3]).error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        for _ in range(3):
            coordinator.answer()
        assert {found.error for found in await asyncio.gather(*sent[:3])} == {ErrorCode.NONE}


@pytest.mark.parametrize("seed", range(15))
def test_nothing_is_appended_outside_of_its_transaction(cluster: MakeCluster, seed: int) -> None:
    """A client of the second protocol whose requests come late, twice and in any order, against a coordinator that
    counts epochs: when all is over nothing is open, and each transaction that ended holds what the client was told."""
    rng = random.Random(seed)

    async def work() -> None:
        async with cluster() as c:
            c.create(leader=1)
            current = 0
            added: set[int] = set()
            told: list[asyncio.Task[tuple[int, int, ErrorCode]]] = []

            async def verify(epoch: int) -> ErrorCode:
                await asyncio.sleep(rng.random() * 0.02)
                code = ErrorCode.NONE if epoch == current else ErrorCode.PRODUCER_FENCED
                if code is ErrorCode.NONE:
                    added.add(epoch)
                await asyncio.sleep(rng.random() * 0.02)
                return code

            c[1].answer_verify = lambda asked: verify(asked.producer_epoch)

            async def send(epoch: int, sequence: int) -> tuple[int, int, ErrorCode]:
                await asyncio.sleep(rng.random() * 0.06)
                answer = await c[1].produce(b"%d.%d" % (epoch, sequence), **txn(epoch, sequence))
                return epoch, sequence, answer.error

            for _ in range(6):
                epoch = current
                for sequence in range(rng.randrange(4)):
                    copies = rng.choice((1, 1, 2))
                    told += [asyncio.ensure_future(send(epoch, sequence)) for _ in range(copies)]
                await asyncio.sleep(rng.random() * 0.08)
                current = epoch + 1
                if epoch in added:
                    for _ in range(rng.choice((1, 1, 2))):
                        code = await c[1].mark(P, current, committed=rng.random() < 0.7)
                        assert code is ErrorCode.NONE
            outcomes = await asyncio.gather(*told)
            await until(lambda: idle(c[1]))
            producers = c[1].partition().log.producers
            if producers.first_open_offset is not None:
                assert current in added, "a transaction is open that no marker will ever end"
            there = [value for value in c[1].values() if b"." in value]
            acknowledged = [
                b"%d.%d" % (epoch, sequence) for epoch, sequence, code in outcomes if code is ErrorCode.NONE
            ]
            assert set(acknowledged) <= set(there)
            assert len(set(there)) == len(there), "twice"
            assert there == sorted(there), "in the order of epochs and sequences"

    run_virtual(work())
