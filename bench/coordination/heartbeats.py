"""What the heartbeats of a large group cost its coordinator, under the consumer protocol (KIP-848)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from tidelog.bench.clusters import with_topics
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process import use_of
from tidelog.proto.kafka.messages import decode_response, request_frame

MEMBERS: Final = 1_000
OFFSET_FETCH, FIND_COORDINATOR, HEARTBEAT = 9, 10, 68
INTERVAL_S: Final = 5.0
"""Kafka's default."""
IDLE_S: Final = 15.0
STEADY_S: Final = 30.0
TIMEOUT_S: Final = 300.0
_TOPIC: Final = "bench"
_GROUP: Final = "bench"
_VERSION: Final = 1
_HEADER: Final = 5


def heartbeats(root: Path) -> Mapping[str, float]:
    """Measure a node's processor time while the members of a stable group do nothing but send heartbeats, less what the
    idle node takes without them, in percent of one processor."""
    with with_topics(root, 1, _TOPIC, partitions=MEMBERS) as cluster:
        before, since = _cpu_s(cluster), time.monotonic()
        time.sleep(IDLE_S)
        idle = 100 * (_cpu_s(cluster) - before) / (time.monotonic() - since)
        busy = asyncio.run(_beating(cluster))
    return {"consumer_group_heartbeats_1000": busy - idle}


class Member:
    """One connection; it takes whatever it is given."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._id = f"member-{number:04}"
        self._reader = reader
        self.writer = writer
        self.epoch = 0
        self.owned: list[dict[str, Any]] = []
        self._news = True

    async def _ask(self, api_key: int, version: int, said: Mapping[str, Any]) -> Any:
        self.writer.write(request_frame(api_key, version, 1, said))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(api_key, version, (await self._reader.readexactly(size))[_HEADER:])

    async def coordinator(self) -> None:
        """Wait until the node coordinates the group."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            (found,) = (await self._ask(FIND_COORDINATOR, 4, {"coordinator_keys": [_GROUP]})).coordinators
            read = await self._ask(OFFSET_FETCH, 8, {"groups": [{"group_id": _GROUP, "topics": None}]})
            if not found.error_code and not read.groups[0].error_code:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected a coordinator within {TIMEOUT_S:g} s")
            await asyncio.sleep(0.1)

    async def beat(self) -> None:
        """Send a heartbeat, which says what it has if that is new, and do as the answer says."""
        said: dict[str, Any] = {"group_id": _GROUP, "member_id": self._id, "member_epoch": self.epoch}
        if self.epoch == 0:
            said |= {"rebalance_timeout": 60_000, "subscribed_topic_names": [_TOPIC]}
        if self._news:
            said["topic_partitions"] = self.owned
        answer = await self._ask(HEARTBEAT, _VERSION, said)
        if answer.error_code:
            raise RuntimeError(f"{self._id}: expected NONE, found {answer.error_code}: {answer.error_message}")
        self.epoch = answer.member_epoch
        self._news = answer.assignment is not None
        if answer.assignment is not None:
            self.owned = [
                {"topic_id": each.topic_id, "partitions": list(each.partitions)}
                for each in answer.assignment.topic_partitions
            ]


async def _beating(cluster: LocalCluster) -> float:
    host, _, port = cluster.bootstrap.rpartition(":")
    async with AsyncExitStack() as stack:
        members = []
        for number in range(MEMBERS):
            members.append(Member(number, *await asyncio.open_connection(host.rpartition("/")[2], int(port))))
            stack.callback(members[-1].writer.close)
        await members[0].coordinator()
        deadline = time.monotonic() + TIMEOUT_S
        while not _is_stable(members):
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected a stable group of {MEMBERS} members within {TIMEOUT_S:g} s")
            for member in members:
                await member.beat()

        async def steadily(number: int, member: Member) -> None:
            await asyncio.sleep(INTERVAL_S * number / MEMBERS)
            while True:
                due = time.monotonic() + INTERVAL_S
                await member.beat()
                await asyncio.sleep(due - time.monotonic())

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(steadily(*each)) for each in enumerate(members)]
            await asyncio.sleep(INTERVAL_S)
            before, since = _cpu_s(cluster), time.monotonic()
            await asyncio.sleep(STEADY_S)
            found = 100 * (_cpu_s(cluster) - before) / (time.monotonic() - since)
            for task in tasks:
                task.cancel()
    return found


def _is_stable(members: list[Member]) -> bool:
    """Return whether all are in one epoch and have all partitions."""
    owned = sum(len(each["partitions"]) for member in members for each in member.owned)
    return owned == MEMBERS and len({member.epoch for member in members}) == 1


def _cpu_s(cluster: LocalCluster) -> float:
    (node,) = cluster.nodes.values()
    use = None if node.mark is None else use_of(node.mark)
    if use is None:
        raise RuntimeError(f"the node ended during the measurement: {node.last_words()}")
    return use.cpu_s
