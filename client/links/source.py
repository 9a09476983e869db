"""The cluster that a link reads, over the Kafka protocol: Tidelog, or Apache Kafka 3.1 or later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.client.config.security import ClientSecurity
from tidelog.client.links.kafka_connection import KafkaConnection, SourceLost, SourceRefused
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Address

FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR = 1, 2, 3, 9, 10
LIST_GROUPS, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS = 16, 23, 32
LATEST: Final = -1
EARLIEST: Final = -2
_TOPIC: Final = 2
_DYNAMIC_TOPIC_CONFIG: Final = 1
_OF_CONSUMERS: Final = ("", "consumer")
_CONTROL: Final = "control"
_AT_ONCE: Final = 200


class SourcePartition(NamedTuple):
    """``leader``: -1 if none."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """``topic_id`` in hexadecimal digits."""

    topic_id: str
    is_internal: bool
    replicas: int
    partitions: Mapping[int, SourcePartition]


@dataclass(frozen=True, slots=True)
class SourceCluster:
    """What the source's brokers report."""

    cluster_id: str
    topics: Mapping[str, SourceTopic]


class Wanted(NamedTuple):
    """Where to read a partition, and with which leader epoch. ``topic_id`` in hexadecimal digits."""

    at: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int


class Fetched(NamedTuple):
    """``error``: Kafka's number. ``records``: whole batches, the last one possibly truncated."""

    error: int
    high_watermark: int
    log_start_offset: int
    records: bytes | memoryview


