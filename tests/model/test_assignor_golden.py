"""Groups that Kafka's own assignors divided (tests/golden/README.md), divided by ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.model.assignors import ASSIGNORS, Assignment, Subscription
from tidelog.model.ids import TopicPartition

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "assignments.txt"


def pairs(text: str) -> tuple[TopicPartition, ...]:
    found = [item.rsplit(":", 1) for item in text.split(",")] if text else []
    return tuple(TopicPartition(topic, int(number)) for topic, number in found)


def load() -> list[tuple[str, str]]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def parse(
    case: str, answer: str
) -> tuple[str, dict[str, int], dict[str, Subscription], dict[str, list[TopicPartition]]]:
    name, topics, *said = case.split("\t")
    answered = dict(line.split(";", 1) for line in answer.split("\t"))
    members: dict[str, Subscription] = {}
    for text in said:
        member, instance, wanted, owned, generation = text.split(";")
        user_data = bytes.fromhex(answered[member].split(";")[1])
        keeps = name == "cooperative-sticky"
        members[member] = Subscription(
            topics=tuple(wanted.split(",")),
            user_data=user_data,
            owned=pairs(owned) if keeps else (),
            generation_id=int(generation),
            group_instance_id=instance or None,
        )
    parts = {member: sorted(pairs(text.split(";")[0])) for member, text in answered.items()}
    return name, dict(pairs(topics)), members, parts


def test_kafka_and_we_divide_alike() -> None:
    seen = dict.fromkeys(ASSIGNORS, 0)
    for case, answer in load():
        name, counts, members, expected = parse(case, answer)
        found = ASSIGNORS[name]().assign(counts, members)
        assert {member: sorted(part.partitions) for member, part in found.items()} == expected, case
        seen[name] += 1
    assert seen == dict.fromkeys(ASSIGNORS, 80)


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_user_data_is_what_kafkas_assignor_says(name: str) -> None:
    compared = 0
    for case, answer in load():
        if not case.startswith(name + "\t"):
            continue
        for said, answered in zip(case.split("\t")[2:], answer.split("\t"), strict=True):
            _, _, wanted, owned, generation = said.split(";")
            partitions = pairs(owned)
            if len({partition.topic for partition in partitions}) > 1:
                continue  # Kafka writes the topics in the order of a hash map
            assignor = ASSIGNORS[name]()
            if partitions:
                assignor.on_assignment(Assignment(partitions), int(generation))
            assert assignor.user_data(frozenset(wanted.split(","))).hex() == answered.split(";")[2]
            compared += 1
    assert compared > 100
