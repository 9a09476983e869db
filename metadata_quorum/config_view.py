"""Which settings hold for a topic or broker, and where each comes from.

Layers, the first that has the setting wins: the topic's own, the broker's own dynamic ones, the dynamic
default of all brokers, the node's file, the built-in default. Source: KIP-226,
``ConfigurationControlManager`` and ``KafkaConfigSchema``.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from tidelog.metadata_quorum.image import BROKER, TOPIC, MetadataImage, TopicImage
from tidelog.model.broker_config import NODE_CONFIG_DEF, NodeConfig
from tidelog.model.config_def import Setting, Update
from tidelog.model.ids import NodeId
from tidelog.model.topic_config import BROKER_SYNONYMS, TOPIC_CONFIG_DEF, TopicConfig
from tidelog.proto.api import DescribedConfig

DYNAMIC_TOPIC: Final = "DYNAMIC_TOPIC_CONFIG"
DYNAMIC_BROKER: Final = "DYNAMIC_BROKER_CONFIG"
DYNAMIC_DEFAULT_BROKER: Final = "DYNAMIC_DEFAULT_BROKER_CONFIG"
STATIC_BROKER: Final = "STATIC_BROKER_CONFIG"
DEFAULT: Final = "DEFAULT_CONFIG"

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_TOPIC_SETTING_OF: Final[dict[str, str]] = {broker: topic for topic, broker in BROKER_SYNONYMS.items()}


class ConfigView:
    """The settings in force, by one node's file and the dynamic settings of an image."""

    def __init__(self, static: NodeConfig) -> None:
        self._static = static
        self._topic_defaults = static.topic_defaults()
        self._built_in = TopicConfig()

    def topic_config(self, image: MetadataImage, topic: str, node_id: NodeId | None = None) -> TopicConfig:
        """The settings of a topic as the broker ``node_id`` sees them (without: any broker)."""
        values = _as_topic_settings(image.config(BROKER, ""))
        if node_id is not None:
            values |= _as_topic_settings(image.config(BROKER, str(node_id)))
        values |= dict(image.config(TOPIC, topic))
        return TopicConfig.layered(values, self._topic_defaults)

    def inherited(self, image: MetadataImage) -> TopicConfig:
        """The settings of a topic that has none of its own."""
        return TopicConfig.layered(_as_topic_settings(image.config(BROKER, "")), self._topic_defaults)

    def min_isr(self, image: MetadataImage, topic: TopicImage) -> int:
        """The effective ``min.insync.replicas``: at most the number of replicas
        (``ReplicationControlManager.getTopicEffectiveMinIsr``)."""
        value = self._value(image, topic.name, MIN_ISR)
        wanted = self._topic_defaults.min_insync_replicas if value is None else int(value)
        return min(wanted, topic.replication_factor)

    def unclean_election(self, image: MetadataImage, topic: str) -> bool:
        """Whether a topic prefers an unsafe leader to none."""
        value = self._value(image, topic, UNCLEAN_ELECTION)
        if value is None:
            return self._topic_defaults.unclean_leader_election_enable
        return value.strip().lower() == "true"

    def _value(self, image: MetadataImage, topic: str, name: str) -> str | None:
        own = image.config(TOPIC, topic).get(name)
        return image.config(BROKER, "").get(BROKER_SYNONYMS[name]) if own is None else own

    # --- Describing ---

    def describe_topic(self, image: MetadataImage, topic: str, node_id: NodeId) -> tuple[DescribedConfig, ...]:
        """Every setting of a topic with the layer it comes from."""
        own = image.config(TOPIC, topic)
        of_broker = _as_topic_settings(image.config(BROKER, str(node_id)))
        of_all = _as_topic_settings(image.config(BROKER, ""))
        effective = self.topic_config(image, topic, node_id).describe()
        from_file = self._topic_defaults.describe()
        built_in = self._built_in.describe()
        described = []
        for setting in TOPIC_CONFIG_DEF.settings.values():
            name = setting.name
            if name in own:
                source = DYNAMIC_TOPIC
            elif name in of_broker:
                source = DYNAMIC_BROKER
            elif name in of_all:
                source = DYNAMIC_DEFAULT_BROKER
            else:
                source = DEFAULT if from_file[name] == built_in[name] else STATIC_BROKER
            described.append(_described(setting, effective[name], source, read_only=False))
        return tuple(described)

    def describe_broker(self, image: MetadataImage, node_id: NodeId | None) -> tuple[DescribedConfig, ...]:
        """Every setting of the node whose file this view has; ``None``: only the dynamic default of all brokers."""
        of_all = image.config(BROKER, "")
        if node_id is None:
            return tuple(
                _described(NODE_CONFIG_DEF.require(name), of_all[name], DYNAMIC_DEFAULT_BROKER, read_only=False)
                for name in sorted(of_all)
            )
        own = image.config(BROKER, str(node_id))
        from_file = self._static.describe()
        described = []
        for setting in NODE_CONFIG_DEF.settings.values():
            name = setting.name
            if name in own:
                value, source = own.get(name), DYNAMIC_BROKER
            elif name in of_all:
                value, source = of_all.get(name), DYNAMIC_DEFAULT_BROKER
            else:
                value = from_file[name]
                source = DEFAULT if value == setting.format(setting.default) else STATIC_BROKER
            described.append(_described(setting, value, source, read_only=setting.update is Update.READ_ONLY))
        return tuple(described)


def _as_topic_settings(of_broker: Map[str, str]) -> dict[str, str]:
    return {_TOPIC_SETTING_OF[name]: value for name, value in of_broker.items() if name in _TOPIC_SETTING_OF}


def _described(setting: Setting, value: str | None, source: str, *, read_only: bool) -> DescribedConfig:
    return DescribedConfig(
        name=setting.name,
        value=value,
        source=source,
        read_only=read_only,
        sensitive=False,
        value_type=setting.value_type.value,
        documentation=setting.doc,
    )
