"""One group's own settings for the consumer protocol, which override the broker's. Source: Kafka's ``GroupConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.config_def import ConfigDef, ConfigError, integer
from tidelog.model.settings.node.coordinator_settings import GroupSettings


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A group's own settings. ``None``: the broker's applies."""

    consumer_session_timeout_ms: int | None = integer(
        None, "How long a silent member of the consumer protocol keeps its partitions.", at_least=1
    )
    consumer_heartbeat_interval_ms: int | None = integer(
        None, "Time between heartbeats of members of the consumer protocol.", at_least=1
    )
    consumer_assignment_interval_ms: int | None = integer(
        None, "Shortest time between two target assignments of the consumer protocol.", at_least=0
    )


GROUP_CONFIG_DEF: Final = ConfigDef(GroupConfig)
SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT: Final = "consumer.assignment.interval.ms"


def broker_setting_of(name: str) -> str:
    """Return the broker's setting that applies to a group without its own."""
    return f"group.{name}"


class GroupTimes(NamedTuple):
    """The settings in force for a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def in_force(config: GroupSettings, values: Mapping[str, str]) -> GroupTimes:
    """Return the effective settings of a group with these own settings, within the node's bounds. Values that this
    version cannot read are ignored."""
    found = {
        SESSION: config.group_consumer_session_timeout_ms,
        HEARTBEAT: config.group_consumer_heartbeat_interval_ms,
        ASSIGNMENT: config.group_consumer_assignment_interval_ms,
    }
    for name, (low, high) in _bounds(config).items():
        try:
            if name in values:
                found[name] = min(max(GROUP_CONFIG_DEF.settings[name].parse(values[name]), low), high)
        except ConfigError:
            continue
    return GroupTimes(found[SESSION], found[HEARTBEAT], found[ASSIGNMENT])


def group_fault(config: GroupSettings, values: Mapping[str, str]) -> str | None:
    """Return why a group cannot have these settings, each of which is readable. Source: ``GroupConfig.validate``."""
    for name, (low, high) in _bounds(config).items():
        if name in values and not low <= int(values[name]) <= high:
            kind = name.removeprefix("consumer.")
            return (
                f"{name}: expected {low} to {high} (group.consumer.min.{kind}, group.consumer.max.{kind}), "
                f"found {values[name]}"
            )
    found = in_force(config, values)
    if found.heartbeat_interval_ms >= found.session_timeout_ms:
        return (
            f"{HEARTBEAT}: expected less than {SESSION} ({found.session_timeout_ms}), "
            f"found {found.heartbeat_interval_ms}"
        )
    return None


def _bounds(config: GroupSettings) -> dict[str, tuple[int, int]]:
    return {
        SESSION: (config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms),
        HEARTBEAT: (config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms),
        ASSIGNMENT: (
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        ),
    }
