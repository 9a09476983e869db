"""The options of the source, as in Spark's Kafka source: names, defaults, precedence, and what is refused.

Pure. Names are looked up without regard to case, as everywhere in Spark. Source: Spark's ``KafkaSourceProvider``.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.client.config.admin import AdminConfig
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.config.security import JAAS, KAFKA_NAMES, SECRETS, STORE_TYPES
from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.ids import TopicPartition
from tidelog.model.secret import Secret
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.listener_security import PEM
from tidelog.spark_connector.option_names import PREFIX, of_a_table, unknown

BOOTSTRAP: Final = "tidelog.bootstrap.servers"

LATEST: Final = -1
EARLIEST: Final = -2
"""Stand for offsets that are looked up when the query is planned. Source: Kafka's ``ListOffsetsRequest``."""

CLIENT_DEFAULTS: Final = {"default_api_timeout_ms": "30000"}
"""The source's own defaults, where they differ from the client's: a query ends soon if its brokers are down."""

BROKER_OUTAGE: Final = "5m"
"""How long a stream tolerates that no broker answers, unless ``maxBrokerOutage`` is set."""

_STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
_REFUSED: Final = {
    "auto.offset.reset": "set the source option 'startingOffsets' to 'earliest' or 'latest' to say where to start",
    "enable.auto.commit": "the query's checkpoint has the offsets",
    "group.id": "the source is in no group: the query's checkpoint has the offsets",
    "key.deserializer": "keys are columns of bytes; use DataFrame operations to explicitly deserialize them",
    "value.deserializer": "values are columns of bytes; use DataFrame operations to explicitly deserialize them",
    "interceptor.classes": "they could change what is read",
    "allow.auto.create.topics": "a topic that is read must be there",
}
_ONLY: Final = {"isolation.level": ("read_committed", "the source reads what is committed, and nothing else")}
"""Settings that may be given only with their fixed value, and why it is fixed."""
_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BY_PARTITION_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_BY_TIME_EXAMPLE: Final = '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}'


class OptionError(ValueError):
    """An option is missing, contradicts another or has an invalid value."""


