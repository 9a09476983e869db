"""``tidelog transactions sinks``: shows sinks' ledgers and open writes, aborts a job, forgets a sink."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT64_MAX
from tidelog.cli.terminal.output import print_json, print_rows, say

if TYPE_CHECKING:
    from tidelog import SinkJob
    from tidelog.client.admin.sinks import SinkDescription


@click.group()
def sinks() -> None:
    """List and describe sinks, abort a sink's job, forget a sink."""


@sinks.command("list")
@cluster_options
def list_sinks(bootstrap: str, as_json: bool) -> None:
    """List sinks: the last decided batch, the batch being written, and transactions that have not ended."""
    with admin_client(bootstrap) as admin:
        found = admin.list_sinks()
    if as_json:
        print_json(
            [
                {
                    "sink": one.sink, "coordinator": one.coordinator, "last_batch": one.last_batch, "batch": one.batch,
                    "transactions": one.transaction_count,
                }
                for one in found
            ]
        )  # fmt: skip
        return
    rows = [
        (one.sink, one.coordinator, _number(one.last_batch), _number(one.batch), one.transaction_count) for one in found
    ]
    print_rows(("sink", "coordinator", "last batch", "batch", "transactions"), rows)


@sinks.command(short_help="Show sinks, their jobs and transactions.")
@click.argument("names", metavar="SINK...", nargs=-1, required=True)
@cluster_options
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show sinks' ledgers: the last decided batch and its job, the batch being written, superseded jobs, and
    transactions that have not ended."""
    with admin_client(bootstrap) as admin:
        found = list(admin.describe_sinks(dict.fromkeys(names)).values())
    if as_json:
        print_json([_json(one) for one in found])
        return
    ledgers: list[tuple[str | int | None, ...]] = []
    transactions: list[tuple[str | int | None, ...]] = []
    for one in found:
        for standing, job in _jobs(one):
            since = _time(one.decided_ms) if standing == "decided" else None
            ledgers.append((one.sink, one.coordinator.node_id, standing, str(job.batch), job.job, since))
        transactions += [
            (each.transactional_id, each.state, str(each.producer_id), _time(each.since_ms), each.partition_count)
            for each in one.transactions
        ]
    print_rows(("sink", "coordinator", "standing", "batch", "job", "at"), ledgers)
    if transactions:
        click.echo()
        print_rows(("transactional id", "state", "producer id", "since", "partitions"), transactions)


@sinks.command(short_help="Abort a job that writes to a sink.")
@click.argument("name", metavar="SINK")
@click.option("--batch", type=click.IntRange(0, INT64_MAX), required=True, help="The batch that the job writes.")
@click.option("--job", required=True, help="The job, as `describe` shows it.")
@cluster_options
def abort(name: str, batch: int, job: str, bootstrap: str, as_json: bool) -> None:
    """Abort everything that a job has written to SINK, prepared or not, and keep it from writing more. A decided batch
    is unaffected."""
    from tidelog import SinkJob

    with admin_client(bootstrap) as admin:
        outcome = admin.abort_sink_job(SinkJob(name, batch, job))
    if outcome.already_committed:
        raise CommandFailed(f"batch {batch} of {name} is decided: the last one is {outcome.last_batch}")
    if as_json:
        print_json({"sink": name, "batch": batch, "job": job, "last_batch": outcome.last_batch})
    else:
        say(f"job {job} of {name} was aborted")


@sinks.command(short_help="Forget a sink.")
@click.argument("name", metavar="SINK")
@cluster_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:
    """Forget SINK, which must have no transactions. If its program still runs, it writes everything again."""
    with admin_client(bootstrap) as admin:
        admin.delete_sink(name)
    if as_json:
        print_json({"sink": name, "deleted": True})
    else:
        say(f"forgot {name}")


def _jobs(one: SinkDescription) -> list[tuple[str, SinkJob]]:
    found = [("decided", one.last)] if one.last is not None else []
    found += [("writing", one.current)] if one.current is not None else []
    return found + [("fenced", job) for job in one.fenced]


def _json(one: SinkDescription) -> dict[str, object]:
    def job(of: SinkJob | None) -> dict[str, object] | None:
        return None if of is None else {"batch": of.batch, "job": of.job}

    return {
        "sink": one.sink, "coordinator": one.coordinator.node_id, "last": job(one.last), "decided_ms": one.decided_ms,
        "current": job(one.current), "fenced": [job(of) for of in one.fenced],
        "transactions": [
            {
                "transactional_id": each.transactional_id, "state": each.state, "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch, "since_ms": each.since_ms, "timeout_ms": each.timeout_ms,
                "partitions": each.partition_count,
            }
            for each in one.transactions
        ],
    }  # fmt: skip


def _number(batch: int | None) -> str | None:
    """Format without separators, so that the number can be copied into another command."""
    return None if batch is None else str(batch)


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
