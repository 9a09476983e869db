"""Entries on their way to the log: one in a turn of the event loop, in order, and known to every later decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidelog.metadata_quorum.controller.decision import entries
from tidelog.metadata_quorum.proposals import Proposals
from tidelog.metadata_quorum.raft.types import NotLeading, OutcomeUnknown, QuorumBusy
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, Offset, TopicId
from tidelog.proto.calls.api import CreateTopicsRequest, NewTopic
from tidelog.proto.logs.metadata_codec import decode_batch
from tidelog.proto.logs.metadata_records import MetadataRecord, RemoveTopicRecord

from .conftest import Bench

EPOCH = ControllerEpoch(3)


def entry(number: int) -> tuple[MetadataRecord, ...]:
    return (RemoveTopicRecord(TopicId(number.to_bytes(16))),)


class Quorum:
    """Takes proposals; a test ends them. ``turns``: how often an entry that waited had its turn."""

    def __init__(self) -> None:
        self.proposed: list[tuple[MetadataRecord, ...]] = []
        self.futures: list[asyncio.Future[Offset]] = []
        self.busy = 0
        self.turns = 0
        self.failures: list[tuple[BaseException, ControllerEpoch]] = []
        self.proposals = Proposals(self.propose, self.turn, lambda error, epoch: self.failures.append((error, epoch)))

    def turn(self) -> None:
        self.turns += 1

    def propose(self, payload: bytes, epoch: ControllerEpoch) -> asyncio.Future[Offset]:
        assert epoch == EPOCH
        if self.busy:
            self.busy -= 1
            raise QuorumBusy
        self.proposed.append(decode_batch(payload))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def put(self, *numbers: int) -> None:
        self.proposals.put([entry(number) for number in numbers], EPOCH)

    def commit(self, count: int) -> None:
        for number in range(count):
            assert self.proposals.committed() == self.proposed[number]
            self.futures[number].set_result(Offset(100 + number))

    def are(self, *numbers: int) -> bool:
        return self.proposed == [entry(number) for number in numbers]


async def test_a_large_change_is_proposed_an_entry_in_each_turn() -> None:
    quorum = Quorum()
    quorum.put(1, 2, 3)
    assert quorum.are(1), "the first at once"
    quorum.put(4)
    last = quorum.proposals.last
    for numbers in ((1, 2), (1, 2, 3), (1, 2, 3, 4)):
        await asyncio.sleep(0)
        assert quorum.are(*numbers), "what came later waits behind it"
    assert (len(quorum.proposals), quorum.turns) == (4, 3)
    quorum.commit(4)
    assert last is not None
    assert await last == 103
    assert (len(quorum.proposals), quorum.proposals.last) == (0, None)
    quorum.put(5)
    assert quorum.are(1, 2, 3, 4, 5)


async def test_what_is_not_proposed_when_leadership_ends_never_takes_effect() -> None:
    quorum = Quorum()
    quorum.put(1, 2, 3)
    last = quorum.proposals.last
    quorum.proposals.drop()
    assert last is not None
    with pytest.raises(NotLeading):
        await last
    await asyncio.sleep(0)
    assert quorum.are(1)
    assert len(quorum.proposals) == 0
    quorum.put(4, 5)
    await asyncio.sleep(0)
    assert quorum.are(1, 4, 5)


async def test_entries_wait_for_a_busy_quorum() -> None:
    quorum = Quorum()
    quorum.busy = 1
    quorum.put(1, 2)
    assert quorum.are()
    async with asyncio.timeout(30):
        while not quorum.are(1):
            await asyncio.sleep(0)
        quorum.busy = 2
        while not quorum.are(1, 2):
            await asyncio.sleep(0.005)
    quorum.commit(2)
    assert len(quorum.proposals) == 0


async def test_the_outcome_of_an_entry_that_waited_is_that_of_its_proposal() -> None:
    quorum = Quorum()
    quorum.put(1, 2)
    last = quorum.proposals.last
    await asyncio.sleep(0)
    quorum.futures[1].set_exception(OutcomeUnknown())
    assert last is not None
    with pytest.raises(OutcomeUnknown):
        await last
    assert [epoch for _, epoch in quorum.failures] == [EPOCH]


def created(bench: Bench, name: str) -> tuple[ErrorCode, Sequence[tuple[MetadataRecord, ...]]]:
    decision = bench.controller.decide(CreateTopicsRequest((NewTopic(name, 4_000, 3),)), bench.now_ms)
    return decision.response.topics[0].error, list(entries(decision.records))


def test_a_decision_knows_everything_that_is_on_its_way() -> None:
    bench = Bench()
    bench.up(1, 2, 3)
    error, split = created(bench, "t")
    assert error is ErrorCode.NONE
    assert len(split) > 2
    for each in split:
        bench.controller.append(each)
    bench.controller.catch_up()
    assert created(bench, "t")[0] is ErrorCode.TOPIC_ALREADY_EXISTS
    assert bench.controller.draft.partition_count == 4_000
