"""How the topics in which the cluster keeps its own state are made. Source: ``DefaultAutoTopicCreationManager``."""

from __future__ import annotations

from tidelog.model.broker_config import NodeConfig
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.model.topic_config import COMPACT, PRODUCER_COMPRESSION
from tidelog.proto.api import ConfigEntry, NewTopic


def topic_to_make(name: str, config: NodeConfig) -> NewTopic:
    """What a topic is to be like that is made because somebody uses it; any name will do."""
    if name != GROUP_OFFSETS_TOPIC:
        return NewTopic(name)
    return NewTopic(
        name,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        configs=(
            ConfigEntry("cleanup.policy", COMPACT),
            ConfigEntry("compression.type", PRODUCER_COMPRESSION),
            ConfigEntry("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )
