"""The group coordinator's shell in transactions: its question before the first offsets, and the effect of a marker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from tests.coordinators import MemoryLog
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.state.settings import GroupSettings
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.group_api import (
    OffsetCommitPartition,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.proto.calls.transaction_api import (
    AddPartitionsTransaction,
    TransactionMarker,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.transport.network import CallContext

NONE = ErrorCode.NONE
CONTEXT = CallContext("CLIENT", "127.0.0.1:1")


class Asked:
    """The coordinator of transactions: what it was asked, answered by the test."""

    def __init__(self) -> None:
        self.questions: list[tuple[AddPartitionsTransaction, asyncio.Future[ErrorCode]]] = []

    async def __call__(self, transaction: AddPartitionsTransaction) -> Mapping[tuple[str, int], ErrorCode]:
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.questions.append((transaction, answer))
        (at,) = transaction.partitions
        return {(at.topic, at.partition): await answer}

    async def answer(self, error: ErrorCode = NONE, at: int = -1) -> None:
        await until(lambda: bool(self.questions))
        self.questions[at][1].set_result(error)
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
async def coordinator(offsets_log: MemoryLog, asked: Asked) -> AsyncIterator[GroupCoordinator]:
    failures: list[BaseException] = []
    settings = GroupSettings(initial_rebalance_delay_ms=0, appends_max=4)
    made = GroupCoordinator(
        settings, SystemClock(), random.Random(1), offsets_log, failures.append, asked, partitions=1
    )
    made.elected(0, offsets_log.lead(0, 1))
    await until(lambda: made.gauges().partitions_loaded == 1)
    yield made
    await made.stop()
    assert not failures


def commit(
    coordinator: GroupCoordinator,
    offset: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    partition: int = 0,
    first_protocol: bool = False,
) -> asyncio.Future[TxnOffsetCommitResponse]:
    items = (OffsetCommitPartition("t", partition, Offset(offset)),)
    who = ProducerId(producer), ProducerEpoch(epoch)
    request = TxnOffsetCommitRequest("x", "g", *who, -1, "", None, items, verify_only=first_protocol)
    return asyncio.ensure_future(coordinator.commit_transactional(request, CONTEXT))


def mark(
    coordinator: GroupCoordinator, *, producer: int = 7, epoch: int = 1, committed: bool = True, version: int = 2
) -> asyncio.Future[ErrorCode]:
    marker = TransactionMarker(ProducerId(producer), ProducerEpoch(epoch), committed, 3, (), version)
    return coordinator.complete_transaction(0, marker)


async def error(answer: Awaitable[TxnOffsetCommitResponse]) -> ErrorCode:
    return (await answer).results[0].error


async def committed(coordinator: GroupCoordinator) -> dict[int, int]:
    request = OffsetFetchRequest((OffsetFetchGroup("g", all_partitions=True),))
    answer = await coordinator.fetch_offsets(request, CONTEXT)
    return {found.partition: found.offset for found in answer.groups[0].offsets}


async def test_the_first_commit_of_a_transaction_asks_and_the_others_follow_in_order(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog
) -> None:
    answers = [commit(coordinator, offset) for offset in (1, 2, 3)]
    await until(lambda: len(asked.questions) == 1)
    (question, _) = asked.questions[0]
    assert (question.transactional_id, question.producer_id, question.verify_only) == ("x", 7, False)
    assert [(at.topic, at.partition) for at in question.partitions] == [(GROUP_OFFSETS_TOPIC, 0)]
    assert offsets_log.end(0) == 0, "nothing is written before the partition takes part"
    await asked.answer()
    assert [await error(answer) for answer in answers] == [NONE] * 3
    assert await error(commit(coordinator, 4, partition=1)) is NONE
    assert len(asked.questions) == 1
    batches = [split_batches(stored)[0] for stored in offsets_log.batches[0]]
    stamps = [(batch.is_transactional, batch.producer_id, batch.producer_epoch) for batch in batches]
    assert stamps == [(True, 7, 0)] * 4
    assert await committed(coordinator) == {}

    assert await mark(coordinator) is NONE
    (last,) = split_batches(offsets_log.batches[0][-1])
    assert decode_control(last) == (ControlKind.COMMIT, 3)
    assert (last.producer_id, last.producer_epoch) == (7, 1)
    assert await committed(coordinator) == {0: 3, 1: 4}
    again = commit(coordinator, 5, epoch=1)
    await until(lambda: len(asked.questions) == 2)
    await asked.answer()
    assert await error(again) is NONE


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_a_partition_that_is_not_taken_in_takes_no_offsets(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog, answer: ErrorCode, told: ErrorCode
) -> None:
    waiting = commit(coordinator, 1)
    await asked.answer(answer)
    assert await error(waiting) is told
    assert offsets_log.end(0) == 0


async def test_a_marker_ends_the_asking(coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog) -> None:
    """The transaction is over: a commit that was let in after it would be open for ever."""
    late = commit(coordinator, 1)
    await until(lambda: bool(asked.questions))
    assert await mark(coordinator, committed=False) is NONE
    assert await error(late) is ErrorCode.INVALID_TXN_STATE
    assert offsets_log.end(0) == 1, "the marker alone"


async def test_another_producers_marker_does_not(coordinator: GroupCoordinator, asked: Asked) -> None:
    waiting = commit(coordinator, 1)
    await until(lambda: bool(asked.questions))
    await mark(coordinator, producer=8)
    await asked.answer()
    assert await error(waiting) is NONE


async def test_a_newer_epoch_sends_the_older_one_away(coordinator: GroupCoordinator, asked: Asked) -> None:
    old, new = commit(coordinator, 1), commit(coordinator, 2, epoch=1)
    older = commit(coordinator, 3)
    assert await error(old) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await error(older) is ErrorCode.INVALID_PRODUCER_EPOCH
    await until(lambda: bool(asked.questions))
    await asked.answer()
    assert await error(new) is NONE


async def test_who_waits_for_an_answer_hears_of_the_move(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog
) -> None:
    waiting = commit(coordinator, 1)
    await until(lambda: bool(asked.questions))
    coordinator.resigned(0, LeaderEpoch(1))
    assert await error(waiting) is ErrorCode.NOT_COORDINATOR
    assert await mark(coordinator) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    coordinator.elected(0, offsets_log.lead(0, 2))
    assert await error(commit(coordinator, 2)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await mark(coordinator) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "to be sent again once it is loaded"
    await until(lambda: coordinator.gauges().partitions_loaded == 1)
    assert offsets_log.end(0) == 0


async def test_a_new_coordinator_knows_what_is_open_and_asks_no_more(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog
) -> None:
    first = commit(coordinator, 1)
    await asked.answer()
    assert await error(first) is NONE
    coordinator.resigned(0, LeaderEpoch(1))
    coordinator.elected(0, offsets_log.lead(0, 2))
    await until(lambda: coordinator.gauges().partitions_loaded == 1)
    assert await error(commit(coordinator, 2)) is NONE
    assert len(asked.questions) == 1
    assert await mark(coordinator) is NONE
    assert await committed(coordinator) == {0: 2}


async def test_a_group_without_a_name_has_no_transactions(coordinator: GroupCoordinator, asked: Asked) -> None:
    request = TxnOffsetCommitRequest(
        "x", "", ProducerId(7), ProducerEpoch(0), -1, "", None, (OffsetCommitPartition("t", 0, Offset(1)),)
    )
    assert await error(coordinator.commit_transactional(request, CONTEXT)) is ErrorCode.INVALID_GROUP_ID
    assert not asked.questions


async def test_so_many_may_wait(coordinator: GroupCoordinator, asked: Asked) -> None:
    waiting = [commit(coordinator, 1, producer=producer) for producer in range(4)]
    assert await error(commit(coordinator, 1, producer=9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: len(asked.questions) == 4)
    for at in range(4):
        await asked.answer(at=at)
    assert [await error(answer) for answer in waiting] == [NONE] * 4


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
async def test_a_marker_that_is_not_written_is_told_as_a_leader_tells_it(
    coordinator: GroupCoordinator, offsets_log: MemoryLog, refusal: ErrorCode, told: ErrorCode
) -> None:
    offsets_log.refuse = refusal
    assert await mark(coordinator) is told


async def test_nobody_is_answered_after_a_kill(coordinator: GroupCoordinator, asked: Asked) -> None:
    waiting = commit(coordinator, 1)
    await until(lambda: bool(asked.questions))
    coordinator.kill()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


# --- The first protocol: the client has taken the group in, or has not -----------------------------------


async def test_of_the_first_protocol_it_is_asked_whether_the_group_takes_part(
    coordinator: GroupCoordinator, asked: Asked
) -> None:
    first = commit(coordinator, 1, first_protocol=True)
    await asked.answer()
    assert asked.questions[0][0].verify_only
    assert await error(first) is NONE
    assert await mark(coordinator, epoch=0, version=1) is NONE
    assert await committed(coordinator) == {0: 1}


async def test_offsets_that_come_after_their_transaction_count_for_none(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog
) -> None:
    """Its epoch is that of the next one, which does not take the group in: so it is asked for, each time."""
    first = commit(coordinator, 1, first_protocol=True)
    await asked.answer()
    assert await error(first) is NONE
    assert await mark(coordinator, epoch=0, version=1) is NONE
    end = offsets_log.end(0)
    late = commit(coordinator, 2, first_protocol=True)
    await until(lambda: len(asked.questions) == 2)
    await asked.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert await error(late) is ErrorCode.TRANSACTION_ABORTABLE
    assert offsets_log.end(0) == end
    assert await committed(coordinator) == {0: 1}


async def test_a_marker_of_the_first_protocol_ends_the_asking_for_its_own_epoch(
    coordinator: GroupCoordinator, asked: Asked, offsets_log: MemoryLog
) -> None:
    late = commit(coordinator, 1, first_protocol=True)
    await until(lambda: len(asked.questions) == 1)
    assert await mark(coordinator, epoch=0, version=1) is NONE
    assert await error(late) is ErrorCode.INVALID_TXN_STATE
    assert await committed(coordinator) == {}
