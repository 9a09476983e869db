"""Consumer groups: a paged list with lag, one group with its members and partitions, reset, delete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidelog import OffsetSpec, TopicPartition
from tidelog.cli.commands.coordination.groups import described
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.group_offsets import GroupStanding, bounds_of, led_partitions, log_ends, standings
from tidelog.cli.work.reset_plan import (
    ResetPlan,
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    plan_reset,
)
from tidelog.client.admin.group_types import GroupDescription, GroupListing
from tidelog.client.errors import TidelogError
from tidelog.console.desk import Desk
from tidelog.console.pages.paging import page_of
from tidelog.console.reading.scan import read_part
from tidelog.console.routes import Call, Route, number, text_of
from tidelog.console.web.messages import Wrong

LIVE_S: Final = 3.0
BEHIND_MAX: Final = 50
"""How many partitions to compute the lag in seconds for at a time. Each costs one batch from its leader."""
ROWS_MAX: Final = 1_000


def groups(call: Call) -> dict[str, Any]:
    """Return a page of groups. Only groups on the page have their lag looked up."""
    listed = call.desk.admin.list_groups()
    keys: dict[str, Callable[[GroupListing], Any]] = {
        "name": lambda one: one.group_id,
        "state": lambda one: (one.state.value, one.group_id),
    }
    shown, about = page_of(call, listed, lambda one: one.group_id, keys)
    names = [one.group_id for one in shown if one.protocol_type in ("consumer", "")]
    lags = _lags(call.desk, names)
    return {
        **about,
        "groups": [
            {
                "name": one.group_id,
                "state": one.state.value,
                "type": one.group_type,
                "protocol": one.protocol_type,
                "lag": lags.get(one.group_id),
            }
            for one in shown
        ],
    }


def _lags(desk: Desk, names: Sequence[str]) -> dict[str, int | None]:
    """Return how many records each group is behind; ``None`` if the person may not know, or the group is gone."""
    if not names:
        return {}
    try:
        committed = desk.admin.list_consumer_group_offsets(dict.fromkeys(names))
    except TidelogError as error:
        left = [name for name in names if name not in error.failures]
        return _lags(desk, left) if error.failures and len(left) < len(names) else {}
    ends = log_ends(desk.admin, (at for offsets in committed.values() for at in offsets))
    return {
        name: sum(max(0, ends[at] - one.offset) for at, one in offsets.items() if at in ends)
        for name, offsets in committed.items()
    }


def group(call: Call) -> dict[str, Any]:
    """Return one group: its state, its members and its position in each partition."""
    name = call.names["group"]
    found, refused = described(call.desk.admin, [name])
    if refused:
        return _other_group(call, name)
    one = found[name]
    committed = {at: each.offset for at, each in call.desk.admin.list_consumer_group_offsets(name).items()}
    assigned = {at for member in one.members for at in member.assignment or ()}
    rows = standings(one, committed, log_ends(call.desk.admin, {*committed, *assigned}))
    behind = sorted((row for row in rows if row.lag), key=lambda row: -(row.lag or 0))[:BEHIND_MAX]
    seconds = call.desk.run(_seconds_behind(call.desk, behind))
    return {
        **_described(one),
        "lag": sum(row.lag or 0 for row in rows),
        "lag_s": max(seconds.values(), default=0.0 if not behind else None),
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "committed": row.current_offset,
                "end": row.log_end_offset,
                "lag": row.lag,
                "lag_s": 0.0 if row.lag == 0 else seconds.get((row.topic, row.partition)),
                "member": row.consumer_id,
                "client": row.client_id,
                "host": row.host,
            }
            for row in rows[:ROWS_MAX]
            if row.topic is not None
        ],
        "more": max(0, len(rows) - ROWS_MAX),
    }


def _other_group(call: Call, name: str) -> dict[str, Any]:
    """Return a group whose members are not consumers."""
    return {**_described(call.desk.admin.describe_classic_groups([name])[name]), "lag": None, "partitions": []}


def _described(one: GroupDescription) -> dict[str, Any]:
    return {
        "name": one.group_id,
        "state": one.state.value,
        "protocol": one.protocol_type,
        "assignor": one.partition_assignor,
        "coordinator": int(one.coordinator.node_id),
        "members": [
            {
                "id": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": None if member.assignment is None else len(member.assignment),
                "assignment": [str(at) for at in (member.assignment or ())[:ROWS_MAX]],
            }
            for member in one.members[:ROWS_MAX]
        ],
    }


async def _seconds_behind(desk: Desk, behind: Sequence[GroupStanding]) -> dict[tuple[str | None, int | None], float]:
    """Return the age of the next record that a group will read, by the timestamp of its batch. A partition is left out
    if the person may not read the topic, or nobody answers."""
    found: dict[tuple[str | None, int | None], float] = {}
    async with desk.fetcher() as fetches:
        for row in behind:
            assert row.topic is not None
            assert row.partition is not None
            assert row.current_offset is not None
            try:
                part = await read_part(fetches, TopicPartition(row.topic, row.partition), row.current_offset)
            except (TidelogError, TimeoutError, OSError):
                continue
            batch = next((each for each in part.batches if each.last_offset >= row.current_offset), None)
            if batch is not None:
                found[row.topic, row.partition] = max(0.0, time.time() - batch.base_timestamp / 1_000)
    return found


# --- Reset and delete ------------------------------------------------------------------------------------


def _target(body: Mapping[str, Any]) -> Target:
    match text_of(body, "to"):
        case "earliest":
            return ToEarliest()
        case "latest":
            return ToLatest()
        case "offset":
            return ToOffset(number("at", body.get("at")))
        case "shift":
            return ShiftBy(number("at", body.get("at"), -(2**63) + 1))
        case "time":
            return ToTime(number("at", body.get("at")))
        case other:
            raise Wrong(f"to: expected earliest, latest, offset, shift or time, found {other[:40]!r}")


def _planned(call: Call, body: Mapping[str, Any]) -> ResetPlan:
    admin, name = call.desk.admin, call.names["group"]
    target, topic = _target(body), text_of(body, "topic", "")
    committed = {at: one.offset for at, one in admin.list_consumer_group_offsets(name).items()}
    there = led_partitions(admin, {topic} if topic else {at.topic for at in committed})
    wanted = [at for at in there if at in committed or topic]
    if not wanted:
        raise Wrong(f"{name} has no committed offsets for existing topics; name a topic", 409)
    bounds = bounds_of(admin, wanted)
    at_time = {}
    if isinstance(target, ToTime):
        spec = OffsetSpec.for_timestamp(target.time_ms)
        at_time = {at: found.offset for at, found in admin.list_offsets(dict.fromkeys(wanted, spec)).items()}
    return plan_reset(target, wanted, committed, bounds, at_time)


def preview_reset(call: Call) -> dict[str, Any]:
    """Return what a reset would do. Changes nothing."""
    plan = _planned(call, call.body())
    return {
        "moves": [
            {"topic": move.partition.topic, "partition": move.partition.partition, "from": move.current, "to": move.new}
            for move in plan.moves
        ],
        "notes": list(plan.notes),
    }


def reset(call: Call) -> dict[str, Any]:
    """Do what the preview showed. The request returns its ``moves``, so that nothing else is done, and the offsets that
    they start from must be unchanged."""
    body = call.body()
    moves = body.get("moves")
    if not isinstance(moves, list) or not moves or not all(isinstance(one, dict) for one in moves):
        raise Wrong("moves: expected the moves of the preview")
    name = call.names["group"]
    committed = {at: one.offset for at, one in call.desk.admin.list_consumer_group_offsets(name).items()}
    wanted = {}
    for one in moves:
        at = TopicPartition(text_of(one, "topic"), number("partition", one.get("partition"), 0, 2**31 - 1))
        if committed.get(at) != one.get("from"):
            raise Wrong(
                f"{at}: the group has moved in the meantime: expected {json.dumps(one.get('from'))}, found "
                f"{json.dumps(committed.get(at))}; preview again",
                409,
            )
        wanted[at] = number("to", one.get("to"))
    found, _ = described(call.desk.admin, [name])
    if name in found and found[name].members:
        raise CommandFailed(f"{name} has {len(found[name].members)} members; stop them first")
    call.desk.admin.alter_consumer_group_offsets(name, wanted)
    return {"moved": len(wanted)}


def delete(call: Call) -> dict[str, Any]:
    call.desk.admin.delete_consumer_groups([call.names["group"]])
    return {}


def forget(call: Call) -> dict[str, Any]:
    """Delete a group's committed offsets for one topic."""
    name, topic = call.names["group"], text_of(call.body(), "topic")
    committed = [at for at in call.desk.admin.list_consumer_group_offsets(name) if at.topic == topic]
    if not committed:
        raise Wrong(f"{name} has no committed offsets for {topic[:80]}", 404)
    call.desk.admin.delete_consumer_group_offsets(name, committed)
    return {"forgotten": len(committed)}


ROUTES: Final = (
    Route("GET", "/api/groups", groups, live_s=LIVE_S),
    Route("GET", "/api/groups/{group}", group, live_s=LIVE_S),
    Route("POST", "/api/groups/{group}/preview", preview_reset),
    Route("POST", "/api/groups/{group}/reset", reset),
    Route("POST", "/api/groups/{group}/delete", delete, typed="group"),
    Route("POST", "/api/groups/{group}/forget", forget, typed="group"),
)
