"""Changes of the metadata image, and their description for the parts that must act on them.

The transition table is in :mod:`tidelog.metadata_quorum.image.image`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, TypeVar, assert_never

from immutables import Map, MapMutation

from tidelog.metadata_quorum.image.image import TOPIC, BrokerRegistration, MetadataImage, TopicImage
from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import (
    NO_NODE,
    BrokerEpoch,
    ControllerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.names import collision_key
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.logs.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DecoySecretRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from tidelog.proto.logs.record_levels import RECORD_LEVELS

K = TypeVar("K")
V = TypeVar("V")

_EMPTY: Final[Map[Any, Any]] = Map()


class BrokenMetadata(AssertionError):
    """A record that does not fit its image: a bug, or another cluster's log."""


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The changes between two images; the work is proportional to the change.

    ``topics_deleted`` holds the topics as they were. ``partitions`` includes those of created topics, but not those of
    deleted ones. ``acls`` are the ids of entries. ``loaded``: the new image came from a snapshot; the other fields are
    complete then too.
    """

    brokers: frozenset[NodeId] = frozenset()
    topics_created: frozenset[TopicId] = frozenset()
    topics_deleted: tuple[TopicImage, ...] = ()
    partitions: frozenset[TopicIdPartition] = frozenset()
    configs: frozenset[ConfigResource] = frozenset()
    features: bool = False
    acls: frozenset[bytes] = frozenset()
    quotas: bool = False
    users: bool = False
    loaded: bool = False


def apply_records(
    image: MetadataImage, records: Iterable[MetadataRecord], offset: Offset, epoch: ControllerEpoch
) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image after one more log entry, and what it changed. Raises :class:`BrokenMetadata`."""
    change = _ImageChange(image, offset)
    for record in records:
        change.apply(record)
    return change.finish(epoch)


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Compare two images after the new one was loaded from a snapshot. O(size of both)."""
    changed = {
        TopicIdPartition(topic_id, number)
        for topic_id, topic in new.topics.items()
        for number, partition in topic.partitions.items()
        if old.partition(topic_id, number) != partition
    }
    return MetadataDelta(
        brokers=frozenset(
            node for node in {*old.brokers, *new.brokers} if old.brokers.get(node) != new.brokers.get(node)
        ),
        topics_created=frozenset(topic_id for topic_id in new.topics if topic_id not in old.topics),
        topics_deleted=tuple(
            sorted(
                (topic for topic_id, topic in old.topics.items() if topic_id not in new.topics),
                key=lambda topic: topic.topic_id,
            )
        ),
        partitions=frozenset(changed),
        configs=frozenset(
            resource
            for resource in {*old.configs, *new.configs}
            if old.configs.get(resource) != new.configs.get(resource)
        ),
        features=old.features != new.features,
        acls=frozenset(acl for acl in {*old.acls, *new.acls} if old.acls.get(acl) != new.acls.get(acl)),
        quotas=old.quotas != new.quotas,
        users=old.users != new.users,
        loaded=True,
    )


class _Mutated:
    """A map that becomes mutable at its first change."""

    __slots__ = ("_base", "_mutation")

    def __init__(self, base: Map[Any, Any]) -> None:
        self._base = base
        self._mutation: MapMutation[Any, Any] | None = None

    def get(self, key: object) -> Any:
        return self._base.get(key) if self._mutation is None else self._mutation.get(key)

    def set(self, key: object, value: object) -> None:
        self._opened()[key] = value

    def drop(self, key: object) -> None:
        if self.get(key) is not None:
            del self._opened()[key]

    def drop_member(self, key: object) -> None:
        """Remove a key that may have the value ``None``: from a map that represents a set."""
        opened = self._opened()
        if key in opened:
            del opened[key]

    def finish(self) -> Map[Any, Any]:
        return self._base if self._mutation is None else self._mutation.finish()

    def _opened(self) -> MapMutation[Any, Any]:
        if self._mutation is None:
            self._mutation = self._base.mutate()
        return self._mutation


class _TopicDraft:
    """A topic, published (with a name) or not, while its partitions change."""

    __slots__ = ("name", "partitions")

    def __init__(self, name: str | None, partitions: Map[int, PartitionRecord]) -> None:
        self.name = name
        self.partitions = _Mutated(partitions)


class _ImageChange:
    """One entry's change in progress."""

    def __init__(self, base: MetadataImage, offset: Offset) -> None:
        self._base = base
        self._offset = offset
        self._brokers = _Mutated(base.brokers)
        self._broker_epoch_highest = base.broker_epoch_highest
        self._topics = _Mutated(base.topics)
        self._topic_ids = _Mutated(base.topic_ids)
        self._collisions = _Mutated(base.collision_names)
        self._unpublished = _Mutated(base.unpublished)
        self._drafts: dict[TopicId, _TopicDraft] = {}
        self._replicas: dict[NodeId, _Mutated] = {}
        self._leaderless = _Mutated(base.leaderless)
        self._partition_count = base.partition_count
        self._configs = _Mutated(base.configs)
        self._next_producer_id = base.next_producer_id
        self._features = _Mutated(base.features)
        self._level_used = base.level_used
        self._controllers = _Mutated(base.controllers)
        self._acls = _Mutated(base.acls)
        self._acls_changed: set[bytes] = set()
        self._quotas = _Mutated(base.quotas)
        self._users = _Mutated(base.users)
        self._decoy_secret = base.decoy_secret
        self._delegation_tokens = _Mutated(base.delegation_tokens)
        self._brokers_changed: set[NodeId] = set()
        self._topics_created: set[TopicId] = set()
        self._topics_deleted: dict[TopicId, TopicImage] = {}
        self._partitions_changed: set[TopicIdPartition] = set()
        self._configs_changed: set[ConfigResource] = set()
        self._kinds_changed: set[str] = set()

    def apply(self, record: MetadataRecord) -> None:
        needed = RECORD_LEVELS.get(type(record))
        if needed is not None:
            self._level_used = max(self._level_used, needed)
        match record:
            case PartitionChangeRecord():
                self._change_partition(record)
            case PartitionRecord():
                self._add_partition(record)
            case RegisterBrokerRecord():
                self._brokers.set(record.node_id, BrokerRegistration(record, self._offset))
                self._broker_epoch_highest = BrokerEpoch(max(self._broker_epoch_highest, record.broker_epoch))
                self._brokers_changed.add(record.node_id)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case UnregisterBrokerRecord():
                self._broker_epoch_highest = BrokerEpoch(max(self._broker_epoch_highest, record.broker_epoch))
                if self._brokers.get(record.node_id) is not None:
                    self._brokers.drop(record.node_id)
                    self._brokers_changed.add(record.node_id)
            case TopicRecord():
                self._publish_topic(record)
            case RemoveTopicRecord():
                self._remove_topic(record.topic_id)
            case ConfigRecord():
                self._change_config(record)
            case ProducerIdsRecord():
                self._next_producer_id = record.next_producer_id
            case FeatureLevelRecord():
                self._change_feature(record)
            case RegisterControllerRecord():
                self._controllers.set(record.node_id, record)
            case AccessControlEntryRecord():
                self._acls.set(record.acl_id, record)
                self._acls_changed.add(record.acl_id)
            case RemoveAccessControlEntryRecord():
                self._acls.drop(record.acl_id)
                self._acls_changed.add(record.acl_id)
            case ClientQuotaRecord():
                self._change_quota(record)
                self._kinds_changed.add("quotas")
            case UserScramCredentialRecord():
                self._users.set((record.name, record.mechanism), record)
                self._kinds_changed.add("users")
            case RemoveUserScramCredentialRecord():
                self._users.drop((record.name, record.mechanism))
                self._kinds_changed.add("users")
            case DecoySecretRecord():
                self._decoy_secret = record.secret
            case DelegationTokenRecord():
                self._delegation_tokens.set(record.token_id, record)
            case RemoveDelegationTokenRecord():
                self._delegation_tokens.drop(record.token_id)
            case _:
                assert_never(record)

    def finish(self, epoch: ControllerEpoch) -> tuple[MetadataImage, MetadataDelta]:
        for topic_id, draft in self._drafts.items():
            partitions = draft.partitions.finish()
            if draft.name is None:
                self._unpublished.set(topic_id, partitions)
            else:
                self._topics.set(topic_id, TopicImage(draft.name, topic_id, partitions))
        replicas = _Mutated(self._base.replicas)
        for node_id, held in self._replicas.items():
            finished = held.finish()
            if finished:
                replicas.set(node_id, finished)
            else:
                replicas.drop(node_id)
        image = MetadataImage(
            offset=self._offset,
            epoch=epoch,
            brokers=self._brokers.finish(),
            broker_epoch_highest=self._broker_epoch_highest,
            topics=self._topics.finish(),
            topic_ids=self._topic_ids.finish(),
            collision_names=self._collisions.finish(),
            unpublished=self._unpublished.finish(),
            replicas=replicas.finish(),
            leaderless=self._leaderless.finish(),
            partition_count=self._partition_count,
            configs=self._configs.finish(),
            next_producer_id=self._next_producer_id,
            features=self._features.finish(),
            level_used=self._level_used,
            controllers=self._controllers.finish(),
            acls=self._acls.finish(),
            quotas=self._quotas.finish(),
            users=self._users.finish(),
            decoy_secret=self._decoy_secret,
            delegation_tokens=self._delegation_tokens.finish(),
        )
        return image, MetadataDelta(
            brokers=frozenset(self._brokers_changed),
            topics_created=frozenset(self._topics_created),
            topics_deleted=tuple(self._topics_deleted.values()),
            partitions=frozenset(self._partitions_changed),
            configs=frozenset(self._configs_changed),
            features="features" in self._kinds_changed,
            acls=frozenset(self._acls_changed),
            quotas="quotas" in self._kinds_changed,
            users="users" in self._kinds_changed,
        )

    # --- Brokers ---

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        found: BrokerRegistration | None = self._brokers.get(record.node_id)
        if found is None or found.broker_epoch != record.broker_epoch:
            raise BrokenMetadata(f"expected broker {record.node_id} with epoch {record.broker_epoch}, found {found}")
        made = found.record
        if record.fenced is not None:
            made = dataclasses.replace(made, fenced=record.fenced)
        if record.in_controlled_shutdown is not None:
            made = dataclasses.replace(made, in_controlled_shutdown=record.in_controlled_shutdown)
        if record.log_dirs is not None:
            made = dataclasses.replace(made, log_dirs=record.log_dirs.directories)
        self._brokers.set(record.node_id, BrokerRegistration(made, found.registered_at))
        self._brokers_changed.add(record.node_id)

    def _change_feature(self, record: FeatureLevelRecord) -> None:
        if record.level:
            self._features.set(record.name, record.level)
        else:
            self._features.drop(record.name)
        self._level_used = max(self._level_used, record.level_used)
        self._kinds_changed.add("features")

    # --- Topics ---

    def _publish_topic(self, record: TopicRecord) -> None:
        if self._topic_ids.get(record.name) is not None:
            raise BrokenMetadata(f"expected no topic {record.name!r} yet, found one")
        draft = self._drafts.get(record.topic_id)
        if draft is None:
            draft = _TopicDraft(None, self._unpublished.get(record.topic_id) or _EMPTY)
            self._drafts[record.topic_id] = draft
        if draft.name is not None or self._topics.get(record.topic_id) is not None:
            raise BrokenMetadata(f"expected a new topic id for {record.name!r}, found one in use")
        partitions: Map[int, PartitionRecord] = draft.partitions.finish()
        self._unpublished.drop(record.topic_id)
        self._drafts[record.topic_id] = _TopicDraft(record.name, partitions)
        self._topic_ids.set(record.name, record.topic_id)
        if "." in record.name or "_" in record.name:
            self._collisions.set(collision_key(record.name), record.name)
        self._topics_created.add(record.topic_id)
        for partition in partitions.values():
            self._index(TopicIdPartition(record.topic_id, partition.partition), None, partition)

    def _remove_topic(self, topic_id: TopicId) -> None:
        draft = self._drafts.pop(topic_id, None)
        known: TopicImage | None = self._topics.get(topic_id)
        partitions = known.partitions if known is not None else self._unpublished.get(topic_id) or _EMPTY
        name = known.name if known is not None else None
        if draft is not None:
            partitions, name = draft.partitions.finish(), draft.name
        elif known is None and self._unpublished.get(topic_id) is None:
            raise BrokenMetadata(f"expected the topic {topic_id.hex()}, found none")
        self._unpublished.drop(topic_id)
        if name is None:
            return
        self._topics.drop(topic_id)
        self._topic_ids.drop(name)
        if self._collisions.get(collision_key(name)) == name:
            self._collisions.drop(collision_key(name))
        resource = ConfigResource(TOPIC, name)
        if self._configs.get(resource) is not None:
            self._configs.drop(resource)
            self._configs_changed.add(resource)
        for number, partition in partitions.items():
            at = TopicIdPartition(topic_id, number)
            self._index(at, partition, None)
            self._partitions_changed.discard(at)
        if topic_id in self._topics_created:
            self._topics_created.discard(topic_id)
        else:
            self._topics_deleted[topic_id] = TopicImage(name, topic_id, partitions)

    # --- Partitions ---

    def _draft(self, topic_id: TopicId) -> _TopicDraft:
        draft = self._drafts.get(topic_id)
        if draft is None:
            known: TopicImage | None = self._topics.get(topic_id)
            if known is not None:
                draft = _TopicDraft(known.name, known.partitions)
            else:
                draft = _TopicDraft(None, self._unpublished.get(topic_id) or _EMPTY)
            self._drafts[topic_id] = draft
        return draft

    def _add_partition(self, record: PartitionRecord) -> None:
        draft = self._draft(record.topic_id)
        before = draft.partitions.get(record.partition)
        draft.partitions.set(record.partition, record)
        if draft.name is not None:
            self._index(TopicIdPartition(record.topic_id, record.partition), before, record)

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        draft = self._draft(record.topic_id)
        before: PartitionRecord | None = draft.partitions.get(record.partition)
        if before is None or draft.name is None:
            raise BrokenMetadata(f"expected partition {record.partition} of {record.topic_id.hex()}, found none")
        after = merged(before, record)
        draft.partitions.set(record.partition, after)
        self._index(TopicIdPartition(record.topic_id, record.partition), before, after)

    def _index(self, at: TopicIdPartition, before: PartitionRecord | None, after: PartitionRecord | None) -> None:
        """Update the indexes for one partition of a published topic."""
        self._partitions_changed.add(at)
        old = () if before is None else before.replicas
        new = () if after is None else after.replicas
        if old != new:
            for node_id in old:
                if node_id not in new:
                    self._held_by(node_id).drop_member(at)
            for node_id in new:
                if node_id not in old:
                    self._held_by(node_id).set(at, None)
        was_leaderless = before is not None and before.leader == NO_NODE
        is_leaderless = after is not None and after.leader == NO_NODE
        if is_leaderless and not was_leaderless:
            self._leaderless.set(at, None)
        elif was_leaderless and not is_leaderless:
            self._leaderless.drop_member(at)
        self._partition_count += (after is not None) - (before is not None)

    def _held_by(self, node_id: NodeId) -> _Mutated:
        found = self._replicas.get(node_id)
        if found is None:
            found = self._replicas[node_id] = _Mutated(self._base.replicas.get(node_id, _EMPTY))
        return found

    # --- Settings ---

    def _change_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values: Map[str, str] = self._configs.get(resource) or _EMPTY
        if record.value is not None:
            values = values.set(record.name, record.value)
        elif record.name in values:
            values = values.delete(record.name)
        if values:
            self._configs.set(resource, values)
        else:
            self._configs.drop(resource)
        self._configs_changed.add(resource)

    def _change_quota(self, record: ClientQuotaRecord) -> None:
        values: Map[str, float] = self._quotas.get(record.entity) or _EMPTY
        if record.value is not None:
            values = values.set(record.key, record.value)
        elif record.key in values:
            values = values.delete(record.key)
        if values:
            self._quotas.set(record.entity, values)
        else:
            self._quotas.drop(record.entity)


def merged(partition: PartitionRecord, change: PartitionChangeRecord) -> PartitionRecord:
    """Return a partition with a change applied (``PartitionRegistration.merge``)."""
    return PartitionRecord(
        topic_id=partition.topic_id,
        partition=partition.partition,
        replicas=partition.replicas if change.replicas is None else change.replicas.nodes,
        isr=partition.isr if change.isr is None else change.isr.nodes,
        eligible_leader_replicas=(
            partition.eligible_leader_replicas
            if change.eligible_leader_replicas is None
            else change.eligible_leader_replicas.nodes
        ),
        last_known_elr=partition.last_known_elr if change.last_known_elr is None else change.last_known_elr.nodes,
        removing_replicas=(
            partition.removing_replicas if change.removing_replicas is None else change.removing_replicas.nodes
        ),
        adding_replicas=(partition.adding_replicas if change.adding_replicas is None else change.adding_replicas.nodes),
        leader=partition.leader if change.leader is None else change.leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + (change.leader is not None)),
        partition_epoch=PartitionEpoch(partition.partition_epoch + 1),
        leader_recovery=partition.leader_recovery if change.leader_recovery is None else change.leader_recovery,
        directories=partition.directories if change.directories is None else change.directories.directories,
    )
