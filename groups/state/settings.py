"""Operators' settings for consumer groups, with Kafka's names and defaults."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from tidelog.model.classes.frozen import dataclass


class MigrationPolicy(enum.Enum):
    """Whether groups with members change their protocol. Source: ``ConsumerGroupMigrationPolicy``."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ConsumerTimes(NamedTuple):
    """How long a silent member keeps its partitions, how often members send heartbeats, and the shortest time between
    two target assignments."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int = 1_000


def _no_times(_: str) -> ConsumerTimes | None:
    return None


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a node's coordinator. Source, unless noted otherwise: ``GroupCoordinatorConfig``."""

    min_session_timeout_ms: int = 6_000
    """``group.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 1_800_000
    """``group.max.session.timeout.ms``"""
    initial_rebalance_delay_ms: int = 3_000
    """``group.initial.rebalance.delay.ms``: how long an empty group waits for more members to come."""
    max_size: int = 2_147_483_647
    """``group.max.size``: maximum members of one group."""
    offset_metadata_max_bytes: int = 4_096
    """``offset.metadata.max.bytes``: of one committed offset, in UTF-8."""
    offsets_retention_minutes: int = 10_080
    """``offsets.retention.minutes`` (KIP-211)"""
    offsets_retention_check_interval_ms: int = 600_000
    """``offsets.retention.check.interval.ms``"""
    offsets_load_buffer_size: int = 5 * 1024 * 1024
    """``offsets.load.buffer.size``: bytes of the log to read and replay at a time."""
    offsets_commit_timeout_ms: int = 5_000
    """``offsets.commit.timeout.ms``: how long an answer waits for its record to be replicated."""
    offsets_topic_num_partitions: int = 50
    """``offsets.topic.num.partitions``"""
    offsets_topic_replication_factor: int = 3
    """``offsets.topic.replication.factor``"""
    offsets_topic_segment_bytes: int = 100 * 1024 * 1024
    """``offsets.topic.segment.bytes``"""
    groups_max: int = 100_000
    """``group.coordinator.groups.max`` (Tidelog's own): maximum groups in one partition of ``__consumer_offsets``; a
    request that would create one more gets COORDINATOR_NOT_AVAILABLE."""
    offsets_max: int = 1_000_000
    """``group.coordinator.offsets.max`` (Tidelog's own): maximum committed offsets in one partition of
    ``__consumer_offsets``; a commit of one more gets COORDINATOR_NOT_AVAILABLE."""
    members_max: int = 100_000
    """``group.coordinator.members.max`` (Tidelog's own): maximum members, including ids given out, in one partition of
    ``__consumer_offsets``; further ones get GROUP_MAX_SIZE_REACHED."""
    appends_max: int = 10_000
    """``group.coordinator.appends.max`` (Tidelog's own): maximum appends in flight in one partition of
    ``__consumer_offsets``; beyond it COORDINATOR_NOT_AVAILABLE."""

    consumer_session_timeout_ms: int = 45_000
    """``group.consumer.session.timeout.ms``: for members of the consumer protocol, which cannot choose it."""
    consumer_heartbeat_interval_ms: int = 5_000
    """``group.consumer.heartbeat.interval.ms``: the interval that such members get."""
    consumer_assignment_interval_ms: int = 1_000
    """``group.consumer.assignment.interval.ms`` (KIP-1263)"""
    consumer_times_of: Callable[[str], ConsumerTimes | None] = _no_times
    """Returns the group's own values of these three settings."""
    consumer_max_size: int = 2_147_483_647
    """``group.consumer.max.size``: maximum members of one group of the consumer protocol."""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """``group.consumer.assignors``: those that members may request; the first is for groups that request none."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    """``group.consumer.migration.policy``"""

    work_max: int = 2_500
    """``group.coordinator.work.max`` (Tidelog's own): units of work on one group in one turn of the event loop, such as
    members and partitions of a target assignment; the rest waits for further turns."""

    new_member_join_timeout_ms: int = 300_000
    """How long a new member's JoinGroup waits before the member must ask again. Not a setting in Kafka either
    (``CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS``)."""

    def consumer_times(self, group_id: str) -> ConsumerTimes:
        """Return the times in force for a group of the consumer protocol."""
        own = self.consumer_times_of(group_id)
        if own is not None:
            return own
        return ConsumerTimes(
            self.consumer_session_timeout_ms,
            self.consumer_heartbeat_interval_ms,
            self.consumer_assignment_interval_ms,
        )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
