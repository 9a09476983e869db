"""Collects the facts for the health rules from a cluster. Parts that cannot be queried are listed and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.broker.health.facts import (
    Broker,
    Directory,
    Facts,
    Feature,
    Group,
    GroupPartition,
    HangingTransaction,
    Link,
    LinkPartition,
    NodeMetrics,
    OpenTransaction,
    Partition,
)
from tidelog.broker.health.progress import Sample, Windows, judge
from tidelog.cli.work.feature_levels import feature_rows
from tidelog.cli.work.group_offsets import log_ends
from tidelog.cli.work.hanging import described, find_hanging
from tidelog.cli.work.node_metrics import Pages, PageUnread, hosts, page_of
from tidelog.cli.work.replicas.placement import Placed, placement_of
from tidelog.model.errors import ErrorCode, TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.model.link_position import GROUP_PREFIX, read_position
from tidelog.model.settings.config_def import split_list
from tidelog.proto.calls.failure_domains import machine_of

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.group_types import GroupListing
    from tidelog.client.admin.reassignments import OngoingReassignment
    from tidelog.proto.calls.api import DescribeClusterResponse

T = TypeVar("T")

MIN_ISR: Final = "min.insync.replicas"
LINK_NAME: Final = "link.name"
HANGING_PARTITIONS_MAX: Final = 2_000
"""Beyond this, each look would ask leaders about too many partitions' producers."""
HANGING_MS: Final = 15 * 60_000
"""As ``tidelog transactions find-hanging``."""
GROUPS_MAX: Final = 1_000
AT_ONCE: Final = 8
"""Concurrent requests to the cluster."""


