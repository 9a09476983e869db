"""Producers of the first transaction protocol: one epoch for all their transactions, sequences that go on.

What comes late, twice or in another order: what is refused, and the one thing that cannot be told.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.replication.managers import Broker, MakeCluster, until
from tests.replication.rig import ProduceFields
from tests.virtual_time import in_virtual_time, run_virtual
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction

P = 7
NONE = ErrorCode.NONE
DISORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NOT_IN_IT = ErrorCode.TRANSACTION_ABORTABLE


def txn(sequence: int, epoch: int = 0) -> ProduceFields:
    return {
        "producer_id": P,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": True,
        "transactional_id": "tx",
        "first_protocol": True,
    }


class Coordinator:
    """The client's word to the transaction's coordinator: whether this partition takes part, and under which epoch."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.takes_part = False
        self.epoch = 0
        self.unreachable = False
        broker.answer_verify = self.verify

    def verify(self, asked: AddPartitionsTransaction) -> ErrorCode:
        assert asked.verify_only
        if self.unreachable:
            return ErrorCode.NETWORK_EXCEPTION
        if asked.producer_epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return NONE if self.takes_part else NOT_IN_IT

    async def end(self, *, committed: bool = True) -> None:
        """The decision, then the marker, if there is anything to mark."""
        if self.takes_part:
            self.takes_part = False
            assert await self.broker.mark(P, self.epoch, committed=committed, version=1) is NONE


def settled(broker: Broker) -> bool:
    """Nothing of what was asked is left behind."""
    replica = next(iter(broker.manager.replicas.values()))
    return not replica.verifying and not broker.manager.producing.budget.waiting


def written(broker: Broker) -> list[bytes]:
    """The values in the log, without markers."""
    return [value for value in broker.values() if not value.startswith(b"\0")]


# --- The first batch of a producer ---------------------------------------------------------------------


@in_virtual_time
async def test_a_batch_that_overtook_the_first_one_is_not_the_first(cluster: MakeCluster) -> None:
    """The first batch is refused, since the coordinator cannot be asked, and comes again; the second was on its way
    already. Without a memory of the first the second would be taken: nothing is known of its producer."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        coordinator.takes_part = coordinator.unreachable = True
        assert (await c[1].produce(b"0", **txn(0))).error is ErrorCode.NOT_ENOUGH_REPLICAS
        coordinator.unreachable = False
        assert (await c[1].produce(b"1", **txn(1))).error is DISORDER
        assert (await c[1].produce(b"0", **txn(0))).error is NONE
        assert (await c[1].produce(b"1", **txn(1))).error is NONE
        assert written(c[1]) == [b"0", b"1"]
        assert settled(c[1])


@in_virtual_time
async def test_batches_that_wait_in_another_order_are_appended_in_their_own(cluster: MakeCluster) -> None:
    """Both wait for one answer, the later one before the earlier."""
    async with cluster() as c:
        c.create(leader=1)
        answers: list[asyncio.Future[ErrorCode]] = []

        def verify(_: object) -> asyncio.Future[ErrorCode]:
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        c[1].answer_verify = verify
        later = c[1].begin(b"6", **txn(6))
        await until(lambda: answers)
        earlier = c[1].begin(b"5", **txn(5))
        await asyncio.sleep(0.01)
        answers[0].set_result(NONE)
        assert (await later).error is DISORDER
        assert (await earlier).error is NONE
        assert (await c[1].produce(b"6", **txn(6))).error is NONE
        assert written(c[1]) == [b"5", b"6"]
        assert len(answers) == 1
        assert settled(c[1])


@in_virtual_time
async def test_another_epoch_begins_anew(cluster: MakeCluster) -> None:
    """Waits of the previous epoch do not hold up the next one."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        assert (await c[1].produce(b"0", **txn(0))).error is NOT_IN_IT
        coordinator.takes_part, coordinator.epoch = True, 1
        assert (await c[1].produce(b"4", **txn(4, epoch=1))).error is NONE
        assert (await c[1].produce(b"5", **txn(5, epoch=1))).error is NONE
        late = await c[1].produce(b"0", **txn(0))
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert written(c[1]) == [b"4", b"5"]


