"""Consumer groups on one node: the coordinator over the partitions of ``__consumer_offsets`` that it leads.

The coordinator learns about elections and resignations from the replica manager, and about deleted topics and its
number of partitions from the metadata.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tidelog.broker.access.access import AccessControl
from tidelog.broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from tidelog.broker.coordinators.group_lag import GroupLags
from tidelog.broker.handlers.groups import GroupCalls
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.adding import AddPartitions
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.state.settings import ConsumerTimes, GroupSettings, MigrationPolicy
from tidelog.groups.state.topics import TopicShape
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import GROUP, MetadataImage
from tidelog.model.clock import Clock
from tidelog.model.ids import NodeId, TopicId
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.group_config import in_force
from tidelog.proto.transport.network import Connection
from tidelog.replication.manager import ReplicaManager


class Groups:
    """See the module. Everything runs on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        replicas: ReplicaManager,
        view: MetadataView,
        *,
        clock: Clock,
        rng: random.Random,
        on_fatal: Callable[[BaseException], None],
        add_partitions: AddPartitions,
        access: AccessControl,
        connection: Callable[[NodeId], Connection | None],
    ) -> None:
        self._config = config
        self.coordinator = GroupCoordinator(
            group_settings(config, lambda: view.image),
            clock,
            rng,
            ReplicatedCoordinatorLog(replicas, GROUP_OFFSETS_TOPIC),
            on_fatal,
            add_partitions,
            topics=lambda: ImageTopics(view.image),
        )
        self.lags = GroupLags(config.node_id, self.coordinator, view, clock, replicas.list_offsets, connection)
        self._calls = GroupCalls(self.coordinator, view, access)
        self._partition_count = config.offsets_topic_num_partitions
        replicas.watch_roles(GROUP_OFFSETS_TOPIC, self.coordinator)

    def calls(self) -> Calls:
        """Handle a new image whose roles are not taken up yet."""
        return self._calls.calls()

    def before_roles(self, image: MetadataImage) -> None:
        """Handle an image whose roles have been taken up."""
        topic = image.topic(GROUP_OFFSETS_TOPIC)
        count = self._config.offsets_topic_num_partitions if topic is None else len(topic.partitions)
        if count != self._partition_count:
            self._partition_count = count
            self.coordinator.set_partition_count(count)

    def after_roles(self, delta: MetadataDelta) -> None:
        """The roles that it gives are taken up."""
        deleted = [topic.name for topic in delta.topics_deleted]
        if deleted:
            self.coordinator.topics_deleted(deleted)

    async def stop(self) -> None:
        """Tell remaining waiters to look for another coordinator."""
        await self.coordinator.stop()

    def kill(self) -> None:
        """Drop everything without answering anybody."""
        self.coordinator.kill()


class ImageTopics:
    """The topics of a metadata image. Implements :class:`tidelog.groups.state.topics.Topics`."""

    __slots__ = ("_image",)

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.offset

    def shape(self, name: str) -> TopicShape | None:
        found = self._image.topic(name)
        return None if found is None else TopicShape(found.topic_id, len(found.partitions))

    def name_of(self, topic_id: TopicId) -> str | None:
        found = self._image.topics.get(topic_id)
        return None if found is None else found.name

    def names(self) -> Iterable[str]:
        return sorted(self._image.topic_ids)


def group_settings(config: NodeConfig, image: Callable[[], MetadataImage]) -> GroupSettings:
    """Return a node's group settings, and those of individual groups."""

    def times_of(group_id: str) -> ConsumerTimes | None:
        values = image().config(GROUP, group_id)
        return ConsumerTimes(*in_force(config, values)) if values else None

    return GroupSettings(
        consumer_times_of=times_of,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=config.group_consumer_assignors,
        migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        work_max=config.group_coordinator_work_max,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        offsets_load_buffer_size=config.offsets_load_buffer_size,
        offsets_commit_timeout_ms=config.offsets_commit_timeout_ms,
        offsets_topic_num_partitions=config.offsets_topic_num_partitions,
        offsets_topic_replication_factor=config.offsets_topic_replication_factor,
        offsets_topic_segment_bytes=config.offsets_topic_segment_bytes,
        groups_max=config.group_coordinator_groups_max,
        members_max=config.group_coordinator_members_max,
        offsets_max=config.group_coordinator_offsets_max,
        appends_max=config.group_coordinator_appends_max,
    )
