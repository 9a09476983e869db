"""Topics: a paged list, one topic with its partitions and settings; create, grow, change, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tidelog import ConfigResource, NewTopic, OffsetSpec, TopicPartition
from tidelog.cli.work.replicas.placement import check_only_deleted, sizes_of
from tidelog.client.admin.types import PartitionDescription, TopicDescription, TopicListing
from tidelog.client.errors import TidelogError
from tidelog.console.desk import Desk
from tidelog.console.pages.paging import page_of
from tidelog.console.routes import Call, Route, number, text_of
from tidelog.console.web.messages import Wrong
from tidelog.proto.calls.api import DescribedConfig

T = TypeVar("T")

LIVE_S: Final = 3.0
SIZES_FRESH_S: Final = 5.0
PARTITIONS_NEW_MAX: Final = 10_000


def topics(call: Call) -> dict[str, Any]:
    """Return a page of topics. Leaders and replicas are requested only for topics on the page."""
    internal = call.text("internal") == "yes"
    listed = call.desk.admin.list_topics(internal=True)
    sizes = _sizes(call.desk)
    keys: dict[str, Callable[[TopicListing], Any]] = {
        "name": lambda one: one.name,
        "partitions": lambda one: (one.partition_count, one.name),
        "size": lambda one: None if sizes is None else (sizes.get(one.name, 0), one.name),
    }
    shown, about = page_of(call, [one for one in listed if internal or not one.is_internal], lambda one: one.name, keys)
    described = {one.name: one for one in described_topics(call.desk, [one.name for one in shown])}
    return {**about, "topics": [_topic_row(one, described.get(one.name), sizes) for one in shown]}


def _topic_row(
    one: TopicListing, described: TopicDescription | None, sizes: Mapping[str, int] | None
) -> dict[str, Any]:
    parts = () if described is None else described.partitions
    return {
        "name": one.name,
        "internal": one.is_internal,
        "partitions": one.partition_count,
        "copies": one.replication_factor,
        "leaderless": sum(part.leader < 0 for part in parts),
        "out_of_sync": sum(len(part.isr) < len(part.replicas) for part in parts),
        "size": None if sizes is None else sizes.get(one.name, 0),
    }


def described_topics(desk: Desk, names: list[str]) -> list[TopicDescription]:
    """Return descriptions of these topics, without those that were deleted in the meantime."""
    while names:
        try:
            return desk.admin.describe_topics(names)
        except TidelogError as error:
            check_only_deleted(error)
            names = [name for name in names if name not in error.failures]
    return []


def _sizes(desk: Desk) -> dict[str, int] | None:
    """Return the bytes of each topic, one copy; ``None`` if the person may not know."""
    found: dict[str, int] = {}
    largest: dict[TopicPartition, int] = {}
    try:
        live = [int(one.node_id) for one in desk.admin.describe_cluster().brokers if not one.fenced]
        for held in sizes_of(desk.admin, live).values():
            for at, size in held.items():
                largest[at] = max(size, largest.get(at, 0))
    except TidelogError:
        return None
    for at, size in largest.items():
        found[at.topic] = found.get(at.topic, 0) + size
    return found


def allowed(ask: Callable[[], T]) -> T | None:
    """Return the cluster's answer; ``None`` if the person may not know, or nobody can answer now."""
    try:
        return ask()
    except TidelogError:
        return None


def topic(call: Call) -> dict[str, Any]:
    """Return one topic: a page of its partitions, with the first and next offset of each."""
    name = call.names["topic"]
    (found,) = call.desk.admin.describe_topics([name])
    keys: dict[str, Callable[[PartitionDescription], Any]] = {
        "partition": lambda one: one.partition,
        "leader": lambda one: (one.leader, one.partition),
        "in_sync": lambda one: (len(one.isr) - len(one.replicas), one.partition),
    }
    shown, about = page_of(call, found.partitions, lambda one: str(one.partition), keys)
    led = [TopicPartition(name, one.partition) for one in shown if one.leader >= 0]
    firsts = _offsets(call.desk, led, OffsetSpec.earliest())
    ends = _offsets(call.desk, led, OffsetSpec.latest())
    return {
        **about,
        "name": name,
        "internal": found.is_internal,
        "partitions": [_partition_row(one, firsts, ends) for one in shown],
    }


