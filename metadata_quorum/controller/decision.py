"""The result of a controller's decision: records to append, and the answer to give once they are committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Generic, TypeVar

from tidelog.metadata_quorum.controller.partition_change import Election, change_partition
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage, TopicImage
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import UNASSIGNED_DIRECTORY, BrokerEpoch, DirectoryId, NodeId, TopicIdPartition
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionChangeRecord, PartitionRecord

R = TypeVar("R")

ENTRY_BYTES_MAX: Final = 256 * 1024
"""Estimated size limit of the entries into which a decision is split; well under Raft's largest message."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """``records`` take effect in order. If there are none, the answer still waits for pending changes."""

    records: tuple[MetadataRecord, ...]
    response: R


def entries(records: Iterable[MetadataRecord]) -> Iterator[tuple[MetadataRecord, ...]]:
    """Split records into log entries; each entry takes effect atomically.

    Decisions order their records so that a stop between two entries breaks nothing: see ``docs/controller.md``, "Large
    changes".
    """
    held: list[MetadataRecord] = []
    size = 0
    for record in records:
        estimate = _size_estimate(record)
        if held and size + estimate > ENTRY_BYTES_MAX:
            yield tuple(held)
            held, size = [], 0
        held.append(record)
        size += estimate
    if held:
        yield tuple(held)


def _size_estimate(record: MetadataRecord) -> int:
    """Return an upper bound for common records, in bytes."""
    match record:
        case PartitionRecord():
            return 64 + 42 * len(record.replicas)
        case PartitionChangeRecord():
            lists = (
                record.isr,
                record.eligible_leader_replicas,
                record.last_known_elr,
                record.replicas,
                record.adding_replicas,
                record.removing_replicas,
            )
            nodes = sum(len(found.nodes) for found in lists if found is not None)
            return 64 + 6 * nodes + 18 * (len(record.directories.directories) if record.directories else 0)
        case _:
            return 512


def stale_epoch(image: MetadataImage, node_id: NodeId, broker_epoch: BrokerEpoch) -> Refusal | None:
    """Refuse a broker that is not registered, or under another epoch (``ClusterControlManager.checkBrokerEpoch``)."""
    found = image.broker(node_id)
    if found is None:
        return Refusal(ErrorCode.STALE_BROKER_EPOCH, f"expected a registered broker, found {node_id}, which is none")
    if found.broker_epoch != broker_epoch:
        return Refusal(
            ErrorCode.STALE_BROKER_EPOCH,
            f"expected broker epoch {found.broker_epoch} of broker {node_id}, found {broker_epoch}",
        )
    return None


def default_directory(image: MetadataImage, node_id: NodeId) -> DirectoryId:
    """Return the directory of a new replica: the broker's only one, else unknown until the broker reports it
    (``ClusterControlManager.defaultDir``)."""
    found = image.broker(node_id)
    return found.log_dirs[0] if found is not None and len(found.log_dirs) == 1 else UNASSIGNED_DIRECTORY


def leader_test(
    image: MetadataImage,
    partition: PartitionRecord,
    *,
    joining: NodeId | None = None,
    leaving: Collection[NodeId] = (),
) -> Callable[[NodeId], bool]:
    """Return a test for brokers that may lead ``partition``: active ones with a working directory for the replica.
    ``joining`` already counts as active, ``leaving`` no longer does (``LeaderAcceptor``)."""

    def can_lead(node_id: NodeId) -> bool:
        if node_id in leaving or not (node_id == joining or image.is_active(node_id)):
            return False
        return image.has_online_directory(node_id, partition)

    return can_lead


class PartitionUpdates:
    """Builds the partition changes that follow from an event of a broker or a topic."""

    def __init__(self, image: MetadataImage, configs: ConfigView) -> None:
        self._image = image
        self._configs = configs
        self._topics: dict[bytes, tuple[TopicImage, int, Election]] = {}

    def min_isr_and_election(self, at: TopicIdPartition) -> tuple[TopicImage, int, Election]:
        """Return a partition's topic, its min ISR setting, and its election mode."""
        found = self._topics.get(at.topic_id)
        if found is None:
            topic = self._image.topics[at.topic_id]
            unclean = self._configs.unclean_election(self._image, topic.name)
            election = Election.UNCLEAN if unclean else Election.ONLINE
            found = self._topics[at.topic_id] = (topic, self._configs.min_isr(self._image, topic), election)
        return found

    def change(
        self,
        at: TopicIdPartition,
        *,
        joining: NodeId | None = None,
        leaving: Collection[NodeId] = (),
        unclean: bool = False,
        wiped: bool = False,
        directory: DirectoryId | None = None,
    ) -> PartitionChangeRecord | None:
        """Elect a leader for one partition. ``leaving`` brokers leave the ISR; ``unclean``: also the ELR, since they
        stopped without a clean shutdown; ``wiped``: their replicas are empty. ``directory``: the replicas' current
        directory."""
        topic, min_isr, election = self.min_isr_and_election(at)
        partition = topic.partitions[at.partition]
        return change_partition(
            partition,
            can_lead=leader_test(self._image, partition, joining=joining, leaving=leaving),
            min_isr=min_isr,
            election=election,
            isr=[node for node in partition.isr if node not in leaving],
            unclean=leaving if unclean else (),
            wiped=leaving if wiped else (),
            directories=None if directory is None else dict.fromkeys(leaving, directory),
        )
