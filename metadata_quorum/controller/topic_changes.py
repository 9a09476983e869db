"""Creates, deletes and grows topics. Source: Kafka's ``ReplicationControlManager``."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision, default_directory
from tidelog.metadata_quorum.controller.mutation_quotas import EXCEEDED, MutationQuotas, Permits
from tidelog.metadata_quorum.controller.placement import UsableBroker, cordoned_fault, place_replicas
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import TOPIC, MetadataImage, TopicImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import ZERO_TOPIC_ID, DirectoryId, LeaderEpoch, NodeId, PartitionEpoch, TopicId, random_id
from tidelog.model.names import METADATA_LOG, collision_key, is_internal, topic_name_fault
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.api import (
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    PartitionGrowth,
    ReplicaAssignment,
    TopicResult,
)
from tidelog.proto.calls.failure_domains import failure_domains, machine_of
from tidelog.proto.logs.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Kafka's ``MAX_RECORDS_PER_USER_OP``."""


class _Refused(Exception):
    """Ends the work on one item of a request; never leaves this module."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)


class TopicChanges:
    """Decides about topics, by one controller's settings."""

    def __init__(self, config: NodeConfig, configs: ConfigView, rng: random.Random, quotas: MutationQuotas) -> None:
        self._quotas = quotas
        self._config = config
        self._configs = configs
        self._rng = rng

    # --- Creating ---

    def create(self, image: MetadataImage, request: CreateTopicsRequest, now_ms: int) -> Decision[CreateTopicsResponse]:
        """Create or refuse each topic individually. A topic that has the id asked for was made by an earlier attempt,
        whose answer was lost."""
        records: list[MetadataRecord] = []
        results: list[CreatedTopic] = []
        counted: dict[str, int] = {}
        for topic in request.topics:
            counted[topic.name] = counted.get(topic.name, 0) + 1
        new_names: set[str] = set()
        permits = self._quotas.permits(image, request.charged, now_ms)
        budget = _Budget(image.partition_count, self._config.controller_partitions_max)
        for topic in request.topics:
            try:
                if counted[topic.name] > 1:
                    raise _Refused(
                        ErrorCode.INVALID_REQUEST, f"expected each topic once in a request, found {topic.name!r} twice"
                    )
                if (made_before := _made_before(image, topic)) is not None:
                    results.append(made_before)
                    continue
                _check_name(image, topic.name, new_names)
                made, result = self._create_one(image, topic, budget, permits)
            except _Refused as refused:
                results.append(CreatedTopic(topic.name, refused.refusal.code, refused.refusal.message))
                continue
            new_names.add(topic.name)
            records += made
            results.append(result)
        response = CreateTopicsResponse(tuple(results), permits.throttle_ms)
        return Decision(() if request.validate_only else tuple(records), response)

    def _create_one(
        self, image: MetadataImage, topic: NewTopic, budget: _Budget, permits: Permits
    ) -> tuple[list[MetadataRecord], CreatedTopic]:
        replicas = self._assigned(image, topic) if topic.assignments else self._placed(image, topic, budget)
        budget.spend(len(replicas))
        replication_factor = len(replicas[0])
        settings = self._checked_settings(image, topic, replication_factor)
        _check_quota(permits, len(replicas))
        topic_id = self._id_of(image, topic)
        # The partitions come first and the topic last: the topic appears complete, however many entries this takes.
        records: list[MetadataRecord] = [*_new_partitions(image, topic_id, replicas)]
        records += [ConfigRecord(TOPIC, topic.name, name, value) for name, value in settings.items()]
        records.append(TopicRecord(topic.name, topic_id))
        return records, CreatedTopic(
            name=topic.name,
            error=ErrorCode.NONE,
            topic_id=topic_id,
            num_partitions=len(replicas),
            replication_factor=replication_factor,
        )

    def _id_of(self, image: MetadataImage, topic: NewTopic) -> TopicId:
        drawn = TopicId(random_id(self._rng))
        if not topic.topic_id:
            return drawn
        if len(topic.topic_id) != len(ZERO_TOPIC_ID):
            text = f"expected a topic id of {len(ZERO_TOPIC_ID)} bytes, found {len(topic.topic_id)}"
            raise _Refused(ErrorCode.INVALID_REQUEST, text)
        known = image.topics.get(topic.topic_id)
        if known is not None:
            raise _Refused(
                ErrorCode.INVALID_REQUEST, f"expected an id that no topic has, found that of topic {known.name!r}"
            )
        return topic.topic_id

    def _placed(self, image: MetadataImage, topic: NewTopic, budget: _Budget) -> Sequence[tuple[NodeId, ...]]:
        factor = topic.replication_factor
        factor = self._config.default_replication_factor if factor == -1 else factor
        count = self._config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        if factor <= 0:
            raise _Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"expected a replication factor of at least 1, or -1 for the default, found {factor}",
            )
        if count <= 0:
            raise _Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"expected a number of partitions of at least 1, or -1 for the default, found {count}",
            )
        budget.check(count)
        placed = place_replicas(usable_brokers(image), count, factor, self._rng)
        if isinstance(placed, Refusal):
            raise _Refused(placed.code, placed.message)
        return placed

    def _assigned(self, image: MetadataImage, topic: NewTopic) -> Sequence[tuple[NodeId, ...]]:
        if topic.replication_factor != -1 or topic.num_partitions != -1:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                "expected -1 for the number of partitions and the replication factor beside assignments, "
                f"found {topic.num_partitions} and {topic.replication_factor}",
            )
        return _check_assignments(image, topic.assignments, first=0, replication_factor=None)

    def _checked_settings(self, image: MetadataImage, topic: NewTopic, replication_factor: int) -> dict[str, str]:
        settings: dict[str, str] = {}
        for entry in topic.configs:
            if entry.name in settings:
                raise _Refused(ErrorCode.INVALID_CONFIG, f"expected each setting once, found {entry.name!r} twice")
            if entry.value is None:
                raise _Refused(ErrorCode.INVALID_CONFIG, f"{entry.name}: expected a value, found none")
            settings[entry.name] = entry.value
        fault = settings_fault(self._configs, image, topic.name, settings, replication_factor)
        if fault is not None:
            raise _Refused(ErrorCode.INVALID_CONFIG, fault)
        return settings

    # --- Deleting ---

    def delete(self, image: MetadataImage, request: DeleteTopicsRequest, now_ms: int) -> Decision[DeleteTopicsResponse]:
        """Delete or refuse each topic individually."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        named = [found.topic_id for name in request.names if (found := image.topic(name)) is not None]
        asked = Counter([*named, *request.topic_ids])
        permits = self._quotas.permits(image, request.charged, now_ms)

        def delete_one(name: str, topic: TopicImage | None, unknown: ErrorCode, topic_id: TopicId | None) -> None:
            shown = TopicId(bytes(16)) if topic_id is None else topic_id
            if not self._config.delete_topic_enable:
                text = "expected delete.topic.enable=true to delete a topic, found false"
                results.append(TopicResult(name, ErrorCode.TOPIC_DELETION_DISABLED, text, shown))
            elif topic is None:
                text = f"expected a topic that exists, found {name!r}" if name else "expected the id of a topic"
                results.append(TopicResult(name, unknown, text, shown))
            elif asked[topic.topic_id] > 1:
                text = f"expected each topic once in a request, found {topic.name!r} twice"
                results.append(TopicResult(topic.name, ErrorCode.INVALID_REQUEST, text, topic.topic_id))
            elif not permits.take(len(topic.partitions)):
                results.append(TopicResult(topic.name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED, topic.topic_id))
            else:
                records.append(RemoveTopicRecord(topic.topic_id))
                results.append(TopicResult(topic.name, ErrorCode.NONE, "", topic.topic_id))

        for name in request.names:
            delete_one(name, image.topic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        for topic_id in request.topic_ids:
            found = image.topics.get(topic_id)
            delete_one("" if found is None else found.name, found, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        return Decision(tuple(records), DeleteTopicsResponse(tuple(results), permits.throttle_ms))

    # --- Growing ---

    def grow(
        self, image: MetadataImage, request: CreatePartitionsRequest, now_ms: int
    ) -> Decision[CreatePartitionsResponse]:
        """Grow or refuse each topic individually."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        asked = Counter(growth.name for growth in request.topics)
        permits = self._quotas.permits(image, request.charged, now_ms)
        budget = _Budget(image.partition_count, self._config.controller_partitions_max)
        for growth in request.topics:
            topic = image.topic(growth.name)
            try:
                if asked[growth.name] > 1:
                    raise _Refused(
                        ErrorCode.INVALID_REQUEST, f"expected each topic once in a request, found {growth.name!r} twice"
                    )
                if topic is None:
                    raise _Refused(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected a topic that exists, found {growth.name!r}"
                    )
                grown = self._grow_one(image, topic, growth, budget)
                _check_quota(permits, len(grown))
                records += grown
                results.append(TopicResult(growth.name, ErrorCode.NONE, "", topic.topic_id))
            except _Refused as refused:
                results.append(TopicResult(growth.name, refused.refusal.code, refused.refusal.message))
        response = CreatePartitionsResponse(tuple(results), permits.throttle_ms)
        return Decision(() if request.validate_only else tuple(records), response)

    def _grow_one(
        self, image: MetadataImage, topic: TopicImage, growth: PartitionGrowth, budget: _Budget
    ) -> list[MetadataRecord]:
        if is_internal(growth.name):
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"expected a topic of clients, found {growth.name!r}: the number of its partitions says where in it "
                "something is kept, which would not be found again",
            )
        present = len(topic.partitions)
        added = growth.count - present
        if added <= 0:
            raise _Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"expected more than the {present} partitions that {growth.name!r} has, found {growth.count}",
            )
        budget.check(added)
        if growth.assignments:
            if len(growth.assignments) != added:
                raise _Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"expected assignments of the {added} new partitions, found {len(growth.assignments)}",
                )
            replicas: Sequence[tuple[NodeId, ...]] = _check_assignments(
                image, growth.assignments, first=present, replication_factor=topic.replication_factor
            )
        else:
            placed = place_replicas(usable_brokers(image), added, topic.replication_factor, self._rng)
            if isinstance(placed, Refusal):
                raise _Refused(placed.code, placed.message)
            replicas = placed
        budget.spend(added)
        return [*_new_partitions(image, topic.topic_id, replicas, first=present)]


