"""The consumer's settings: Kafka's names and defaults (``ConsumerConfig``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.config import settings
from tidelog.client.config.assignment import rebalance_protocol
from tidelog.client.config.connection import ClientConnection, ConnectionSettings
from tidelog.client.config.priorities import PriorityWeights, check_weights
from tidelog.model.assignors import ASSIGNORS, Assignor
from tidelog.model.settings.config_def import ConfigDef, ConfigError, boolean, integer, split_list, text
from tidelog.proto.records.header_filter import HeaderFilter

if TYPE_CHECKING:
    from tidelog.client.config.interceptors import ConsumerInterceptor
    from tidelog.client.config.serializers import Deserializer


Strategy = str | type[Assignor] | Assignor
"""An assignor: by its name, its class, or an instance that this consumer alone uses."""
DEFAULT_STRATEGY: Final = ("range", "cooperative-sticky")
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_REFUSED: Final = {
    CLASSIC: {"group_remote_assignor": "partition_assignment_strategy"},
    CONSUMER: {
        "session_timeout_ms": "group.consumer.session.timeout.ms of the broker",
        "heartbeat_interval_ms": "group.consumer.heartbeat.interval.ms of the broker",
        "partition_assignment_strategy": "group_remote_assignor",
    },
}
"""Settings that a protocol does not support, and what to use instead. Kafka's consumer refuses the same."""


class ConsumerSettings(ConnectionSettings, total=False):
    """The keyword arguments of a consumer."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: Strategy | Sequence[Strategy]
    exclude_internal_topics: bool
    client_rack: str
    auto_offset_reset: str
    isolation_level: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    priority_weights: PriorityWeights | None
    header_filter: HeaderFilter | None
    check_crcs: bool
    allow_auto_create_topics: bool
    default_api_timeout_ms: int
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    interceptor_classes: Sequence[ConsumerInterceptor | Callable[[], ConsumerInterceptor]]


@dataclass(frozen=True)
class ConsumerConfig(ClientConnection):
    """A consumer's settings, checked. Made by :meth:`of`."""

    group_id: str | None = text(None, "The consumer group; subscribe() and commits need one.")
    group_instance_id: str | None = text(
        None, "Permanent name of this member; it keeps its partitions through a restart within session_timeout_ms."
    )
    group_protocol: str = text(
        CLASSIC,
        "How the group assigns partitions: classic, by a member of it; consumer, by its coordinator (KIP-848).",
        choices=(CLASSIC, CONSUMER),
    )
    group_remote_assignor: str | None = text(
        None,
        "The coordinator's assignor, uniform or range; the one that most members request wins. Needs "
        "group_protocol=consumer.",
    )
    enable_auto_commit: bool = boolean(True, "Commit positions automatically in poll() and close(). Needs a group_id.")
    auto_commit_interval_ms: int = integer(5_000, "Time between automatic commits.", at_least=0)
    session_timeout_ms: int = integer(
        45_000, "Time without a heartbeat after which the group removes this member.", at_least=1
    )
    heartbeat_interval_ms: int = integer(
        3_000, "Time between heartbeats; must be less than session_timeout_ms.", at_least=1
    )
    max_poll_interval_ms: int = integer(
        300_000, "Longest time between two calls of poll(); beyond it, the consumer leaves the group.", at_least=1
    )
    exclude_internal_topics: bool = boolean(True, "Whether a pattern subscription leaves out internal topics.")
    client_rack: str = text(
        "",
        "This client's rack: brokers with replica.selector.class=RackAwareReplicaSelector let it read from in-sync "
        "replicas there (KIP-392).",
    )
    auto_offset_reset: str = text(
        "latest",
        "Where to start without a position, or outside the log: earliest, latest, none (raise), or "
        "by_duration:PnDTnHnMn.nS (that long ago).",
    )
    isolation_level: str = text(
        "read_uncommitted",
        "Whether the consumer sees records of open transactions.",
        choices=("read_uncommitted", "read_committed"),
    )
    fetch_min_bytes: int = integer(
        1,
        "Bytes that a broker collects before it answers, within fetch_max_wait_ms; its fetch.max.bytes at most.",
        at_least=0,
    )
    fetch_max_wait_ms: int = integer(500, "Longest time that a broker waits for fetch_min_bytes.", at_least=0)
    fetch_max_bytes: int = integer(52_428_800, "Most bytes in one fetch, and most bytes fetched ahead.", at_least=0)
    max_partition_fetch_bytes: int = integer(
        1_048_576, "Most bytes per partition in one fetch; a larger batch still comes through.", at_least=0
    )
    max_poll_records: int = integer(500, "Most records that one poll() returns.", at_least=1)
    check_crcs: bool = boolean(True, "Check each batch's checksum.")
    allow_auto_create_topics: bool = boolean(True, "Let the cluster create an assigned topic that does not exist.")
    default_api_timeout_ms: int = integer(60_000, "Longest time for calls without a timeout of their own.", at_least=0)
    priority_weights: PriorityWeights | None = None
    header_filter: HeaderFilter | None = None
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    interceptor_classes: Sequence[ConsumerInterceptor | Callable[[], ConsumerInterceptor]] = field(default=())
    partition_assignment_strategy: Strategy | Sequence[Strategy] = DEFAULT_STRATEGY

    @classmethod
    def of(cls, values: ConsumerSettings | dict[str, Any]) -> ConsumerConfig:
        """Check ``values``. Raises :class:`ConfigError` that names the setting, what was expected and found."""
        config = settings.build(cls, CONSUMER_DEFINITION, dict(values))
        OffsetReset.parse(config.auto_offset_reset)
        given = {name.replace(".", "_") for name in values}
        _check_group(config, given)
        check_weights(config.priority_weights)
        return config

    @property
    def auto_commits(self) -> bool:
        return self.enable_auto_commit and self.group_id is not None

    @property
    def by_server(self) -> bool:
        """Whether the coordinator assigns the partitions."""
        return self.group_protocol == CONSUMER

    @property
    def effective_client_id(self) -> str:
        """The prefix of member ids made by the coordinator (Kafka's default: ``consumer-`` and the group)."""
        return self.client_id or "-".join(filter(None, ("consumer", self.group_id, self.group_instance_id)))

    def assignors(self) -> tuple[Assignor, ...]:
        """Return the assignors in ``partition_assignment_strategy``: new instances for names and classes, and given
        instances."""
        return _assignors(self.partition_assignment_strategy)

    @property
    def reset(self) -> OffsetReset:
        return OffsetReset.parse(self.auto_offset_reset)

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"


