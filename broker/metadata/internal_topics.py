"""The configuration of the cluster's internal topics. Source: ``DefaultAutoTopicCreationManager``."""

from __future__ import annotations

from tidelog.model import names
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.topic_config import COMPACT, DELETE, PRODUCER_COMPRESSION, UNCOMPRESSED
from tidelog.proto.calls.api import ConfigEntry, NewTopic


def topic_to_make(name: str, config: NodeConfig) -> NewTopic:
    """Return the configuration of a topic that is created on first use; accepts any name."""
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
        case names.AUDIT_TOPIC:
            copies = config.audit_topic_replication_factor
            return NewTopic(
                name,
                1,  # so that readers see each node's lines in order
                copies,
                configs=(
                    ConfigEntry("cleanup.policy", DELETE),
                    ConfigEntry("compression.type", PRODUCER_COMPRESSION),
                    ConfigEntry("min.insync.replicas", str(min(2, max(1, copies - 1)))),
                    ConfigEntry("unclean.leader.election.enable", "false"),
                ),
            )
        case _:
            return NewTopic(name)
