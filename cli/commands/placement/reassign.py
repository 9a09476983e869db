"""``tidelog reassign``: moves replicas to other brokers, like ``kafka-reassign-partitions.sh``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT64_MAX
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.cli.work.replicas import reassignment_plan as plan
from tidelog.cli.work.replicas.disk_moves import Directories
from tidelog.cli.work.replicas.moving import cancel, clear_throttles, name_of, throttle
from tidelog.cli.work.replicas.placement import targets_of
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.reassignments import OngoingReassignment

_MODES: Final = ("generate", "execute", "verify", "cancel", "list")
HEARD_S_MAX: Final = 1.0
"""How long to wait for brokers to learn that a move ended. The controller knows first; the broker lists the
replicas."""
_COMPLETE, _UNDER_WAY, _OTHER = "complete", "under way", "other replicas"
_ON_WAY, _ELSEWHERE = "moves to its directory", "in another directory"


@click.command(short_help="Move replicas to other brokers.")
@click.option("--generate", "mode", flag_value="generate", help="Print the current replicas, and a proposal.")
@click.option("--execute", "mode", flag_value="execute", help="Start the moves in the file.")
@click.option(
    "--verify", "mode", flag_value="verify", help="Show the progress; once all moves are done, remove the throttle."
)
@click.option("--cancel", "mode", flag_value="cancel", help="Cancel the moves in the file that are in progress.")
@click.option("--list", "mode", flag_value="list", help="Print the moves in progress.")
@click.option(
    "--reassignment-json-file", "--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For --execute, --verify, --cancel: partitions and their replicas, as --generate proposes them.",
)  # fmt: skip
@click.option(
    "--topics-to-move-json-file", "topics_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For --generate: the topics.",
)  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="For --generate: a topic; repeatable.")
@click.option("--broker-list", metavar="NODE,...", help="For --generate: the nodes to use.  [default: all eligible]")
@click.option("--disable-rack-aware", is_flag=True, help="For --generate: ignore racks.")
@click.option(
    "--throttle", type=click.IntRange(1, INT64_MAX), metavar="BYTES/S",
    help="For --execute: how fast each broker may send to, and fetch for, replicas that are catching up.",
)  # fmt: skip
@click.option(
    "--replica-alter-log-dirs-throttle", "copying", type=click.IntRange(1, INT64_MAX), metavar="BYTES/S",
    help="For --execute: how fast each broker may copy between its log directories.",
)  # fmt: skip
@click.option(
    "--additional",
    is_flag=True,
    help="For --execute: allow it while other moves are in progress, or to change the throttle.",
)
@click.option("--preserve-throttles", is_flag=True, help="For --verify, --cancel: keep the throttle.")
@cluster_options
def reassign(mode: str | None, bootstrap: str, as_json: bool, **options: Any) -> int:
    """Move replicas of partitions to other brokers.

    \b
    tidelog reassign --generate --topic orders --broker-list 1,2,4 > proposal, edited to move.json
    tidelog reassign --execute --file move.json --throttle 10000000
    tidelog reassign --verify --file move.json        until it ends with exit code 0

    --execute prints the previous replicas: keep that output as a file for rolling back. --verify exits with 1 while any
    move is unfinished.
    """
    if mode is None:
        raise click.UsageError(f"expected one of {', '.join('--' + name for name in _MODES)}")
    file: Path | None = options["file"]
    if (mode in ("execute", "verify", "cancel")) is (file is None):
        raise click.UsageError(f"--{mode}: expected {'no' if file else 'a'} --reassignment-json-file")
    wanted = None if file is None else plan.read_assignment(file)
    with admin_client(bootstrap) as admin:
        if mode == "list":
            return _list(admin, as_json)
        if mode == "generate":
            return _generate(admin, as_json, options)
        assert wanted is not None
        if mode == "execute":
            return _execute(admin, wanted, options, as_json)
        clear = not options["preserve_throttles"]
        return _verify(admin, wanted, as_json, clear) if mode == "verify" else _cancel(admin, wanted, as_json, clear)


# --- Asking --------------------------------------------------------------------------------------------


def _replicas_of(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the current replicas, without topics that do not exist."""
    there = {topic.name for topic in admin.list_topics(internal=True)}
    wanted = [name for name in dict.fromkeys(topics) if name in there]
    described = admin.describe_topics(wanted) if wanted else []
    return {
        TopicPartition(topic.name, part.partition): tuple(part.replicas)
        for topic in described
        for part in topic.partitions
    }


