"""Answers to administrators about transactions. Source: ``handleDescribeTransactions``, ``listTransactionStates``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.model.errors import ErrorCode
from tidelog.model.regular_expressions import compiled
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import DescribedTransaction, ListedTransaction, ListTransactionsRequest
from tidelog.transactions.transaction import NO_START, Entry


def describe(transactional_id: str, entry: Entry | None) -> DescribedTransaction:
    """Return state, identity, and open partitions; for a decided transaction, all of its partitions."""
    if entry is None or entry.value is None:
        return DescribedTransaction(
            transactional_id,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            error_message=f"expected a transactional id in use, found none called {transactional_id!r}",
        )
    value = entry.value
    return DescribedTransaction(
        transactional_id,
        ErrorCode.NONE,
        value.state.value,
        *value.identity,
        value.timeout_ms,
        NO_START if value.state.is_idle else value.started_ms,
        tuple(GroupPartition(*partition) for partition in value.partitions),
    )


def listed(entries: Iterable[Entry], request: ListTransactionsRequest, wall_ms: int) -> list[ListedTransaction]:
    """Return those in one of the states, with one of the producer ids, open for longer than the duration; empty filters
    match all. Case does not matter."""
    states = {name.lower() for name in request.states}
    producer_ids = set(request.producer_ids)
    matches = compiled(request.id_pattern).fullmatch if request.id_pattern else None
    found: list[ListedTransaction] = []
    for entry in entries:
        value = entry.value
        if value is None or (states and value.state.value.lower() not in states):
            continue
        if matches is not None and matches(entry.transactional_id) is None:
            continue
        if producer_ids and value.identity.producer_id not in producer_ids:
            continue
        if request.duration_ms >= 0 and (value.state.is_idle or wall_ms - value.started_ms <= request.duration_ms):
            continue
        found.append(ListedTransaction(entry.transactional_id, value.identity.producer_id, value.state.value))
    return found
