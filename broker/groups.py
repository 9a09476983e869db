"""Consumer groups on one node: the coordinator over the partitions of ``__consumer_offsets`` that it leads.

The coordinator hears of elections and resignations from the replica manager, of deleted topics and of the
number of its partitions from the metadata.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tidelog.broker.coordinator_log import ReplicatedCoordinatorLog
from tidelog.broker.handlers.groups import GroupCalls
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.adding import AddPartitions
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.settings import GroupSettings
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta
from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import Clock
from tidelog.model.names import GROUP_OFFSETS_TOPIC
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
    ) -> None:
        self._config = config
        self.coordinator = GroupCoordinator(
            group_settings(config),
            clock,
            rng,
            ReplicatedCoordinatorLog(replicas, GROUP_OFFSETS_TOPIC),
            on_fatal,
            add_partitions,
        )
        self._calls = GroupCalls(self.coordinator, view)
        self._partition_count = config.offsets_topic_num_partitions
        replicas.watch_roles(GROUP_OFFSETS_TOPIC, self.coordinator)

    def calls(self) -> Calls:
        """What a listener for clients serves of groups."""
        return self._calls.calls()

    def before_roles(self, image: MetadataImage) -> None:
        """A newer image is in force; the roles that it gives are not taken up yet."""
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
        """Whoever still waits is told to look for another coordinator."""
        await self.coordinator.stop()

    def kill(self) -> None:
        """Drop everything where it stands: nobody is answered."""
        self.coordinator.kill()


def group_settings(config: NodeConfig) -> GroupSettings:
    """A node's settings, as far as they are about groups."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
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
