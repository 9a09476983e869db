"""The options of the sink, as in Spark's Kafka sink, and what exactly-once adds and forbids.

Pure. Names are looked up without regard to case. Source: Spark's ``KafkaSourceProvider`` and ``KafkaWriter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.config.admin import AdminConfig
from tidelog.client.config.producer import ProducerConfig
from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.sinks import BATCH_MAX, SINK_NAME_BYTES_MAX, sink_fault
from tidelog.spark_connector.option_names import PREFIX
from tidelog.spark_connector.options import (
    BOOTSTRAP,
    OptionError,
    admin_settings,
    broker_outage_ms,
    client_setting,
    known,
    refused,
)

_REFUSED: Final = {
    "transactional.id": "the sink names its transactions itself, by query, batch and task",
    "transaction.timeout.ms": "the brokers' transaction.sink.timeout.ms counts for a sink's transactions",
    "transaction.two.phase.commit.enable": "the sink's transactions are always prepared, and decided by its ledger",
    "key.serializer": "keys are columns of strings or bytes; use DataFrame operations to serialize them",
    "value.serializer": "values are columns of strings or bytes; use DataFrame operations to serialize them",
    "partitioner.class": "give the partition of each record in the column 'partition'",
    "interceptor.classes": "they could change what is written",
}
_ONLY: Final = {
    "acks": (("all", "-1"), "all"),
    "enable.idempotence": (("true",), "true"),
}
"""Settings that may be given only with their fixed value."""

ABORT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of one write. Made by :meth:`of`; can be pickled.

    ``topic``: the topic of every record, whatever the column of this name says; None: the column decides. ``app_id``
    and ``version``: identify a batch write that must happen once; None for a stream's, or for a write without them.
    """

    bootstrap: str
    topic: str | None
    producer: Mapping[str, Any]
    """Settings of the writers, by the client's names."""
    ledger: Mapping[str, Any]
    """The options for the ledger that decides."""
    app_id: str | None = None
    version: int = 0

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Check and read the options of a write. Raises :class:`OptionError`."""
        options = known(given)
        topic = options.get("topic")
        if topic is not None and not (topic := topic.strip()):
            raise OptionError("topic: expected the name of a topic, found nothing")
        producer, ledger = _client_settings(options, outage_ms=int(broker_outage_ms(options)) if streaming else None)
        app_id, version = _identity(options, topic, streaming=streaming)
        return cls(options[BOOTSTRAP].strip(), topic, producer, ledger, app_id, version)

    @property
    def sink(self) -> str | None:
        """The ledger of a batch write that must happen once; None without ``appId``."""
        return None if self.app_id is None else sink_name(self.app_id, self.topic)

    @property
    def abort_timeout_s(self) -> float:
        """Longest time, in seconds, spent on aborting a failed write; the next job aborts the rest."""
        return min(ABORT_TIMEOUT_S, AdminConfig.of(dict(self.ledger)).default_api_timeout_ms / 1_000)

    @property
    def write_timeout_s(self) -> float:
        """Longest time, in seconds, from a task's last record until all its records are written and prepared."""
        config = ProducerConfig.of(dict(self.producer))
        return (config.delivery_timeout_ms + config.max_block_ms) / 1_000


def sink_name(app_id: str, topic: str | None) -> str:
    """Return the ledger of ``appId``: one for each topic given as an option, and one for writes whose column decides.
    It collides with no query's id and no other pair's ledger, because topic names have no slash."""
    return f"{app_id}/{topic or ''}"


def _identity(options: Mapping[str, str], topic: str | None, *, streaming: bool) -> tuple[str | None, int]:
    app_id, version = options.get("appid"), options.get("version")
    if app_id is None and version is None:
        return None, 0
    if streaming:
        raise OptionError(
            "appId and version are not valid in streaming queries: the query's id and batch take their place"
        )
    if app_id is None or version is None:
        there, missing = ("version", "appId") if app_id is None else ("appId", "version")
        raise OptionError(
            f"{there} is given without {missing}: expected both, since a batch write is done once for each pair"
        )
    try:
        number = int(version.strip())
    except ValueError:
        number = -1
    if not 0 <= number <= BATCH_MAX:
        raise OptionError(f"version: expected a whole number from 0 to {BATCH_MAX}, found '{version}'")
    if not app_id:
        raise OptionError("appId: expected a name, found nothing")
    if sink_fault(sink_name(app_id, topic)) is not None:
        room = SINK_NAME_BYTES_MAX - len(sink_name("", topic).encode())
        raise OptionError(f"appId: expected at most {room} bytes of text for this topic, found {app_id[:100]!r}")
    return app_id, number


def _client_settings(options: Mapping[str, str], *, outage_ms: int | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings of the writers and of the ledger. ``outage_ms``: how long they tolerate that no broker
    answers, unless the options say; None: their own defaults apply."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if not name.startswith(PREFIX) or name == BOOTSTRAP:
            continue
        setting = name.removeprefix(PREFIX)
        if setting in _REFUSED:
            raise OptionError(f"Tidelog option '{setting}' is not supported: {_REFUSED[setting]}.")
        only = _ONLY.get(setting)
        if only is not None and value.strip().lower() not in only[0]:
            raise OptionError(
                f"Tidelog option '{setting}' is not supported with '{value}': exactly once needs '{only[1]}'."
            )
        found |= client_setting(setting, value)
    servers = options.get(BOOTSTRAP)
    if servers is None:
        raise OptionError(f"Option '{BOOTSTRAP}' must be specified for configuring Tidelog producer")
    if outage_ms is not None:
        found = {"max_block_ms": str(outage_ms), "default_api_timeout_ms": str(outage_ms)} | found
    ledger = admin_settings(found)
    producer = {name: value for name, value in found.items() if name in _PRODUCERS or name not in ledger}
    try:
        parse_bootstrap(servers)
        config = ProducerConfig.of(producer | {"enable_idempotence": "true"})
        config.login()
        if outage_ms is not None:
            least = config.linger_ms + config.request_timeout_ms
            producer = {"delivery_timeout_ms": str(max(outage_ms, least))} | producer
        AdminConfig.of(dict(ledger))
    except ConfigError as error:
        raise refused(error) from None
    return producer, ledger


_PRODUCERS: Final = frozenset(ProducerConfig.__dataclass_fields__)