def _before(
    current: Mapping[TopicPartition, tuple[int, ...]], ongoing: Mapping[TopicPartition, OngoingReassignment]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas without those that are only being added."""
    return {
        at: tuple(node for node in replicas if at not in ongoing or node not in ongoing[at].adding_replicas)
        for at, replicas in current.items()
    }


# --- The five things it does ---------------------------------------------------------------------------


def _list(admin: Admin, as_json: bool) -> int:
    found = sorted(admin.list_partition_reassignments().items())
    if as_json:
        print_json(
            [
                {
                    "topic": at.topic, "partition": at.partition, "replicas": list(one.replicas),
                    "adding": list(one.adding_replicas), "removing": list(one.removing_replicas),
                }
                for at, one in found
            ]
        )  # fmt: skip
    elif not found:
        say("no replicas are moving")
    else:
        rows = [(at.topic, at.partition, one.replicas, one.adding_replicas, one.removing_replicas) for at, one in found]
        print_rows(("topic", "partition", "replicas", "adding", "removing"), rows)
    return 0


def _generate(admin: Admin, as_json: bool, options: Mapping[str, Any]) -> int:
    topics_file: Path | None = options["topics_file"]
    names = [*options["topics"], *(plan.read_topics(topics_file) if topics_file is not None else ())]
    if not names:
        raise click.UsageError("--generate: expected --topic or --topics-to-move-json-file")
    brokers = {int(found.node_id): found for found in admin.describe_cluster().brokers}
    chosen = sorted(node for node, found in brokers.items() if not (found.fenced or found.cordoned))
    if options["broker_list"] is not None:
        chosen = _nodes(options["broker_list"])
        if unknown := [node for node in chosen if node not in brokers]:
            raise CommandFailed(f"--broker-list: expected nodes among {sorted(brokers)}, found {unknown}")
        if drained := [node for node in chosen if brokers[node].cordoned]:
            raise CommandFailed(
                f"--broker-list: expected nodes that may get replicas, found {drained}, which are drained: `tidelog "
                "brokers undrain` ends that"
            )
    admin.describe_topics(names)  # raises for a missing topic
    current = _before(_replicas_of(admin, names), admin.list_partition_reassignments())
    targets = targets_of(brokers, chosen)
    if options["disable_rack_aware"]:
        targets = [target._replace(rack=None) for target in targets]
    proposal = plan.propose(current, targets)
    if as_json:
        print_json({"current": plan.as_file(current), "proposed": plan.as_file(proposal)})
        return 0
    say("Current replicas:")
    print_json(plan.as_file(current))
    click.echo()
    say("Proposal for --execute:")
    print_json(plan.as_file(proposal))
    return 0


def _nodes(text: str) -> list[int]:
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdigit() and len(item) < 11 for item in items):
        raise click.BadParameter(f"expected node ids separated by commas, found {text!r}", param_hint="--broker-list")
    return sorted({int(item) for item in items})


def _execute(admin: Admin, asked: plan.Wanted, options: Mapping[str, Any], as_json: bool) -> int:
    wanted, rate = asked.replicas, options["throttle"]
    ongoing = admin.list_partition_reassignments()
    if ongoing and not options["additional"]:
        raise CommandFailed(
            f"expected no moves in progress, found moves of {count_of(len(ongoing), 'partition')}: wait "
            "until `tidelog reassign --list` shows none, or use --additional"
        )
    before = _before(_replicas_of(admin, (at.topic for at in wanted)), ongoing)
    if missing := sorted(at for at in wanted if at not in before):
        raise CommandFailed(f"expected partitions that exist, found {', '.join(map(name_of, missing[:10]))}")
    directories = Directories(admin, asked.directories)
    way_back = plan.as_file({at: before[at] for at in wanted}, directories.check())
    if rate is not None:
        throttle(admin, before, wanted, ongoing, rate)
    admin.alter_partition_reassignments(wanted)
    directories.begin(options["copying"])
    if as_json:
        print_json({"before": way_back, "begun": [name_of(at) for at in sorted(wanted)], "throttle": rate})
        return 0
    say("Previous replicas; save this as a file for rolling back:")
    print_json(way_back)
    click.echo()
    say(f"started: {', '.join(map(name_of, sorted(wanted)))}")
    if rate is not None:
        say(f"throttled to {rate:,} bytes a second at each broker until --verify finds everything done")
    return 0


def _verify(admin: Admin, asked: plan.Wanted, as_json: bool, clear: bool) -> int:
    wanted, directories = asked.replicas, Directories(admin, asked.directories)
    ongoing = admin.list_partition_reassignments()
    deadline = time.monotonic() + HEARD_S_MAX
    while True:
        current = _replicas_of(admin, (at.topic for at in wanted))
        states = {at: _state(at, replicas, current, ongoing) for at, replicas in sorted(wanted.items())}
        if _OTHER not in states.values() or time.monotonic() >= deadline:
            break
        time.sleep(HEARD_S_MAX / 20)
    if not ongoing:
        for at, moves in directories.left().items():
            states[at] = _ON_WAY if moves else _ELSEWHERE
    if clear and _ON_WAY not in states.values():
        directories.lift()
    clear = clear and not ongoing
    if clear:
        clear_throttles(admin, (at.topic for at in wanted))
    done = all(state == _COMPLETE for state in states.values())
    if as_json:
        print_json(
            {
                "complete": done, "throttles_removed": clear,
                "partitions": [
                    {
                        "topic": at.topic, "partition": at.partition, "state": state,
                        "replicas": list(current.get(at, ())), "wanted": list(wanted[at]),
                    }
                    for at, state in states.items()
                ],
            }
        )  # fmt: skip
    else:
        rows = [(at.topic, at.partition, state, current.get(at, ()), wanted[at]) for at, state in states.items()]
        print_rows(("topic", "partition", "state", "replicas", "wanted"), rows)
        click.echo()
        if clear:
            say("nothing is moving any more: the throttles of all brokers and these topics are removed")
        elif ongoing:
            say(f"{count_of(len(ongoing), 'partition')} of the cluster still moving; throttles are kept")
    return 0 if done else 1


def _state(
    at: TopicPartition,
    wanted: tuple[int, ...],
    current: Mapping[TopicPartition, tuple[int, ...]],
    ongoing: Mapping[TopicPartition, OngoingReassignment],
) -> str:
    if at in ongoing:
        return _UNDER_WAY if tuple(ongoing[at].target_replicas) == wanted else "another move under way"
    if at not in current:
        return "no such partition"
    return _COMPLETE if current[at] == wanted else _OTHER


def _cancel(admin: Admin, asked: plan.Wanted, as_json: bool, clear: bool) -> int:
    wanted, directories = asked.replicas, Directories(admin, asked.directories)
    ongoing = admin.list_partition_reassignments()
    named = sorted(at for at in wanted if at in ongoing)
    cancel(admin, named)
    named = sorted({*named, *directories.cancel()})
    if clear:
        directories.lift()
    clear = clear and not admin.list_partition_reassignments()
    if clear:
        clear_throttles(admin, (at.topic for at in wanted))
    if as_json:
        print_json({"cancelled": [name_of(at) for at in named], "throttles_removed": clear})
    elif named:
        say(f"cancelled: {', '.join(map(name_of, named))}")
    else:
        say("none of these partitions is moving")
    if clear and not as_json:
        say("the throttles of all brokers and these topics are removed")
    return 0
