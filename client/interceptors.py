"""Hooks of users around producing and consuming. What they raise is logged and ignored, as in Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tidelog.client.delivery import RecordMetadata
    from tidelog.client.record import ConsumerRecord


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """What is to be sent, before serialization. ``timestamp`` in ms since the epoch; ``None``: now."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp: int | None = None


class ProducerInterceptor(Protocol):
    """Kafka's ``ProducerInterceptor``."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """See a record in the sender's thread, before serialization; the returned one is sent."""

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """Hear how it ended; runs where the producer's IO runs, so it must be quick."""


class ConsumerInterceptor(Protocol):
    """Kafka's ``ConsumerInterceptor``."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """See what a poll is about to return; the returned list is handed out."""


def made(given: Any) -> Any:
    """A user's object, given as itself or as its class."""
    return given() if isinstance(given, type) else given
