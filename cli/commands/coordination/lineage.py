"""``tidelog lineage``: shows which programs read from which topics and write to which, by their transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.terminal.records import time_text
from tidelog.model.escaping import escaped

if TYPE_CHECKING:
    from tidelog.proto.calls.transaction_api import LineageEdge

IDS_SHOWN: Final = 3


class Program(NamedTuple):
    """The transactional ids that read with the same groups; without a group, one id."""

    name: str
    ids: list[str]
    edges: list[LineageEdge]

    def topics(self, *, reads: bool) -> list[str]:
        return sorted({edge.topic for edge in self.edges if edge.reads is reads})


@click.command()
@click.option("--topic", metavar="NAME", help="Only programs that read from or write to this topic.")
@click.option("--dot", is_flag=True, help="Print a graph for Graphviz: tidelog lineage --dot | dot -Tsvg.")
@cluster_options
def lineage(topic: str | None, dot: bool, bootstrap: str, as_json: bool) -> None:
    """Show which programs read from which topics and write to which.

    Transaction coordinators see it in transactions, of whatever client: those that commit offsets of a group read, and
    those that commit records write. Ids that read with the same group are one program. Brokers remember this since they
    started, in bounded memory. You see what you may DESCRIBE: transactional ids, topics and groups.
    """
    if dot and as_json:
        raise click.UsageError("expected --dot or --json, found both")
    with admin_client(bootstrap) as admin:
        found = admin.describe_lineage()
    programs = [one for one in _programs(found.edges) if topic is None or any(e.topic == topic for e in one.edges)]
    if as_json:
        print_json(
            {
                "since_ms": found.since_ms, "forgotten": found.forgotten,
                "programs": [_json(one) for one in programs],
            }
        )  # fmt: skip
        return
    if dot:
        _print_graph(programs)
        return
    rows = [
        (
            one.name, _shortened(one.ids), " ".join(_clients(one)) or None, " ".join(one.topics(reads=True)) or None,
            " ".join(one.topics(reads=False)) or None, sum(edge.count for edge in one.edges),
            time_text(max(edge.last_ms for edge in one.edges)),
        )
        for one in programs
    ]  # fmt: skip
    print_rows(("program", "transactional ids", "client ids", "reads", "writes", "seen", "last"), rows)
    say(f"as remembered since {time_text(found.since_ms)}", err=True)
    if found.forgotten:
        say(f"{found.forgotten:,} older entries were forgotten: brokers had no room for them", err=True)


def _programs(edges: Iterable[LineageEdge]) -> list[Program]:
    by_id: dict[str, list[LineageEdge]] = {}
    for edge in edges:
        by_id.setdefault(edge.transactional_id, []).append(edge)
    found: dict[str, Program] = {}
    for name, own in by_id.items():
        groups = sorted({edge.group_id for edge in own if edge.reads})
        program = " ".join(groups) or name
        one = found.setdefault(program, Program(program, [], []))
        one.ids.append(name)
        one.edges.extend(own)
    return [found[name] for name in sorted(found)]


def _clients(one: Program) -> list[str]:
    return sorted({edge.client_id for edge in one.edges if edge.client_id})


def _shortened(ids: list[str]) -> str:
    more = f" and {len(ids) - IDS_SHOWN:,} more" if len(ids) > IDS_SHOWN else ""
    return " ".join(ids[:IDS_SHOWN]) + more


def _json(one: Program) -> dict[str, Any]:
    return {
        "program": one.name,
        "transactional_ids": one.ids,
        "client_ids": _clients(one),
        "reads": one.topics(reads=True),
        "writes": one.topics(reads=False),
        "edges": [
            {
                "transactional_id": edge.transactional_id, "topic": edge.topic, "reads": edge.reads,
                "group": edge.group_id or None, "client_id": edge.client_id or None, "count": edge.count,
                "first_ms": edge.first_ms, "last_ms": edge.last_ms,
            }
            for edge in one.edges
        ],
    }  # fmt: skip


def _print_graph(programs: list[Program]) -> None:
    lines = ["digraph lineage {", "  rankdir=LR;"]
    topics = {edge.topic for one in programs for edge in one.edges}
    lines += [f"  {_quoted('topic', topic)} [label={_quoted(topic)}, shape=box];" for topic in sorted(topics)]
    for one in programs:
        lines.append(f"  {_quoted('program', one.name)} [label={_quoted(one.name)}, shape=ellipse];")
        lines += [f"  {_quoted('topic', t)} -> {_quoted('program', one.name)};" for t in one.topics(reads=True)]
        lines += [f"  {_quoted('program', one.name)} -> {_quoted('topic', t)};" for t in one.topics(reads=False)]
    click.echo("\n".join([*lines, "}"]))


def _quoted(*parts: str) -> str:
    """Return a string of Graphviz's language, in which a backslash begins an escape."""
    text = escaped(" ".join(parts)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
