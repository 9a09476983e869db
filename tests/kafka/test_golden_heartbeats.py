"""Scripted requests to groups of the consumer protocol, and to groups that convert: the same answers as Apache Kafka's,
which are kept, those to heartbeats with their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kafka.conversion_scripts import CONVERSIONS, play_conversion
from tests.kafka.heartbeat_scripts import HEARTBEAT, SCRIPTS, TOPICS, play, topic_ids
from tidelog import NewTopic
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka.messages import decode_response
from tidelog.testing import Cluster

FILE: Final = Path(__file__).resolve().parents[1] / "golden" / "heartbeats.json"
RECORDED: Final[dict[str, dict[str, list[dict[str, Any]]]]] = json.loads(FILE.read_text())
GOLDEN: Final = RECORDED["answers"]
CONFIG: Final = {"group.consumer.assignment.interval.ms": "0", "group.initial.rebalance.delay.ms": "0"}
OURS: Final = {
    ("what is refused", 10): ErrorCode.UNKNOWN_MEMBER_ID,  # so that the member joins again, not GROUP_ID_NOT_FOUND
    ("a cooperative member, up and down", 29): ErrorCode.UNKNOWN_MEMBER_ID,  # the same in a classic group
    ("a group of another type", 3): ErrorCode.UNKNOWN_MEMBER_ID,
    ("a group of another type", 4): ErrorCode.UNKNOWN_MEMBER_ID,
    ("static members change their protocol", 8): ErrorCode.REBALANCE_IN_PROGRESS,  # every downgrade rebalances
    ("static members change their protocol", 9): ErrorCode.REBALANCE_IN_PROGRESS,
    ("what classic members are refused", 6): ErrorCode.INCONSISTENT_GROUP_PROTOCOL,  # not UNKNOWN_SERVER_ERROR
}
"""Where our error differs on purpose (docs/groups.md)."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_kafkas_bytes_are_read_as_what_they_say(name: str) -> None:
    for answer in GOLDEN[name]:
        found = decode_response(HEARTBEAT, 1, bytes.fromhex(answer["bytes"]))
        assert (found.error_code, found.member_id) == (answer["error"], answer["member_id"])
        assert (found.assignment is None) == (answer["assignment"] is None)
        given = [] if found.assignment is None else found.assignment.topic_partitions
        assert sorted(sorted(each.partitions) for each in given) == sorted((answer["assignment"] or {}).values())
        assert found.heartbeat_interval in (0, 5_000)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc", config=CONFIG) as cluster:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()])
        yield cluster.kafka_bootstrap


@pytest.fixture(scope="module")
def ids(bootstrap: str) -> dict[str, bytes]:
    return topic_ids(bootstrap)


def compare(name: str, played: list[dict[str, Any]], kafkas: list[dict[str, Any]]) -> None:
    assert len(played) == len(kafkas)
    for step, (ours, recorded) in enumerate(zip(played, kafkas, strict=True)):
        said = {key: value for key, value in recorded.items() if key != "bytes"}
        if (name, step) in OURS:
            assert ours["error"] == OURS[name, step] != said["error"], (name, step)
        else:
            assert {key: ours[key] for key in said} == said, (name, step)


@pytest.mark.parametrize("name", SCRIPTS)
def test_heartbeats_are_answered_as_kafka_does(bootstrap: str, ids: dict[str, bytes], name: str) -> None:
    compare(name, play(bootstrap, SCRIPTS[name], f"golden {name}", ids), GOLDEN[name])


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_group_that_converts_answers_as_kafkas_does(bootstrap: str, ids: dict[str, bytes], name: str) -> None:
    played = play_conversion(bootstrap, CONVERSIONS[name], f"golden {name}", ids)
    compare(name, played, RECORDED["conversions"][name])
