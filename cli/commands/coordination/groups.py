"""``tidelog groups``: shows groups, their readers and progress; resets offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands.coordination.reset_offsets import (
    GroupChoice,
    any_group,
    group_arguments,
    reset_offsets,
    topics_option,
)
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.work.group_offsets import GroupStanding, log_ends, standings
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.group_types import GroupDescription, MemberDescription

STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")


@click.group()
def groups() -> None:
    """List and describe consumer groups, show their lag, reset their offsets, delete them."""


groups.add_command(reset_offsets)


@groups.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type", "types", metavar="TYPE", multiple=True, help="Only groups of this type, classic or consumer; repeatable."
)
@cluster_options
def list_groups(states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List groups with their states."""
    with admin_client(bootstrap) as admin:
        found = admin.list_groups(states=states, types=types)
    if as_json:
        print_json(
            [
                {"group": one.group_id, "state": one.state, "type": one.group_type, "protocol": one.protocol_type}
                for one in found
            ]
        )
        return
    rows = [(one.group_id, one.state, one.group_type, one.protocol_type or "-") for one in found]
    print_rows(("group", "state", "type", "protocol"), rows)


@groups.command(short_help="Show offsets and lag, members, or state.")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option(
    "--offsets", "view", flag_value="offsets", default=True, help="Show offsets, lag and readers; the default."
)
@click.option("--members", "view", flag_value="members", help="Show members and their assignments instead.")
@click.option("--state", "view", flag_value="state", help="Show state, coordinator and assignor instead.")
@cluster_options
def describe(names: tuple[str, ...], view: str, bootstrap: str, as_json: bool) -> None:
    """Show the named groups (default: all): each partition's committed offset, log end, lag and reader.

    Lag is what is not committed yet: log end offset minus committed offset.
    """
    with admin_client(bootstrap) as admin:
        wanted = names or tuple(one.group_id for one in admin.list_consumer_groups())
        found, refused = described(admin, wanted)
        rows = _standings(admin, found) if view == "offsets" else []
    if not names:  # the group disappeared in the meantime
        refused = {name: why for name, why in refused.items() if not why.startswith("GROUP_ID_NOT_FOUND")}
    if found or not refused:
        if view == "members":
            _show_members(found, as_json)
        elif view == "state":
            _show_states(found, as_json)
        elif as_json:
            print_json([row._asdict() for row in rows])
        else:
            _tell_unsettled(found)
            _show_standings(rows)
    if refused:
        raise CommandFailed("; ".join(refused.values()))


@groups.command(short_help="Delete groups with their committed offsets.")
@group_arguments
@cluster_options
def delete(choice: GroupChoice, bootstrap: str, as_json: bool) -> None:
    """Delete groups that have no members, and their committed offsets.

    If one group cannot be deleted, the others still are."""
    from tidelog.model.errors import TidelogError

    failures: dict[str, str] = {}
    with admin_client(bootstrap) as admin:
        wanted = choice.of(admin)
        try:
            admin.delete_consumer_groups(wanted)
        except TidelogError as wrong:
            if not wrong.failures:
                raise
            failures = {name: f"{one.code.name}: {one}" for name, one in wrong.failures.items()}
    deleted = [name for name in wanted if name not in failures]
    if as_json:
        print_json({"deleted": deleted})
    elif deleted:
        say(f"deleted {', '.join(deleted)}")
    elif not failures:
        say("there are no groups")
    if failures:
        raise CommandFailed("; ".join(failures.values()))


@groups.command("delete-offsets", short_help="Delete a group's committed offsets for topics.")
@click.argument("name", metavar="GROUP")
@topics_option(required=True)
@cluster_options
def delete_offsets(name: str, topics: dict[str, tuple[int, ...]], bootstrap: str, as_json: bool) -> None:
    """Delete GROUP's committed offsets for topics that no member subscribes to."""
    with admin_client(bootstrap) as admin:
        any_group(admin, name)  # raises if the group does not exist
        committed = admin.list_consumer_group_offsets(name)
        wanted = sorted(
            at for at in committed if at.topic in topics and at.partition in (topics[at.topic] or (at.partition,))
        )
        missing = [
            f"{topic}-{number}"
            for topic, numbers in topics.items()
            for number in numbers
            if TopicPartition(topic, number) not in committed
        ] + [topic for topic in topics if not any(at.topic == topic for at in committed)]
        if missing:
            raise CommandFailed(
                f"{name}: expected partitions with committed offsets, found none for {', '.join(missing)}"
            )
        admin.delete_consumer_group_offsets(name, wanted)
    if as_json:
        print_json([{"topic": at.topic, "partition": at.partition} for at in wanted])
    else:
        say(f"deleted the offsets of {name} for {', '.join(map(str, wanted))}")