class Source:
    """Queries brokers. Each has one connection for fetches and one for everything else."""

    def __init__(self, bootstrap: Sequence[Address], security: ClientSecurity, client_id: str) -> None:
        self._bootstrap = tuple(bootstrap)
        self._security = security
        self._tls = security.tls()
        security.login()  # raises ConfigError for settings that conflict
        self._client_id = client_id
        self._brokers: dict[int, Address] = {}
        self._connections: dict[tuple[Address, str], KafkaConnection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def cluster(self) -> SourceCluster:
        """Return topics, leaders and brokers, from any broker that answers."""
        answer = await self._ask_any(METADATA, {"topics": None, "allow_auto_topic_creation": False})
        self._brokers = {one.node_id: Address(one.host, one.port) for one in answer.brokers}
        topics = {}
        for topic in answer.topics:
            if topic.error_code:
                continue
            partitions = {
                one.partition_index: SourcePartition(one.leader_id, one.leader_epoch) for one in topic.partitions
            }
            replicas = max((len(one.replica_nodes) for one in topic.partitions), default=0)
            topics[topic.name] = SourceTopic(bytes(topic.topic_id).hex(), topic.is_internal, replicas, partitions)
        return SourceCluster(answer.cluster_id or "", topics)

    async def fetch(
        self,
        node: int,
        wanted: Sequence[Wanted],
        *,
        wait_ms: int,
        bytes_max: int,
        partition_bytes_max: int,
        purpose: str = "fetch",
    ) -> dict[TopicPartition, Fetched]:
        """Return what lies after these offsets, below the high watermarks. The first one gets at least one batch."""
        topics: dict[str, list[dict[str, int]]] = {}
        for one in wanted:
            item = {
                "partition": one.at.partition,
                "current_leader_epoch": one.leader_epoch,
                "fetch_offset": one.offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": partition_bytes_max,
            }
            topics.setdefault(one.topic_id, []).append(item)
        request = {
            "replica_id": -1,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "session_epoch": -1,
            "topics": [{"topic_id": bytes.fromhex(found), "partitions": parts} for found, parts in topics.items()],
        }
        answer = await self._connection(node, purpose).ask(FETCH, request, wait_s=wait_ms / 1000)
        _expect(answer.error_code, "a fetch")
        names = {one.topic_id: one.at.topic for one in wanted}
        return {
            TopicPartition(names[bytes(topic.topic_id).hex()], one.partition_index): Fetched(
                one.error_code, one.high_watermark, one.log_start_offset, one.records or b""
            )
            for topic in answer.responses
            if bytes(topic.topic_id).hex() in names
            for one in topic.partitions
        }

    async def epoch_end(self, node: int, at: TopicPartition, leader_epoch: int, epoch: int) -> tuple[int, int, int]:
        """Return (error, the largest epoch up to ``epoch`` that the leader knows, where that ends); -1 for unknown."""
        item = {"partition": at.partition, "current_leader_epoch": leader_epoch, "leader_epoch": epoch}
        request = {"replica_id": -1, "topics": [{"topic": at.topic, "partitions": [item]}]}
        answer = await self._connection(node, _CONTROL).ask(OFFSET_FOR_LEADER_EPOCH, request)
        (one,) = answer.topics[0].partitions
        return one.error_code, one.leader_epoch, one.end_offset

    async def offset(self, node: int, at: TopicPartition, leader_epoch: int, time: int) -> tuple[int, int]:
        """Return (error, the offset of :data:`EARLIEST` or :data:`LATEST`)."""
        item = {"partition_index": at.partition, "current_leader_epoch": leader_epoch, "timestamp": time}
        request = {"replica_id": -1, "topics": [{"name": at.topic, "partitions": [item]}]}
        answer = await self._connection(node, _CONTROL).ask(LIST_OFFSETS, request)
        (one,) = answer.topics[0].partitions
        return one.error_code, one.offset

    async def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the topics' own settings, without topics that may not be seen or no longer exist."""
        names = list(topics)
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            resources = [{"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None} for name in some]
            answer = await self._ask_any(DESCRIBE_CONFIGS, {"resources": resources})
            for one in answer.results:
                if not one.error_code:
                    found[one.resource_name] = {
                        each.name: each.value
                        for each in one.configs
                        if each.config_source == _DYNAMIC_TOPIC_CONFIG and each.value is not None
                    }
        return found

    async def groups(self) -> list[str]:
        """Return the consumer groups on all brokers."""
        asked = [self._connection(node, _CONTROL).ask(LIST_GROUPS, {}) for node in self._brokers]
        found: set[str] = set()
        for answer in await asyncio.gather(*asked):
            _expect(answer.error_code, "a list of groups")
            found.update(one.group_id for one in answer.groups if one.protocol_type in _OF_CONSUMERS)
        return sorted(found)

    async def committed(self, groups: Sequence[str]) -> dict[str, dict[TopicPartition, tuple[int, str]]]:
        """Return committed offsets and their metadata. Groups whose coordinator does not answer for them are left
        out."""
        found: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        for start in range(0, len(groups), _AT_ONCE):
            asked = {"key_type": 0, "coordinator_keys": list(groups[start : start + _AT_ONCE])}
            by_node: dict[int, list[str]] = {}
            for one in (await self._ask_any(FIND_COORDINATOR, asked)).coordinators:
                if not one.error_code and one.node_id in self._brokers:
                    by_node.setdefault(one.node_id, []).append(one.key)
            for node, some in by_node.items():
                request = {"groups": [{"group_id": name, "topics": None} for name in some]}
                answer = await self._connection(node, _CONTROL).ask(OFFSET_FETCH, request)
                found.update((group.group_id, _offsets(group)) for group in answer.groups if not group.error_code)
        return found

    def _connection(self, node: int, purpose: str) -> KafkaConnection:
        address = self._brokers.get(node)
        if address is None:
            raise SourceLost(f"broker {node} is not known")
        return self._to(address, purpose)

    def _to(self, address: Address, purpose: str) -> KafkaConnection:
        key = (address, purpose)
        if key not in self._connections:
            self._connections[key] = KafkaConnection(address, self._security, self._tls, self._client_id)
        return self._connections[key]

    async def _ask_any(self, api_key: int, values: Mapping[str, Any]) -> Any:
        reason: Exception = SourceLost("no broker is known")
        for address in dict.fromkeys((*self._brokers.values(), *self._bootstrap)):
            try:
                return await self._to(address, _CONTROL).ask(api_key, values)
            except SourceLost as error:
                reason = error
        raise reason


def _offsets(group: Any) -> dict[TopicPartition, tuple[int, str]]:
    return {
        TopicPartition(topic.name, one.partition_index): (one.committed_offset, one.metadata or "")
        for topic in group.topics
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }


def error_name(number: int) -> str:
    """Return Kafka's name of an error, if we know it."""
    try:
        return ErrorCode(number).name
    except ValueError:
        return f"error {number}"


def _expect(error: int, what: str) -> None:
    if error:
        raise SourceRefused(f"the source refuses {what}: {error_name(error)}")
