"""Calls the user's handler with one record, in whatever thread or process works on it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from tidelog.client.config.serializers import Deserializer, deserialize
from tidelog.client.config.trace_context import Tracer, handling
from tidelog.client.errors import HandlerError, SerializationError
from tidelog.client.record import ConsumerRecord

Handler = Callable[[ConsumerRecord], Any]

STACK_MAX: Final = 4_096
"""Maximum characters to keep of a traceback, from its end."""

Reason = Literal["attempts", "rejected", "invalid", "expired"]
"""``attempts``: another try may help; ``rejected``: no retry fixes the handler's error; ``invalid``: a deserializer
refused the record; ``expired``: the handler did not get it, because its time to live was over."""


class Failure(NamedTuple):
    """A handler's exception, in a form that can be sent between processes. ``reason`` is ``attempts`` if another try
    may help. ``error`` is the exception itself, ``None`` if it came from another process."""

    reason: Reason
    exception: str
    message: str
    stack: str
    error: Exception | None

    def raised(self) -> Exception:
        """Return the exception for a program that stops because of it."""
        return self.error or HandlerError(f"{self.exception}: {self.message}\n{self.stack}")

    def across_processes(self) -> Failure:
        return self._replace(error=None)


@dataclass(frozen=True, slots=True)
class Handling:
    """The handler with its surroundings; sent to other processes with the pickle module."""

    handler: Handler
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    fatal: tuple[type[BaseException], ...]
    tracer: Tracer | None = None
    group_id: str | None = None

    def _prepared(self, record: ConsumerRecord) -> ConsumerRecord:
        of_key, of_value = self.key_deserializer, self.value_deserializer
        if of_key is None and of_value is None:
            return record
        return record._replace(
            key=deserialize(of_key, record, "key") if of_key else record.key,
            value=deserialize(of_value, record, "value") if of_value else record.value,
        )

    def _failure(self, error: Exception) -> Failure:
        invalid = isinstance(error, SerializationError)
        reason: Reason = "invalid" if invalid else "rejected" if isinstance(error, self.fatal) else "attempts"
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return Failure(reason, kind, str(error), "".join(traceback.format_exception(error))[-STACK_MAX:], error)

    def here(self, record: ConsumerRecord) -> Failure | None:
        """Handle the record in this process."""
        try:
            with handling(record, self.tracer, self.group_id):
                self.handler(self._prepared(record))
        except Exception as error:
            return self._failure(error)
        return None

    def elsewhere(self, record: ConsumerRecord) -> Failure | None:
        """Handle the record in a process of a pool."""
        failure = self.here(record)
        return None if failure is None else failure.across_processes()

    async def awaited(self, record: ConsumerRecord) -> Failure | None:
        """Handle the record with a coroutine function."""
        try:
            with handling(record, self.tracer, self.group_id):
                await self.handler(self._prepared(record))
        except Exception as error:
            return self._failure(error)
        return None