class _Budget:
    """How many more partitions a request, and the cluster, may get."""

    def __init__(self, present: int, cluster_max: int) -> None:
        self._present = present
        self._cluster_max = cluster_max
        self._spent = 0

    def check(self, count: int) -> None:
        if self._spent + count > PARTITIONS_PER_REQUEST_MAX:
            raise _Refused(
                ErrorCode.POLICY_VIOLATION,
                f"expected at most {PARTITIONS_PER_REQUEST_MAX} new partitions in a request, "
                f"found {self._spent + count}",
            )
        if self._present + self._spent + count > self._cluster_max:
            raise _Refused(
                ErrorCode.POLICY_VIOLATION,
                f"expected at most {self._cluster_max} partitions in the cluster (controller.partitions.max), "
                f"found {self._present} and {self._spent + count} more",
            )

    def spend(self, count: int) -> None:
        self.check(count)
        self._spent += count


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """Return the brokers that may hold new replicas."""
    domains = failure_domains({node_id: found.record for node_id, found in image.brokers.items()})
    return [
        UsableBroker(node_id, domains[node_id], not found.active, machine_of(found.record))
        for node_id, found in image.brokers.items()
        if not found.in_controlled_shutdown and not image.is_cordoned(node_id)
    ]


def settings_fault(
    configs: ConfigView,
    image: MetadataImage,
    topic: str,
    settings: dict[str, str],
    replication_factor: int,
) -> str | None:
    """Say what is wrong with a topic's settings, combined with the inherited ones, or return ``None``."""
    try:
        parsed = TopicConfig.parse(settings, configs.inherited(image))
    except ConfigError as error:
        return str(error)
    if "min.insync.replicas" in settings and parsed.min_insync_replicas > replication_factor:
        return (
            f"min.insync.replicas: expected at most {replication_factor}, the replication factor of {topic!r}, "
            f"found {parsed.min_insync_replicas}"
        )
    return None


