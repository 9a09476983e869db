"""Metadata: which topics there are, who leads their partitions, and where the brokers are reached.

A topic that is asked for and not there is made on the way when both the asker and the node's
configuration want it (``auto.create.topics.enable``); the answer waits a little for its leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.broker.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata_view import MetadataView
from tidelog.metadata_quorum.image import MetadataImage, TopicImage
from tidelog.model.broker_config import NodeConfig
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ZERO_TOPIC_ID, TopicId
from tidelog.model.names import is_internal, topic_name_fault
from tidelog.proto.api import (
    BrokerEndpoint,
    ClusterBroker,
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FeatureLevel,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
    PartitionMetadata,
    TopicMetadata,
)
from tidelog.proto.network import CallContext

CREATE_TIMEOUT_S: Final = 5.0
LEADERS_TIMEOUT_S: Final = 2.0
"""Longest wait for the leaders of a topic that was just made."""
CREATIONS_MAX: Final = 100
"""Most topics being made on first use at one time; others are answered as unknown and asked for again."""
CLUSTER_TIMEOUT_S: Final = 2.0

Outcome = tuple[ErrorCode, str]


class Metadata:
    """Answers out of the view; asks the controller only to make a topic and to describe the quorum."""

    def __init__(self, cluster_id: str, config: NodeConfig, view: MetadataView, channel: ControllerChannel) -> None:
        self._cluster_id = cluster_id
        self._config = config
        self._view = view
        self._channel = channel
        self._creating: dict[str, asyncio.Task[Outcome]] = {}
        # A topic's answer holds until the topic or some broker's registration changes.
        self._answers: dict[TopicId, tuple[TopicImage, object, TopicMetadata]] = {}

    async def handle(self, request: MetadataRequest, context: CallContext) -> MetadataResponse:
        image = self._view.image
        failed: dict[str, Outcome] = {}
        if request.topics and request.allow_auto_topic_creation and self._config.auto_create_topics_enable:
            failed = await self._create([name for name in dict.fromkeys(request.topics) if image.topic(name) is None])
            image = self._view.image
        if request.all_topics:
            topics = [self._topic(image, image.topics[image.topic_ids[name]]) for name in sorted(image.topic_ids)]
        else:
            topics = [self._named(image, name, failed) for name in dict.fromkeys(request.topics)]
            topics += [self._by_id(image, topic_id) for topic_id in dict.fromkeys(request.topic_ids)]
        return MetadataResponse(
            self._cluster_id, self._channel.leader, tuple(_endpoints(image, context.listener)), tuple(topics)
        )

    async def describe_cluster(self, request: DescribeClusterRequest, _: CallContext) -> DescribeClusterResponse:
        """The active controller's word, which knows the voters; without one, what this node knows."""
        try:
            return await self._channel.call(request, timeout_s=CLUSTER_TIMEOUT_S)
        except ControllerUnavailable:
            image = self._view.image
            return DescribeClusterResponse(
                self._cluster_id,
                NO_NODE,
                image.epoch,
                image.offset,
                tuple(
                    ClusterBroker(
                        b.node_id, b.broker_epoch, b.fenced, b.in_controlled_shutdown, b.rack, b.record.listeners
                    )
                    for _, b in sorted(image.brokers.items())
                ),
                (),
                tuple(FeatureLevel(name, level) for name, level in sorted(image.features.items())),
            )

    def close(self) -> None:
        for task in self._creating.values():
            task.cancel()

    # --- Topics as they are -------------------------------------------------------------------------

    def _named(self, image: MetadataImage, name: str, failed: Mapping[str, Outcome]) -> TopicMetadata:
        topic = image.topic(name)
        if topic is not None:
            return self._topic(image, topic)
        fault = topic_name_fault(name)
        if fault is not None:
            return TopicMetadata(ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_TOPIC_ID, False, (), fault)
        code, text = failed.get(name, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"))
        return TopicMetadata(code, name, ZERO_TOPIC_ID, is_internal(name), (), text)

    def _by_id(self, image: MetadataImage, topic_id: TopicId) -> TopicMetadata:
        topic = image.topics.get(topic_id)
        if topic is None:
            return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_ID, "", topic_id, False, (), "there is no topic of this id")
        return self._topic(image, topic)

    def _topic(self, image: MetadataImage, topic: TopicImage) -> TopicMetadata:
        known = self._answers.get(topic.topic_id)
        if known is not None and known[0] is topic and known[1] is image.brokers:
            return known[2]
        made = _topic_metadata(image, topic)
        if len(self._answers) > 2 * len(image.topics) + 16:
            self._answers.clear()  # topics that are gone left theirs behind
        self._answers[topic.topic_id] = (topic, image.brokers, made)
        return made

    # --- Topics made on first use ---------------------------------------------------------------------

    async def _create(self, names: Iterable[str]) -> dict[str, Outcome]:
        tasks: dict[str, asyncio.Task[Outcome]] = {}
        for name in names:
            if topic_name_fault(name) is not None:
                continue
            task = self._creating.get(name)
            if task is None:
                if len(self._creating) >= CREATIONS_MAX:
                    continue
                task = self._creating[name] = asyncio.get_running_loop().create_task(self._create_one(name))
                task.add_done_callback(lambda _, name=name: self._creating.pop(name))  # type: ignore[misc]
            tasks[name] = task
        if not tasks:
            return {}
        await asyncio.wait(tasks.values())
        return {name: task.result() for name, task in tasks.items()}

    async def _create_one(self, name: str) -> Outcome:
        try:
            answer = await self._channel.call(
                CreateTopicsRequest((NewTopic(name),)), timeout_s=CREATE_TIMEOUT_S, patient=True
            )
        except ControllerUnavailable as error:
            return ErrorCode.LEADER_NOT_AVAILABLE, str(error)
        result = answer.topics[0]
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return result.error, result.error_message
        await self._view.wait_until(lambda image: _has_leaders(image, name), timeout_s=LEADERS_TIMEOUT_S)
        return ErrorCode.LEADER_NOT_AVAILABLE, "the topic was just made"


def _has_leaders(image: MetadataImage, name: str) -> bool:
    topic = image.topic(name)
    return topic is not None and all(p.leader != NO_NODE for p in topic.partitions.values())


def _endpoints(image: MetadataImage, listener: str) -> Iterable[BrokerEndpoint]:
    for node_id, broker in sorted(image.brokers.items()):
        if broker.fenced:
            continue
        found = broker.endpoint(listener)
        if found is not None:
            yield BrokerEndpoint(node_id, found.host, found.port, broker.rack)


def _topic_metadata(image: MetadataImage, topic: TopicImage) -> TopicMetadata:
    live = {node_id for node_id, broker in image.brokers.items() if not broker.fenced}
    partitions = []
    for found in topic.in_order():
        offline = tuple(
            node for node in found.replicas if node not in live or not image.has_online_directory(node, found)
        )
        led = found.leader in live
        partitions.append(
            PartitionMetadata(
                ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
                found.partition,
                found.leader if led else NO_NODE,
                found.leader_epoch,
                found.replicas,
                found.isr,
                found.eligible_leader_replicas,
                offline,
            )
        )
    return TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, is_internal(topic.name), tuple(partitions))
