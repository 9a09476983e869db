"""Prepared transactions against a scripted coordinator, in virtual time: decided elsewhere, or after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster
from tests.virtual_time import LoopClock
from tidelog.aio import Producer
from tidelog.client.errors import (
    IllegalStateError,
    exception_for,
)
from tidelog.client.producer.prepared import PreparedTransaction
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.transaction_api import EndTxnRequest

from .test_transactions import committed, producer, requests, state, virtually

TWO: dict[str, Any] = {"transaction_two_phase_commit_enable": True}


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_here_decided_there(commit: bool) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster, **TWO) as p, p.transaction():
            await p.send("one", b"1")
            token = await p.prepare_transaction()
            with pytest.raises(IllegalStateError, match="prepared"):
                await p.send("one", b"2")
        assert cluster.transactions.ended == []  # neither the end of the block nor closing decides
        how: dict[str, Any] = {"_network": cluster.network("other"), "_clock": LoopClock()}
        decide = Producer.commit_prepared if commit else Producer.abort_prepared
        other = Producer.abort_prepared if commit else Producer.commit_prepared
        await decide(cluster.bootstrap, token, **how)
        await decide(cluster.bootstrap, token.encode(), **how)
        with pytest.raises(type(exception_for(ErrorCode.INVALID_TXN_STATE))):
            await other(cluster.bootstrap, token, **how)
        assert committed(cluster, "one") == ([1] if commit else [])
        assert cluster.transactions.ended == [("tx", commit)]

    test()


@pytest.mark.parametrize("right", [True, False])
def test_a_restart_completes_what_was_prepared_by_what_was_decided(right: bool) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        async with producer(cluster, **TWO) as p:
            await p.init_transactions()
            await p.begin_transaction()
            await p.send("one", b"1")
            token = await p.prepare_transaction()
        prepared = PreparedTransaction.parse(token)
        decided = token if right else prepared._replace(producer_epoch=prepared.producer_epoch + 1).token
        async with producer(cluster, "again", **TWO) as p:
            await p.init_transactions(keep_prepared=True)
            assert state(p) is TransactionState.PREPARED
            assert await p.complete_transaction(decided) is right
            assert await p.complete_transaction(decided) is False
            async with p.transaction():
                await p.send("one", b"2")
        assert committed(cluster, "one") == ([1, 2] if right else [2])

    test()


@virtually
async def test_a_restart_that_does_not_keep_it_aborts_what_was_prepared(cluster: ScriptedCluster) -> None:
    async with producer(cluster, **TWO) as p:
        await p.init_transactions()
        await p.begin_transaction()
        await p.send("one", b"1")
        await p.prepare_transaction()
    async with producer(cluster, "again", **TWO) as p:
        await p.init_transactions()
        assert state(p) is TransactionState.READY
    assert cluster.transactions.ended == [("tx", False)]


@virtually
async def test_what_spoils_a_transaction_keeps_it_from_being_prepared(cluster: ScriptedCluster) -> None:
    async with producer(cluster, **TWO) as p:
        await p.init_transactions()
        await p.begin_transaction()
        cluster.judge = lambda *_: ErrorCode.INVALID_RECORD
        await p.send("one", b"1")
        with pytest.raises(type(exception_for(ErrorCode.INVALID_RECORD))):
            await p.prepare_transaction()
        await p.abort_transaction()


@virtually
async def test_a_prepared_nothing_needs_no_decision(cluster: ScriptedCluster) -> None:
    async with producer(cluster, **TWO) as p:
        await p.init_transactions()
        await p.begin_transaction()
        token = await p.prepare_transaction()
        await Producer.commit_prepared(cluster.bootstrap, token, _network=cluster.network("other"), _clock=LoopClock())
        await p.commit_transaction()
    assert requests(cluster, EndTxnRequest) == []


@virtually
async def test_tokens_of_others(cluster: ScriptedCluster) -> None:
    how: dict[str, Any] = {"_network": cluster.network("other"), "_clock": LoopClock()}
    for bad in ("", "tidelog-prepared-1:c:x:1:tx", "tidelog-prepared-2:c:1:1:tx", b"\xff"):
        with pytest.raises(ValueError, match="prepare_transaction"):
            await Producer.commit_prepared(cluster.bootstrap, bad, **how)
    with pytest.raises(type(exception_for(ErrorCode.INCONSISTENT_CLUSTER_ID))):
        await Producer.commit_prepared(cluster.bootstrap, PreparedTransaction("else", "tx", 1, 1).token, **how)
    with pytest.raises(type(exception_for(ErrorCode.INVALID_PRODUCER_ID_MAPPING))):
        await Producer.commit_prepared(cluster.bootstrap, PreparedTransaction("scripted", "tx", 1, 1).token, **how)


def test_a_token_holds_any_id() -> None:
    for name in ("a", "a:b/c d", "ü%3A", "x" * 1_000):
        prepared = PreparedTransaction("cluster:1", name, 1 << 60, 32_000)
        assert PreparedTransaction.parse(prepared.token) == prepared
        assert prepared.token.isascii()
