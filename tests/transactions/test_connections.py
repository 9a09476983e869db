"""Requests of the first protocol that come late, on a connection that their producer has left.

All transactions of such a producer have one epoch: nothing but the connection tells a late request from one of the
next transaction.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tidelog.transactions.effects import Effect
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)
LATE = ErrorCode.NETWORK_EXCEPTION
NONE = ErrorCode.NONE


class Client:
    """A producer of the first protocol; each call names the connection that it comes on."""

    def __init__(self, desk: Desk, connection: int) -> None:
        self.desk = desk
        answer = self.ask("init_producer_id", InitProducerIdRequest("t"), connection)
        self.identity = answer.producer_id, answer.producer_epoch

    def ask(self, call: str, request: object, connection: int, *more: object) -> Any:
        def shaped(request: object, waiter: int, now: Moment) -> list[Effect]:
            effects: list[Effect] = getattr(self.desk.shard, call)(request, waiter, now, *more, connection)
            return effects

        return self.desk.answers.get(self.desk.ask(shaped, request))

    def add(self, connection: int, *partitions: TopicPartition) -> ErrorCode:
        at = tuple(GroupPartition(*each) for each in partitions)
        answer = self.ask("add_partitions", AddPartitionsTransaction("t", *self.identity, at), connection)
        code: ErrorCode
        (code,) = {result.error for result in answer.results}
        return code

    def add_offsets(self, connection: int) -> ErrorCode:
        place = TopicPartition("__consumer_offsets", 7)
        request = AddOffsetsToTxnRequest("t", *self.identity, "g")
        code: ErrorCode = self.ask("add_offsets", request, connection, place).error
        return code

    def end(self, connection: int, *, committed: bool = True) -> ErrorCode:
        code: ErrorCode = self.ask("end", EndTxnRequest("t", *self.identity, committed, False), connection).error
        return code


def elected(desk: Desk, connections: int) -> None:
    """The next coordinator of the partition is a node that has had so many connections."""
    desk.connections_before = connections
    desk.fail_over()


def test_a_late_end_does_not_end_the_next_transaction(desk: Desk) -> None:
    """EndTxn of the first transaction is delayed; the client comes on another connection, ends it, begins another."""
    client = Client(desk, 1)
    assert client.add(1, A) is NONE
    assert client.end(2) is NONE
    assert client.add(2, A) is NONE
    assert client.end(1) is LATE
    assert desk.state() is TransactionState.ONGOING
    assert client.end(1, committed=False) is LATE
    assert client.end(2, committed=False) is NONE
    assert [marker.committed for marker in desk.sent] == [True, False]
    assert desk.shard.state.counters.late_connections == 2


def test_a_late_add_takes_nothing_into_the_next_transaction(desk: Desk) -> None:
    client = Client(desk, 1)
    assert client.add(2, A) is NONE
    assert client.end(2, committed=False) is NONE
    assert client.add(2, A) is NONE
    assert client.add(1, B) is LATE
    assert client.add_offsets(1) is LATE
    assert client.end(2) is NONE
    assert [marker.partitions for marker in desk.sent] == [(GroupPartition(*A),)] * 2


def test_what_comes_twice_before_anything_newer_was_heard_is_one_request(desk: Desk) -> None:
    client = Client(desk, 1)
    assert client.add(1, A) is NONE
    assert client.add(1, A) is NONE
    assert client.end(1) is NONE
    assert client.end(1) is NONE
    assert client.end(2) is NONE
    assert client.end(2, committed=False) is ErrorCode.INVALID_TXN_STATE
    assert len(desk.sent) == 1


def test_the_last_of_several_connections_that_has_spoken_counts_and_no_other(desk: Desk) -> None:
    client = Client(desk, 3)
    assert client.add(5, A) is NONE
    assert client.add(4, B) is LATE
    assert client.add(5, B) is NONE
    assert client.add(9, B) is NONE, "who is refused comes again on a connection that is newer than all"
    assert client.end(5) is LATE
    assert client.end(9) is NONE


def test_a_new_producer_begins_on_its_own_connection_even_an_older_one(desk: Desk) -> None:
    first = Client(desk, 9)
    second = Client(desk, 4)
    assert second.identity[1] == first.identity[1] + 1
    assert second.add(4, A) is NONE
    assert second.end(4) is NONE


def test_who_is_fenced_is_told_so_and_moves_no_bound(desk: Desk) -> None:
    zombie = Client(desk, 1)
    live = Client(desk, 2)
    assert zombie.add(7, A) is ErrorCode.PRODUCER_FENCED
    assert zombie.end(8) is ErrorCode.PRODUCER_FENCED
    assert zombie.end(1) is ErrorCode.PRODUCER_FENCED
    assert live.add(2, A) is NONE
    assert live.end(2) is NONE


def test_the_second_protocol_and_brokers_come_on_no_connection_of_account(desk: Desk) -> None:
    client = Client(desk, 5)
    assert client.add(0, A) is NONE
    assert client.end(0) is NONE
    assert client.add(5, A) is NONE
    request = EndTxnRequest("t", *client.identity, True, True)
    answer = client.ask("end", request, 1)
    assert answer.error is NONE, "its epoch tells what is late"
    assert answer.producer_epoch == client.identity[1] + 1


@pytest.mark.parametrize("reached", ["ongoing", "ended"])
def test_coordination_that_went_elsewhere_and_came_back(desk: Desk, reached: str) -> None:
    """EndTxn on connection 3 waits at a node that then coordinates no more; the client goes on at another node, and the
    first one coordinates again. Memory does not tell it of newer connections: the election does."""
    client = Client(desk, 1)
    assert client.add(3, A) is NONE
    if reached == "ended":
        assert client.end(3) is NONE
    elected(desk, 0)
    assert client.add(1, B) is NONE
    elected(desk, 6)
    assert client.end(3) is LATE
    assert client.add(6, A) is LATE, "who lives comes on another connection"
    assert client.end(7) is NONE
    assert desk.sent[-1].partitions == tuple(
        GroupPartition(*each) for each in ((A, B) if reached == "ongoing" else (B,))
    )


def test_ids_that_begin_after_the_election_need_no_newer_connection(desk: Desk) -> None:
    elected(desk, 6)
    client = Client(desk, 2)
    assert client.add(2, A) is NONE
    assert client.end(2) is NONE
    known = ProducerId(client.identity[0]), ProducerEpoch(client.identity[1])
    assert desk.value().identity == known
