"""The settings in force for a topic, as the controller sees them.

Layers; the first one with the setting wins: the topic's own, the dynamic default of all brokers, the controller's file,
the built-in default. Source: KIP-226, ``ConfigurationControlManager.getTopicConfig``. (A broker's own dynamic settings
count on that broker only.)
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from tidelog.metadata_quorum.image.image import BROKER, TOPIC, MetadataImage, TopicImage
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.node.coordinator_settings import GroupSettings
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, TopicConfig

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_TOPIC_SETTING_OF: Final[dict[str, str]] = {broker: topic for topic, broker in BROKER_SYNONYMS.items()}


class ConfigView:
    """The settings in force, by the controller's file and an image's dynamic settings."""

    def __init__(self, static: NodeConfig) -> None:
        self._topic_defaults = static.topic_defaults()
        self.of_groups: Final[GroupSettings] = static
        """The controller's own group settings; their bounds limit a group's own settings."""

    def inherited(self, image: MetadataImage) -> TopicConfig:
        """Return the settings of a topic without its own."""
        return TopicConfig.layered(_as_topic_settings(image.config(BROKER, "")), self._topic_defaults)

    def min_isr(self, image: MetadataImage, topic: TopicImage) -> int:
        """Return the configured ``min.insync.replicas`` of a topic;
        :func:`tidelog.model.replica_counts.effective_min_isr` gives a partition's effective one."""
        value = self._value(image, topic.name, MIN_ISR)
        return self._topic_defaults.min_insync_replicas if value is None else int(value)

    def unclean_election(self, image: MetadataImage, topic: str) -> bool:
        """Return whether a topic prefers an unsafe leader to none."""
        value = self._value(image, topic, UNCLEAN_ELECTION)
        if value is None:
            return self._topic_defaults.unclean_leader_election_enable
        return value.strip().lower() == "true"

    def _value(self, image: MetadataImage, topic: str, name: str) -> str | None:
        own = image.config(TOPIC, topic).get(name)
        return image.config(BROKER, "").get(BROKER_SYNONYMS[name]) if own is None else own


def _as_topic_settings(of_broker: Map[str, str]) -> dict[str, str]:
    return {_TOPIC_SETTING_OF[name]: value for name, value in of_broker.items() if name in _TOPIC_SETTING_OF}
