"""Metadata: the topics, their partitions' leaders, and the brokers' addresses.

A missing topic is created if both the request and the node's configuration want it (``auto.create.topics.enable``); the
answer waits briefly for its leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tidelog.broker.handlers.topic_creation import Outcome, TopicCreation
from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage, TopicImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ZERO_TOPIC_ID, NodeId, TopicId
from tidelog.model.names import is_internal, topic_name_fault
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    BrokerEndpoint,
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FeatureLevel,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from tidelog.proto.transport.network import CallContext

CLUSTER_TIMEOUT_S: Final = 2.0
FENCED_NAMED_S: Final = 9.0
"""How long Kafka clients still see a broker after it was fenced (Kafka's ``broker.session.timeout.ms``)."""


class Metadata:
    """Answers from the view; asks the controller only to create a topic or describe the quorum."""

    def __init__(
        self,
        cluster_id: str,
        config: NodeConfig,
        view: MetadataView,
        channel: ControllerChannel,
        creation: TopicCreation,
    ) -> None:
        self._cluster_id = cluster_id
        self._config = config
        self._names_fenced = frozenset(found.name for found in config.kafka_listeners)
        self._fenced_s: dict[NodeId, float] = {}
        """When each fenced broker was fenced, by the event loop's clock."""
        self._view = view
        self._channel = channel
        self._creation = creation
        # A topic's answer at a listener is valid until the topic or some broker's registration changes.
        self._answers: dict[tuple[str, TopicId], tuple[TopicImage, object, TopicMetadata]] = {}
        view.subscribe(self._note_fenced)

    async def handle(self, request: MetadataRequest, context: CallContext) -> MetadataResponse:
        image = self._view.image
        listener = context.listener
        failed: dict[str, Outcome] = {}
        if request.topics and request.allow_auto_topic_creation and self._config.auto_create_topics_enable:
            missing = [name for name in dict.fromkeys(request.topics) if image.topic(name) is None]
            failed = await self._creation.create(missing, context)
            image = self._view.image
        if request.all_topics:
            found = [image.topics[image.topic_ids[name]] for name in sorted(image.topic_ids)]
            topics = [self._topic(image, topic, listener) for topic in found]
        else:
            topics = [self._named(image, name, listener, failed) for name in dict.fromkeys(request.topics)]
            topics += [self._by_id(image, topic_id, listener) for topic_id in dict.fromkeys(request.topic_ids)]
        return MetadataResponse(
            self._cluster_id,
            self._channel.leader,
            tuple(_endpoints(image, listener, self._still_named(listener))),
            tuple(topics),
        )

    def _note_fenced(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        now_s = asyncio.get_running_loop().time()
        for node_id in delta.brokers:
            broker = image.broker(node_id)
            if broker is None or not broker.fenced:
                self._fenced_s.pop(node_id, None)
            else:
                self._fenced_s.setdefault(node_id, now_s)
        yield from ()

    def _still_named(self, listener: str) -> frozenset[NodeId]:
        """Return the fenced brokers that clients of this listener still see.

        Kafka names no fenced broker, but takes 9 s to fence one that died; here it takes 0.7 s, so a restarting broker
        would briefly vanish from every client's view. librdkafka (2.10 and later) drops a broker that is not named, and
        may never reconnect to it when it returns
        (``test_each_input_once_while_nodes_are_killed`` in tests/kafka/clients/test_transactions_moves.py). The time
        must not exceed Kafka's: tools that ask every broker wait for one that is named but dead, and fail.
        """
        if not self._fenced_s or listener not in self._names_fenced:
            return frozenset()
        since_s = asyncio.get_running_loop().time() - FENCED_NAMED_S
        return frozenset(node_id for node_id, fenced_s in self._fenced_s.items() if fenced_s > since_s)

    async def describe_cluster(self, request: DescribeClusterRequest, _: CallContext) -> DescribeClusterResponse:
        """Return the active controller's answer, which knows the voters; without one, what this node knows."""
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
                        b.node_id,
                        b.broker_epoch,
                        b.fenced,
                        b.in_controlled_shutdown,
                        b.rack,
                        b.record.listeners,
                        image.is_cordoned(b.node_id),
                    )
                    for _, b in sorted(image.brokers.items())
                ),
                (),
                tuple(FeatureLevel(name, level) for name, level in sorted(image.features.items())),
            )

    # --- Topics as they are -------------------------------------------------------------------------

    def _named(self, image: MetadataImage, name: str, listener: str, failed: Mapping[str, Outcome]) -> TopicMetadata:
        topic = image.topic(name)
        if topic is not None:
            return self._topic(image, topic, listener)
        fault = topic_name_fault(name)
        if fault is not None:
            return TopicMetadata(ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_TOPIC_ID, False, (), fault)
        code, text = failed.get(name, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"))
        return TopicMetadata(code, name, ZERO_TOPIC_ID, is_internal(name), (), text)

    def _by_id(self, image: MetadataImage, topic_id: TopicId, listener: str) -> TopicMetadata:
        topic = image.topics.get(topic_id)
        if topic is None:
            return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_ID, "", topic_id, False, (), "no topic has this id")
        return self._topic(image, topic, listener)

    def _topic(self, image: MetadataImage, topic: TopicImage, listener: str) -> TopicMetadata:
        key = (listener, topic.topic_id)
        known = self._answers.get(key)
        if known is not None and known[0] is topic and known[1] is image.brokers:
            return known[2]
        made = _topic_metadata(image, topic, listener)
        if len(self._answers) > 4 * len(image.topics) + 16:
            self._answers.clear()  # drops the answers of deleted topics
        self._answers[key] = (topic, image.brokers, made)
        return made


def _endpoints(image: MetadataImage, listener: str, fenced_too: Collection[NodeId]) -> Iterable[BrokerEndpoint]:
    """Return brokers' addresses: serving ones, and those in ``fenced_too``."""
    for node_id, broker in sorted(image.brokers.items()):
        if broker.fenced and node_id not in fenced_too:
            continue
        found = broker.endpoint(listener)
        if found is not None:
            yield BrokerEndpoint(node_id, found.host, found.port, broker.rack)


def _topic_metadata(image: MetadataImage, topic: TopicImage, listener: str) -> TopicMetadata:
    """Describe a topic. A leader without a listener of this name counts as none, because the client could not use it
    (``MetadataCache``)."""
    live = {node_id for node_id, broker in image.brokers.items() if not broker.fenced}
    reached = {node_id for node_id in live if image.brokers[node_id].endpoint(listener) is not None}
    partitions = []
    for found in topic.in_order():
        offline = tuple(
            node for node in found.replicas if node not in live or not image.has_online_directory(node, found)
        )
        error = ErrorCode.NONE
        if found.leader not in reached:
            error = ErrorCode.LISTENER_NOT_FOUND if found.leader in live else ErrorCode.LEADER_NOT_AVAILABLE
        partitions.append(
            PartitionMetadata(
                error,
                found.partition,
                NO_NODE if error else found.leader,
                found.leader_epoch,
                found.replicas,
                found.isr,
                found.eligible_leader_replicas,
                offline,
                found.last_known_elr,
            )
        )
    return TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, is_internal(topic.name), tuple(partitions))
