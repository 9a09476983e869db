"""Writes ``schemas.json``, the fields of every message and version: ``python -m tidelog.proto.kafka.schema_file``.

They come from kio, which generates its classes from Kafka's own message definitions. kio is not needed at run time:
importing it would take half as long as a node's start, and each version's classes would take some milliseconds of the
event loop at first use.
"""

from __future__ import annotations

import json
from dataclasses import Field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

KINDS: Final = ("request", "response")


def schema_file() -> str:
    """Return the file's text: API key → kind → version → structure, or the number of an earlier version with the same
    one."""
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.index import api_key_map, schema_name_map

    lines = []
    for key, name in sorted(api_key_map.items()):
        for kind, load in zip(KINDS, (load_request_schema, load_response_schema), strict=True):
            seen: dict[str, int] = {}
            versions: dict[str, Any] = {}
            for version in sorted(schema_name_map[name]):
                found = structure(load(key, version))
                text = json.dumps(found)
                versions[str(version)] = seen.get(text, found)
                seen.setdefault(text, version)
            body = json.dumps(versions, separators=(",", ":"), sort_keys=True)
            lines.append(f'"{key} {kind}":{body}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def structure(schema: Any) -> dict[str, Any]:
    """Convert kio's class of a structure: its name, whether it is flexible, its fields in wire order."""
    return {
        "name": schema.__name__,
        "flexible": schema.__flexible__,
        "fields": [_field(found) for found in fields(schema)],
    }


def _field(found: Field[Any]) -> dict[str, Any]:
    """Describe a field by its differences from an untagged, non-null value with its type's default."""
    inner, nullable = _without_none(found.type)
    out: dict[str, Any] = {"name": found.name}
    array = get_origin(inner) is tuple
    if array:
        inner, _ = _without_none(get_args(inner)[0])  # only ids may be None within: zeros
        out["array"] = True
    if is_dataclass(inner):
        out["of"] = structure(inner)
    else:
        out["type"] = found.metadata["kafka_type"]
    if nullable:
        out["nullable"] = True
    if "tag" in found.metadata:
        out["tag"] = int(found.metadata["tag"])
    default = found.default
    if isinstance(default, timedelta):
        out["default"] = round(default.total_seconds() * 1000)
    elif isinstance(default, (bool, int, str)) or (array and default is None):
        out["default"] = default
    return out


def _without_none(found: object) -> tuple[Any, bool]:
    """Return the type within ``X | None``, and whether it was optional."""
    if isinstance(found, UnionType):
        (inner,) = [arg for arg in get_args(found) if arg is not NoneType]
        return inner, True
    return found, False


if __name__ == "__main__":
    (Path(__file__).parent / "schemas.json").write_text(schema_file(), encoding="utf-8")
