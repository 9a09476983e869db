"""``tidelog backup`` and ``tidelog restore``: save a cluster to a directory or an object store, and restore it to
another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import count_of, json_option, megabytes, print_json, print_pairs, print_rows, say

if TYPE_CHECKING:
    from tidelog.proto.backups.manifest import Manifest

R = TypeVar("R")
_PLACE: Final = click.argument("place")
_THROTTLE: Final = click.option(
    "--throttle",
    type=click.IntRange(1, INT64_MAX),
    metavar="BYTES/S",
    help="Record bytes per second. Default: no limit.",
)


@click.group()
def backup() -> None:
    """Back up a cluster; check and show backups."""


@backup.command(short_help="Back up topics, groups and metadata of a running cluster.")
@_PLACE
@_THROTTLE
@cluster_options
def create(place: str, throttle: int | None, bootstrap: str, as_json: bool) -> None:
    """Back up the cluster into PLACE, which must be new or empty: a directory, or a URL such as s3://bucket/path.

    Clients keep running. For a moment near the end, no transaction can be committed or aborted; producers retry. The
    backup contains each transaction entirely or not at all. It contains no passwords.
    """
    from tidelog.client.backup.creating import BackupMaker
    from tidelog.proto.backups.place import place_of

    async def make() -> Manifest:
        async with BackupMaker(bootstrap, **secured()) as maker:
            return await maker.create_backup(place_of(place), throttle=throttle, tell=_teller(as_json))

    _say(_done(make()), as_json)


@backup.command(short_help="Read a whole backup and check every byte.")
@_PLACE
@json_option
def verify(place: str, as_json: bool) -> None:
    """Check that the backup in PLACE is complete and intact. Needs no cluster."""
    from tidelog.proto.backups.manifest import BackupError
    from tidelog.proto.backups.place import place_of
    from tidelog.proto.backups.verifying import verify as read

    try:
        found = read(place_of(place), _teller(as_json))
    except BackupError as error:
        raise CommandFailed(str(error)) from None
    _say(found, as_json)


@backup.command(short_help="Show what a backup contains, without reading its records.")
@_PLACE
@json_option
def show(place: str, as_json: bool) -> None:
    """Show the table of contents of the backup in PLACE. Needs no cluster."""
    from tidelog.proto.backups.manifest import BackupError
    from tidelog.proto.backups.place import place_of, read_manifest

    try:
        found = read_manifest(place_of(place))
    except BackupError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        print_json({**asdict(found), "bytes": found.size})
        return
    _say(found, as_json)
    rows = [
        (topic.name, part.partition, part.start, part.end, part.batches, megabytes(part.size))
        for topic in found.topics
        for part in topic.partitions
    ]
    print_rows(("topic", "partition", "start", "end", "batches", "data"), rows)
    offsets = [(group, one.topic, one.partition, one.offset) for group, all_ in found.groups.items() for one in all_]
    print_rows(("group", "topic", "partition", "offset"), offsets)


@click.command(short_help="Restore a backup into a new cluster.")
@_PLACE
@click.option(
    "--replicas", type=click.IntRange(1, INT32_MAX), metavar="N", help="Replicas of each topic. Default: as backed up."
)
@click.option("--beside-others", is_flag=True, help="Restore even if the cluster has other topics or groups.")
@_THROTTLE
@cluster_options
def restore(
    place: str, replicas: int | None, beside_others: bool, throttle: int | None, bootstrap: str, as_json: bool
) -> None:
    """Restore the backup in PLACE into an empty cluster.

    Files are checked as they are read. If one is damaged, the restored topics are deleted again. Keep clients away
    until the command has finished. If it is interrupted, run it again to continue.
    """
    from tidelog.client.backup.restoring import BackupRestorer
    from tidelog.proto.backups.place import place_of

    async def bring() -> Manifest:
        async with BackupRestorer(bootstrap, **secured()) as restorer:
            return await restorer.restore(
                place_of(place),
                replicas=replicas,
                beside_others=beside_others,
                throttle=throttle,
                tell=_teller(as_json),
            )

    found = _done(bring())
    _say(found, as_json)
    if found.users and not as_json:
        say(f"passwords are not in a backup; set them with `tidelog users set`: {', '.join(found.users)}")


def _done(work: Coroutine[Any, Any, R]) -> R:
    from tidelog.proto.backups.manifest import BackupError

    try:
        return asyncio.run(work)
    except BackupError as error:
        raise CommandFailed(str(error)) from None


def _teller(as_json: bool) -> Callable[[str], None]:
    return (lambda _: None) if as_json else partial(say, err=True)


def _say(found: Manifest, as_json: bool) -> None:
    partitions = sum(len(topic.partitions) for topic in found.topics)
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "created_ms": found.created_ms,
                "held_ms": found.held_ms,
                "topics": len(found.topics),
                "partitions": partitions,
                "groups": len(found.groups),
                "sinks": len(found.ledgers),
                "bytes": found.size,
                "users_without_password": list(found.users),
            }
        )
        return
    print_pairs(
        {
            "cluster": found.cluster_id,
            "made": datetime.fromtimestamp(found.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "topics": f"{len(found.topics)}, {count_of(partitions, 'partition')}, {megabytes(found.size)}",
            "groups": len(found.groups),
            "sinks": len(found.ledgers),
        }
    )
