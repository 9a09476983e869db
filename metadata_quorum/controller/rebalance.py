"""Elections that are due because of elapsed time or a new controller.

Source: ``ReplicationControlManager.maybeBalancePartitionLeaders``; the percentage per broker is that of
``leader.imbalance.per.broker.percentage``.
"""

from __future__ import annotations

from typing import Final

from tidelog.metadata_quorum.controller.decision import PartitionUpdates, leader_test
from tidelog.metadata_quorum.controller.partition_change import Election, change_partition
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import TopicIdPartition
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionRecord, RemoveTopicRecord

ELECTIONS_PER_PASS_MAX: Final = 1_000
"""Kafka's ``MAX_ELECTIONS_PER_IMBALANCE``."""


def preferred_elections(image: MetadataImage, configs: ConfigView, percentage: int) -> list[MetadataRecord]:
    """Return leadership to preferred leaders that lead too few of their partitions.

    A broker is out of balance if others lead more than ``percentage`` per cent of the partitions for which it holds the
    first replica. At most :data:`ELECTIONS_PER_PASS_MAX` at a time.
    """
    updates = PartitionUpdates(image, configs)
    made: list[MetadataRecord] = []
    for node_id in sorted(node for node, found in image.brokers.items() if found.active):
        preferring: list[PartitionRecord] = []
        for at in image.partitions_of(node_id):
            partition = image.topics[at.topic_id].partitions[at.partition]
            if partition.replicas[0] == node_id:
                preferring.append(partition)
        elsewhere = [partition for partition in preferring if partition.leader != node_id]
        if not elsewhere or 100 * len(elsewhere) <= percentage * len(preferring):
            continue
        for partition in elsewhere:
            if len(made) == ELECTIONS_PER_PASS_MAX:
                return made
            _, min_isr, _ = updates.min_isr_and_election(TopicIdPartition(partition.topic_id, partition.partition))
            change = change_partition(
                partition,
                can_lead=leader_test(image, partition),
                min_isr=min_isr,
                election=Election.PREFERRED,
            )
            if change is not None:
                made.append(change)
    return made


def leaderless_elections(image: MetadataImage, configs: ConfigView) -> list[MetadataRecord]:
    """Elect leaders for leaderless partitions that can have one."""
    updates = PartitionUpdates(image, configs)
    changes = [updates.change(at) for at in sorted(image.leaderless)]
    return [change for change in changes if change is not None]


def unpublished_topics(image: MetadataImage) -> list[MetadataRecord]:
    """Remove the partitions of topics whose creation a previous controller did not finish."""
    return [RemoveTopicRecord(topic_id) for topic_id in sorted(image.unpublished)]
