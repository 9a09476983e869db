"""Which Metadata answers are kept: until the image changes, never an error, never beyond the bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.kafka.calls.cluster import metadata
from tidelog.broker.kafka.calls.cluster.metadata import KafkaMetadata
from tidelog.broker.kafka.wire.apis import KafkaContext
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, NodeId, Offset, TopicId
from tidelog.proto.calls.api import BrokerEndpoint, MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.kafka.messages import decode_request, decode_response, encode_request
from tidelog.proto.logs.metadata_records import RegisterBrokerRecord
from tidelog.proto.transport.network import CallContext

METADATA = 3
VERSION = 9
ONE = NodeId(1)


def topic(name: str, partitions: int = 1, error: ErrorCode = ErrorCode.NONE) -> TopicMetadata:
    parts = tuple(
        PartitionMetadata(ErrorCode.NONE, number, ONE, 0, (ONE,), (ONE,), (), ())  # type: ignore[arg-type]
        for number in range(partitions)
    )
    return TopicMetadata(error, name, TopicId(name.encode().ljust(16)), False, parts if not error else ())


def image(*, fenced: bool = False) -> MetadataImage:
    """Another one each time, of one broker."""
    record = RegisterBrokerRecord(ONE, b"", BrokerEpoch(1), (), None, fenced, False, (), ())
    made, _ = apply_records(MetadataImage(), [record], Offset(1), ControllerEpoch(1))
    return made


class Node:
    """A node of which only the topics are there; ``asked`` counts what came through to it."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self.view = SimpleNamespace(image=image())
        self.topics = {found.name: found for found in topics}
        self.asked = 0
        self.metadata = KafkaMetadata(self.view, ONE)  # type: ignore[arg-type]

    def change(self, *topics: TopicMetadata) -> None:
        self.topics.update({found.name: found for found in topics})
        self.view.image = image()

    async def _answer(self, request: MetadataRequest, _: CallContext) -> MetadataResponse:
        self.asked += 1
        names = list(self.topics) if request.all_topics else request.topics
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = tuple(self.topics.get(name) or topic(name, error=missing) for name in names)
        return MetadataResponse("c", ONE, (BrokerEndpoint(ONE, "h", 1),), found)

    async def ask(self, *names: str, listener: str = "KAFKA") -> dict[str, int]:
        """The topics and how many partitions each has."""
        asked = {"topics": [{"name": name} for name in names] if names else None}
        request = decode_request(METADATA, VERSION, encode_request(METADATA, VERSION, asked))
        context = KafkaContext(listener, "p", 1, {MetadataRequest: self._answer}, CallContext(listener, "p"))
        answer: Any = await self.metadata.handle(request, VERSION, context)
        return {
            found.name: -found.error_code or len(found.partitions)
            for found in decode_response(METADATA, VERSION, answer).topics
        }


async def test_an_answer_is_kept_until_the_image_changes() -> None:
    node = Node(topic("a"), topic("b", 2))
    for _ in range(3):
        assert await node.ask("a") == {"a": 1}
        assert await node.ask() == {"a": 1, "b": 2}
    assert node.asked == 2
    assert await node.ask("a", listener="OTHER") == {"a": 1}
    assert node.asked == 3, "another listener has other addresses"
    node.change(topic("a", 3))
    assert await node.ask("a") == {"a": 3}
    assert await node.ask() == {"a": 3, "b": 2}
    assert node.asked == 5


async def test_an_error_is_not_kept() -> None:
    node = Node(topic("a"))
    for _ in range(2):
        assert await node.ask("a", "new") == {"a": 1, "new": -3}
    assert node.asked == 2
    node.topics["new"] = topic("new", 4)  # made on the way, before the image shows it
    assert await node.ask("a", "new") == {"a": 1, "new": 4}


async def test_an_answer_that_names_a_fenced_broker_is_not_kept() -> None:
    node = Node(topic("a"))
    node.view.image = image(fenced=True)
    for _ in range(2):
        assert await node.ask("a") == {"a": 1}
    assert node.asked == 2, "it is named for a while only"


async def test_an_answer_from_before_a_change_is_not_kept_for_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(topic("a"))
    answer = node._answer

    async def late(request: MetadataRequest, context: CallContext) -> MetadataResponse:
        found = await answer(request, context)
        if node.asked == 1:
            node.change(topic("a", 5))
        return found

    monkeypatch.setattr(node, "_answer", late)
    assert await node.ask("a") == {"a": 1}
    assert await node.ask("a") == {"a": 5}


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(metadata.ANSWERS_KEPT_MAX + 10)]
    node = Node(*map(topic, names))
    for name in names:
        assert await node.ask(name) == {name: 1}
    assert len(node.metadata._answers) <= metadata.ANSWERS_KEPT_MAX
    monkeypatch.setattr(metadata, "ANSWER_BYTES_KEPT_MAX", 200)
    monkeypatch.setattr(metadata, "TOPIC_BYTES_KEPT_MAX", 300)
    for _ in range(2):
        node.change(*map(topic, names))
        for name in names:
            assert await node.ask(name) == {name: 1}
            assert sum(map(len, node.metadata._answers.values())) <= 200
            kept = sum(len(made) for _, made in node.metadata._topics.values())
            assert kept == node.metadata._topic_bytes <= 300
    assert len(await node.ask()) == len(names)
    assert sum(map(len, node.metadata._answers.values())) <= 200


async def test_topics_that_are_gone_leave_nothing_behind_for_long() -> None:
    node = Node()
    for number in range(500):
        node.topics = {f"t{number}": topic(f"t{number}")}
        node.change()
        assert await node.ask() == {f"t{number}": 1}
    assert len(node.metadata._topics) <= metadata.FORMS_LEAST
