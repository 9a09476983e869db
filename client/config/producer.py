"""The producer's settings: Kafka's names and defaults (``ProducerConfig``), plus a few marked as our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.config import settings
from tidelog.client.config.connection import ClientConnection, ConnectionSettings
from tidelog.model.settings.config_def import INT_MAX, LONG_MAX, ConfigDef, ConfigError, boolean, integer, long, text
from tidelog.proto.records.compression import Compression

if TYPE_CHECKING:
    from tidelog.client.config.interceptors import ProducerInterceptor
    from tidelog.client.config.partitioner import Partitioner
    from tidelog.client.config.serializers import Serializer

_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}

TRANSACTIONAL_ID_BYTES_MAX: Final = 32_767
"""The longest string that Kafka's wire format holds."""


class ProducerSettings(ConnectionSettings, total=False):
    """The keyword arguments of a producer."""

    acks: str | int
    enable_idempotence: bool
    batch_size: int
    batch_size_max: int
    linger_ms: int
    bulk_batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    retries: int
    delivery_timeout_ms: int
    compression_type: str
    metadata_max_idle_ms: int
    partitioner_class: Partitioner | Callable[[], Partitioner] | None
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    interceptor_classes: Sequence[ProducerInterceptor | Callable[[], ProducerInterceptor]]
    transactional_id: str | None
    transaction_timeout_ms: int
    transaction_two_phase_commit_enable: bool


@dataclass(frozen=True)
class ProducerConfig(ClientConnection):
    """A producer's settings, checked. Made by :meth:`of`."""

    acks: str = text(
        "all",
        "Replicas that must have a record before it counts as acknowledged: all in sync, the leader (1), none (0).",
        choices=("all", "-1", "0", "1"),
    )
    enable_idempotence: bool = boolean(
        True, "Retries never duplicate or reorder records. Needs acks=all and at most 5 requests in flight."
    )
    batch_size: int = integer(
        16_384, "Bytes at which a batch is full. A larger record gets its own batch.", at_least=0, at_most=1 << 30
    )
    batch_size_max: int = integer(
        262_144,
        "Bytes to which a full batch keeps growing until it can be sent; batch_size disables this. "
        "Left out, it is at most 16 times batch_size. (Not in Kafka.)",
        at_least=0,
        at_most=1 << 30,
    )
    linger_ms: int = long(
        5, "Longest time that a partly filled batch waits for more records.", at_least=0, at_most=INT_MAX
    )
    bulk_batch_size: int = integer(
        262_144,
        "Bytes at which a send_many batch is full, if above batch_size. (Not in Kafka.)",
        at_least=1,
        at_most=1 << 30,
    )
    buffer_memory: int = long(
        33_554_432,
        "Most bytes of records that wait for acknowledgement; beyond it, send() blocks.",
        at_least=0,
        at_most=LONG_MAX,
    )
    max_block_ms: int = long(
        60_000, "Longest time that send() waits for room or for metadata.", at_least=0, at_most=INT_MAX
    )
    max_request_size: int = integer(
        1_048_576, "Most bytes of one record, and of the batches in one request.", at_least=0, at_most=64 << 20
    )
    max_in_flight_requests_per_connection: int = integer(
        5, "Most unanswered requests per broker.", at_least=1, at_most=100
    )
    retries: int = integer(INT_MAX, "Most retries of a batch; delivery_timeout_ms may end them earlier.", at_least=0)
    delivery_timeout_ms: int = integer(120_000, "Longest time from send() to success or failure.", at_least=1)
    compression_type: str = text("none", "Codec of batches.", choices=tuple(kind.kafka_name for kind in Compression))
    metadata_max_idle_ms: int = long(
        300_000, "Time after which the producer forgets an unused topic.", at_least=5_000, at_most=INT_MAX
    )
    partitioner_ignore_keys: bool = boolean(False, "Spread keyed records as if they had no key.")
    partitioner_adaptive_partitioning_enable: bool = boolean(
        True, "Send more of the keyless records to partitions with shorter queues."
    )
    transactional_id: str | None = text(
        None,
        "Name of the producer's transactions, the same after each restart. One producer has it at a time: the next to "
        "call init_transactions() fences the previous one. Turns idempotence on.",
    )
    transaction_timeout_ms: int = integer(
        60_000,
        "Time after which the coordinator aborts a transaction that is neither committed nor aborted; brokers allow "
        "at most transaction.max.timeout.ms.",
        at_least=1,
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False,
        "Whether the producer may prepare transactions, which an external decision then ends; they never time out "
        "(KIP-939). Brokers must allow it.",
    )
    partitioner_class: Partitioner | Callable[[], Partitioner] | None = None
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    interceptor_classes: Sequence[ProducerInterceptor | Callable[[], ProducerInterceptor]] = field(default=())

    @classmethod
    def of(cls, values: ProducerSettings | dict[str, Any]) -> ProducerConfig:
        """Check ``values``. Raises :class:`ConfigError` that names the setting, what was expected and found."""
        given: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
        if isinstance(given.get("acks"), int) and not isinstance(given["acks"], bool):
            given["acks"] = str(given["acks"])
        config = settings.build(cls, PRODUCER_DEFINITION, given)
        if "batch_size_max" not in given and 16 * config.batch_size < config.batch_size_max:
            config = dataclasses.replace(config, batch_size_max=16 * config.batch_size)
        least = config.linger_ms + config.request_timeout_ms
        if config.delivery_timeout_ms < least:
            if "delivery_timeout_ms" in given:
                raise ConfigError(
                    f"delivery_timeout_ms: expected at least linger_ms + request_timeout_ms = {least}, "
                    f"found {config.delivery_timeout_ms}"
                )
            config = dataclasses.replace(config, delivery_timeout_ms=least)
        _check_transactions(config)
        if config.enable_idempotence:
            reason = _against_idempotence(config)
            if reason and config.transactional_id is not None:
                raise ConfigError(f"transactional_id: expected {reason}")
            if reason and "enable_idempotence" in given:
                raise ConfigError(f"enable_idempotence: expected {reason}")
            if reason:
                config = dataclasses.replace(config, enable_idempotence=False)
        return config

    @property
    def acks_number(self) -> int:
        """-1, 0 or 1, as on the wire."""
        return _ACKS[self.acks]

    @property
    def bulk_bytes(self) -> int:
        """Bytes of a batch of ``send_many``."""
        return min(max(self.bulk_batch_size, self.batch_size), self.max_request_size, self.buffer_memory)

    @property
    def compression(self) -> Compression:
        return Compression.from_name(self.compression_type)


