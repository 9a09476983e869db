"""``tidelog cluster``: a cluster of real processes on this machine, for trying things out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import NODES_MAX, WORKERS_MAX, LocalCluster
from tidelog.cli.local.console import LocalConsole
from tidelog.cli.local.node import NodeStatus
from tidelog.cli.local.secured import client_file, default_directory
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import count_of, json_option, megabytes, print_json, print_pairs, print_rows, say
from tidelog.cli.terminal.settings import settings_option
from tidelog.cli.work.local_security import (
    KINDS,
    begin_with_users,
    check_library,
    give_certificate,
    lay_out,
)
from tidelog.model.ids import WORKER_ID_STEP

F = TypeVar("F", bound=Callable[..., Any])


def _directory_option(command: F) -> F:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=default_directory,
        help="Where the cluster lives. Default: $TIDELOG_HOME, else ~/.local/share/tidelog.",
    )(command)


@click.group()
def cluster() -> None:
    """Start, watch, break and stop a cluster on this machine.

    Everything is stored under one directory; nodes are real processes that keep running after the command.
    """


@cluster.command(short_help="Start the cluster or some of its nodes.")
@click.argument("node_ids", metavar="[NODE]...", type=int, nargs=-1)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), help="Number of nodes in a new cluster.  [default: 3]")
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    help="Processes of each node of a new cluster, as of `tidelog server --workers`.  [default: 1]",
)
@click.option(
    "--free-ports", is_flag=True, help="Use any free ports for a new cluster, even if 9092 and its neighbours are free."
)
@click.option(
    "--format", "formats", is_flag=True, help="Let nodes that lost their data start empty and copy from the others."
)
@click.option(
    "--security",
    type=click.Choice(KINDS),
    help="Secure a new cluster: a CA, certificates, access control, and the user admin, with a certificate "
    "(tls) or a password (tls+scram).",
)
@click.option("--console", "with_console", is_flag=True, help="Also start the web console, and leave it running.")
@settings_option("A setting for every node of a new cluster, e.g. log.retention.hours=1; repeatable.")
@_directory_option
@json_option
def start(
    node_ids: tuple[int, ...],
    nodes: int | None,
    workers: int | None,
    free_ports: bool,
    formats: bool,
    security: str | None,
    with_console: bool,
    settings: dict[str, str],
    directory: Path,
    as_json: bool,
) -> None:
    """Start the cluster or the named nodes, and wait until they are ready.

    The first start creates the cluster; later ones reuse its data and ports.
    """
    started = time.monotonic()
    with LocalCluster.alone(directory):
        found = _open_or_create(directory, node_ids, nodes, workers, settings, free_ports, security)
        begin_with_users(found)
        before = found.running()
        try:
            fresh = found.start(node_ids or None, formats=formats)
        except BaseException:
            found.stop([number for number in found.running() if number not in before])
            raise
    try:
        fresh += found.wait_ready(node_ids or None, found_running=before)
    except KeyboardInterrupt:
        found.stop(fresh)
        say(f"interrupted: {_nodes(fresh)} stopped again", err=True)
        raise
    took = time.monotonic() - started
    page = LocalConsole(found.directory).start(found.bootstrap) if with_console else None
    if as_json:
        more = {} if page is None else {"console": page}
        print_json({"started": fresh, "seconds": round(took, 3), **_as_json(found), **more})
        return
    were = "all nodes were" if not node_ids else f"{_nodes(node_ids)} {'was' if len(set(node_ids)) == 1 else 'were'}"
    each = f" with {workers} workers each" if workers and workers > 1 else ""
    count = f"{count_of(len(fresh), 'node')}{each} started" if fresh else f"{were} running"
    say(f"{count}, ready after {took:.1f} s. Data: {directory}")
    say(f"Clients: {found.bootstrap}")
    if page is not None:
        say(f"Console: {page}")
    if (client := client_file(directory)) is not None:
        say(f"Secured: commands find {client}; elsewhere use --command-config, or a profile made from it")


@cluster.command(short_help="Add a broker to the running cluster.")
@_directory_option
@json_option
def add(directory: Path, as_json: bool) -> None:
    """Add a node to the running cluster, with the settings of the first, and wait until it is ready.

    It is only a broker: the controllers do not change. It gets only partitions of new topics until `tidelog rebalance`
    moves some there.
    """
    with LocalCluster.alone(directory):
        found = LocalCluster.open(directory)
        if not found.has_quorum():
            raise CommandFailed(
                f"expected a majority of the controllers to be running, found {_running(found)}: "
                "`tidelog cluster start` starts it"
            )
        number = found.add()
        give_certificate(found, number)
        found.start([number])
    found.wait_ready([number])
    if as_json:
        print_json({"added": number, **_as_json(found)})
    else:
        say(f"node {number} was added and is ready. Clients: {found.node(number).ports.bootstrap}")


@cluster.command(short_help="Show each node: state, addresses, memory, data.")
@_directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show each node: whether it runs, where it listens, memory, processor time, data."""
    found = LocalCluster.open(directory)
    if as_json:
        print_json(_as_json(found))
        return
    rows = [
        (str(row.node_id), row.state, "-" if row.pid is None else str(row.pid), row.ports.bootstrap,
         f"127.0.0.1:{row.ports.http}", megabytes(row.use.memory_bytes if row.use else None),
         "-" if row.use is None else f"{row.use.cpu_s:,.1f} s", megabytes(row.data_bytes))
        for row in found.status()
    ]  # fmt: skip
    print_rows(("node", "state", "pid", "clients", "http", "memory", "cpu", "data"), rows)


