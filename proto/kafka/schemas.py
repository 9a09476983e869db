"""The fields of every message and version of Kafka's protocol, from ``schemas.json``.

:mod:`tidelog.proto.kafka.schema_file` writes that file from kio's classes, which are generated from Kafka's own
message definitions. Names of fields and types are kio's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

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
"""The types of fixed size, as ``struct`` formats."""
_IMPLICIT: Final = {"string": "", "bytes": b"", "records": b"", "uuid": bytes(16), "bool": False}
"""Kafka's default of a field without its own; 0 for the other types."""


class Schema:
    """A structure: ``shapes`` are its fields in wire order, tagged ones included."""

    __slots__ = ("flexible", "name", "shapes")

    def __init__(self, written: Mapping[str, Any]) -> None:
        self.name: str = written["name"]
        self.flexible: bool = written["flexible"]
        """Whether it has compact strings and tagged fields (KIP-482)."""
        self.shapes = tuple(Shape(found) for found in written["fields"])


class Shape:
    """The shape of a field: a structure (``of``) or a primitive (``kind``), an array of it, nullable, tagged."""

    __slots__ = ("array", "default", "kind", "name", "nullable", "of", "tag")

    def __init__(self, written: Mapping[str, Any]) -> None:
        self.name: str = written["name"]
        self.array: bool = written.get("array", False)
        self.nullable: bool = written.get("nullable", False)
        self.of = Schema(written["of"]) if "of" in written else None
        self.kind: str = written.get("type", "")
        self.tag: int | None = written.get("tag")
        self.default: Any = written["default"] if "default" in written else self._implicit()

    def _implicit(self) -> Any:
        if self.array:
            return ()
        if self.of is not None:
            return None if self.nullable else {}
        if self.kind == "datetime_i64":
            return -1 if self.nullable else 0
        if self.nullable and self.kind != "uuid":
            return None
        return _IMPLICIT.get(self.kind, 0)


@cache
def load_schemas() -> dict[str, dict[str, Any]]:
    """Read the file once; it takes some milliseconds that are better spent before a node serves."""
    found: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "schemas.json").read_bytes())
    return found


@cache
def api_name(api_key: int) -> str:
    """Return Kafka's name of an API that has a schema, such as "Produce"."""
    version = next(iter(load_schemas()[f"{api_key} request"]))
    return schema_of(api_key, int(version), "request").name.removesuffix("Request")


@cache
def schema_of(api_key: int, version: int, kind: str) -> Schema:
    """Return the schema of a "request" or "response". Raises :class:`BadMessage` for an unknown one."""
    found = load_schemas().get(f"{api_key} {kind}", {}).get(str(version))
    if found is None:
        raise BadMessage(f"expected a known API and version, found key {api_key}, version {version}")
    return schema_of(api_key, found, kind) if isinstance(found, int) else Schema(found)
