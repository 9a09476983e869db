"""Translates between Kafka's messages and our calls. Fields of the same name need no code.

Kafka's names are kio's, in which times and durations lack their unit: ``timeout`` is our ``timeout_ms``. Our ``error``
is ``error_code``, and no error message is null instead of empty. What we answer and Kafka does not have is left out
when the answer is encoded.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Outcome(Protocol):
    """An answer, or a part of one, that may have failed."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def error_message(self) -> str: ...


def outcome(found: Outcome) -> dict[str, Any]:
    return {"error_code": found.error, "error_message": found.error_message or None}


def answered(found: DataclassInstance, **names: str) -> dict[str, Any]:
    """Return the fields of an answer, or of a part of one. ``names``: Kafka's names of those of our fields for which it
    has others, at any depth."""
    fields: dict[str, Any] = {}
    for field in _fields(type(found)):
        value = getattr(found, field.name)
        if field.message is not None and value is not None:
            value = [answered(each, **names) for each in value] if field.repeated else answered(value, **names)
        elif field.name == "error_message":
            value = value or None
        fields[names.get(field.name, field.kafka_name)] = value
    return fields


def asked(cls: type[T], message: Any, /, **given: Any) -> T:
    """Return a request, or a part of one, with the fields of Kafka's ``message``, and those ``given`` instead.

    Fields that this version of the message lacks have our default, as have nulls where we have none.
    """
    for field in _fields(cls):
        if field.name in given:
            continue
        value = getattr(message, field.kafka_name, None)
        if value is not None:
            given[field.name] = _asked_value(field, value)
        elif field.optional:
            given[field.name] = None
    return cls(**given)


def asked_each(cls: type[T], messages: Iterable[Any] | None) -> tuple[T, ...]:
    """Return a part of a request for each of these; none for null."""
    return tuple(asked(cls, each) for each in messages or ())


def partitions_of(
    cls: Callable[[str, int], T], topics: Iterable[Any] | None, numbers: str = "partitions"
) -> tuple[T, ...]:
    """Return the partitions that ``topics`` have as mere ``numbers``; none for null."""
    return tuple(cls(topic.name, number) for topic in topics or () for number in getattr(topic, numbers))


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kafka_name: str
    message: type[DataclassInstance] | None
    """The class of a field that has fields itself."""
    repeated: bool
    optional: bool


@cache
def _fields(cls: type[DataclassInstance]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_field(one.name, hints[one.name]) for one in dataclasses.fields(cls))


def _field(name: str, hint: Any) -> _Field:
    repeated = typing.get_origin(hint) is tuple
    kinds = typing.get_args(hint) or (hint,)
    message = kinds[0] if dataclasses.is_dataclass(kinds[0]) and isinstance(kinds[0], type) else None
    kafka_name = "error_code" if name == "error" else name.removesuffix("_ms")
    return _Field(name, kafka_name, message, repeated, optional=type(None) in kinds)


def _asked_value(field: _Field, value: Any) -> Any:
    if not field.repeated:
        return value if field.message is None else asked(field.message, value)
    return tuple(value) if field.message is None else asked_each(field.message, value)
