"""The controller's decision about one partition, as a broker's reconciler passes it on."""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.settings.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition in the metadata image, for a node that is one of its replicas.

    ``leader`` is -1 for none. ``leader_recovery`` is true after an unclean election until the leader has reported that
    it recovered (KIP-704). ``is_new`` is true if this node was not a replica before. ``adding`` and ``removing`` are
    the ``replicas`` that come and go with a reassignment (KIP-455).
    """

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    config: TopicConfig
    leader_recovery: bool = False
    directory_id: DirectoryId = UNASSIGNED_DIRECTORY
    is_new: bool = False
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)
