"""``tidelog topics verify``: compares the replicas of partitions over the network."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say

if TYPE_CHECKING:
    from tidelog.client.links.replicas import ComparedReplicas


@click.command(short_help="Check over the network that replicas hold the same records.")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@cluster_options
def verify(names: tuple[str, ...], bootstrap: str, as_json: bool) -> int:
    """Compare the replicas of each partition of these topics, or of all. Every broker reads its own log.

    Batches are compared byte for byte, and by their leader epochs, from where both logs begin up to the high watermark
    that both brokers know. In compacted topics, only records that both replicas have are compared. `tidelog log
    compare` does the same with files. Exit code 1 if replicas differ, or a broker does not answer.
    """
    from tidelog.client.links.replicas import ReplicaComparer

    async def compare() -> list[ComparedReplicas]:
        async with ReplicaComparer(bootstrap, **secured()) as comparer:
            return await comparer.compare_replicas(names)

    found = asyncio.run(compare())
    faulty = [one for one in found if one.fault]
    if as_json:
        print_json([{"topic": one.at.topic, "partition": one.at.partition, **_fields(one)} for one in found])
    else:
        if faulty:
            rows = [(one.at.topic, one.at.partition, *one.brokers, one.fault) for one in faulty]
            print_rows(("topic", "partition", "broker", "other broker", "problem"), rows)
        batches, size = sum(one.batches for one in found), megabytes(sum(one.size for one in found))
        judged = f"{len(faulty):,} differ or do not answer" if faulty else "no difference"
        say(f"{count_of(len(found), 'pair')} of replicas, {batches:,} batches, {size} compared: {judged}")
    return 1 if faulty else 0


def _fields(one: ComparedReplicas) -> dict[str, object]:
    return {name: value for name, value in asdict(one).items() if name != "at"}
