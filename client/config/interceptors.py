"""User hooks around producing and consuming. The client logs and ignores their exceptions, as Kafka does."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.model.settings.config_def import ConfigError

if TYPE_CHECKING:
    from tidelog.client.delivery import Callback, RecordMetadata
    from tidelog.client.group_types import Offsets
    from tidelog.client.record import ConsumerRecord
    from tidelog.proto.records.walk import RecordHeaders

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send, before serialization. ``timestamp`` in ms since the epoch; ``None``: now."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp: int | None = None


class Interceptor:
    """The common base of both kinds of interceptors; override the methods that you need."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Receive the client's settings by name, defaults included, before any other call. An exception from here, and
        only from here, reaches the program: the client is not created."""

    def close(self) -> None:
        """The client has been closed; called in the thread (or task) that closed it."""


class ProducerInterceptor(Interceptor):
    """Sees a producer's records go out and their outcomes come back; override the methods that you need.

    Source: Kafka's ``ProducerInterceptor``.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Receive a record in the sending thread, before serialization; the producer sends the returned one."""
        return record

    def on_serialized(self, record: ProducerRecord) -> tuple[RecordHeaders, Callback | None]:
        """Receive the record as it will be written, with key and value in bytes. Return headers to add, and what to
        call with its outcome, as ``on_delivery`` is called. A ``send()`` that raises afterwards has no outcome."""
        return (), None

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """Receive a record's outcome. Runs on the producer's IO thread or loop, so it must be quick."""


class ConsumerInterceptor(Interceptor):
    """Sees the records that a consumer hands out and the offsets that it commits; override the methods that you need.

    Source: Kafka's ``ConsumerInterceptor``.
    """

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Receive the records that ``poll`` is about to return; it returns this method's list instead. ``poll_batches``
        and ``poll_values`` do not call it."""
        return records

    def on_commit(self, offsets: Offsets) -> None:
        """Receive offsets that were committed, automatically or not, but not within a transaction. Called in the thread
        (or task) that polls, commits or closes."""


AnyInterceptor = TypeVar("AnyInterceptor", bound=Interceptor)
Passed = TypeVar("Passed")


def interceptors_of(given: Iterable[Any], kind: type[AnyInterceptor], config: Any) -> list[AnyInterceptor]:
    """Create the interceptors in ``interceptor_classes``, and pass each the settings of ``config``. Raises
    :class:`ConfigError`, and the exceptions of their ``configure``."""
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    found: list[AnyInterceptor] = []
    for each in given:
        interceptor = made(each)
        if not isinstance(interceptor, kind):
            raise ConfigError(f"interceptor_classes: expected classes or objects of {kind.__name__}, found {each!r}")
        interceptor.configure(settings)
        found.append(interceptor)
    return found


def passed_through(
    interceptors: Iterable[AnyInterceptor], found: Passed, call: Callable[[AnyInterceptor, Passed], Passed]
) -> Passed:
    """Pass a value through the interceptors. If one raises, the next gets the same input."""
    for interceptor in interceptors:
        try:
            found = call(interceptor, found)
        except Exception:
            log.exception("an interceptor raised: %s", type(interceptor).__name__)
    return found


def tell(interceptors: Iterable[AnyInterceptor], call: Callable[[AnyInterceptor], object]) -> None:
    """Call each of them, whatever the others raise."""

    def told(interceptor: AnyInterceptor, _: None) -> None:
        call(interceptor)

    passed_through(interceptors, None, told)


def made(given: object) -> Any:
    """Return a user's object, given as an instance or as its class."""
    return given() if isinstance(given, type) else given
