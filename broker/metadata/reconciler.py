"""Turns metadata into replica changes: what a new image means for this broker's partitions.

Work is proportional to the change. :func:`changes_for` decides and touches nothing; the :class:`Reconciler` passes its
result to the replica manager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import BROKER, TOPIC, MetadataImage, TopicImage, directory_of
from tidelog.model.clock import Clock
from tidelog.model.ids import (
    NO_NODE,
    UNASSIGNED_DIRECTORY,
    DirectoryId,
    NodeId,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.logs.metadata_records import PartitionRecord
from tidelog.replication.partition.partition_state import PartitionState

log = logging.getLogger(__name__)


T = TypeVar("T")

STEP_MS: Final = 5
"""How long a step works before others get their turn. A message takes several turns of the event loop, and a controller
that is silent for half a second is deposed."""
PORTION: Final = 20
"""Partitions between two checks of the clock."""
DECIDED_AT_ONCE: Final = 200
"""Partitions compared before the first of them is acted on."""


class Replicas(Protocol):
    """The methods that the reconciler needs of the replica manager."""

    def apply(self, changes: Sequence[PartitionState]) -> None: ...

    def remove(self, partitions: Sequence[TopicIdPartition], delete: bool) -> None: ...


@dataclass(slots=True)
class Changes:
    """What one image asks of this broker, in this order: first removals, then new and changed partitions."""

    removed: list[TopicIdPartition] = field(default_factory=list)
    applied: list[PartitionState] = field(default_factory=list)


class TopicConfigs:
    """A topic's configuration under the settings in force; the same object until something changes it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._made: dict[str, tuple[object, TopicConfig]] = {}

    def of(self, image: MetadataImage, topic: str) -> TopicConfig:
        values = image.config(TOPIC, topic)
        if not values:
            return self.settings.topic_defaults
        known = self._made.get(topic)
        if known is not None and known[0] is values:
            return known[1]
        found = self.settings.topic(values)
        self._made[topic] = (values, found)
        return found

    def forget(self, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            self._made.pop(topic.name, None)


def touched_by(
    node_id: NodeId, image: MetadataImage, delta: MetadataDelta, *, every_config: bool
) -> list[TopicIdPartition]:
    """Return the partitions to examine, in order: changed ones, and those of this broker whose settings changed.

    ``every_config``: the broker's own settings changed, and with them the defaults of every topic.
    """
    touched: set[TopicIdPartition] = set(image.replicas.get(node_id, ())) if every_config else set()
    for resource in delta.configs:
        if resource.resource_type == TOPIC and (changed := image.topic(resource.name)) is not None:
            touched |= {
                TopicIdPartition(changed.topic_id, found.partition)
                for found in changed.partitions.values()
                if node_id in found.replicas
            }
    return sorted(touched | delta.partitions)


def changes_for(
    node_id: NodeId,
    before: MetadataImage,
    image: MetadataImage,
    deleted: Iterable[TopicImage],
    touched: Iterable[TopicIdPartition],
    configs: TopicConfigs,
    *,
    is_gone: Callable[[DirectoryId], bool],
) -> Changes:
    """Decide what ``image`` means for a broker that has acted on ``before``, for these topics and partitions.

    ``is_gone``: whether a directory no longer belongs to this broker.
    """
    changes = Changes()
    for topic in deleted:
        changes.removed += (
            TopicIdPartition(topic.topic_id, found.partition) for found in topic.in_order() if node_id in found.replicas
        )
    for key in touched:
        found = image.partition(key.topic_id, key.partition)
        earlier = before.partition(key.topic_id, key.partition)
        was_here = earlier is not None and node_id in earlier.replicas
        if found is None or node_id not in found.replicas:
            if was_here:
                changes.removed.append(key)
            continue
        name = image.topics[key.topic_id].name
        config = configs.of(image, name)
        directory = _directory_for(node_id, found, is_gone)
        changes.applied.append(_state(name, found, config, directory, is_new=not was_here))
    return changes


def _directory_for(node_id: NodeId, found: PartitionRecord, is_gone: Callable[[DirectoryId], bool]) -> DirectoryId:
    """Choose the directory for this broker's replica.

    A replica whose disk was replaced may start empty in another directory, but only as a follower without obligations:
    a member of the ISR or ELR (or what is left of them, while there is no leader) with an empty log would pass for the
    topic's log.
    """
    directory = directory_of(found, node_id)
    if directory == UNASSIGNED_DIRECTORY or not is_gone(directory):
        return directory
    remembered = found.last_known_elr if found.leader == NO_NODE else ()
    owes = node_id in (*found.isr, *found.eligible_leader_replicas, *remembered)
    return directory if owes else UNASSIGNED_DIRECTORY


def _state(
    topic: str,
    found: PartitionRecord,
    config: TopicConfig,
    directory: DirectoryId,
    *,
    is_new: bool,
) -> PartitionState:
    return PartitionState(
        topic=topic,
        topic_id=found.topic_id,
        partition=found.partition,
        replicas=found.replicas,
        isr=found.isr,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        partition_epoch=found.partition_epoch,
        config=config,
        leader_recovery=found.leader_recovery,
        directory_id=directory,
        is_new=is_new,
        adding=found.adding_replicas,
        removing=found.removing_replicas,
    )


def strays(node_id: NodeId, image: MetadataImage, held: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Return the replicas on disk that the metadata does not assign to this broker: while it was down, their topic was
    deleted or they were moved away. Only valid with an image that is caught up."""

    def is_stray(key: TopicIdPartition) -> bool:
        found = image.partition(TopicId(key.topic_id), key.partition)
        return found is None or node_id not in found.replicas

    return [key for key in held if is_stray(key)]


class Reconciler:
    """Listens to the metadata view for one broker.

    ``on_settings`` is called on each change of the broker's own dynamic settings; ``on_applied`` with every partition
    state that was passed on, after the replica manager took it. ``is_gone`` tells whether a directory id no longer
    belongs to this broker, while all of its directories work.
    """

    def __init__(
        self,
        static: NodeConfig,
        clock: Clock,
        replicas: Replicas,
        on_settings: Callable[[Settings], None],
        on_applied: Callable[[Sequence[PartitionState]], None],
        is_gone: Callable[[DirectoryId], bool],
    ) -> None:
        self._static = static
        self._clock = clock
        self._node_id = static.node_id
        self._replicas = replicas
        self._on_settings = on_settings
        self._on_applied = on_applied
        self._is_gone = is_gone
        self._image = MetadataImage()
        self._configs = TopicConfigs(Settings(static, {}, {}))

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._configs.settings

    def node_config(self) -> NodeConfig:
        """Return the node's own settings in force."""
        return self._configs.settings.node

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        """Act on a newer image, in steps; after the last one, the replicas are as the image wants them."""
        every_config = self._take_settings(image, delta)
        before, self._image = self._image, image
        touched = touched_by(self._node_id, image, delta, every_config=every_config)
        deleted: Sequence[TopicImage] = delta.topics_deleted
        begun_ms = self._clock.monotonic_ms()
        for portion in _portions(touched, DECIDED_AT_ONCE) if touched else ((),):
            changes = changes_for(self._node_id, before, image, deleted, portion, self._configs, is_gone=self._is_gone)
            self._configs.forget(deleted)
            deleted = ()
            for removed in _portions(changes.removed, PORTION):
                self._replicas.remove(removed, True)
                if self._clock.monotonic_ms() - begun_ms >= STEP_MS:
                    yield
                    begun_ms = self._clock.monotonic_ms()
            for applied in _portions(changes.applied, PORTION):
                self._replicas.apply(applied)
                self._on_applied(applied)
                if self._clock.monotonic_ms() - begun_ms >= STEP_MS:
                    yield
                    begun_ms = self._clock.monotonic_ms()

    def _take_settings(self, image: MetadataImage, delta: MetadataDelta) -> bool:
        own = {ConfigResource(BROKER, ""), ConfigResource(BROKER, str(self._node_id))}
        if not own & delta.configs:
            return False
        before = self._configs.settings
        settings = Settings(self._static, image.config(BROKER, ""), image.config(BROKER, str(self._node_id)))
        for fault in settings.faults:
            log.error("ignoring a dynamic setting: %s", fault)
        self._configs = TopicConfigs(settings)
        self._on_settings(settings)
        return settings.topic_defaults != before.topic_defaults


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
