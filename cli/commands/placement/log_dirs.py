"""``tidelog log-dirs``: the log directories of brokers, and moves of replicas between directories of one broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import click

from tidelog.cli.commands.placement.moves import telling
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say
from tidelog.cli.work.replicas.disk_moves import (
    DiskMover,
    Placed,
    Replicas,
    check_paths,
    check_room,
    replicas_in,
    spread,
)
from tidelog.cli.work.replicas.moving import name_of, names_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.api import LogDir

_NODE: Final = click.IntRange(0, INT32_MAX)


@click.group("log-dirs")
def log_dirs() -> None:
    """Show brokers' log directories, and move replicas from one disk to another."""


@log_dirs.command(short_help="Show log directories: state, replicas, sizes, room; and each replica.")
@click.argument("nodes", metavar="[NODE]...", type=_NODE, nargs=-1)
@click.option("--replicas", "each", is_flag=True, help="Show each replica, with its move and lag.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only replicas of this topic (repeatable).")
@cluster_options
def describe(nodes: tuple[int, ...], each: bool, topics: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the log directories of all live brokers, or of the named ones."""
    with admin_client(bootstrap) as admin:
        found = {int(node): dirs for node, dirs in sorted(admin.describe_log_dirs(nodes).items())}
    if as_json:
        print_json([_as_json(node, directory, topics) for node, dirs in found.items() for directory in dirs])
        return
    if each or topics:
        rows = [
            (node, name_of(at), one.path, megabytes(one.size), one.moves_to, one.lag if one.moves_to else None)
            for node, dirs in found.items()
            for at, one in replicas_in(dirs).items()
            if not topics or at.topic in topics
        ]
        print_rows(("node", "replica", "directory", "data", "moves to", "offset lag"), rows)
        return
    print_rows(
        ("node", "directory", "state", "replicas", "arriving", "data", "free", "total"),
        [(node, *_summary(directory)) for node, dirs in found.items() for directory in dirs],
    )


def _summary(directory: LogDir) -> tuple[Any, ...]:
    arriving = sum(one.is_future for one in directory.replicas)
    return (
        directory.path,
        _state(directory),
        len(directory.replicas) - arriving,
        arriving,
        megabytes(sum(one.size_bytes for one in directory.replicas)),
        megabytes(directory.usable_bytes),
        megabytes(directory.total_bytes),
    )


def _state(directory: LogDir) -> str:
    return "in service" if directory.error is ErrorCode.NONE else "failed"


def _as_json(node: int, directory: LogDir, topics: Collection[str]) -> dict[str, Any]:
    return {
        "node": node,
        "path": directory.path,
        "state": _state(directory),
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "replicas": [
            {
                "topic": one.topic, "partition": one.partition, "bytes": one.size_bytes,
                "log_start_offset": one.log_start_offset, "log_end_offset": one.log_end_offset,
                "is_future": one.is_future, "offset_lag": one.offset_lag,
            }
            for one in directory.replicas
            if not topics or one.topic in topics
        ],
    }  # fmt: skip


@log_dirs.command(short_help="Move replicas of a broker to other disks, with a throttle.")
@click.argument("node", metavar="NODE", type=_NODE)
@click.option("--from", "source", metavar="PATH", help="Only replicas in this directory.")
@click.option("--to", "targets", multiple=True, metavar="PATH", help="A target directory; repeat to spread replicas.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only replicas of this topic (repeatable).")
@click.option("--throttle", type=click.IntRange(1, INT64_MAX), metavar="BYTES/S", help="How fast the broker may copy.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("--cancel", "cancels", is_flag=True, help="Cancel the moves in progress: the replicas stay put.")
@cluster_options
def move(
    node: int,
    source: str | None,
    targets: tuple[str, ...],
    topics: tuple[str, ...],
    throttle: int | None,
    dry_run: bool,
    cancels: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move replicas of broker NODE between its log directories, and wait until they have moved.

    The replicas keep serving. Ctrl-C leaves the moves running; the same command resumes watching, and --cancel cancels
    them. At the end, the throttle is removed.
    """
    if cancels == bool(targets):
        raise click.UsageError("expected --to PATH, or --cancel")
    with admin_client(bootstrap) as admin:
        mover = DiskMover(admin, node, telling(as_json))
        dirs = mover.dirs()
        check_paths(dirs, (*targets, source) if source else targets)
        chosen = {
            at: one
            for at, one in replicas_in(dirs).items()
            if (not source or one.path == source) and (not topics or at.topic in topics)
        }
        if cancels:
            _cancel(mover, chosen, as_json)
            return
        wanted = _plan(chosen, [directory for directory in dirs if directory.path in targets])
        check_room({at: path for at, path in wanted.items() if chosen[at].moves_to != path}, chosen, dirs)
        size = sum(chosen[at].size for at in wanted)
        if dry_run:
            _say_plan(chosen, wanted, as_json)
            return
        if not as_json:
            say(f"to move: {count_of(len(wanted), 'replica')}, {megabytes(size)}, to {', '.join(targets)}")
        if throttle is not None:
            mover.throttle(throttle)
        mover.begin({at: path for at, path in wanted.items() if chosen[at].moves_to != path})
        mover.wait(wanted, size)
        mover.throttle(None)
    if as_json:
        print_json({"node": node, "moved": [name_of(at) for at in wanted], "bytes": size})
        return
    say(f"moved {count_of(len(wanted), 'replica')}, {megabytes(size)}")


def _plan(chosen: Replicas, targets: Sequence[LogDir]) -> dict[TopicPartition, str]:
    """Plan the moves. Replicas that are in a target, or on their way to one, are left alone."""
    paths = [directory.path for directory in targets]
    on_way = {at: one.moves_to for at, one in chosen.items() if one.moves_to in paths and one.moves_to}
    others = {at: one for at, one in chosen.items() if at not in on_way and one.path not in paths}
    return dict(sorted({**on_way, **spread(others, targets)}.items()))


def _say_plan(chosen: Replicas, wanted: dict[TopicPartition, str], as_json: bool) -> None:
    rows: list[tuple[str, Placed, str]] = [(name_of(at), chosen[at], path) for at, path in wanted.items()]
    if as_json:
        print_json([{"replica": name, "bytes": one.size, "from": one.path, "to": path} for name, one, path in rows])
        return
    print_rows(("replica", "data", "from", "to"), [(name, megabytes(one.size), one.path, to) for name, one, to in rows])


def _cancel(mover: DiskMover, chosen: Replicas, as_json: bool) -> None:
    moving = {at: one.path for at, one in chosen.items() if one.moves_to is not None}
    mover.begin(moving)
    mover.throttle(None)
    if as_json:
        print_json({"cancelled": [name_of(at) for at in moving]})
        return
    say(f"cancelled: {names_of(moving)}" if moving else "nothing to cancel: none of these replicas is moving")