def _offsets(desk: Desk, led: Iterable[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    found = allowed(lambda: desk.admin.list_offsets(dict.fromkeys(led, spec), timeout=2)) or {}
    return {at.partition: int(one.offset) for at, one in found.items()}


def _partition_row(one: PartitionDescription, firsts: Mapping[int, int], ends: Mapping[int, int]) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "leader": int(one.leader),
        "epoch": one.leader_epoch,
        "replicas": [int(node) for node in one.replicas],
        "isr": [int(node) for node in one.isr],
        "elr": [int(node) for node in one.eligible_leader_replicas],
        "offline": [int(node) for node in one.offline_replicas],
        "first": firsts.get(one.partition),
        "end": ends.get(one.partition),
    }


# --- Settings ---------------------------------------------------------------------------------------------


def _resource(call: Call) -> ConfigResource:
    if "topic" in call.names:
        return ConfigResource("topic", call.names["topic"])
    return ConfigResource("broker", call.names["node"])


def settings(call: Call) -> dict[str, Any]:
    """Return the settings of a topic or a node, each with the source of its value."""
    found = call.desk.admin.describe_configs([_resource(call)])[_resource(call)]
    return {"settings": [_setting(one) for _, one in sorted(found.items())]}


def _setting(one: DescribedConfig) -> dict[str, Any]:
    return {
        "name": one.name,
        "value": None if one.sensitive else one.value,
        "source": one.source,
        "read_only": one.read_only,
        "sensitive": one.sensitive,
        "type": one.value_type,
        "doc": one.documentation,
    }


def change_setting(call: Call) -> dict[str, Any]:
    """Set one setting, or reset it to its default if ``value`` is null, provided that it still has the value
    ``expected`` that the person saw. Another editor may still get in between our check and the change: the brokers have
    no conditional update."""
    body = call.body()
    name, wanted, expected = text_of(body, "name"), body.get("value"), body.get("expected")
    if wanted is not None and not isinstance(wanted, str):
        raise Wrong("value: expected a string or null")
    resource = _resource(call)
    there = call.desk.admin.describe_configs([resource])[resource].get(name)
    if there is None:
        raise Wrong(f"no such setting: {name[:80]!r}", 404)
    if not there.sensitive and there.value != expected:
        raise Wrong(f"{name} has changed: expected {expected!r}, found {there.value!r}; look again", 409)
    call.desk.admin.alter_configs({resource: {name: wanted}}, validate_only=bool(body.get("only_check")))
    return {}


# --- Changes ----------------------------------------------------------------------------------------------


def create(call: Call) -> dict[str, Any]:
    body = call.body()
    configs = body.get("configs") or {}
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        raise Wrong("configs: expected an object that maps names to strings")
    wanted = NewTopic(
        text_of(body, "name"),
        number("partitions", body.get("partitions", -1), -1, PARTITIONS_NEW_MAX),
        number("copies", body.get("copies", -1), -1, 100),
        configs,
    )
    (made,) = call.desk.admin.create_topics([wanted])
    return {"name": made.name}


def grow(call: Call) -> dict[str, Any]:
    count = number("partitions", call.body().get("partitions"), 1, PARTITIONS_NEW_MAX)
    call.desk.admin.create_partitions({call.names["topic"]: count})
    return {}


def delete(call: Call) -> dict[str, Any]:
    call.desk.admin.delete_topics([call.names["topic"]])
    return {}


def delete_records(call: Call) -> dict[str, Any]:
    """Delete a partition's records before an offset."""
    body = call.body()
    at = TopicPartition(call.names["topic"], number("partition", body.get("partition"), 0, 2**31 - 1))
    found = call.desk.admin.delete_records({at: number("before", body.get("before"), -1)})
    return {"first": int(found[at])}


ROUTES: Final = (
    Route("GET", "/api/topics", topics, live_s=SIZES_FRESH_S),
    Route("POST", "/api/topics", create),
    Route("GET", "/api/topics/{topic}", topic, live_s=LIVE_S),
    Route("GET", "/api/topics/{topic}/settings", settings),
    Route("POST", "/api/topics/{topic}/settings", change_setting),
    Route("POST", "/api/topics/{topic}/partitions", grow),
    Route("POST", "/api/topics/{topic}/delete", delete, typed="topic"),
    Route("POST", "/api/topics/{topic}/delete-records", delete_records, typed="topic"),
    Route("GET", "/api/nodes/{node}/settings", settings),
    Route("POST", "/api/nodes/{node}/settings", change_setting),
)
