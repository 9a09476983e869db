"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments, translated; the controller decides."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.calls.common.translation import answered, outcome, partitions_of
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.ids import NodeId
from tidelog.proto.calls.reassignment_api import (
    PREFERRED,
    UNCLEAN,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    NamedPartition,
    PartitionReassignment,
)
from tidelog.proto.kafka.messages import field

_ELECTIONS: Final = {0: PREFERRED, 1: UNCLEAN}
"""Kafka's ``ElectionType``."""


async def elect_leaders(request: Any, _: int, context: KafkaContext) -> Answer:
    """Elect leaders. Version 0 only knows preferred leaders. The controller refuses an unknown election type."""
    number = field(request, "election_type", 0)
    topics = request.topic_partitions
    named = tuple(NamedPartition(at.topic, partition) for at in topics or () for partition in at.partitions)
    election = _ELECTIONS.get(number, f"election type {number}")
    answer = await context.call(ElectLeadersRequest(election, named, topics is None, request.timeout))
    return {
        "error_code": answer.error,
        "replica_election_results": by_topic(
            answer.partitions, topic="topic", partitions="partition_result", partition="partition_id"
        ),
    }


async def alter_reassignments(request: Any, _: int, context: KafkaContext) -> Answer:
    """Alter reassignments. Null replicas cancel the current move. From version 1 on, the request may forbid changing
    the replication factor (KIP-860)."""
    items = tuple(
        PartitionReassignment(topic.name, at.partition_index, cancel=True)
        if at.replicas is None
        else PartitionReassignment(topic.name, at.partition_index, tuple(map(NodeId, at.replicas)))
        for topic in request.topics
        for at in topic.partitions
    )
    may_change = bool(field(request, "allow_replication_factor_change", True))
    answer = await context.call(AlterPartitionReassignmentsRequest(items, request.timeout, may_change))
    return {
        **outcome(answer),
        "allow_replication_factor_change": may_change,
        "responses": by_topic(answer.partitions),
    }


async def list_reassignments(request: Any, _: int, context: KafkaContext) -> Answer:
    """List reassignments; without topics, those of all partitions."""
    topics = request.topics
    named = partitions_of(NamedPartition, topics, "partition_indexes")
    answer = await context.call(ListPartitionReassignmentsRequest(named, topics is None, request.timeout))
    ongoing = partial(answered, adding="adding_replicas", removing="removing_replicas")
    return {**outcome(answer), "topics": by_topic(answer.reassignments, ongoing)}


APIS: Final = (
    Api(43, 0, 2, elect_leaders),
    Api(45, 0, 1, alter_reassignments),
    Api(46, 0, 0, list_reassignments),
)