class Asker:
    """Looks at one cluster repeatedly. What one look cannot show (busy shares, progress) comes from several."""

    def __init__(self, admin: Admin, settings: Mapping[str, Any], windows: Windows) -> None:
        self._admin = admin
        self._pages = Pages(settings)
        self._windows = windows
        self._unknown: dict[str, str] = {}

    def facts(self) -> Facts:
        """Take one look. Raises no cluster errors: ``unknown`` lists what the cluster does not tell."""
        self._unknown = {}
        admin = self._admin
        with ThreadPoolExecutor(AT_ONCE) as pool:  # a node that does not answer delays only its own requests
            placing = pool.submit(self._try, "partitions", lambda: placement_of(admin))
            levels = pool.submit(self._try, "features", self._features)
            prepared = pool.submit(self._try, "prepared", self._prepared)
            groups = pool.submit(self._try, "groups", self._groups)
            links = pool.submit(self._try, "links", self._links)
            moving = pool.submit(self._try, "reassignments", lambda: admin.list_partition_reassignments())
            cluster = self._try("brokers", lambda: admin.describe_cluster())
            brokers = None if cluster is None else _brokers(cluster)
            live = [node for node, broker in (brokers or {}).items() if broker.live]
            disks = [pool.submit(self._directories, node) for node in live]
            places = {} if cluster is None else hosts(cluster)
            urls = [pool.submit(self._url, node, places.get(node, "")) for node in live]
            placed = placing.result()
            hanging = pool.submit(self._try, "hanging", lambda: self._hanging(placed or {}))
            partitions = None if placed is None else self._partitions(placed, moving.result() or {})
            metrics = self._metrics(
                {node: url for node, found in zip(live, urls, strict=True) if (url := found.result())}
            )
            return Facts(
                now_ms=time.time_ns() // 1_000_000,
                controller=self._controller(cluster),
                voters=None if cluster is None else [int(one.node_id) for one in cluster.voters],
                brokers=brokers,
                partitions=partitions,
                directories=[one for found in disks for one in found.result()] or None,
                features=levels.result(),
                prepared=prepared.result(),
                hanging=None if placed is None else hanging.result(),
                groups=groups.result(),
                links=links.result(),
                nodes=metrics or None,
                unknown=self._unknown,
            )

    def _try(self, part: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except TidelogError as error:
            self._unknown[part] = f"{error.code.name}: {error}" if str(error) != error.code.name else str(error)
            return None

    def _controller(self, cluster: DescribeClusterResponse | None) -> int | None:
        """Return the active controller's id. Brokers that cannot reach a controller answer nothing about the cluster:
        then it is -1, unless we may not ask."""
        if cluster is not None:
            return int(cluster.controller_id)
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name
        return None if self._unknown.get("brokers", "").startswith(refused) else -1

    def _partitions(
        self, placed: Mapping[TopicPartition, Placed], moving: Mapping[TopicPartition, OngoingReassignment]
    ) -> list[Partition]:
        short = {at.topic for at, one in placed.items() if len(one.isr) < len(one.replicas)}
        least = self._min_isr(sorted(short))
        found = []
        for at, one in sorted(placed.items()):
            move = moving.get(at)
            adding, removing = ((), ()) if move is None else (move.adding_replicas, move.removing_replicas)
            found.append(
                Partition(
                    at,
                    one.leader,
                    one.replicas,
                    one.isr,
                    tuple(map(int, adding)),
                    tuple(map(int, removing)),
                    least.get(at.topic),
                )
            )
        return found

    def _min_isr(self, topics: Iterable[str]) -> dict[str, int]:
        from tidelog import ConfigResource

        found = {}
        for topic in topics:
            resource = ConfigResource("topic", topic)
            try:
                settings = self._admin.describe_configs([resource])[resource]
            except TidelogError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._unknown[f"{MIN_ISR} of {topic}"] = str(error)
                continue
            if value := settings[MIN_ISR].value:
                found[topic] = int(value)
        return found

    def _directories(self, node: int) -> list[Directory]:
        answer = self._try(f"directories of node {node}", lambda: self._admin.describe_log_dirs([node]))
        return [
            Directory(node, one.path, one.error is not ErrorCode.NONE, int(one.total_bytes), int(one.usable_bytes))
            for dirs in ({} if answer is None else answer).values()
            for one in dirs
        ]

    def _url(self, node: int, host: str) -> str:
        """Return the address of a node's metrics; empty if we cannot reach any."""
        try:
            return page_of(self._admin, node, host)
        except (TidelogError, PageUnread) as error:
            self._unknown[f"metrics of node {node}"] = str(error)
            return ""

    def _metrics(self, urls: Mapping[int, str]) -> dict[int, NodeMetrics]:
        found, missing = self._pages.look(urls)
        self._unknown |= {f"metrics of node {node}": why for node, why in missing.items()}
        return found

    def _features(self) -> list[Feature]:
        rows = feature_rows(self._admin.describe_features())
        return [Feature(row["feature"], row["level"], row["min"], row["max"], tuple(row["behind"])) for row in rows]

    def _prepared(self) -> list[OpenTransaction]:
        names = [one.transactional_id for one in self._admin.list_transactions(states=["Prepared"])]
        found, _ = described(self._admin, names)
        return [
            OpenTransaction(name, one.transaction_start_time_ms)
            for name, one in sorted(found.items())
            if one.transaction_start_time_ms is not None
        ]

    def _hanging(self, placed: Mapping[TopicPartition, Placed]) -> list[HangingTransaction] | None:
        led = [at for at, one in sorted(placed.items()) if one.leader >= 0]
        if len(led) > HANGING_PARTITIONS_MAX:
            self._unknown["hanging"] = f"more than {HANGING_PARTITIONS_MAX:,} partitions; ask by topic or broker"
            return None
        found = find_hanging(self._admin, led, HANGING_MS, lambda: time.time_ns() // 1_000_000)
        return [
            HangingTransaction(one.partition, one.producer.producer_id, one.producer.last_timestamp_ms) for one in found
        ]

    def _groups(self) -> list[Group]:
        from tidelog import OffsetSpec

        listed = [one for one in self._admin.list_consumer_groups() if not one.group_id.startswith(GROUP_PREFIX)]
        if len(listed) > GROUPS_MAX:
            self._unknown["some groups"] = f"{len(listed):,} groups; only the first {GROUPS_MAX:,} by name were checked"
            listed = listed[:GROUPS_MAX]
        if not listed:
            self._windows.look({})
            return []
        names = [one.group_id for one in listed]
        committed = self._admin.list_consumer_group_offsets(dict.fromkeys(names))
        ends = log_ends(self._admin, (at for offsets in committed.values() for at in offsets))
        now_ms = time.monotonic_ns() // 1_000_000
        samples = {
            (name, at): Sample(now_ms, offset.offset, ends[at])
            for name, offsets in committed.items()
            for at, offset in offsets.items()
            if at in ends
        }
        self._windows.look(samples)
        behind = {at for (_, at), sample in samples.items() if sample.lag}
        firsts = self._admin.list_offsets(dict.fromkeys(behind, OffsetSpec.earliest())) if behind else {}
        starts = {at: first.offset for at, first in firsts.items()}
        since_ms = time.time_ns() // 1_000_000 - now_ms
        return [self._group(one, samples, starts, since_ms) for one in listed]

    def _links(self) -> list[Link]:
        from tidelog import ConfigResource
        from tidelog.client.links.definition import SETTING, read_item

        brokers = ConfigResource("broker", "")
        kept = self._admin.describe_configs([brokers])[brokers].get(SETTING)
        links = [read_item(item) for item in split_list((kept and kept.value) or "")]
        found = []
        for link in links:
            offsets = self._admin.list_consumer_group_offsets(link.group)
            filled = self._filled_by(link.name, {at.topic for at in offsets})
            now_ms = time.time_ns() // 1_000_000
            places = [
                LinkPartition(at, one.lag, one.lag_ms(now_ms), max(0, now_ms - one.told_ms), one.reason)
                for at, kept_offset in sorted(offsets.items())
                if at.topic in filled
                and (one := read_position(kept_offset.offset, kept_offset.leader_epoch, kept_offset.metadata))
            ]
            found.append(Link(link.name, tuple(places)))
        return found

    def _filled_by(self, link: str, topics: Iterable[str]) -> set[str]:
        """Those of these topics that the link still fills: they are there, and were not promoted."""
        from tidelog import ConfigResource

        there = sorted(set(topics) & {topic.name for topic in self._admin.list_topics()})
        resources = [ConfigResource("topic", topic) for topic in there]
        described = self._admin.describe_configs(resources) if resources else {}
        return {resource.name for resource, settings in described.items() if settings[LINK_NAME].value == link}

    def _group(
        self,
        group: GroupListing,
        samples: Mapping[tuple[str, TopicPartition], Sample],
        starts: Mapping[TopicPartition, int],
        epoch_ms: int,
    ) -> Group:
        has_members = group.state.value not in ("Empty", "Dead")
        partitions = []
        for (name, at), sample in samples.items():
            if name == group.group_id:
                progress, since = judge(self._windows.of(name, at), has_members, self._windows.wanted)
                lost = max(0, starts.get(at, 0) - sample.committed) if sample.lag else 0
                partitions.append(
                    GroupPartition(at, progress, sample.lag, lost, None if since is None else since + epoch_ms)
                )
        return Group(group.group_id, has_members, tuple(partitions))


def _brokers(cluster: DescribeClusterResponse) -> dict[int, Broker]:
    return {
        int(one.node_id): Broker(int(one.node_id), one.fenced, one.in_controlled_shutdown, one.rack, machine_of(one))
        for one in cluster.brokers
    }