def _check_group(config: ConsumerConfig, given: set[str]) -> None:
    for name in ("group_id", "group_instance_id", "group_remote_assignor"):
        value = getattr(config, name)
        if value is not None and not value.strip():
            raise ConfigError(f"{name}: expected a non-empty name, found {value!r}")
    refused = _REFUSED[config.group_protocol]
    for name in sorted(given & refused.keys()):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name}: expected none with group_protocol={config.group_protocol}, found {getattr(config, name)!r}; "
                f"use {refused[name]}"
            )
    if config.group_id is None and "enable_auto_commit" in given and config.enable_auto_commit:
        raise ConfigError("enable_auto_commit: expected false without a group_id, found true")
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigError(
            f"heartbeat_interval_ms: expected less than session_timeout_ms ({config.session_timeout_ms}), "
            f"found {config.heartbeat_interval_ms}"
        )
    rebalance_protocol(_assignors(config.partition_assignment_strategy))


def _assignors(strategies: Strategy | Sequence[Strategy]) -> tuple[Assignor, ...]:
    setting = "partition_assignment_strategy"
    if isinstance(strategies, str):
        several: Sequence[Strategy] = split_list(strategies)
    else:
        several = strategies if isinstance(strategies, (list, tuple)) else (strategies,)
    made: list[Assignor] = []
    for strategy in several:
        if isinstance(strategy, str):
            if strategy not in ASSIGNORS:
                raise ConfigError(f"{setting}: expected {', '.join(ASSIGNORS)} or an assignor, found {strategy!r}")
            made.append(ASSIGNORS[strategy]())
        else:
            made.append(strategy() if isinstance(strategy, type) else strategy)
        if not all(hasattr(made[-1], part) for part in ("name", "protocols", "user_data", "assign", "on_assignment")):
            raise ConfigError(
                f"{setting}: expected the name of an assignor, its class or an instance, found {strategy!r}"
            )
    names = [assignor.name for assignor in made]
    if not made or len(set(names)) < len(names):
        raise ConfigError(f"{setting}: expected one or several assignors of different names, found {names}")
    return tuple(made)


CONSUMER_DEFINITION: Final = ConfigDef(ConsumerConfig)
"""Every plain-value setting, with its type, default, bounds and meaning."""

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where to start without a position. ``kind``: earliest, latest, none or by_duration (KIP-1106)."""

    kind: str
    duration_ms: int = 0

    @classmethod
    def parse(cls, given: str) -> OffsetReset:
        """Read the setting. Raises :class:`ConfigError`."""
        if given in ("earliest", "latest", "none"):
            return cls(given)
        kind, _, duration = given.partition(":")
        found = _DURATION.fullmatch(duration) if kind == "by_duration" else None
        if found is None or duration in ("P", ""):
            raise ConfigError(
                "auto_offset_reset: expected earliest, latest, none or by_duration:PnDTnHnMn.nS "
                f"(such as by_duration:PT1H), found {given!r}"
            )
        parts = {name: float(value or 0) for name, value in found.groupdict().items()}
        seconds = parts["days"] * 86_400 + parts["hours"] * 3_600 + parts["minutes"] * 60 + parts["seconds"]
        return cls("by_duration", int(seconds * 1_000))
