"""Converts our request, response and record types to protobuf messages of the same name and back.

A plan is derived once per class from its type hints. The class is handwritten, its contract is generated from it
(:mod:`tidelog.proto.contracts`). For control calls; data uses :mod:`tidelog.proto.transport.frames`.

A field of type :data:`~tidelog.model.buffer.Buffer` bypasses the message object, which would copy its bytes several
times. It is written last; a reader gets a view of the received bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.voter_set import VoterSet
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.v1 import (
    api_pb2,
    forwarded_pb2,
    groups_pb2,
    metadata_pb2,
    reassignments_pb2,
    sinks_pb2,
    transactions_pb2,
)

T = TypeVar("T")

_Fill = Callable[[Any, Any], None]
_Read = Callable[[Any], Any]

_NUMBER: Final = 0
_BYTES: Final = 2
"""Protobuf's wire types of integers, and of bytes."""
_FIELDS_MAX: Final = 64
"""Fields that may precede a bulk field; after more, protobuf's own parser reads it."""
_ERROR_CODES: Final = {int(code): code for code in ErrorCode}


class BadMessage(ValueError):
    """Bytes that are not a message of the expected type."""


def to_proto(value: Any) -> bytes:
    """Encode a request, response or record. Raises ``ValueError`` if a number does not fit its field."""
    bulk = _bulk(type(value))
    if bulk is None:
        return _encoded(value)
    content: Buffer = getattr(value, bulk.name)
    head = bytearray(_encoded(dataclasses.replace(value, **{bulk.name: b""})))
    write_uvarint(head, bulk.tag)
    write_uvarint(head, len(content))
    return b"".join((head, content))


def _encoded(value: object) -> bytes:
    message = _message_class(type(value))()
    _plan(type(value))[0](message, value)
    return message.SerializeToString()


def from_proto(cls: type[T], data: bytes, *, items_max: int = sys.maxsize) -> T:
    """Decode the output of :func:`to_proto`. Raises :class:`BadMessage`, also for more than ``items_max`` items in all
    lists together: each becomes an object, which takes ten times as long as parsing it."""
    bulk, begin = _bulk(cls), -1
    if bulk is not None:
        end, begin = _bulk_at(data, bulk.tag)
        if begin >= 0:
            content, data = memoryview(data)[begin:], data[:end]
    message = _message_class(cls)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(f"expected a {cls.__name__}, found {len(data)} bytes that are none: {error}") from None
    if len(data) > items_max and _items_left(message, items_max) < 0:  # each takes at least one byte
        raise BadMessage(f"expected a {cls.__name__} of at most {items_max} items, found more")
    value = typing.cast(T, _plan(cls)[1](message))
    return value if bulk is None or begin < 0 else dataclasses.replace(value, **{bulk.name: content})  # type: ignore[type-var]


class _Bulk(typing.NamedTuple):
    """A class's field of type :data:`Buffer`, and its tag on the wire."""

    name: str
    tag: int


_BULKS: Final[dict[type, _Bulk | None]] = {}


def _bulk(cls: type) -> _Bulk | None:
    if cls not in _BULKS:
        hints = typing.get_type_hints(cls)
        fields = _message_class(cls).DESCRIPTOR.fields_by_name
        found = (_Bulk(name, fields[name].number << 3 | _BYTES) for name, hint in hints.items() if hint == Buffer)
        _BULKS[cls] = next(found, None)
    return _BULKS[cls]


def _bulk_at(data: bytes, tag: int) -> tuple[int, int]:
    """Return where a message's last field begins, and where its content does, if it is the one with this tag; else -1
    for both. Whatever else is there is left to protobuf's parser."""
    position = 0
    try:
        for _ in range(_FIELDS_MAX):
            begin = position
            found, position = _uvarint(data, position)
            if found & 7 == _NUMBER:
                _, position = _uvarint(data, position)
            elif found & 7 == _BYTES:
                size, position = _uvarint(data, position)
                if found == tag and position + size == len(data):
                    return begin, position
                position += size
            else:
                break
    except IndexError:
        pass
    return -1, -1


