"""Where a setting's value comes from."""

from __future__ import annotations

import pytest

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.model.settings.broker_config import NODE_CONFIG_DEF, NodeConfig
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, OTHER_UNITS
from tidelog.proto.calls.api import DescribedConfig

STATIC = "STATIC_BROKER_CONFIG"
DEFAULT = "DEFAULT_CONFIG"


def settings(**static: str) -> Settings:
    return Settings(NodeConfig.parse({"node.id": "1"} | {n.replace("_", "."): v for n, v in static.items()}), {}, {})


def described(found: Settings, name: str) -> DescribedConfig:
    return next(config for config in found.describe_topic({}, synonyms=True) if config.name == name)


@pytest.mark.parametrize(
    ("given", "name", "value", "by"),
    [
        ({"log_retention_hours": "1"}, "retention.ms", "3600000", "log.retention.hours"),
        ({"log_retention_hours": "-1"}, "retention.ms", "-1", "log.retention.hours"),
        ({"log_retention_minutes": "2"}, "retention.ms", "120000", "log.retention.minutes"),
        ({"log_retention_minutes": "2", "log_retention_hours": "1"}, "retention.ms", "120000", "log.retention.minutes"),
        ({"log_retention_ms": "3", "log_retention_minutes": "2"}, "retention.ms", "3", "log.retention.ms"),
        ({"log_roll_hours": "2"}, "segment.ms", "7200000", "log.roll.hours"),
        ({"log_roll_jitter_hours": "1"}, "segment.jitter.ms", "3600000", "log.roll.jitter.hours"),
        ({"log_flush_scheduler_interval_ms": "9"}, "flush.ms", "9", "log.flush.scheduler.interval.ms"),
    ],
)
def test_a_setting_given_in_another_unit_is_the_files(given: dict[str, str], name: str, value: str, by: str) -> None:
    """Source: ``KafkaConfigSchema.resolveEffectiveTopicConfig``."""
    found = described(settings(**given), name)
    assert (found.value, found.source) == (value, STATIC)
    assert (found.synonyms[0].name, found.synonyms[0].source) == (by, STATIC)
    assert found.synonyms[0].value == given[by.replace(".", "_")]


@pytest.mark.parametrize("name", sorted(BROKER_SYNONYMS))
def test_what_the_file_leaves_out_is_the_default(name: str) -> None:
    found = described(settings(), name)
    assert found.source == DEFAULT
    last = found.synonyms[-1]
    assert last.source == DEFAULT
    assert last.name in (BROKER_SYNONYMS[name], *OTHER_UNITS.get(BROKER_SYNONYMS[name], ()))


def test_what_was_set_at_run_time_wins_over_each_unit_in_the_file() -> None:
    static = NodeConfig.parse({"node.id": "1", "log.retention.hours": "1", "log.retention.ms": "2"})
    found = described(Settings(static, {"log.retention.ms": "3"}, {}), "retention.ms")
    assert (found.value, found.source) == ("3", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert [(s.name, s.value) for s in found.synonyms] == [
        ("log.retention.ms", "3"),
        ("log.retention.ms", "2"),
        ("log.retention.hours", "1"),
        ("log.retention.hours", "168"),
    ]


def test_every_other_unit_counts_only_while_the_setting_itself_is_unset() -> None:
    for name, others in OTHER_UNITS.items():
        assert NODE_CONFIG_DEF.settings[name].default is None
        assert NODE_CONFIG_DEF.settings[others[-1]].default is not None