def described(admin: Admin, names: Sequence[str]) -> tuple[dict[str, GroupDescription], dict[str, str]]:
    """Describe the groups that can be described; for the others, return why not."""
    from tidelog.model.errors import TidelogError

    if not names:
        return {}, {}
    try:
        return admin.describe_consumer_groups(names), {}
    except TidelogError as wrong:
        if not wrong.failures:
            raise
        refused = {name: f"{one.code.name}: {one}" for name, one in wrong.failures.items()}
    found, more = described(admin, [name for name in names if name not in refused])
    return found, {**refused, **more}


def _standings(admin: Admin, found: dict[str, GroupDescription]) -> list[GroupStanding]:
    committed = admin.list_consumer_group_offsets(dict.fromkeys(found)) if found else {}
    partitions = {at for offsets in committed.values() for at in offsets}
    for group in found.values():
        partitions.update(at for member in group.members for at in member.assignment or ())
    ends = log_ends(admin, partitions)
    return [
        row
        for name, group in found.items()
        for row in standings(group, {at: one.offset for at, one in committed[name].items()}, ends)
    ]


def _show_standings(rows: Iterable[GroupStanding]) -> None:
    columns = (
        "group", "topic", "partition", "current offset", "log end offset", "lag", "consumer id", "host", "client id",
    )  # fmt: skip
    print_rows(columns, list(rows))


def _tell_unsettled(found: dict[str, GroupDescription]) -> None:
    """Print notes that explain empty cells of the table."""
    from tidelog.client.admin.group_types import GroupState

    for name, group in found.items():
        if group.state is GroupState.EMPTY:
            say(f"{name} has no active members", err=True)
        elif group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            say(f"{name} is rebalancing", err=True)


def _show_members(found: dict[str, GroupDescription], as_json: bool) -> None:
    members = [(name, member) for name, group in found.items() for member in group.members]
    if as_json:
        print_json([_member_json(name, member) for name, member in members])
        return
    columns: tuple[str, ...] = ("group", "consumer id", "instance id", "host", "client id", "partitions", "assignment")
    rows: list[tuple[object, ...]] = [
        (
            name, member.member_id, member.group_instance_id, member.host, member.client_id,
            None if member.assignment is None else len(member.assignment), _assignment_text(member),
        )
        for name, member in members
    ]  # fmt: skip
    if any({True, False} <= {member.upgraded for member in group.members} for group in found.values()):
        columns += ("upgraded",)
        rows = [(*row, member.upgraded) for row, (_, member) in zip(rows, members, strict=True)]
    print_rows(columns, rows)


def _assignment_text(member: MemberDescription) -> str:
    """Format partitions by topic, as ``orders(0,1) payments(2)``."""
    if member.assignment is None:
        return "unreadable"
    by_topic: dict[str, list[str]] = {}
    for at in member.assignment:
        by_topic.setdefault(at.topic, []).append(str(at.partition))
    return " ".join(f"{topic}({','.join(numbers)})" for topic, numbers in by_topic.items()) or "-"


def _member_json(name: str, member: MemberDescription) -> dict[str, Any]:
    assignment = member.assignment
    return {
        "group": name,
        "consumer_id": member.member_id,
        "instance_id": member.group_instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "subscription": None if member.subscription is None else list(member.subscription),
        "assignment": None
        if assignment is None
        else [{"topic": at.topic, "partition": at.partition} for at in assignment],
        "upgraded": member.upgraded,
    }


def _show_states(found: dict[str, GroupDescription], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "group": name, "state": group.state, "assignor": group.partition_assignor or None,
                    "coordinator": {
                        "node": group.coordinator.node_id, "host": group.coordinator.host,
                        "port": group.coordinator.port,
                    },
                    "members": len(group.members),
                }
                for name, group in found.items()
            ]
        )  # fmt: skip
        return
    rows = [
        (
            name, f"{group.coordinator.host}:{group.coordinator.port} (node {group.coordinator.node_id})",
            group.partition_assignor or "-", group.state, len(group.members),
        )
        for name, group in found.items()
    ]  # fmt: skip
    print_rows(("group", "coordinator", "assignor", "state", "members"), rows)
