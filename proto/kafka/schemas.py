"""The fields of every message and version of Kafka's protocol, as kio's classes tell them.

kio generates these from Kafka's own message definitions.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

from tidelog.proto.kafka.wire import BadMessage

FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""kio's names of the types of fixed size, as ``struct`` writes them."""
_NO_ID: Final = bytes(16)
_IMPLICIT: Final = {"string": "", "bytes": b"", "records": b"", "uuid": _NO_ID, "bool": False}
"""Kafka's default of a field that names none; 0 for the other types."""


@cache
def schema_of(api_key: int, version: int, kind: str) -> Any:
    """kio's class of a "request" or "response". Raises :class:`BadMessage` for one that kio does not know."""
    from kio.schema.index import api_key_map, schema_name_map

    name = api_key_map.get(api_key)
    if name is None or version not in schema_name_map[name]:
        raise BadMessage(f"expected a known API and version, found key {api_key}, version {version}")
    module = import_module(f"kio.schema.{name}.v{version}.{kind}")
    own: list[Any] = [found for found in vars(module).values() if getattr(found, "__module__", "") == module.__name__]
    (schema,) = [found for found in own if found.__type__.name == kind]
    return schema


class Shape:
    """What a field is: a structure (``entity``) or a primitive (``kind``), an array of it, nullable, tagged."""

    __slots__ = ("array", "default", "entity", "kind", "name", "nullable", "tag")

    def __init__(self, found: Field[Any]) -> None:
        self.name = found.name
        inner, self.nullable = _without_none(found.type)
        self.array = get_origin(inner) is tuple
        if self.array:
            inner, _ = _without_none(get_args(inner)[0])  # ids alone may be None within: zeros
        self.entity: Any = inner if is_dataclass(inner) else None
        self.kind: str = "" if self.entity is not None else found.metadata["kafka_type"]
        self.tag: int | None = found.metadata.get("tag")
        self.default = self._implicit() if found.default is MISSING else self._plain(found.default)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, timedelta):
            return round(value.total_seconds() * 1000)
        if value is None and not self.array and self.kind in ("uuid", "datetime_i64"):
            return self._implicit()
        return value

    def _implicit(self) -> Any:
        if self.array:
            return ()
        if self.entity is not None:
            return None if self.nullable else {}
        if self.kind == "datetime_i64":
            return -1 if self.nullable else 0
        if self.nullable and self.kind != "uuid":
            return None
        return _IMPLICIT.get(self.kind, 0)


@cache
def shapes_of(schema: Any) -> tuple[Shape, ...]:
    """The fields of a structure in the order of the wire, tagged ones included."""
    return tuple(Shape(found) for found in fields(schema))


def _without_none(found: Any) -> tuple[Any, bool]:
    """The type within ``X | None``, and whether it was one."""
    if isinstance(found, UnionType):
        (inner,) = [arg for arg in get_args(found) if arg is not NoneType]
        return inner, True
    return found, False
