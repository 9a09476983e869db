"""Determines the value of a setting: a topic's own, this broker's, all brokers', the file's, or the default.

Pure. Source of the order: KIP-226 and Kafka's ``DynamicBrokerConfig``. A stored value that this version cannot read is
skipped and listed in :attr:`Settings.faults`. The controller checks values before it stores them, so this concerns
values that another version stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import chain
from typing import Any

from tidelog.model.settings.broker_config import NODE_CONFIG_DEF, NodeConfig
from tidelog.model.settings.client_metrics_config import CLIENT_METRICS_CONFIG_DEF
from tidelog.model.settings.config_def import ConfigError, Setting, Update
from tidelog.model.settings.group_config import GROUP_CONFIG_DEF, GroupConfig, broker_setting_of, in_force
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, OTHER_UNITS, TOPIC_CONFIG_DEF, TopicConfig
from tidelog.proto.calls.api import ConfigSynonym, DescribedConfig

Values = Mapping[str, str]


class Settings:
    """The settings in force on one broker under one metadata image.

    ``all_brokers`` and ``this_broker`` are the dynamic settings, by Kafka name.
    """

    def __init__(self, static: NodeConfig, all_brokers: Values, this_broker: Values) -> None:
        self.static = static
        self.all_brokers = dict(all_brokers)
        self.this_broker = dict(this_broker)
        self.faults: list[str] = []
        self.node = self._apply(static)
        self.topic_defaults = self.node.topic_defaults()

    def topic(self, values: Values) -> TopicConfig:
        """Return the configuration of a topic with these settings of its own. Unreadable values are skipped."""
        if not values:
            return self.topic_defaults
        try:
            return TopicConfig.parse(values, self.topic_defaults)
        except ConfigError:
            pass
        good: dict[str, str] = {}
        for name, value in values.items():
            try:
                TopicConfig.parse({**good, name: value}, self.topic_defaults)
            except ConfigError as error:
                self.faults.append(str(error))
            else:
                good[name] = value
        return TopicConfig.parse(good, self.topic_defaults)

    def describe_topic(self, values: Values, *, synonyms: bool = False) -> tuple[DescribedConfig, ...]:
        """Return every setting of a topic with its value and source."""
        in_force = self.topic(values).describe()
        return tuple(
            _described(
                setting,
                in_force[name],
                self._topic_synonyms(name, values),
                read_only=False,
                shown=synonyms,
            )
            for name, setting in TOPIC_CONFIG_DEF.settings.items()
        )

    def describe_client_metrics(self, values: Values, *, synonyms: bool = False) -> tuple[DescribedConfig, ...]:
        """Return every setting of a client metrics subscription. Brokers have no defaults for these."""
        found = []
        for name, setting in CLIENT_METRICS_CONFIG_DEF.settings.items():
            default = ConfigSynonym(name, setting.format(setting.default), "DEFAULT_CONFIG")
            own = (ConfigSynonym(name, values[name], "DYNAMIC_CLIENT_METRICS_CONFIG"),) if name in values else ()
            there = (*own, default)
            found.append(_described(setting, there[0].value, there, read_only=False, shown=synonyms))
        return tuple(found)

    def describe_group(self, values: Values, *, synonyms: bool = False) -> tuple[DescribedConfig, ...]:
        """Return every setting of a group: its own, else this broker's."""
        in_effect = GROUP_CONFIG_DEF.describe(GroupConfig(*in_force(self.node, values)))
        found = []
        for name, setting in GROUP_CONFIG_DEF.settings.items():
            own = (ConfigSynonym(name, values[name], "DYNAMIC_GROUP_CONFIG"),) if name in values else ()
            there = (*own, *self._synonyms(broker_setting_of(name)))
            found.append(_described(setting, in_effect[name], there, read_only=False, shown=synonyms))
        return tuple(found)

    def describe_broker(self, *, synonyms: bool = False) -> tuple[DescribedConfig, ...]:
        """Return every setting of this broker with its value and source."""
        in_force = self.node.describe()
        return tuple(
            _described(
                setting,
                in_force[name],
                self._synonyms(name),
                read_only=setting.update is Update.READ_ONLY,
                shown=synonyms,
            )
            for name, setting in NODE_CONFIG_DEF.settings.items()
        )

    def describe_all_brokers(self, *, synonyms: bool = False) -> tuple[DescribedConfig, ...]:
        """Return the dynamic settings for every broker without its own."""
        return tuple(
            _described(
                NODE_CONFIG_DEF.settings[name],
                value,
                (ConfigSynonym(name, value, "DYNAMIC_DEFAULT_BROKER_CONFIG"),),
                read_only=False,
                shown=synonyms,
            )
            for name, value in sorted(self.all_brokers.items())
            if name in NODE_CONFIG_DEF.settings
        )

    def _apply(self, static: NodeConfig) -> NodeConfig:
        found = static
        for values in (self.all_brokers, self.this_broker):
            for name, value in values.items():
                try:
                    parsed: dict[str, Any] = NODE_CONFIG_DEF.parse({name: value})
                    found = dataclasses.replace(found, **parsed)
                except ConfigError as error:
                    self.faults.append(str(error))
        return found

    def _topic_synonyms(self, name: str, values: Values) -> tuple[ConfigSynonym, ...]:
        """Return the topic's own value, then those of the broker settings behind it
        (``KafkaConfigSchema.resolveEffectiveTopicConfig``)."""
        own = (ConfigSynonym(name, values[name], "DYNAMIC_TOPIC_CONFIG"),) if name in values else ()
        behind = BROKER_SYNONYMS.get(name)
        if behind is not None:
            units = (behind, *OTHER_UNITS.get(behind, ()))
            return own + tuple(chain.from_iterable(map(self._synonyms, units)))
        setting = TOPIC_CONFIG_DEF.settings[name]
        return (*own, ConfigSynonym(name, setting.format(setting.default), "DEFAULT_CONFIG"))

    def _synonyms(self, name: str) -> tuple[ConfigSynonym, ...]:
        """Return every value of a broker setting, the one in force first."""
        setting = NODE_CONFIG_DEF.settings[name]
        found = []
        if name in self.this_broker:
            found.append(ConfigSynonym(name, self.this_broker[name], "DYNAMIC_BROKER_CONFIG"))
        if name in self.all_brokers:
            found.append(ConfigSynonym(name, self.all_brokers[name], "DYNAMIC_DEFAULT_BROKER_CONFIG"))
        static = getattr(self.static, NODE_CONFIG_DEF.field_name(name))
        # A file that contains a default value is equivalent to one that does not.
        if static != setting.default:
            found.append(ConfigSynonym(name, setting.format(static), "STATIC_BROKER_CONFIG"))
        if setting.default is not None:
            found.append(ConfigSynonym(name, setting.format(setting.default), "DEFAULT_CONFIG"))
        return tuple(found)


def _described(
    setting: Setting, value: str | None, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool, shown: bool
) -> DescribedConfig:
    """Describe a setting. ``synonyms``: every place with a value, the one in force first; included if ``shown``."""
    return DescribedConfig(
        name=setting.name,
        value=None if setting.secret else value,
        source=synonyms[0].source if synonyms else "DEFAULT_CONFIG",
        read_only=read_only,
        sensitive=setting.secret,
        value_type=setting.value_type.value,
        documentation=setting.doc,
        synonyms=synonyms if shown and not setting.secret else (),
    )