@cluster.command()
@click.argument("node_id", metavar="NODE", type=int)
@_directory_option
@json_option
def kill(node_id: int, directory: Path, as_json: bool) -> None:
    """kill -9 one node, with all its workers. `tidelog cluster start` brings it back.

    A worker's id kills that worker only, and the node starts it again.
    """
    found = LocalCluster.open(directory)
    if by_itself := node_id >= WORKER_ID_STEP:
        pid = found.kill_worker(node_id)
        hit = pid is not None
    else:
        pid = found.node(node_id).pid
        hit = found.kill(node_id)
    if not hit:
        raise CommandFailed(f"node {node_id} is not running")
    if as_json:
        print_json({"killed": node_id, "pid": pid})
    elif by_itself:
        say(f"node {node_id} (pid {pid}) was killed; its machine starts it again")
    else:
        say(f"node {node_id} (pid {pid}) is dead")


@cluster.command()
@click.argument("node_ids", metavar="[NODE]...", type=int, nargs=-1)
@click.option("--delete-data", is_flag=True, help="Then delete the cluster and all its data.")
@_directory_option
@json_option
def stop(node_ids: tuple[int, ...], delete_data: bool, directory: Path, as_json: bool) -> None:
    """Shut down the cluster or the named nodes. The data is kept, unless --delete-data."""
    if delete_data and node_ids:
        raise click.UsageError("expected either nodes or --delete-data, found both")
    found = LocalCluster.open(directory)
    wanted = [number for number in found.running() if not node_ids or number in node_ids]
    for number in node_ids:
        found.node(number)
    started = time.monotonic()
    console = LocalConsole(found.directory)
    if not node_ids:
        console.stop()
    killed = found.stop(wanted)
    took = time.monotonic() - started
    if not as_json:
        say(f"{count_of(len(wanted), 'node')} stopped in {took:.1f} s")
    for number in killed:
        say(f"node {number} did not stop in time and was killed", err=True)
    if delete_data:
        console.remove()
        found.remove()
    if as_json:
        print_json({"stopped": wanted, "killed": killed, "seconds": round(took, 3), "deleted": delete_data})
    elif delete_data:
        say(f"deleted {directory}")


