"""Scripted heartbeats of the consumer protocol: the same answers as Apache Kafka's, which are kept with their bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kafka.heartbeat_scripts import HEARTBEAT, SCRIPTS, TOPICS, play, topic_ids
from tidelog import NewTopic
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka.messages import decode_response
from tidelog.testing import Cluster

FILE: Final = Path(__file__).resolve().parents[1] / "golden" / "heartbeats.json"
GOLDEN: Final[dict[str, list[dict[str, Any]]]] = json.loads(FILE.read_text())["answers"]
CONFIG: Final = {"group.consumer.assignment.interval.ms": "0"}
OURS: Final = {
    ("what is refused", 10): ErrorCode.UNKNOWN_MEMBER_ID,  # so that the member joins again, not GROUP_ID_NOT_FOUND
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


def test_heartbeats_are_answered_as_kafka_does() -> None:
    with Cluster(nodes=1, transport="grpc", config=CONFIG) as cluster:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()])
        ids = topic_ids(cluster.kafka_bootstrap)
        for number, (name, script) in enumerate(SCRIPTS.items()):
            played = play(cluster.kafka_bootstrap, script, f"golden-{number}", ids)
            assert len(played) == len(GOLDEN[name])
            for step, (ours, kafkas) in enumerate(zip(played, GOLDEN[name], strict=True)):
                said = {key: kafkas[key] for key in ("error", "member_id", "epoch", "assignment")}
                said["error"] = int(OURS.get((name, step), said["error"]))
                assert {key: ours[key] for key in said} == said, (name, step)
