"""The admin client for asyncio: topics, settings, cluster; the rest comes from its bases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tidelog.client.admin.acls import AclAdmin
from tidelog.client.admin.base import all_or_raise, raise_first
from tidelog.client.admin.connections import ConnectionAdmin
from tidelog.client.admin.delegation_tokens import DelegationTokenAdmin
from tidelog.client.admin.groups import GroupAdmin
from tidelog.client.admin.quotas import QuotaAdmin
from tidelog.client.admin.reassignments import ReassignmentAdmin
from tidelog.client.admin.sinks import SinkAdmin
from tidelog.client.admin.transactions import TransactionAdmin
from tidelog.client.admin.types import (
    FeatureMetadata,
    ListedOffset,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
    TopicListing,
    assignment_items,
)
from tidelog.client.admin.users import UserAdmin
from tidelog.client.config.admin import ADMIN_DEFINITION
from tidelog.client.description import describes
from tidelog.client.errors import (
    BrokerNotAvailableError,
    TidelogError,
    exception_for,
)
from tidelog.client.fetching.offset_lookup import look_up
from tidelog.model.errors import ErrorCode
from tidelog.model.features import UPGRADE
from tidelog.model.ids import NodeId, Offset, TopicId, TopicPartition, random_id
from tidelog.proto.calls.api import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterResource,
    ConfigChange,
    ConfigResource,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeFeaturesRequest,
    DescribeLogDirsRequest,
    FeatureUpdate,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    LogDir,
    MetadataRequest,
    PartitionGrowth,
    TopicMetadata,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)


@describes(ADMIN_DEFINITION)
class AsyncAdmin(
    ReassignmentAdmin,
    GroupAdmin,
    TransactionAdmin,
    SinkAdmin,
    AclAdmin,
    QuotaAdmin,
    UserAdmin,
    DelegationTokenAdmin,
    ConnectionAdmin,
):
    """Administers a cluster; ``tidelog.aio.Admin``.

    Use it on one event loop, as ``async with Admin("localhost:9092") as admin:``, or call :meth:`start`
    and :meth:`close`. Every call takes a ``timeout`` in seconds (default ``default_api_timeout_ms``), and retries
    within it. A call about several items raises the error of the first that failed; the error's notes name the others,
    and its ``failures`` maps each name to its error.
    """

    # --- topics ---------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> list[CreatedTopic]:
        """Create topics. Raises ``TopicExistsError``, ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidReplicationFactorError``, ``InvalidConfigError``, ``InvalidReplicaAssignmentError``.

        The client draws the topics' ids. So if an answer is lost, the next attempt finds the topic that the first has
        made, and not a stranger's."""
        items = tuple(topic.item() for topic in topics)
        if not validate_only:
            items = tuple(replace(item, topic_id=self._drawn_id(item.name)) for item in items)
        answer = await self._ask_by_topic(
            lambda part, left_ms: CreateTopicsRequest(part, left_ms, validate_only), items, timeout
        )
        return list(all_or_raise(answer.topics, lambda t: t.name))

    def _drawn_id(self, name: str) -> TopicId:
        """Return a new topic's id, without a draw from the cluster's generator: simulated runs depend on those."""
        own = random.Random()
        own.setstate(self._cluster.rng.getstate())
        self._drawn += 1
        return TopicId(random_id(random.Random(f"{own.getrandbits(128)} {self._drawn} {name}")))

    async def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicOrPartitionError``."""
        answer = await self._ask_by_topic(
            lambda part, left_ms: DeleteTopicsRequest(part, timeout_ms=left_ms), tuple(names), timeout
        )
        all_or_raise(answer.topics, lambda t: t.name)

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Grow topics to a new total of partitions; ``assignments`` place the new ones. Keys will map to
        other partitions from then on. Raises ``InvalidPartitionsError``."""
        items = tuple(
            PartitionGrowth(name, count, assignment_items((assignments or {}).get(name, {})))
            for name, count in counts.items()
        )
        answer = await self._ask_by_topic(
            lambda part, left_ms: CreatePartitionsRequest(part, left_ms, validate_only), items, timeout
        )
        all_or_raise(answer.topics, lambda t: t.name)

    async def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> list[TopicListing]:
        """Return all topics by name; internal ones only with ``internal``."""
        answer = await self._ask(MetadataRequest(all_topics=True), None, timeout)
        return sorted(
            (
                TopicListing(
                    t.name,
                    t.topic_id,
                    t.is_internal,
                    len(t.partitions),
                    len(t.partitions[0].replicas) if t.partitions else 0,
                )
                for t in answer.topics
                if internal or not t.is_internal
            ),
            key=lambda listing: listing.name,
        )

    async def describe_topics(self, names: Iterable[str], *, timeout: float | None = None) -> list[TopicDescription]:
        """Return leaders, replicas and ISR per partition, in the order of ``names``.

        Raises ``UnknownTopicOrPartitionError``."""
        wanted = list(dict.fromkeys(names))
        answer = await self._ask(MetadataRequest(topics=tuple(wanted)), None, timeout)
        known = [t for t in answer.topics if t.partitions or t.error is not ErrorCode.LEADER_NOT_AVAILABLE]
        all_or_raise([t for t in known if not t.partitions], lambda t: t.name)
        found = {topic.name: _description(topic) for topic in known}
        return [found[name] for name in wanted if name in found]

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset (-1: all up to the high watermark); return the new log
        start offsets. Raises ``OffsetOutOfRangeError``."""
        found: dict[TopicPartition, int] = {}
        reason: TidelogError | None = None
        deadline = self._deadline(timeout)
        failures = 0
        while len(found) < len(offsets):
            by_node: dict[int, list[DeleteRecordsPartition]] = {}
            left_ms = self._left_ms(deadline, reason)
            for at, offset in offsets.items():
                if TopicPartition(*at) not in found:
                    await self._cluster.topic(at[0], left_ms)
                    node = self._cluster.cache.leader_of(*at)
                    by_node.setdefault(node, []).append(DeleteRecordsPartition(at[0], at[1], Offset(offset)))
            for node, items in by_node.items():
                if node < 0:
                    await self._check_partitions(items)
                    reason = exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{items[0].topic}-{items[0].partition}")
                    continue
                request = DeleteRecordsRequest(tuple(items), left_ms, self._link)
                try:
                    answer = await self._cluster.call(request, timeout_ms=left_ms, node=node)
                except BrokerNotAvailableError as error:
                    reason = error
                    continue
                for result in answer.results:
                    at = TopicPartition(result.topic, result.partition)
                    if result.error is ErrorCode.NONE:
                        found[at] = result.low_watermark
                        continue
                    reason = exception_for(result.error, f"{at}: {result.error_message or result.error.name}")
                    if not reason.retriable:
                        raise reason
            if len(found) < len(offsets):
                failures += 1
                await self._pause(failures)
        return found

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up offsets: earliest, latest, by time. -1 if no record qualifies."""
        self._check()
        found = await look_up(
            self._cluster,
            {TopicPartition(*at): spec.timestamp for at, spec in specs.items()},
            sizes={TopicPartition(*at): (spec.start_offset, spec.bytes_max) for at, spec in specs.items()},
            read_committed=read_committed,
            timeout_ms=self._timeout_ms(timeout),
        )
        return {at: ListedOffset(r.offset, r.timestamp, r.leader_epoch) for at, r in found.items()}

    # --- settings -------------------------------------------------------------------------------------

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, DescribedConfig]]:
        """Return the settings of topics, brokers or other resources, each with its source. Each broker answers for its
        own."""
        found: dict[ConfigResource, dict[str, DescribedConfig]] = {}
        for node, group in _by_node(resources).items():
            answer = await self._ask(DescribeConfigsRequest(tuple(group)), lambda r: r.resources, timeout, node=node)
            for result in all_or_raise(answer.resources, lambda r: f"{r.resource.resource_type} {r.resource.name}"):
                found[result.resource] = {config.name: config for config in result.configs}
        return found

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None] | Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change the named settings and no others. A mapping sets each name to its value, or with ``None`` back to its
        default; a list of :class:`ConfigChange` can also append to and subtract from lists (KIP-339). Raises
        ``InvalidConfigError``."""
        items = tuple(AlterResource(resource, _changes(wanted)) for resource, wanted in changes.items())
        request = IncrementalAlterConfigsRequest(items, validate_only)
        answer = await self._ask(request, lambda r: r.resources, timeout)
        all_or_raise(answer.resources, lambda r: f"{r.resource.resource_type} {r.resource.name}")

    async def list_config_resources(
        self, resource_types: Iterable[str], *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """Return the names of resources that have settings, of these types: "topic", "broker", "group", "client
        metrics"."""
        request = ListConfigResourcesRequest(tuple(resource_types))
        answer = await self._ask(request, lambda r: [r], timeout)
        all_or_raise([answer], lambda _: "settings")
        return list(answer.resources)

    async def alter_topic_configs(
        self, topic: str, changes: Mapping[str, str | None], *, timeout: float | None = None
    ) -> None:
        """Call :meth:`alter_configs` for one topic."""
        await self.alter_configs({ConfigResource("topic", topic): changes}, timeout=timeout)

    # --- cluster --------------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout: float | None = None) -> DescribeClusterResponse:
        """Return brokers (live or not), the active controller, the quorum's voters, feature levels.

        Raises ``ClusterAuthorizationFailedError``."""
        answer = await self._ask(DescribeClusterRequest(), lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "cluster")
        return answer

    async def describe_features(self, *, timeout: float | None = None) -> FeatureMetadata:
        """Return the feature levels in use, and those that the nodes support. Raises
        ``ClusterAuthorizationFailedError``."""
        answer = await self._ask(DescribeFeaturesRequest(), lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "features")
        return FeatureMetadata(
            {feature.name: feature.level for feature in answer.finalized},
            answer.epoch,
            {feature.name: (feature.level_min, feature.level_max) for feature in answer.supported},
            answer.nodes,
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: str = UPGRADE,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change feature levels, all or none; 0 disables a feature. ``upgrade_type``: "upgrade", "safe downgrade" or
        "unsafe downgrade". Raises ``InvalidUpdateVersionError``; its text names the node that does not support a
        level."""
        updates = tuple(FeatureUpdate(name, level, upgrade_type) for name, level in levels.items())
        request = UpdateFeaturesRequest(updates, validate_only)
        answer = await self._ask(request, lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "features")

    async def unregister_broker(self, node: int, *, timeout: float | None = None) -> None:
        """Forget a broker that is gone for good, so that it no longer counts among those that must support a feature
        level. Its replicas stay assigned to it. Raises ``BrokerIdNotRegisteredError``, and ``InvalidRequestError`` for
        a live broker."""
        answer = await self._ask(UnregisterBrokerRequest(NodeId(node)), lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: f"broker {node}")

    async def describe_log_dirs(
        self, nodes: Iterable[int] = (), *, timeout: float | None = None
    ) -> dict[NodeId, tuple[LogDir, ...]]:
        """Return the log directories of these (or all live) brokers, with sizes and contents.

        Raises ``ClusterAuthorizationFailedError``, and ``BrokerNotAvailableError`` for a broker that was named."""
        answers = await self._ask_brokers(DescribeLogDirsRequest(), nodes, timeout)
        return {node: answer.dirs for node, answer in answers.items()}

    async def alter_replica_log_dirs(
        self, replicas: Mapping[tuple[str, int, int], str], *, timeout: float | None = None
    ) -> None:
        """Move replicas to other log directories of their brokers: for each (topic, partition, broker), the path.

        Returns once the moves have started; :meth:`describe_log_dirs` shows them as replicas with ``is_future``. The
        replicas keep serving. To cancel a move, give the replica's current directory. Raises ``LogDirNotFoundError``,
        ``KafkaStorageError`` (a directory is out of service), ``UnknownTopicOrPartitionError``,
        ``ClusterAuthorizationFailedError``, and ``ReplicaNotAvailableError`` if the broker has no such replica; once it
        gets one, the replica will be in that directory.
        """
        self._check()
        timeout_ms = self._timeout_ms(timeout)
        wanted: dict[NodeId, list[AlterReplicaLogDir]] = {}
        for (topic, partition, node), path in replicas.items():
            wanted.setdefault(NodeId(node), []).append(AlterReplicaLogDir(topic, partition, path))
        await self._know(list(wanted), timeout_ms)
        answers = await asyncio.gather(
            *(
                self._cluster.call(AlterReplicaLogDirsRequest(tuple(items)), timeout_ms=timeout_ms, node=node)
                for node, items in wanted.items()
            )
        )
        all_or_raise(answers, lambda _: "log directories")
        failed: dict[str, TidelogError] = {}
        for node, answer in zip(wanted, answers, strict=True):
            for found in answer.replicas:
                if found.error is not ErrorCode.NONE:
                    name = f"{found.topic}-{found.partition} on broker {node}"
                    failed[name] = exception_for(found.error, f"{name}: {found.error_message or found.error.name}")
        if failed:
            raise_first(failed)

    # --- inside ----------------------------------------------------------------------------------------

    async def _check_partitions(self, items: Iterable[DeleteRecordsPartition]) -> None:
        for item in items:
            if self._cluster.cache.partition(item.topic, item.partition) is None:
                raise exception_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{item.topic}-{item.partition}: no such partition"
                )


def _changes(wanted: Mapping[str, str | None] | Sequence[ConfigChange]) -> tuple[ConfigChange, ...]:
    if not isinstance(wanted, Mapping):
        return tuple(wanted)
    return tuple(
        ConfigChange(name, "delete") if value is None else ConfigChange(name, "set", str(value))
        for name, value in wanted.items()
    )


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Group resources by node: a named broker answers for itself, any broker for the rest."""
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        own = resource.resource_type == "broker" and resource.name.isdigit()
        groups.setdefault(int(resource.name) if own else None, []).append(resource)
    return groups


def _description(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionDescription(
                p.partition,
                p.leader,
                p.leader_epoch,
                p.replicas,
                p.isr,
                p.eligible_leader_replicas,
                p.offline_replicas,
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition)
        ),
    )
