"""Carries our request, response and record types into protobuf messages of the same name and back.

A plan is derived once per class from its type hints, so a field is declared once in ``proto/api.py``
(or ``group_api.py``, ``transaction_api.py``, ``sink_api.py``, ``reassignment_api.py``, ``metadata.py``) and once in
the contract;
``tests/proto/test_convert.py`` holds them equal. For control calls; data goes by :mod:`tidelog.proto.frames`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog.model.errors import ErrorCode
from tidelog.proto.v1 import api_pb2, groups_pb2, metadata_pb2, reassignments_pb2, sinks_pb2, transactions_pb2

T = TypeVar("T")

_Fill = Callable[[Any, Any], None]
_Read = Callable[[Any], Any]

_ERROR_CODES: Final = {int(code): code for code in ErrorCode}


class BadMessage(ValueError):
    """Bytes that are no message of the expected type."""


def to_proto(value: Any) -> bytes:
    """Encode a request, response or record. Raises ``ValueError`` where a number does not fit its field."""
    message = _message_class(type(value))()
    _plan(type(value))[0](message, value)
    return message.SerializeToString()


def from_proto(cls: type[T], data: bytes) -> T:
    """Decode what :func:`to_proto` encoded. Raises :class:`BadMessage`."""
    message = _message_class(cls)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(f"expected a {cls.__name__}, found {len(data)} bytes that are none: {error}") from None
    return typing.cast(T, _plan(cls)[1](message))


def fill_message(message: Message, value: Any) -> None:
    """Set the fields of ``message`` from ``value``, whose class has the message's name."""
    _plan(type(value))[0](message, value)


def read_message(cls: type[T], message: Message) -> T:
    """Make a ``cls`` of a message of that name."""
    return typing.cast(T, _plan(cls)[1](message))


_CLASSES: Final[dict[type, type[Message]]] = {}


def _message_class(cls: type) -> type[Message]:
    found = _CLASSES.get(cls)
    if found is None:
        found = _CLASSES[cls] = _find_message_class(cls)
    return found


def _find_message_class(cls: type) -> type[Message]:
    for contract in (api_pb2, groups_pb2, transactions_pb2, sinks_pb2, reassignments_pb2, metadata_pb2):
        if (found := getattr(contract, cls.__name__, None)) is not None:
            return typing.cast(type[Message], found)
    raise TypeError(f"{cls.__name__} stands in no contract")


_PLANS: Final[dict[type, tuple[_Fill, _Read]]] = {}


def _plan(cls: type) -> tuple[_Fill, _Read]:
    found = _PLANS.get(cls)
    if found is None:
        found = _PLANS[cls] = _make_plan(cls)
    return found


def _make_plan(cls: type) -> tuple[_Fill, _Read]:
    hints = typing.get_type_hints(cls)
    fields = [(field.name, *_field_plan(field.name, hints[field.name])) for field in dataclasses.fields(cls)]

    def fill(message: Any, value: Any) -> None:
        for name, put, _ in fields:
            put(message, getattr(value, name))

    def read(message: Any) -> Any:
        return cls(*[get(message) for _, _, get in fields])

    return fill, read


def _field_plan(name: str, hint: Any) -> tuple[_Fill, _Read]:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _repeated_plan(name, _plain(typing.get_args(hint)[0]))
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return _optional_plan(name, _plain(inner))
    plain = _plain(hint)
    if dataclasses.is_dataclass(plain):
        fill, read = _plan(typing.cast(type, plain))
        return (lambda m, v: fill(getattr(m, name), v)), (lambda m: read(getattr(m, name)))
    if plain is ErrorCode:
        return (lambda m, v: setattr(m, name, int(v))), (lambda m: _error_code(getattr(m, name)))
    return (lambda m, v: setattr(m, name, v)), (lambda m: getattr(m, name))


def _repeated_plan(name: str, inner: Any) -> tuple[_Fill, _Read]:
    if dataclasses.is_dataclass(inner):
        fill, read = _plan(typing.cast(type, inner))

        def put(message: Any, values: Any) -> None:
            repeated = getattr(message, name)
            for value in values:
                fill(repeated.add(), value)

        return put, lambda m: tuple(map(read, getattr(m, name)))
    return (lambda m, v: getattr(m, name).extend(v)), (lambda m: tuple(getattr(m, name)))


def _optional_plan(name: str, inner: Any) -> tuple[_Fill, _Read]:
    if dataclasses.is_dataclass(inner):
        fill, read = _plan(typing.cast(type, inner))

        def put_message(message: Any, value: Any) -> None:
            if value is not None:
                getattr(message, name).SetInParent()
                fill(getattr(message, name), value)

        return put_message, lambda m: read(getattr(m, name)) if m.HasField(name) else None

    def put(message: Any, value: Any) -> None:
        if value is not None:
            setattr(message, name, value)

    return put, lambda m: getattr(m, name) if m.HasField(name) else None


def _plain(hint: Any) -> Any:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _error_code(number: int) -> ErrorCode:
    return _ERROR_CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
