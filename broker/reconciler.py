"""From metadata to replicas: what a new image means for the partitions of this broker.

Work is proportional to the change. :func:`changes_for` decides and touches nothing; the
:class:`Reconciler` hands its result to the replica manager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from tidelog.broker.dynamic_config import Settings
from tidelog.metadata_quorum.image import BROKER, TOPIC, MetadataImage, TopicImage, directory_of
from tidelog.metadata_quorum.image_change import MetadataDelta
from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import Clock
from tidelog.model.ids import (
    LOST_DIRECTORY,
    NO_NODE,
    UNASSIGNED_DIRECTORY,
    DirectoryId,
    NodeId,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.topic_config import TopicConfig
from tidelog.proto.api import ConfigResource
from tidelog.proto.metadata import PartitionRecord
from tidelog.replication.partition_state import PartitionState

log = logging.getLogger(__name__)


T = TypeVar("T")

STEP_MS: Final = 20
"""How long a step works before others get their turn."""
PORTION: Final = 20
"""Partitions between two looks at the clock."""


class Replicas(Protocol):
    """What the reconciler needs of the replica manager."""

    def apply(self, changes: Sequence[PartitionState]) -> None: ...

    def remove(self, partitions: Sequence[TopicIdPartition], delete: bool) -> None: ...


@dataclass(slots=True)
class Changes:
    """What one image asks of this broker, in this order: first what goes, then what comes or changes."""

    removed: list[TopicIdPartition] = field(default_factory=list)
    applied: list[PartitionState] = field(default_factory=list)


class TopicConfigs:
    """A topic's configuration under the settings in force; one object for as long as nothing changes it."""

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


def changes_for(
    node_id: NodeId,
    before: MetadataImage,
    image: MetadataImage,
    delta: MetadataDelta,
    configs: TopicConfigs,
    *,
    every_config: bool,
    is_gone: Callable[[DirectoryId], bool],
) -> Changes:
    """Decide what ``image`` means for a broker that has acted on ``before``.

    ``every_config``: the broker's own settings changed, and with them the defaults of every topic.
    ``is_gone``: whether a directory is none of this broker's any more.
    """
    changes = Changes()
    for topic in delta.topics_deleted:
        changes.removed += (
            TopicIdPartition(topic.topic_id, found.partition) for found in topic.in_order() if node_id in found.replicas
        )
    touched: set[TopicIdPartition] = set(image.replicas.get(node_id, ())) if every_config else set()
    for resource in delta.configs:
        if resource.resource_type == TOPIC and (changed := image.topic(resource.name)) is not None:
            touched |= {
                TopicIdPartition(changed.topic_id, found.partition)
                for found in changed.partitions.values()
                if node_id in found.replicas
            }
    for key in sorted(touched | delta.partitions):
        found = image.partition(key.topic_id, key.partition)
        earlier = before.partition(key.topic_id, key.partition)
        was_here = earlier is not None and node_id in earlier.replicas
        if found is None or node_id not in found.replicas:
            if was_here:
                changes.removed.append(key)
            continue
        name = image.topics[key.topic_id].name
        config = configs.of(image, name)
        directory = _place(node_id, found, is_gone)
        changes.applied.append(_state(name, found, config, directory, is_new=not was_here))
    return changes


def _place(node_id: NodeId, found: PartitionRecord, is_gone: Callable[[DirectoryId], bool]) -> DirectoryId:
    """Where this broker's replica is to stand.

    One whose disk was replaced may begin anew on another, but only as a follower that owes nothing: a
    member of the ISR or ELR (or of what is left of them, while there is no leader) with an empty log
    would pass for the topic's.
    """
    directory = directory_of(found, node_id)
    if directory in (UNASSIGNED_DIRECTORY, LOST_DIRECTORY) or not is_gone(directory):
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
    """The replicas on disk that the metadata does not know as this broker's: their topic was deleted, or
    they were moved away, while it was down. Only to be asked with an image that is caught up."""

    def is_stray(key: TopicIdPartition) -> bool:
        found = image.partition(TopicId(key.topic_id), key.partition)
        return found is None or node_id not in found.replicas

    return [key for key in held if is_stray(key)]


class Reconciler:
    """Listens to the metadata view on behalf of one broker.

    ``on_settings`` hears of each change of the broker's own dynamic settings; ``on_applied`` of every
    partition state that was handed down, after the replica manager took it. ``is_gone`` tells whether
    a directory id is none of this broker's any more, while all of its directories work.
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

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        """Act on a newer image, in steps; after the last one the replicas are as the image wants them."""
        every_config = self._take_settings(image, delta)
        changes = changes_for(
            self._node_id,
            self._image,
            image,
            delta,
            self._configs,
            every_config=every_config,
            is_gone=self._is_gone,
        )
        self._configs.forget(delta.topics_deleted)
        self._image = image
        begun_ms = self._clock.monotonic_ms()
        for removed in _portions(changes.removed):
            self._replicas.remove(removed, True)
            if self._clock.monotonic_ms() - begun_ms >= STEP_MS:
                yield
                begun_ms = self._clock.monotonic_ms()
        for applied in _portions(changes.applied):
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
            log.error("a dynamic setting is left out: %s", fault)
        self._configs = TopicConfigs(settings)
        self._on_settings(settings)
        return settings.topic_defaults != before.topic_defaults


def _portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + PORTION] for at in range(0, len(items), PORTION))