def _check_quota(permits: Permits, partitions: int) -> None:
    if not permits.take(partitions):
        raise _Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)


def _made_before(image: MetadataImage, topic: NewTopic) -> CreatedTopic | None:
    known = image.topic(topic.name)
    if known is None or known.topic_id != topic.topic_id:
        return None
    count, factor = len(known.partitions), len(known.partitions[0].replicas)
    return CreatedTopic(topic.name, ErrorCode.NONE, "", known.topic_id, count, factor)


def _check_name(image: MetadataImage, name: str, new_names: Collection[str]) -> None:
    fault = topic_name_fault(name)
    if fault is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name == METADATA_LOG:
        raise _Refused(ErrorCode.INVALID_REQUEST, f"expected a name of clients, found {name!r}, the quorum's own log")
    if image.topic_ids.get(name) is not None:
        raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"expected a name without a topic, found {name!r}, which exists")
    key = collision_key(name)
    other = image.collision_names.get(key)
    if other is None:
        other = next((new for new in new_names if collision_key(new) == key), None)
    if other is not None:
        raise _Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"expected a name that differs from others by more than '.' and '_', found {name!r} beside {other!r}",
        )


def _check_assignments(
    image: MetadataImage,
    assignments: Sequence[ReplicaAssignment],
    *,
    first: int,
    replication_factor: int | None,
) -> list[tuple[NodeId, ...]]:
    """Check manual assignments (``ReplicationControlManager.validateManualPartitionAssignment``)."""
    by_number: dict[int, tuple[NodeId, ...]] = {}
    for assignment in assignments:
        number, nodes = assignment.partition, assignment.replicas
        if number in by_number:
            raise _bad_assignment(f"expected each partition once, found {number} twice")
        if not nodes:
            raise _bad_assignment(f"expected replicas of partition {number}, found none")
        if len(set(nodes)) != len(nodes):
            raise _bad_assignment(f"expected replicas of partition {number} on different brokers, found {nodes}")
        for node in nodes:
            if image.broker(node) is None:
                raise _bad_assignment(f"expected registered brokers for partition {number}, found {node}")
            if image.is_cordoned(node):
                raise _bad_assignment(cordoned_fault(node))
        if replication_factor is not None and len(nodes) != replication_factor:
            raise _bad_assignment(f"expected {replication_factor} replicas of partition {number}, found {len(nodes)}")
        if not any(image.is_active(node) for node in nodes):
            raise _bad_assignment(
                f"expected a live broker among those of partition {number}, found {nodes}, all fenced or shutting down"
            )
        replication_factor = len(nodes)
        by_number[number] = nodes
    expected = range(first, first + len(by_number))
    if sorted(by_number) != list(expected):
        raise _bad_assignment(
            f"expected the partitions {expected.start} to {expected.stop - 1}, found {sorted(by_number)[:10]}"
        )
    return [by_number[number] for number in expected]


def _bad_assignment(text: str) -> _Refused:
    return _Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _new_partitions(
    image: MetadataImage, topic_id: TopicId, replicas: Sequence[tuple[NodeId, ...]], first: int = 0
) -> Iterator[PartitionRecord]:
    """Yield new partitions, numbered from ``first``: the live replicas of each are its ISR, and the first of them
    leads."""
    facts: dict[tuple[NodeId, ...], tuple[tuple[NodeId, ...], tuple[DirectoryId, ...]]] = {}
    for number, nodes in enumerate(replicas, first):
        if nodes not in facts:
            isr = tuple(node for node in nodes if image.is_active(node))
            assert isr, f"a new partition without a live replica: {nodes}"
            facts[nodes] = isr, tuple(default_directory(image, node) for node in nodes)
        isr, directories = facts[nodes]
        yield PartitionRecord(
            topic_id=topic_id,
            partition=number,
            replicas=nodes,
            isr=isr,
            eligible_leader_replicas=(),
            last_known_elr=(),
            removing_replicas=(),
            adding_replicas=(),
            leader=isr[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
            leader_recovery=False,
            directories=directories,
        )
