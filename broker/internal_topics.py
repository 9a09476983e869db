"""How the topics in which the cluster keeps its own state are made. Source: ``DefaultAutoTopicCreationManager``."""

from __future__ import annotations

from tidelog.model import names
from tidelog.model.broker_config import NodeConfig
from tidelog.model.topic_config import COMPACT, PRODUCER_COMPRESSION, UNCOMPRESSED
from tidelog.proto.api import ConfigEntry, NewTopic


def topic_to_make(name: str, config: NodeConfig) -> NewTopic:
    """What a topic is to be like that is made because somebody uses it; any name will do."""
    match name:
        case names.GROUP_OFFSETS_TOPIC:
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
        case names.TRANSACTION_STATE_TOPIC:
            return NewTopic(
                name,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_replication_factor,
                configs=(
                    ConfigEntry("cleanup.policy", COMPACT),
                    ConfigEntry("compression.type", UNCOMPRESSED),
                    ConfigEntry("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                    ConfigEntry("segment.bytes", str(config.transaction_state_log_segment_bytes)),
                    ConfigEntry("unclean.leader.election.enable", "false"),
                ),
            )
        case _:
            return NewTopic(name)