def _uvarint(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most ten bytes, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, position


def _items_left(message: Message, left: int) -> int:
    """Return how many of the allowed items are left after those of a message and its nested messages; below 0: there
    are more."""
    for field, value in message.ListFields():
        inner = field.message_type is not None
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            left -= len(value)
            for each in value if inner else ():
                if left < 0:
                    return left
                left = _items_left(each, left)
        elif inner:
            left = _items_left(value, left)
    return left


def fill_message(message: Message, value: object) -> None:
    """Set the fields of ``message`` from ``value``, whose class has the message's name."""
    _plan(type(value))[0](message, value)


def read_message(cls: type[T], message: Message) -> T:
    """Make a ``cls`` from a message of that name."""
    return typing.cast(T, _plan(cls)[1](message))


class OneOf:
    """A union as the oneof ``name`` of a message: each class has a field with its name in snake case."""

    def __init__(self, name: str, union: object) -> None:
        self.name = name
        self.fields: Final[dict[type[Any], str]] = {
            cls: re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower() for cls in typing.get_args(union)
        }
        self._classes = {field: cls for cls, field in self.fields.items()}

    def fill(self, message: Message, value: object) -> None:
        """Set the field of the class of ``value``."""
        body = getattr(message, self.fields[type(value)])
        body.SetInParent()
        _plan(type(value))[0](body, value)

    def read(self, message: Message) -> Any:
        """Return the field that is set; ``None`` if it belongs to a later version."""
        field = message.WhichOneof(self.name)
        return None if field is None else _plan(self._classes[field])[1](getattr(message, field))


_CLASSES: Final[dict[type, type[Message]]] = {}


def _message_class(cls: type) -> type[Message]:
    found = _CLASSES.get(cls)
    if found is None:
        found = _CLASSES[cls] = _find_message_class(cls)
    return found


def _find_message_class(cls: type) -> type[Message]:
    for contract in (api_pb2, groups_pb2, transactions_pb2, sinks_pb2, reassignments_pb2, metadata_pb2, forwarded_pb2):
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
    """Generate the two functions and compile them, as ``dataclasses`` does."""
    hints = typing.get_type_hints(cls)
    known: dict[str, Any] = {"cls": cls}
    fields = [_field_plan(field.name, hints[field.name], known) for field in dataclasses.fields(cls)]
    fill = "".join(f"    {put}\n" for put, _ in fields) or "    pass\n"
    names = [field.name for field in dataclasses.fields(cls)]
    read = ", ".join(f"{name}={get}" for name, (_, get) in zip(names, fields, strict=True))
    exec(f"def fill(message, value):\n{fill}def read(message):\n    return cls({read})\n", known)
    return known["fill"], known["read"]


def _field_plan(name: str, hint: object, known: dict[str, Any]) -> tuple[str, str]:
    """Return the statement that sets a field of ``message`` from ``value``, and the expression that reads it."""
    there, here = f"message.{name}", f"value.{name}"
    if hint == Buffer:
        return f"{there} = bytes({here})", there
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not _has_plan(name, typing.get_args(hint)[0], known):
            return f"{there}.extend({here})", f"tuple({there})"
        return f"for one in {here}: fill_{name}({there}.add(), one)", f"tuple(map(read_{name}, {there}))"
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        put, get = _field_plan(name, inner, known)
        if _has_plan(name, inner, known):
            put = f"{there}.SetInParent(); {put}"
        return f"if {here} is not None: {put}", f"{get} if message.HasField({name!r}) else None"
    if _has_plan(name, hint, known):
        return f"fill_{name}({there}, {here})", f"read_{name}({there})"
    plain = _plain(hint)
    if plain is VoterSet:
        known[f"read_{name}"] = VoterSet.decode
        return f"{there} = {here}.encode()", f"read_{name}({there})"
    if issubclass(plain, enum.IntEnum):
        known[f"read_{name}"] = _error_code if plain is ErrorCode else plain
        return f"{there} = {here}", f"read_{name}({there})"
    return f"{there} = {here}", there


def _has_plan(name: str, hint: object, known: dict[str, Any]) -> bool:
    """Return whether a field has messages; if so, register their plan."""
    plain = _plain(hint)
    if plain is VoterSet or not dataclasses.is_dataclass(plain):
        return False
    known[f"fill_{name}"], known[f"read_{name}"] = _plan(typing.cast(type, plain))
    return True


def _plain(hint: object) -> Any:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _error_code(number: int) -> ErrorCode:
    return _ERROR_CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