@in_virtual_time
async def test_after_leadership_came_back_the_first_is_still_waited_for(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        assert (await c[1].produce(b"0", **txn(0))).error is NOT_IN_IT
        coordinator.takes_part = True
        c.change(leader=NodeId(2))
        c.change(leader=NodeId(1))
        assert (await c[1].produce(b"1", **txn(1))).error is DISORDER
        assert (await c[1].produce(b"0", **txn(0))).error is NONE


# --- Produce that comes late ----------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@in_virtual_time
async def test_a_produce_that_comes_after_its_transaction_opens_none(cluster: MakeCluster, committed: bool) -> None:
    """It would hang: no marker would ever come for it."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        coordinator.takes_part = True
        assert (await c[1].produce(b"0", **txn(0))).error is NONE
        await coordinator.end(committed=committed)
        assert (await c[1].produce(b"1", **txn(1))).error is NOT_IN_IT
        partition = c[1].partition()
        assert partition.last_stable_offset == partition.log.log_end_offset == 2


@in_virtual_time
async def test_a_produce_that_comes_twice_or_after_a_later_one_is_not_written_again(cluster: MakeCluster) -> None:
    """In its transaction, after it, and within the next one."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        coordinator.takes_part = True
        for sequence in range(3):
            assert (await c[1].produce(b"%d" % sequence, **txn(sequence))).error is NONE
        assert (await c[1].produce(b"1", **txn(1))).base_offset == 1
        await coordinator.end()
        again = await c[1].produce(b"2", **txn(2))
        assert (again.error, again.base_offset) == (NONE, 2)
        coordinator.takes_part = True
        assert (await c[1].produce(b"2", **txn(2))).base_offset == 2
        assert (await c[1].produce(b"3", **txn(3))).base_offset == 4
        assert (await c[1].produce(b"0", **txn(0))).base_offset == 0
        await coordinator.end()
        assert written(c[1]) == [b"0", b"1", b"2", b"3"]
        assert c[1].partition().last_stable_offset == 6


@pytest.mark.parametrize("next_epoch", [False, True])
@in_virtual_time
async def test_the_gap_a_produce_given_up_is_taken_for_one_of_the_next_transaction(
    cluster: MakeCluster, next_epoch: bool
) -> None:
    """The interleaving of docs/transactions.md, step by step: epoch, sequence and the coordinator's answer are those of
    a batch of the second transaction. No broker can tell, so this shows what happens, and how far it goes: nothing
    hangs, and with another epoch after the abort the late batch is refused."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        # First transaction: the partition is added, "lost" is sent and does not arrive. The client aborts.
        coordinator.takes_part = True
        await coordinator.end(committed=False)
        coordinator.epoch += next_epoch
        # Second transaction: the partition is added once more. Now the first one's batch arrives.
        coordinator.takes_part = True
        late = await c[1].produce(b"lost", **txn(0))
        meant = await c[1].produce(b"meant", **txn(0, epoch=coordinator.epoch))
        await coordinator.end()
        partition = c[1].partition()
        assert partition.last_stable_offset == partition.log.log_end_offset, "nothing hangs"
        assert meant.error is NONE
        if next_epoch:
            assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
            assert written(c[1]) == [b"meant"]
        else:
            assert late.error is NONE
            assert meant.base_offset == late.base_offset, "taken for the same batch that comes again"
            assert written(c[1]) == [b"lost"], "committed with the second transaction"


@in_virtual_time
async def test_the_gap_is_closed_where_the_connection_ends_behind_the_late_batch(cluster: MakeCluster) -> None:
    """The same, but the client's closing of the connection, which follows the batch, is seen while the coordinator is
    asked: whoever gave the batch up does not have it appended."""
    async with cluster() as c:
        c.create(leader=1)
        coordinator = Coordinator(c[1])
        coordinator.takes_part = True
        await coordinator.end(committed=False)
        coordinator.takes_part = True
        answers: list[asyncio.Future[ErrorCode]] = []

        def verify(_: object) -> asyncio.Future[ErrorCode]:
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        c[1].answer_verify = verify
        late = c[1].begin(b"lost", **txn(0))
        await until(lambda: answers)
        late.cancel()
        await asyncio.sleep(0)
        meant = c[1].begin(b"meant", **txn(0))
        await asyncio.sleep(0.01)
        for answer in answers:
            answer.set_result(NONE)
        assert (await meant).error is NONE
        assert written(c[1]) == [b"meant"]
        await until(lambda: settled(c[1]))


@pytest.mark.parametrize("seed", range(12))
def test_random_delays_copies_and_orders(cluster: MakeCluster, seed: int) -> None:
    """A client that commits what was acknowledged, and goes on under another epoch after it gave anything up. Every
    request may come twice, and late; the coordinator cannot be asked at times."""
    rng = random.Random(seed)

    async def work() -> None:
        async with cluster() as c:
            c.create(leader=1)
            coordinator = Coordinator(c[1])
            stray: list[asyncio.Future[Any]] = []
            ended: list[tuple[int, bool]] = []
            sequence = 0

            async def send(value: bytes, sequence: int, epoch: int, delay_s: float) -> ErrorCode:
                await asyncio.sleep(delay_s)
                return (await c[1].produce(value, **txn(sequence, epoch))).error

            async def deliver(value: bytes, at: int, epoch: int) -> bool:
                """Until it is acknowledged, or given up with a copy on its way."""
                for _ in range(6):
                    if rng.random() < 0.4:
                        stray.append(asyncio.ensure_future(send(value, at, epoch, rng.random() * 0.5)))
                    coordinator.unreachable = rng.random() < 0.3
                    error = await send(value, at, epoch, rng.random() * 0.02)
                    if error is NONE:
                        return True
                    assert error in (ErrorCode.NOT_ENOUGH_REPLICAS, DISORDER), error
                return False

            for number in range(10):
                coordinator.takes_part = True
                count = rng.randrange(1, 5)
                deliveries = [
                    asyncio.ensure_future(deliver(b"%d.%d" % (number, at), sequence + at, coordinator.epoch))
                    for at in range(count)
                ]
                whole = all(await asyncio.gather(*deliveries))
                committed = whole and rng.random() < 0.7
                await coordinator.end(committed=committed)
                ended.append((number, committed))
                sequence += count
                if not whole:
                    coordinator.epoch += 1
                    sequence = 0
                await asyncio.sleep(rng.random() * 0.05)
            coordinator.unreachable = False
            await asyncio.gather(*stray)
            await until(lambda: settled(c[1]))
            partition = c[1].partition()
            assert partition.last_stable_offset == partition.log.log_end_offset, "something hangs"
            there = written(c[1])
            assert len(set(there)) == len(there), "twice"
            assert there == sorted(there, key=lambda value: [int(part) for part in value.split(b".")]), "out of order"
            for number, committed in ended:
                if committed:
                    assert b"%d.0" % number in there

    run_virtual(work())