class Kind(enum.Enum):
    """The ways to give a limit of a range."""

    EARLIEST = enum.auto()
    LATEST = enum.auto()
    OFFSETS = enum.auto()
    TIMESTAMPS = enum.auto()
    TIMESTAMP = enum.auto()


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a query begins or ends. ``by_partition`` has offsets (also :data:`LATEST`, :data:`EARLIEST`) or times."""

    kind: Kind
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int = 0
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to read: exactly one of topics, a pattern to search for in names, and partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one query. Made by :meth:`of`; can be pickled."""

    bootstrap: str
    selection: Selection
    client: Mapping[str, str]
    starting: Limit
    ending: Limit
    latest_without_match: bool
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: float
    broker_outage_ms_max: float
    poll_timeout_ms: int
    fetch_retries: int
    fetch_retry_interval_ms: int
    columns: tuple[str, ...] = ()
    """The columns that the query's own schema names, in its order; empty: all."""

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Check and read the options of a query. Raises :class:`OptionError` with Spark's words."""
        options = known(given)
        if streaming:
            for name, what in (
                ("endingoffsets", "ending offset"),
                ("endingoffsetsbytimestamp", "ending timestamp"),
                ("endingtimestamp", "ending timestamp"),
            ):
                if name in options:
                    raise OptionError(f"{what} not valid in streaming queries")
        starting = _limit(options, "starting", Limit(Kind.LATEST if streaming else Kind.EARLIEST))
        ending = _limit(options, "ending", Limit(Kind.LATEST))
        if not streaming:
            _check_batch_limits(starting, ending)
        selection = _selection(options)
        client = _client_settings(options)
        least, most = _number(options, "minOffsetsPerTrigger"), _number(options, "maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
            )
        outage_ms = broker_outage_ms(options)
        strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", "latest"):
            raise OptionError(f"startingOffsetsByTimestampStrategy: expected error or latest, found '{strategy}'")
        return cls(
            bootstrap=options[BOOTSTRAP],
            selection=selection,
            client=client,
            starting=starting,
            ending=ending,
            latest_without_match=strategy == "latest",
            fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
            include_headers=include_headers(options),
            min_partitions=_number(options, "minPartitions"),
            max_records_per_partition=_number(options, "maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_bytes_per_trigger=_size(options, "maxBytesPerTrigger"),
            max_trigger_delay_ms=_duration_ms(options.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            broker_outage_ms_max=outage_ms,
            poll_timeout_ms=_number(options, "consumer.pollTimeoutMs")
            or _number(options, "kafkaConsumer.pollTimeoutMs")
            or (max(int(outage_ms), 1) if streaming else 120_000),
            fetch_retries=_number(options, "fetchOffset.numRetries", default=3) or 0,
            fetch_retry_interval_ms=_number(options, "fetchOffset.retryIntervalMs", default=1_000) or 0,
        )


def check_general(given: Mapping[str, str]) -> None:
    """Raise :class:`OptionError` for faults that streaming and batch queries share."""
    both = {name: value for name, value in given.items() if not name.lower().startswith("ending")}
    SourceOptions.of(both, streaming=True)


def known(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options by lower-case name. Raises :class:`OptionError` for an unknown name, and if Spark has lost the
    options of a table."""
    wrong = of_a_table(given) or unknown(given)
    if wrong is not None:
        raise OptionError(wrong)
    return {name.lower(): value for name, value in given.items()}


def broker_outage_ms(options: Mapping[str, str]) -> float:
    """Return how long a stream tolerates that no broker answers. Raises :class:`OptionError`."""
    return _duration_ms(options.get("maxbrokeroutage", BROKER_OUTAGE), "maxBrokerOutage")


def include_headers(given: Mapping[str, str]) -> bool:
    """Return whether there is a column of headers."""
    return _flag({name.lower(): value for name, value in given.items()}, "includeHeaders", default=False)


def named(partitions: object) -> str:
    """Return partitions as messages show them."""
    return "[" + ", ".join(sorted(map(str, partitions))) + "]"  # type: ignore[call-overload]


def _selection(options: Mapping[str, str]) -> Selection:
    names = ", ".join(_STRATEGIES)
    chosen = [name for name in _STRATEGIES if name in options]
    if not chosen:
        raise OptionError(
            f"One of the following options must be specified for Tidelog source: {names}. "
            "See the docs for more details."
        )
    if len(chosen) > 1:
        raise OptionError(
            f"Only one of the following options can be specified for Tidelog source: {names}. "
            "See the docs for more details."
        )
    value = options[chosen[0]].strip()
    if chosen == ["assign"]:
        if not value.startswith("{"):
            raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{value}'")
        return Selection(partitions=_assigned(value))
    if chosen == ["subscribe"]:
        topics = tuple(dict.fromkeys(filter(None, map(str.strip, value.split(",")))))
        if not topics:
            raise OptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'")
        return Selection(topics=topics)
    if not value:
        raise OptionError("Pattern to subscribe is empty as specified value for option 'subscribePattern' is ''")
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"subscribePattern: expected a regular expression, found '{value}': {error}") from None
    return Selection(pattern=value)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        found = [(topic, number) for topic, numbers in json.loads(text).items() for number in numbers]
        if not all(type(number) is int and number >= 0 for _, number in found):
            raise ValueError(text)
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}') from None
    if not found:
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(sorted({TopicPartition(topic, number) for topic, number in found}))


def by_partition(text: str, example: str = _BY_PARTITION_EXAMPLE) -> dict[TopicPartition, int]:
    """Read numbers by topic and partition. Raises :class:`OptionError`."""
    try:
        found = {
            TopicPartition(topic, int(partition)): number
            for topic, numbers in json.loads(text).items()
            for partition, number in numbers.items()
        }
        if not all(type(number) is int and at.partition >= 0 for at, number in found.items()):
            raise ValueError(text)
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"Expected e.g. {example}, got {text}") from None
    return found


def _limit(options: Mapping[str, str], edge: str, default: Limit) -> Limit:
    """Read a limit: ``…Timestamp`` wins over ``…OffsetsByTimestamp``, which wins over ``…Offsets``."""
    if (text := options.get(f"{edge}timestamp")) is not None:
        try:
            return Limit(Kind.TIMESTAMP, timestamp=_time(int(text.strip())))
        except ValueError:
            raise OptionError(f"Expected a single long value, got {text.strip()}") from None
    if (text := options.get(f"{edge}offsetsbytimestamp")) is not None:
        times = by_partition(text.strip(), _BY_TIME_EXAMPLE)
        try:
            return Limit(Kind.TIMESTAMPS, {at: _time(time) for at, time in times.items()})
        except ValueError:
            raise OptionError(f"Expected e.g. {_BY_TIME_EXAMPLE}, got {text.strip()}") from None
    text = options.get(f"{edge}offsets")
    if text is None:
        return default
    text = text.strip()
    if text.lower() in ("earliest", "latest"):
        return Limit(Kind[text.upper()])
    offsets = by_partition(text)
    wrong = next((at for at, offset in offsets.items() if offset < EARLIEST), None)
    if wrong is not None:
        raise OptionError(f"{edge}Offsets for {wrong}: expected 0 or more, -1 or -2, found {offsets[wrong]}")
    return Limit(Kind.OFFSETS, offsets)


def _time(time: int) -> int:
    if time < 0:
        raise ValueError(time)
    return time


def _check_batch_limits(starting: Limit, ending: Limit) -> None:
    if starting.kind is Kind.LATEST:
        raise OptionError("starting offset can't be latest for batch queries on Tidelog")
    if ending.kind is Kind.EARLIEST:
        raise OptionError("ending offset can't be earliest for batch queries on Tidelog")
    if starting.kind is Kind.OFFSETS:
        for at, offset in starting.by_partition.items():
            if offset == LATEST:
                raise OptionError(f"startingOffsets for {at} can't be latest for batch queries on Tidelog")
    if ending.kind is Kind.OFFSETS:
        for at, offset in ending.by_partition.items():
            if offset == EARLIEST:
                raise OptionError(f"ending offset for {at} can't be earliest for batch queries on Tidelog")
    if starting.kind is ending.kind and starting.kind in (Kind.OFFSETS, Kind.TIMESTAMPS):
        what = "offset" if starting.kind is Kind.OFFSETS else "timestamp"
        if starting.by_partition.keys() != ending.by_partition.keys():
            raise OptionError(
                "The specified start offset and end offset should have the same topic-partitions. "
                f"Topic-partitions for start offset: {named(starting.by_partition)}, "
                f"topic-partitions for end offset: {named(ending.by_partition)}."
            )
        for at, start in starting.by_partition.items():
            end = ending.by_partition[at]
            if start > end >= 0:
                raise OptionError(
                    f"The specified start {what} {start} is greater than the end {what} {end} "
                    f"for topic {at.topic} partition {at.partition}."
                )


def _client_settings(options: Mapping[str, str]) -> dict[str, str]:
    found = dict(CLIENT_DEFAULTS)
    for name, value in options.items():
        if not name.startswith(PREFIX) or name == BOOTSTRAP:
            continue
        setting = name.removeprefix(PREFIX)
        if setting in _REFUSED:
            raise OptionError(f"Tidelog option '{setting}' is not supported: {_REFUSED[setting]}.")
        if setting in _ONLY:
            only, why = _ONLY[setting]
            if value.strip().lower() != only:
                raise OptionError(f"Tidelog option '{setting}' is not supported with '{value}': {why}.")
            continue
        found |= client_setting(setting, value)
    servers = options.get(BOOTSTRAP)
    if servers is None:
        raise OptionError(f"Option '{BOOTSTRAP}' must be specified for configuring Tidelog consumer")
    try:
        parse_bootstrap(servers)
        ConsumerConfig.of(dict(found)).login()
        AdminConfig.of(admin_settings(found))
    except ConfigError as error:
        raise refused(error) from None
    return found


def client_setting(setting: str, value: str) -> dict[str, str]:
    """Turn a setting under Kafka's name into the client's name and value; nothing for the key store type if it is the
    only one supported. Raises :class:`OptionError`."""
    if setting in STORE_TYPES:
        if value.strip().upper() != PEM:
            raise OptionError(f"{PREFIX}{setting}: expected {PEM}, found '{value}'")
        return {}
    if setting == JAAS:
        raise OptionError(
            f"Tidelog option '{JAAS}' is not supported: Spark would show the password in it; give "
            f"'{PREFIX}sasl.username' and '{PREFIX}sasl.password'."
        )
    name = KAFKA_NAMES.get(setting, setting.replace(".", "_"))
    return {name: Secret(value) if name in SECRETS else value.strip()}


def refused(error: ConfigError) -> OptionError:
    """Reword a client's complaint about one of its settings for the option."""
    name, colon, rest = str(error).partition(":")
    name = name.replace("_", ".")
    return OptionError(f"{PREFIX}{name}:{rest}" if colon else f"among the options {PREFIX}…: {name}")


def admin_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Return the client settings that the admin client has."""
    return {name: value for name, value in client.items() if name in AdminConfig.__dataclass_fields__}


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, found '{text}'")
    return text.strip().lower() == "true"


def _number(options: Mapping[str, str], name: str, *, default: int | None = None) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text.strip())
    except ValueError:
        raise OptionError(f"{name}: expected a whole number, found '{text}'") from None
    if number <= 0:
        raise OptionError(f"{name} must be positive")
    return number


def _size(options: Mapping[str, str], name: str) -> int | None:
    """Return a number of bytes, in Spark's spelling: 1048576, 1024k, 1m. Source: ``JavaUtils.byteStringAsBytes``."""
    text = options.get(name.lower())
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)\s*([kmgtp]?)b?", text.strip().lower())
    if found is None:
        raise OptionError(f"{name}: expected a size such as 1048576, 500k, 64m or 1g, found '{text}'")
    if not int(found[1]):
        raise OptionError(f"{name} must be positive")
    return int(found[1]) << 10 * " kmgtp".index(found[2] or " ")


def _duration_ms(text: str, name: str) -> float:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    unit = (found[2] or "ms") if found else ""
    if found is None or unit not in _UNITS_MS:
        raise OptionError(f"{name}: expected a time such as 50s, 100ms, 15min or 1h, found '{text}'")
    return int(found[1]) * _UNITS_MS[unit]
