"""``tidelog groups reset-offsets``: moves groups' committed offsets. Without ``--execute`` it changes nothing."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT64_MAX
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.cli.terminal.times import duration_ms, utc_ms
from tidelog.cli.work.group_offsets import bounds_of, led_partitions
from tidelog.cli.work.reset_plan import (
    Move,
    ResetPlan,
    ShiftBy,
    Target,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToListed,
    ToOffset,
    ToTime,
    parse_topic,
    plan_reset,
    read_offsets_file,
)
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.group_types import GroupDescription

F = TypeVar("F", bound=Callable[..., Any])

Topics = dict[str, tuple[int, ...]]
"""Topic → partitions; none means all."""


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Groups by name, or all groups."""

    names: tuple[str, ...]
    all_groups: bool

    def of(self, admin: Admin) -> tuple[str, ...]:
        """Return the names."""
        if self.all_groups:
            return tuple(one.group_id for one in admin.list_consumer_groups())
        return tuple(dict.fromkeys(self.names))


def group_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``GROUP...`` and ``--all-groups``, exactly one of them required; it receives ``choice``."""

    def with_choice(*, names: tuple[str, ...], all_groups: bool, **more: Any) -> Any:
        if bool(names) == all_groups:
            found = "both" if all_groups else "neither"
            raise click.UsageError(f"expected groups by name or --all-groups, found {found}")
        return command(choice=GroupChoice(names, all_groups), **more)

    with_choice.__doc__ = command.__doc__
    with_choice.__name__ = command.__name__
    with_choice.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    option = click.option("--all-groups", is_flag=True, help="All consumer groups.")
    return click.argument("names", metavar="[GROUP]...", nargs=-1)(option(with_choice))


def topics_option(*, required: bool = False) -> Callable[[F], F]:
    """Give a command ``--topic NAME[:0,1]``; it receives ``topics``."""

    def read(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> Topics:
        found: Topics = {}
        for text in value:
            try:
                topic, partitions = parse_topic(text)
            except ValueError as wrong:
                raise click.BadParameter(str(wrong)) from None
            if topic in found:
                raise click.BadParameter(f"expected each topic once, found {topic} twice")
            found[topic] = partitions
        return found

    return click.option(
        "--topic",
        "topics",
        multiple=True,
        required=required,
        metavar="NAME[:0,1]",
        callback=read,
        help="This topic, or these of its partitions; repeatable.",
    )


@click.command("reset-offsets", short_help="Move committed offsets; a dry run without --execute.")
@group_arguments
@topics_option()
@click.option("--all-topics", is_flag=True, help="Every partition for which the group has a committed offset.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end: new records only.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or the end if there is none.")
@click.option("--to-offset", type=click.IntRange(0, INT64_MAX), metavar="OFFSET", help="To this offset.")
@click.option(
    "--shift-by",
    type=click.IntRange(-INT64_MAX, INT64_MAX),
    metavar="N",
    help="Forward by N records, or back if negative.",
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record at or after this time: ISO 8601 (UTC if without a zone), or ms since 1970.",
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="To the first record within this long before now, e.g. PT1H30M."
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="To the offsets in a CSV file: topic,partition,offset; for several groups, the group comes first.",
)
@click.option("--execute", is_flag=True, help="Apply the plan.")
@click.option("--dry-run", is_flag=True, help="Only show the plan; the default.")
@click.option("--export", is_flag=True, help="Print the new offsets as CSV, in the form that --from-file reads.")
@cluster_options
def reset_offsets(
    choice: GroupChoice,
    topics: Topics,
    all_topics: bool,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: Path | None,
    execute: bool,
    dry_run: bool,
    export: bool,
    bootstrap: str,
    as_json: bool,
    **simple: Any,
) -> None:
    """Move the committed offsets of groups without members. Without --execute, only show the plan.

    An offset outside a partition becomes the nearest valid one. Groups with members are skipped; the others are still
    moved.
    """
    if execute and dry_run:
        raise click.UsageError("expected --execute or --dry-run, found both")
    if export and as_json:
        raise click.UsageError("expected --export or --json, found both")
    target = _target(to_datetime, by_duration, from_file, simple)
    if target is not None and bool(topics) == all_topics:
        raise click.UsageError(f"expected --topic or --all-topics, found {'both' if all_topics else 'neither'}")
    if target is None and (topics or all_topics):
        raise click.UsageError("expected the partitions that --from-file names, found --topic or --all-topics too")

    from tidelog.model.errors import TidelogError

    plans: dict[str, ResetPlan] = {}
    refused: list[str] = []
    with admin_client(bootstrap) as admin:
        names = choice.of(admin)
        targets: Mapping[str, Target]
        if from_file is None:
            assert target is not None
            targets = dict.fromkeys(names, target)
        else:
            with from_file.open(encoding="utf-8", newline="") as lines:
                targets = read_offsets_file(str(from_file), _decoded(from_file, lines), names)
        for name in names:
            try:
                _require_inactive(admin, name)
                plan = _plan(admin, name, targets[name], topics)
                if execute:
                    admin.alter_consumer_group_offsets(name, {move.partition: move.new for move in plan.moves})
                plans[name] = plan
            except CommandFailed as wrong:
                refused.append(str(wrong))
            except TidelogError as wrong:
                more = len(wrong.failures) - 1
                refused.append(f"{wrong.code.name}: {wrong}" + (f" (and {more} more)" if more > 0 else ""))
    _show(plans, execute, export, as_json, several=len(names) > 1)
    if refused:
        raise CommandFailed("; ".join(refused))


def _target(
    to_datetime: str | None, by_duration: str | None, from_file: Path | None, simple: Mapping[str, Any]
) -> Target | None:
    """Return the target that the options name; ``None`` if a file gives the offsets."""
    asked: list[Target | None] = []
    if simple["to_earliest"]:
        asked.append(ToEarliest())
    if simple["to_latest"]:
        asked.append(ToLatest())
    if simple["to_current"]:
        asked.append(ToCurrent())
    if simple["to_offset"] is not None:
        asked.append(ToOffset(simple["to_offset"]))
    if simple["shift_by"] is not None:
        asked.append(ShiftBy(simple["shift_by"]))
    if to_datetime is not None:
        asked.append(ToTime(utc_ms(to_datetime, "--to-datetime")))
    if by_duration is not None:
        asked.append(ToTime(max(0, int(time.time() * 1000) - duration_ms(by_duration, "--by-duration"))))
    if from_file is not None:
        asked.append(None)
    if len(asked) != 1:
        raise click.UsageError(
            "expected one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, "
            f"--by-duration and --from-file, found {'several' if asked else 'none'}"
        )
    return asked[0]


def _decoded(path: Path, lines: Iterable[str]) -> Iterable[str]:
    try:
        yield from lines
    except UnicodeDecodeError as wrong:
        raise CommandFailed(f"{path}: expected UTF-8, found {wrong.object[wrong.start : wrong.end]!r}") from None


def any_group(admin: Admin, name: str) -> GroupDescription:
    """Describe a group of either protocol, whatever the type of its members. Raises ``GroupIdNotFoundError``."""
    from tidelog.client.errors import GroupIdNotFoundError

    try:
        return admin.describe_classic_groups([name])[name]
    except GroupIdNotFoundError:
        return admin.describe_consumer_groups([name])[name]


def _require_inactive(admin: Admin, name: str) -> None:
    """Check that a group has no members. A missing group passes: the commit creates it. Raises
    :class:`CommandFailed`."""
    from tidelog.client.admin.group_types import GroupState
    from tidelog.client.errors import GroupIdNotFoundError

    try:
        group = any_group(admin, name)
    except GroupIdNotFoundError:
        say(f"group {name} does not exist yet", err=True)
        return
    if group.state not in (GroupState.EMPTY, GroupState.DEAD):
        raise CommandFailed(
            f"{name}: expected an inactive group (Empty), found {group.state} with "
            f"{count_of(len(group.members), 'member')}; stop its consumers first"
        )


def _plan(admin: Admin, name: str, target: Target, topics: Topics) -> ResetPlan:
    from tidelog import OffsetSpec

    committed = {at: one.offset for at, one in admin.list_consumer_group_offsets(name).items()}
    if isinstance(target, ToListed):
        partitions = list(target.offsets)
    elif topics:
        partitions = _partitions_of(admin, topics)
    else:
        there = led_partitions(admin, {at.topic for at in committed})
        for gone in sorted(committed.keys() - there.keys()):
            say(f"{name}: {gone} no longer exists", err=True)
        partitions = [at for at in committed if at in there]
        if not partitions:
            raise CommandFailed(f"{name}: expected committed offsets, found none; name topics with --topic")
    bounds = bounds_of(admin, partitions)
    at_time: dict[TopicPartition, int] = {}
    if isinstance(target, ToTime):
        spec = OffsetSpec.for_timestamp(target.time_ms)
        at_time = {at: found.offset for at, found in admin.list_offsets(dict.fromkeys(partitions, spec)).items()}
    return plan_reset(target, partitions, committed, bounds, at_time)


def _partitions_of(admin: Admin, topics: Topics) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in admin.describe_topics(topics)
        for number in topics[topic.name] or [part.partition for part in topic.partitions]
    ]


def _show(plans: Mapping[str, ResetPlan], executed: bool, export: bool, as_json: bool, *, several: bool) -> None:
    for name, plan in plans.items():
        for note in plan.notes:
            say(f"{name}: {note}", err=True)
    rows = [(name, move) for name, plan in plans.items() for move in plan.moves]
    if as_json:
        print_json({"executed": executed, "offsets": [_move_json(name, move) for name, move in rows]})
    elif export:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for name, (at, _, new) in rows:
            writer.writerow([name, *at, new] if several else [*at, new])
    elif rows:
        print_rows(
            ("group", "topic", "partition", "current offset", "new offset"),
            [(name, at.topic, at.partition, current, new) for name, (at, current, new) in rows],
        )
        if not executed:
            say("nothing was changed: use --execute to apply the plan")


def _move_json(name: str, move: Move) -> dict[str, Any]:
    at, current, new = move
    return {
        "group": name,
        "topic": at.topic,
        "partition": at.partition,
        "current_offset": current,
        "new_offset": new,
    }
