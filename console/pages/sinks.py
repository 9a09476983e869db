"""Sinks: how far each is decided, what is being written, and how to end a job that does not end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog import SinkJob
from tidelog.client.admin.sinks import SinkDescription, SinkListing
from tidelog.client.errors import TransactionalIdNotFoundError
from tidelog.console.pages.paging import page_of
from tidelog.console.routes import Call, Route, number, text_of
from tidelog.console.web.messages import Wrong

LIVE_S: Final = 2.0
JOBS_MAX: Final = 20
TRANSACTIONS_MAX: Final = 100


def sinks(call: Call) -> dict[str, Any]:
    keys: dict[str, Callable[[SinkListing], Any]] = {
        "name": lambda one: one.sink,
        "last": lambda one: one.last_batch,
        "transactions": lambda one: one.transaction_count,
    }
    shown, about = page_of(call, call.desk.admin.list_sinks(), lambda one: one.sink, keys)
    found = _described(call, [one.sink for one in shown])
    return {**about, "sinks": [_row(found[one.sink]) for one in shown if one.sink in found]}


def _described(call: Call, names: list[str]) -> dict[str, SinkDescription]:
    """Those that are still there."""
    try:
        return call.desk.admin.describe_sinks(names) if names else {}
    except TransactionalIdNotFoundError:  # one was forgotten meanwhile
        found: dict[str, SinkDescription] = {}
        for name in names:
            try:
                found |= call.desk.admin.describe_sinks([name])
            except TransactionalIdNotFoundError:
                continue
        return found


def _row(one: SinkDescription) -> dict[str, Any]:
    return {
        "name": one.sink,
        "coordinator": one.coordinator.node_id,
        "last": _job(one.last),
        "decided_ms": one.decided_ms,
        "current": _job(one.current),
        "fenced": [_job(job) for job in one.fenced[:JOBS_MAX]],
        "transactions": len(one.transactions),
        "open": [
            {
                "id": each.transactional_id,
                "state": each.state.value,
                "since": each.since_ms,
                "partitions": each.partition_count,
            }
            for each in one.transactions[:TRANSACTIONS_MAX]
        ],
    }


def _job(job: SinkJob | None) -> dict[str, Any] | None:
    return None if job is None else {"batch": job.batch, "job": job.job}


def abort(call: Call) -> dict[str, Any]:
    """Abort what a job has written, and keep it from writing more."""
    body = call.body()
    job = SinkJob(call.names["sink"], number("batch", body.get("batch")), text_of(body, "job"))
    outcome = call.desk.admin.abort_sink_job(job)
    if outcome.already_committed:
        raise Wrong(f"batch {job.batch:,} is decided: the last one is {outcome.last_batch:,}", 409)
    return {}


def forget(call: Call) -> dict[str, Any]:
    call.desk.admin.delete_sink(call.names["sink"])
    return {}


ROUTES: Final = (
    Route("GET", "/api/sinks", sinks, live_s=LIVE_S),
    Route("POST", "/api/sinks/{sink}/abort", abort, typed="sink"),
    Route("POST", "/api/sinks/{sink}/delete", forget, typed="sink"),
)