def _against_idempotence(config: ProducerConfig) -> str:
    """Return what an idempotent producer would need instead; empty if nothing. Kafka's rules."""
    if config.acks_number != -1:
        return f"acks=all with it, found acks={config.acks}"
    if config.max_in_flight_requests_per_connection > 5:
        found = config.max_in_flight_requests_per_connection
        return f"max_in_flight_requests_per_connection of at most 5 with it, found {found}"
    if config.retries == 0:
        return "retries over 0 with it, found 0"
    return ""


def _check_transactions(config: ProducerConfig) -> None:
    """Check Kafka's rules (``ProducerConfig.postProcessParsedConfig``)."""
    if config.transactional_id is None:
        if config.transaction_two_phase_commit_enable:
            raise ConfigError("transaction_two_phase_commit_enable: expected a transactional_id with it, found none")
        return
    size = len(config.transactional_id.encode(errors="replace"))
    if not 0 < size <= TRANSACTIONAL_ID_BYTES_MAX or not config.transactional_id.isprintable():
        raise ConfigError(
            f"transactional_id: expected 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes of text, "
            f"found {config.transactional_id[:100]!r}"
        )
    if not config.enable_idempotence:
        raise ConfigError("enable_idempotence: expected true with a transactional_id, found false")


PRODUCER_DEFINITION: Final = ConfigDef(ProducerConfig)
"""Every plain-value setting, with its type, default, bounds and meaning."""
