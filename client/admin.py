"""The admin client for asyncio: topics, settings, cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, TypeVar, Unpack

from tidelog.client.admin_config import AdminConfig, AdminSettings
from tidelog.client.admin_types import (
    ListedOffset,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
    TopicListing,
    assignment_items,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClientClosedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.client.metrics import ClientMetrics
from tidelog.client.offset_lookup import look_up
from tidelog.client.producer import default_network
from tidelog.client.settings import parse_bootstrap
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, Offset, TopicPartition
from tidelog.proto.api import (
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
    DescribeLogDirsRequest,
    FeatureLevel,
    IncrementalAlterConfigsRequest,
    LogDir,
    MetadataRequest,
    PartitionGrowth,
    Request,
    Response,
    TopicMetadata,
    UpdateFeaturesRequest,
)
from tidelog.proto.network import Network

A = TypeVar("A", bound="AsyncAdmin")
R = TypeVar("R", bound=Response)


class _Result(Protocol):
    """What every item of an answer has."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def error_message(self) -> str: ...


T = TypeVar("T", bound=_Result)


class AsyncAdmin:
    """Administers a cluster; ``tidelog.aio.Admin``.

    Use it on one event loop, as ``async with Admin("localhost:9092") as admin:``, or call :meth:`start`
    and :meth:`close`. Every call takes a ``timeout`` in seconds (default ``default_api_timeout_ms``),
    within which it retries what is retriable. A call about several things raises the error of the first
    that failed; the error's notes name the others.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._config = AdminConfig.of(settings)
        self._metrics = ClientMetrics()
        self._cluster = Cluster(
            parse_bootstrap(bootstrap_servers),
            self._config,
            _network or default_network(),
            _clock or SystemClock(),
            _rng or random.Random(),
            self._metrics,
        )
        self._started = False
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns at once, the connection is made in the background."""
        if not self._started:
            self._started = True
            self._cluster.start()

    async def close(self) -> None:
        """Stop. May be called twice."""
        if not self._closed:
            self._closed = True
            await self._cluster.close()

    async def __aenter__(self: A) -> A:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics ---------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> list[CreatedTopic]:
        """Make topics. Raises ``TopicExistsError``, ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidReplicationFactorError``, ``InvalidConfigError``, ``InvalidReplicaAssignmentError``."""
        items = tuple(topic.item() for topic in topics)
        request = CreateTopicsRequest(items, self._timeout_ms(timeout), validate_only)
        answer = await self._ask(request, lambda r: r.topics, timeout)
        return list(_all_or_raise(answer.topics, lambda t: t.name))

    async def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicOrPartitionError``."""
        request = DeleteTopicsRequest(tuple(names), timeout_ms=self._timeout_ms(timeout))
        answer = await self._ask(request, lambda r: r.topics, timeout)
        _all_or_raise(answer.topics, lambda t: t.name)

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
        request = CreatePartitionsRequest(items, self._timeout_ms(timeout), validate_only)
        answer = await self._ask(request, lambda r: r.topics, timeout)
        _all_or_raise(answer.topics, lambda t: t.name)

    async def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> list[TopicListing]:
        """All topics by name; those of the system only with ``internal``."""
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
        """Leaders, replicas and ISR per partition, in the order of ``names``.

        Raises ``UnknownTopicOrPartitionError``."""
        wanted = list(dict.fromkeys(names))
        answer = await self._ask(MetadataRequest(topics=tuple(wanted)), None, timeout)
        known = [t for t in answer.topics if t.partitions or t.error is not ErrorCode.LEADER_NOT_AVAILABLE]
        _all_or_raise([t for t in known if not t.partitions], lambda t: t.name)
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
                request = DeleteRecordsRequest(tuple(items), left_ms)
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
        """Look up offsets: earliest, latest, by time. -1 where no record qualifies."""
        self._check()
        found = await look_up(
            self._cluster,
            {TopicPartition(*at): spec.timestamp for at, spec in specs.items()},
            read_committed=read_committed,
            timeout_ms=self._timeout_ms(timeout),
        )
        return {at: ListedOffset(r.offset, r.timestamp, r.leader_epoch) for at, r in found.items()}

    # --- settings -------------------------------------------------------------------------------------

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, DescribedConfig]]:
        """The settings of topics and brokers with where each comes from. A broker is asked for its own."""
        found: dict[ConfigResource, dict[str, DescribedConfig]] = {}
        for node, group in _by_node(resources).items():
            answer = await self._ask(DescribeConfigsRequest(tuple(group)), lambda r: r.resources, timeout, node=node)
            for result in _all_or_raise(answer.resources, lambda r: f"{r.resource.resource_type} {r.resource.name}"):
                found[result.resource] = {config.name: config for config in result.configs}
        return found

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None] | Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings, leaving those not named alone. A mapping sets a name to a value, or with
        ``None`` takes the setting back to its default; a list of :class:`ConfigChange` can also append
        to and subtract from lists (KIP-339). Raises ``InvalidConfigError``."""
        items = tuple(AlterResource(resource, _changes(wanted)) for resource, wanted in changes.items())
        request = IncrementalAlterConfigsRequest(items, validate_only)
        answer = await self._ask(request, lambda r: r.resources, timeout)
        _all_or_raise(answer.resources, lambda r: f"{r.resource.resource_type} {r.resource.name}")

    async def alter_topic_configs(
        self, topic: str, changes: Mapping[str, str | None], *, timeout: float | None = None
    ) -> None:
        """:meth:`alter_configs` of one topic."""
        await self.alter_configs({ConfigResource("topic", topic): changes}, timeout=timeout)

    # --- cluster --------------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout: float | None = None) -> DescribeClusterResponse:
        """Brokers (live or not), the active controller, the quorum's voters, feature levels."""
        return await self._ask(DescribeClusterRequest(), None, timeout)

    async def describe_features(self, *, timeout: float | None = None) -> dict[str, int]:
        """The finalised feature levels."""
        return {feature.name: feature.level for feature in (await self.describe_cluster(timeout=timeout)).features}

    async def update_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Finalise feature levels. Raises ``InvalidUpdateVersionError``, ``FeatureUpdateFailedError``."""
        request = UpdateFeaturesRequest(tuple(FeatureLevel(n, v) for n, v in levels.items()), validate_only)
        answer = await self._ask(request, lambda r: (r,), timeout)
        _all_or_raise((answer,), lambda _: "features")

    async def describe_log_dirs(
        self, nodes: Iterable[int] = (), *, timeout: float | None = None
    ) -> dict[NodeId, tuple[LogDir, ...]]:
        """The log directories of these (or all live) brokers, their sizes and what lies in them."""
        self._check()
        timeout_ms = self._timeout_ms(timeout)
        wanted = [NodeId(node) for node in nodes]
        if not wanted:
            answer = await self._ask(MetadataRequest(), None, timeout)
            wanted = [broker.node_id for broker in answer.brokers]
        await self._know(wanted, timeout_ms)
        answers = await asyncio.gather(
            *(self._cluster.call(DescribeLogDirsRequest(), timeout_ms=timeout_ms, node=node) for node in wanted)
        )
        return {node: answer.dirs for node, answer in zip(wanted, answers, strict=True)}

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    async def _ask(
        self,
        request: Request[R],
        items: Callable[[R], Iterable[_Result]] | None,
        timeout: float | None,
        *,
        node: int | None = None,
    ) -> R:
        """Send until no item of the answer has a retriable error, or time is over."""
        self._check()
        deadline = self._deadline(timeout)
        failures = 0
        if node is not None:
            await self._know([NodeId(node)], self._timeout_ms(timeout))
        while True:
            left_ms = max(1, deadline - self._cluster.clock.monotonic_ms())
            answer = await self._cluster.call(request, timeout_ms=left_ms, node=node)
            again = [i for i in items(answer) if i.error.retriable and _comes_right(i.error)] if items else []
            if not again or self._cluster.clock.monotonic_ms() >= deadline:
                return answer
            failures += 1
            wait_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            if self._cluster.clock.monotonic_ms() + wait_ms >= deadline:
                return answer
            await asyncio.sleep(wait_ms / 1_000)

    async def _know(self, nodes: Iterable[NodeId], timeout_ms: int) -> None:
        """Make sure that the brokers' addresses are known. Raises ``BrokerNotAvailableError``."""
        if all(node in self._cluster.cache.brokers for node in nodes):
            return
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._cluster.refreshed()
        except TimeoutError:
            raise RequestTimedOutError(f"no metadata within {timeout_ms} ms") from None
        for node in nodes:
            if node not in self._cluster.cache.brokers:
                raise BrokerNotAvailableError(
                    f"expected one of the live brokers {sorted(self._cluster.cache.brokers)}, found {node}"
                )

    async def _check_partitions(self, items: Iterable[DeleteRecordsPartition]) -> None:
        for item in items:
            if self._cluster.cache.partition(item.topic, item.partition) is None:
                raise exception_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{item.topic}-{item.partition}: no such partition"
                )

    async def _pause(self, failures: int) -> None:
        self._cluster.request_refresh()
        await asyncio.sleep(self._cluster.retry_backoff.after(failures, self._cluster.rng) / 1_000)

    def _timeout_ms(self, timeout: float | None) -> int:
        return self._config.default_api_timeout_ms if timeout is None else max(1, int(timeout * 1_000))

    def _deadline(self, timeout: float | None) -> int:
        return self._cluster.clock.monotonic_ms() + self._timeout_ms(timeout)

    def _left_ms(self, deadline: int, reason: TidelogError | None) -> int:
        left = deadline - self._cluster.clock.monotonic_ms()
        if left <= 0:
            raise reason or RequestTimedOutError("time is over")
        return left

    def _check(self) -> None:
        if self._closed:
            raise ClientClosedError("this admin client is closed")
        if not self._started:
            raise IllegalStateError("start() it first, or use it as 'async with Admin(...) as admin'")


def _comes_right(code: ErrorCode) -> bool:
    """Of retriable errors: those that the cluster gets over by itself. A missing topic is not one."""
    return code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def _all_or_raise(results: Sequence[T], name: Callable[[T], str]) -> Sequence[T]:
    failed = [result for result in results if result.error is not ErrorCode.NONE]
    if not failed:
        return results
    errors = [exception_for(r.error, f"{name(r)}: {r.error_message or r.error.name}") for r in failed]
    for other in errors[1:]:
        errors[0].add_note(f"also {other}")
    raise errors[0]


def _changes(wanted: Mapping[str, str | None] | Sequence[ConfigChange]) -> tuple[ConfigChange, ...]:
    if not isinstance(wanted, Mapping):
        return tuple(wanted)
    return tuple(
        ConfigChange(name, "delete") if value is None else ConfigChange(name, "set", str(value))
        for name, value in wanted.items()
    )


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """A named broker is asked itself; anybody knows of the rest."""
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
