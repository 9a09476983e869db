"""Transactions: list open and hanging ones, end them; reassignments in progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from tidelog import AbortTransactionSpec, TopicPartition
from tidelog.cli.work.hanging import described, find_hanging
from tidelog.cli.work.health_facts import HANGING_MS, HANGING_PARTITIONS_MAX
from tidelog.cli.work.replicas.moving import cancel
from tidelog.cli.work.replicas.placement import placement_of, sizes_of
from tidelog.client.admin.transaction_types import TransactionListing
from tidelog.client.errors import TidelogError
from tidelog.console.pages.paging import page_of
from tidelog.console.pages.topics import allowed
from tidelog.console.routes import Call, Route, number, text_of
from tidelog.console.web.messages import Wrong

LIVE_S: Final = 2.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def transactions(call: Call) -> dict[str, Any]:
    listed = call.desk.admin.list_transactions()
    keys: dict[str, Callable[[TransactionListing], Any]] = {
        "name": lambda one: one.transactional_id,
        "state": lambda one: (one.state.value, one.transactional_id),
    }
    shown, about = page_of(call, listed, lambda one: one.transactional_id, keys)
    names = [one.transactional_id for one in shown]
    found = (allowed(lambda: described(call.desk.admin, names)) or ({}, {}))[0]
    rows = []
    for one in shown:
        more = found.get(one.transactional_id)
        began = None if more is None else more.transaction_start_time_ms
        rows.append(
            {
                "name": one.transactional_id,
                "state": one.state.value,
                "coordinator": int(one.coordinator),
                "producer": int(one.producer_id),
                "since": began,
                "timeout_ms": None if more is None else more.transaction_timeout_ms,
                "partitions": [] if more is None else [str(at) for at in more.topic_partitions[:100]],
            }
        )
    return {**about, "transactions": rows}


def hanging(call: Call) -> dict[str, Any]:
    """Return hanging transactions. Queries every leader for its producers, so call it on request, not for every open
    page."""
    led = [at for at, one in sorted(placement_of(call.desk.admin).items()) if one.leader >= 0]
    if len(led) > HANGING_PARTITIONS_MAX:
        raise Wrong(
            f"expected at most {HANGING_PARTITIONS_MAX:,} partitions, found {len(led):,}; "
            "`tidelog transactions find-hanging --topic` checks one topic",
            409,
        )
    found = find_hanging(call.desk.admin, led, HANGING_MS, _now_ms)
    return {
        "looked_at": len(led),
        "quiet_ms": HANGING_MS,
        "hanging": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "producer": one.producer.producer_id,
                "epoch": one.producer.producer_epoch,
                "coordinator_epoch": one.producer.coordinator_epoch,
                "start": one.start_offset,
                "since": one.producer.last_timestamp_ms,
            }
            for one in found
        ],
    }


def terminate(call: Call) -> dict[str, Any]:
    """Abort a transactional id's open transaction, prepared or not, and fence its producer."""
    call.desk.admin.force_terminate_transaction(call.names["transaction"])
    return {}


def abort_hanging(call: Call) -> dict[str, Any]:
    """Write the marker that no coordinator will write. First checks again that the transaction hangs."""
    body = call.body()
    at = TopicPartition(text_of(body, "topic"), number("partition", body.get("partition"), 0, 2**31 - 1))
    start = number("start", body.get("start"))
    still = [one for one in find_hanging(call.desk.admin, [at], 0, _now_ms) if one.start_offset == start]
    if not still:
        raise Wrong(f"{at} has no hanging transaction that began at offset {start:,}", 409)
    call.desk.admin.abort_transaction(AbortTransactionSpec.of(at, still[0].producer))
    return {}


def reassignments(call: Call) -> dict[str, Any]:
    """Return the reassignments in progress, with the share of bytes that each copy has."""
    ongoing = call.desk.admin.list_partition_reassignments()
    sizes: dict[int, dict[TopicPartition, int]] = {}
    if ongoing:
        live = [int(one.node_id) for one in call.desk.admin.describe_cluster().brokers if not one.fenced]
        try:
            sizes = sizes_of(call.desk.admin, live)
        except TidelogError:
            sizes = {}
    rows = []
    for at, move in sorted(ongoing.items()):
        whole = max((held.get(at, 0) for held in sizes.values()), default=0)
        rows.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "replicas": [int(node) for node in move.replicas],
                "adding": [int(node) for node in move.adding_replicas],
                "removing": [int(node) for node in move.removing_replicas],
                "size": whole,
                "copied": {str(int(node)): sizes.get(int(node), {}).get(at, 0) for node in move.adding_replicas},
            }
        )
    return {"moves": rows}


def cancel_move(call: Call) -> dict[str, Any]:
    body = call.body()
    at = TopicPartition(text_of(body, "topic"), number("partition", body.get("partition"), 0, 2**31 - 1))
    cancel(call.desk.admin, [at])
    return {}


ROUTES: Final = (
    Route("GET", "/api/transactions", transactions, live_s=LIVE_S),
    Route("GET", "/api/transactions-hanging", hanging),
    Route("POST", "/api/transactions-hanging", abort_hanging),
    Route("POST", "/api/transactions/{transaction}/terminate", terminate, typed="transaction"),
    Route("GET", "/api/moves", reassignments, live_s=LIVE_S),
    Route("POST", "/api/moves/cancel", cancel_move),
)
