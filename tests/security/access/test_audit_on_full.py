"""``audit.on.full=refuse``: what the audit log could not tell of does not happen, and says so."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.changes import CHANGES
from tidelog.broker.access.guard import guarded
from tidelog.broker.access.unaudited import TEXT
from tidelog.broker.node.audit_file import KEPT_BYTES_MAX, AuditFile, AuditWriter
from tidelog.broker.node.audit_topic import AuditQueue
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls import api
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.table import CALLS
from tidelog.proto.transport.network import Address, CallContext
from tidelog.security.audit import Audit, AuditEvent, AuditKind, Touched
from tidelog.testing import AsyncCluster

from .test_audit import FullDisk, Still, values_of

CALLER = CallContext("CLIENT", "ipv4:10.0.0.1:5")


def audit(most: int = 10) -> Audit:
    return Audit(tuple(AuditKind), most, Still(), 7, refuses=True)


def change(name: str) -> AuditEvent:
    return AuditEvent(AuditKind.CHANGE, "User:root", "h", "CLIENT", True, "X", "", (Touched("topic", name),))


class Node:
    """The calls of a broker that has one handler for all, which answers nothing; ``done`` has what reached it."""

    def __init__(self, found: Audit) -> None:
        self.done: list[Any] = []
        self.audit = found

    async def ask(self, request: Request[Any], answer: object = None) -> Any:
        async def handle(taken: object, _: CallContext) -> Any:
            self.done.append(taken)
            return answer if taken == request else _empty(answer)

        control = AccessControl(NodeConfig.parse({"node.id": "1"}), self.audit)
        return await guarded({type(request): handle}, control, MetadataImage, creates_topics=True)[type(request)](
            request, CALLER
        )


@settings(max_examples=6, deadline=None)
@given(st.data())
@pytest.mark.parametrize("request_type", CHANGES, ids=lambda found: found.__name__)
def test_every_change_is_refused_by_an_answer_of_its_own_form(
    request_type: type[Request[Any]], data: st.DataObject
) -> None:
    found = audit(1)
    found.note(change("full"))
    node = Node(found)
    request = data.draw(values_of(request_type))
    if hasattr(request, "link"):
        request = dataclasses.replace(request, link="")  # a link's own are many, and not told
    assume(getattr(request, "partitions", True))
    assume(any(CHANGES[request_type](request, None, MetadataImage())))
    answer = asyncio.run(node.ask(request, _empty(data.draw(values_of(CALLS[request_type])))))
    assert found.refused == 1
    assert not any(any(CHANGES[request_type](taken, None, MetadataImage())) for taken in node.done)
    text = repr(answer)
    assert "THROTTLING_QUOTA_EXCEEDED" in text
    assert "AUTHORIZATION_FAILED" not in text


def _empty(answer: Any) -> Any:
    """What a handler says of a request that has no items left."""
    lists = {each.name: () for each in dataclasses.fields(answer) if isinstance(getattr(answer, each.name), tuple)}
    return (
        dataclasses.replace(answer, error=ErrorCode.NONE, **lists)
        if hasattr(answer, "error")
        else (dataclasses.replace(answer, **lists))
    )


async def test_changes_under_way_have_their_room() -> None:
    """Ten may be told of in a second: those that came first are, and the next one waits for the next second."""
    node, topic = Node(audit(10)), api.NewTopic("orders")
    made = api.CreateTopicsResponse((api.CreatedTopic("orders", ErrorCode.NONE),))
    answers = [await node.ask(api.CreateTopicsRequest((topic,)), made) for _ in range(3)]
    assert answers == [made] * 3
    assert len(node.audit.take()) == 1, "they were equal"
    requests = [api.CreateTopicsRequest((api.NewTopic(f"t{number}"),)) for number in range(6)]
    answers = [await node.ask(request, made) for request in requests]
    assert [answer.topics[0].error for answer in answers] == [ErrorCode.NONE] * 5 + [
        ErrorCode.THROTTLING_QUOTA_EXCEEDED
    ]
    assert answers[-1].topics[0].error_message == TEXT
    assert len(node.audit.take()) == 5
    assert node.audit.dropped == 0
    assert await node.ask(requests[-1], made) == made


async def test_room_is_kept_until_the_outcome_is_known() -> None:
    found = audit(4)
    room = found.reserve(1)
    assert room
    assert found.reserve(1)
    assert not found.reserve(1)
    found.take()
    assert not found.reserve(1), "time alone makes none"
    found.release(room)
    assert found.reserve(1)


async def test_what_is_no_change_is_served_in_any_case() -> None:
    found = audit(1)
    found.note(change("full"))
    node = Node(found)
    assert await node.ask(api.MetadataRequest(), "served") == "served"
    assert await node.ask(api.CreateTopicsRequest((api.NewTopic("t"),), validate_only=True), "judged") == "judged"
    assert found.refused == 0


def test_lines_wait_for_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Until it can, changes are refused; then it has all that happened."""
    path, disk, found = tmp_path / "audit.log", FullDisk(), audit(1_000)

    async def inline(action: Callable[[], None]) -> None:
        action()

    async def lose_nothing() -> None:
        writer = AuditWriter(found, AuditFile(disk, str(path), 10 * KEPT_BYTES_MAX, 3), inline)
        found.note(change("first"))
        assert found.has_room()
        await writer.flush()
        assert not found.has_room()
        found.note(change("under way"), reserved=True)
        await writer.flush()
        disk.full = False
        running = asyncio.create_task(writer.run())  # nothing else comes that would have it try again
        async with asyncio.timeout(30):
            while not found.has_room():
                await asyncio.sleep(0.01)
        running.cancel()
        assert writer.dropped == 0

    asyncio.run(lose_nothing())
    told = [json.loads(line)["resources"][0]["name"] for line in path.read_bytes().splitlines()]
    assert told == ["first", "under way"]


async def test_the_topics_queue_is_full_at_its_half() -> None:
    found = audit()
    queue = AuditQueue(found, 64 * 1024)
    found.note(change("x" * 200))
    (line,) = found.take()
    while 2 * queue.bytes <= 64 * 1024:
        assert found.has_room()
        queue.put([line])
    assert not found.has_room()
    queue.settle(queue.head(64 * 1024))
    assert found.has_room()


async def test_a_node_refuses_changes_until_the_log_can_be_written(tmp_path: Path) -> None:
    in_the_way = tmp_path / "there"
    in_the_way.write_text("no directory")
    path = in_the_way / "audit.log"
    settings = {"audit.log.path": str(path), "audit.on.full": "refuse"}
    async with AsyncCluster(nodes=1, config=settings) as cluster, asyncio.timeout(60):
        connection = cluster.client_network().connect(Address.read(cluster.bootstrap))

        async def create(name: str) -> api.CreatedTopic:
            request = api.CreateTopicsRequest((api.NewTopic(name, 1, 1),))
            answer = await connection.call(request, timeout_s=30)
            return answer.topics[0]

        names = ["t0"]
        while (found := await create(names[-1])).error is ErrorCode.NONE:  # until the first write has failed
            names.append(f"t{len(names)}")
        assert (found.error, found.error_message) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, TEXT)
        refused = names.pop()
        assert names
        assert cluster.image.topic(refused) is None
        in_the_way.unlink()
        while (await create("last")).error is not ErrorCode.NONE:
            await asyncio.sleep(0.05)
        while (told := _topics_of(path)) != [*names, "last"]:
            assert len(told) <= len(names), told
            await asyncio.sleep(0.05)
        await connection.close()


def _topics_of(path: Path) -> list[str]:
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [each["name"] for line in lines for each in line["resources"]]