@cluster.command(short_help="Show a running cluster's brokers and controllers.")
@cluster_options
def describe(bootstrap: str, as_json: bool) -> None:
    """Show the brokers, controllers and metadata log of a running cluster, on this machine or another."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_cluster()
    brokers = [
        {
            "node": broker.node_id,
            "state": "fenced" if broker.fenced else "stopping" if broker.in_controlled_shutdown else "live",
            "rack": broker.rack,
            "epoch": broker.broker_epoch,
            "listeners": [f"{one.listener}://{one.host}:{one.port}" for one in broker.listeners],
        }
        for broker in found.brokers
    ]
    voters = [
        {
            "node": voter.node_id,
            "active": voter.node_id == found.controller_id,
            "log_end_offset": voter.log_end_offset,
            "last_caught_up_ms": voter.last_caught_up_ms,
        }
        for voter in found.voters
    ]
    observers = [
        {
            "node": observer.node_id,
            "log_end_offset": observer.log_end_offset,
            "last_fetch_ms": observer.last_fetch_ms,
            "last_caught_up_ms": observer.last_caught_up_ms,
        }
        for observer in found.observers
    ]
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller_id,
                "controller_epoch": found.controller_epoch,
                "metadata_offset": found.metadata_offset,
                "brokers": brokers,
                "voters": voters,
                "observers": observers,
                "features": {feature.name: feature.level for feature in found.features},
            }
        )
        return
    print_pairs(
        {
            "cluster": found.cluster_id,
            "active controller": f"node {found.controller_id}, epoch {found.controller_epoch}",
            "metadata offset": found.metadata_offset,
        }
    )
    print_rows(
        ("broker", "state", "rack", "epoch", "listeners"),
        [(row["node"], row["state"], row["rack"], row["epoch"], row["listeners"]) for row in brokers],
    )
    print_rows(
        ("controller", "active", "log end"),
        [(row["node"], row["active"], None if row["log_end_offset"] < 0 else row["log_end_offset"]) for row in voters],
    )
    if observers:
        print_rows(("observer", "log end"), [(row["node"], row["log_end_offset"]) for row in observers])


def _open_or_create(
    directory: Path,
    node_ids: tuple[int, ...],
    nodes: int | None,
    workers: int | None,
    settings: dict[str, str],
    free_ports: bool,
    security: str | None,
) -> LocalCluster:
    if not LocalCluster.exists(directory):
        if unknown := sorted(number for number in node_ids if not 1 <= number <= (nodes or 3)):
            raise CommandFailed(f"expected a node from 1 to {nodes or 3}, found {unknown[0]}")
        if security is not None:
            check_library()
        made = LocalCluster.create(
            directory, nodes=nodes or 3, workers=workers or 1, settings=settings, fixed_ports=not free_ports
        )
        if security is not None:
            lay_out(made, security)
        return made
    if security is not None:
        raise CommandFailed(f"{directory} already holds a cluster; --security is for a new one, in another --dir")
    found = LocalCluster.open(directory)
    if nodes not in (None, len(found.nodes)):
        raise CommandFailed(
            f"{directory} holds a cluster of {count_of(len(found.nodes), 'node')}, not {nodes}; use another --dir"
        )
    has = found.nodes[min(found.nodes)].workers
    if workers not in (None, has):
        raise CommandFailed(
            f"{directory} holds a cluster of nodes with {count_of(has, 'worker')}, not {workers}; use another --dir"
        )
    if settings:
        raise CommandFailed(
            f"{directory} already holds a cluster; change its settings in "
            f"{directory}/node-*/server.properties or with `tidelog configs`"
        )
    return found


def _running(found: LocalCluster) -> str:
    return _nodes(found.running()) if found.running() else "none"


def _nodes(node_ids: Iterable[int]) -> str:
    numbers = sorted(set(node_ids))
    return f"node{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _as_json(found: LocalCluster) -> dict[str, Any]:
    def row(status: NodeStatus) -> dict[str, Any]:
        return {
            "node": status.node_id,
            "state": status.state,
            "pid": status.pid,
            "ports": asdict(status.ports),
            "memory_bytes": status.use.memory_bytes if status.use else None,
            "cpu_seconds": status.use.cpu_s if status.use else None,
            "data_bytes": status.data_bytes,
        }

    return {
        "directory": str(found.directory),
        "cluster_id": found.cluster_id,
        "bootstrap": found.bootstrap,
        "nodes": [row(status) for status in found.status()],
    }
