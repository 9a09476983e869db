"""Scripts of ConsumerGroupHeartbeat requests, to be played to Apache Kafka and to Tidelog.

Each script is a group of its own; topics are named. Epochs count from the group's first one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.kafka.wire_client import WireClient

HEARTBEAT: Final = 68
TOPICS: Final = {"golden-a": 4, "golden-b": 2}
_JOIN: Final = {"member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": {}}


def join(member: str, *topics: str, **more: Any) -> dict[str, Any]:
    return {"member_id": member, **_JOIN, "subscribed_topic_names": list(topics), **more}


def beat(member: str, epoch: int, owned: Mapping[str, Sequence[int]] | None = None, **more: Any) -> dict[str, Any]:
    said = {"member_id": member, "member_epoch": epoch, **more}
    return said if owned is None else {**said, "topic_partitions": dict(owned)}


A, B = "golden-a", "golden-b"
SCRIPTS: Final[Mapping[str, Sequence[dict[str, Any]]]] = {
    "a member joins, goes on, leaves": [
        join("m1", A),
        beat("m1", 1),
        beat("m1", 1, {A: [0, 1, 2, 3]}),
        beat("m1", 1, {A: [0, 1, 2, 3]}, subscribed_topic_names=[A], rebalance_timeout=60_000),
        beat("m1", -1),
        beat("m1", 1),
    ],
    "a second member is led to its share": [
        join("m1", A),
        join("m2", A),
        beat("m1", 1, {A: [0, 1, 2, 3]}),
        beat("m2", 2),
        beat("m1", 1, {A: [0, 1]}),
        beat("m2", 2),
        beat("m1", 2, {A: [0, 1]}),
        beat("m2", 2, {A: [2, 3]}),
        beat("m2", -1),
        beat("m1", 2, {A: [0, 1]}),
    ],
    "epochs": [
        join("m1", A),
        beat("m1", 2),
        beat("m1", 0),
        join("m2", A),
        beat("m1", 1, {A: [0, 1, 2, 3]}),
        beat("m1", 1, {A: [0, 1]}),
        beat("m1", 1, {A: [0, 1]}),
        beat("m1", 1),
        beat("m1", 1, {A: [3]}),
        join("m1", A),
        beat("m3", 5),
    ],
    "subscriptions change": [
        join("m1", A),
        beat("m1", 1, {A: [0, 1, 2, 3]}, subscribed_topic_names=[A, B]),
        beat("m1", 2, {A: [0, 1, 2, 3], B: [0, 1]}, subscribed_topic_names=[B]),
        beat("m1", 2, {B: [0, 1]}),
        beat("m1", 3, {B: [0, 1]}, subscribed_topic_names=["golden-none"]),
        beat("m1", 3, {}),
        beat("m1", 4, {}, subscribed_topic_names=[]),
        beat("m1", 5, {}),
    ],
    "static members": [
        join("m1", A, instance_id="i1"),
        join("m2", A, instance_id="i1"),
        beat("m1", 1, instance_id="i1"),
        beat("m1", 1, instance_id="i2"),
        beat("m1", -2, instance_id="i1"),
        beat("m1", 1, instance_id="i1"),
        join("m2", A, instance_id="i1"),
        beat("m1", 1, instance_id="i1"),
        beat("m1", -1, instance_id="i1"),
        beat("m2", -1, instance_id="i1"),
    ],
    "assignors": [
        join("m1", A, server_assignor="range"),
        join("m2", A, server_assignor="nobody"),
        join("m2", A, server_assignor="uniform"),
        beat("m1", 1, server_assignor="uniform"),
    ],
    "what is refused": [
        join("", A),
        join("m1", A, rebalance_timeout=-1),
        {"member_id": "m1", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": {}},
        join("m1", A, topic_partitions=None),
        join("m1", A, topic_partitions={A: [0]}),
        join("m1", A, instance_id=""),
        join("m1", A, rack_id=""),
        join("m1", A, server_assignor=""),
        beat("m1", -2),
        beat("m1", -3),
        beat("m1", 1),
        join("m1", subscribed_topic_regex="(unclosed"),
        join("m1", subscribed_topic_regex="(?=look)ahead"),
    ],
}


def wait_for_coordinator(wire: WireClient, group: str) -> None:
    """The first use of groups makes their topic."""
    until = time.monotonic() + 60
    starting = {14, 15, 16}  # loading, not available, not coordinator
    while True:
        wire.ask(10, 3, key=group, key_type=0)
        said = {"member_id": "nobody", "member_epoch": -1, "topic_partitions": None, "rebalance_timeout": -1}
        if wire.ask(HEARTBEAT, 1, group_id=group, **said).error_code not in starting:
            return
        assert time.monotonic() < until, "no coordinator within 60 s"
        time.sleep(0.1)


def said_of(step: Mapping[str, Any], ids: Mapping[str, bytes]) -> dict[str, Any]:
    """The request's fields, with topics by id."""
    said = {"topic_partitions": None, "rebalance_timeout": -1, **step}
    if said["topic_partitions"] is not None:
        said["topic_partitions"] = [
            {"topic_id": ids[name], "partitions": list(partitions)}
            for name, partitions in said["topic_partitions"].items()
        ]
    return said


def heartbeat(wire: WireClient, group: str, said: Mapping[str, Any], ids: Mapping[str, bytes]) -> dict[str, Any]:
    """The answer's fields, with topics by name."""
    names = {topic_id: name for name, topic_id in ids.items()}
    answer = wire.ask(HEARTBEAT, 1, group_id=group, **said_of(said, ids))
    assigned = answer.assignment
    return {
        "error": int(answer.error_code),
        "member_id": answer.member_id,
        "epoch": answer.member_epoch,
        "assignment": None
        if assigned is None
        else {
            names[each.topic_id]: sorted(each.partitions)
            for each in sorted(assigned.topic_partitions, key=lambda each: names[each.topic_id])
        },
    }


def play(
    bootstrap: str, script: Sequence[Mapping[str, Any]], group: str, ids: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    """The answers to a script, with topics by name. Epochs count from a group's first one: Kafka's is 2, ours 1."""
    found: list[dict[str, Any]] = []
    later: int | None = None
    with WireClient(bootstrap) as wire:
        wait_for_coordinator(wire, group)
        for step in script:
            said = dict(step)
            said["member_epoch"] += later or 0 if said["member_epoch"] > 0 else 0
            read = heartbeat(wire, group, said, ids)
            if read["epoch"] > 0 and later is None:
                later = read["epoch"] - 1
            read["epoch"] -= later or 0 if read["epoch"] > 0 else 0
            found.append({**read, "bytes": wire.body.hex()})
    return found


def topic_ids(bootstrap: str) -> dict[str, bytes]:
    """The ids of the topics, once the node knows all of them."""
    until = time.monotonic() + 60
    with WireClient(bootstrap) as wire:
        while True:
            answer = wire.ask(3, 12, topics=[{"name": name, "topic_id": bytes(16)} for name in TOPICS])
            found = {topic.name: topic.topic_id for topic in answer.topics if not topic.error_code}
            if len(found) == len(TOPICS):
                return found
            assert time.monotonic() < until, "no topics within 60 s"
            time.sleep(0.1)
