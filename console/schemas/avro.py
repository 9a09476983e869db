"""Avro's binary encoding, by the writer's schema. Source: Avro 1.12, "Schema Declaration" and "Binary Encoding".

Written by hand because readers of records must be bounded: the usual libraries follow an array's count, or a recursive
schema, as far as hostile bytes lead them.
"""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidelog.console.schemas.structured import SchemaWrong, Source, Undecodable, bytes_text

Read = Callable[[Source], Any]
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIXED_MAX: Final = 1 << 20
_SCALE_MAX: Final = 1_000


class AvroSchema:
    """``text``: the schema as JSON; ``references``: schemas whose names it uses, each before its users. Raises
    :class:`SchemaWrong`."""

    kind: Final = "avro"

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        names: dict[str, Read] = {}
        try:
            for each in references:
                _reader(json.loads(each), names, "")
            schema = json.loads(text)
            self._read = _reader(schema, names, "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SchemaWrong(f"expected an Avro schema: {type(error).__name__} {str(error)[:100]}") from None
        self.name = schema.get("name", "") if isinstance(schema, dict) else str(schema)[:100]

    def decode(self, data: bytes) -> Any:
        """Values that JSON has. Raises :class:`Undecodable`."""
        source = Source(data)
        try:
            found = self._read(source)
        except RecursionError:
            raise Undecodable("nested too deep") from None
        source.end()
        return found


def _reader(schema: Any, names: dict[str, Read], space: str) -> Read:
    if isinstance(schema, list):
        return _nested(_union([_reader(one, names, space) for one in schema]))
    if isinstance(schema, str):
        return _named(schema, names, space)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _reader(kind, names, space)
    if kind == "array":
        return _nested(_array(_reader(schema["items"], names, space)))
    if kind == "map":
        return _nested(_map(_reader(schema["values"], names, space)))
    if kind in ("record", "error", "enum", "fixed"):
        full = _full(schema["name"], schema.get("namespace", space))
        inner = full.rpartition(".")[0]
        if kind == "record" or kind == "error":
            fields: dict[str, Read] = {}
            names[full] = _nested(lambda source: {name: read(source) for name, read in fields.items()})
            for one in schema["fields"]:
                fields[one["name"]] = _reader(one["type"], names, inner)
        elif kind == "enum":
            symbols = [str(one) for one in schema["symbols"]]
            names[full] = lambda source: symbols[_index(source, len(symbols), "an enum's symbols")]
        else:
            size = schema["size"]
            if not isinstance(size, int) or not 0 <= size <= _FIXED_MAX:
                raise SchemaWrong(f"expected a size of 0 to {_FIXED_MAX:,}, found {size!r}"[:200])
            names[full] = _logical(schema, lambda source: source.take(size))
        return names[full]
    return _logical(schema, _named(kind, names, space, raw=True))


def _full(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _named(name: str, names: Mapping[str, Read], space: str, *, raw: bool = False) -> Read:
    if name in _PRIMITIVES:
        read = _PRIMITIVES[name]
        return _text_of(read) if name == "bytes" and not raw else read
    full = _full(name, space)
    if full not in names and name not in names:
        raise SchemaWrong(f"expected a type of Avro or one that stands before, found {name[:80]!r}")
    chosen = full if full in names else name
    return lambda source: names[chosen](source)  # may still be under construction


def _nested(read: Read) -> Read:
    def nested(source: Source) -> Any:
        source.deeper()
        found = read(source)
        source.depth -= 1
        return found

    return nested


def _index(source: Source, count: int, of: str) -> int:
    at = source.zigzag()
    if not 0 <= at < count:
        raise Undecodable(f"expected one of {count} of {of} before byte {source.position:,}, found number {at}")
    return at


def _union(kinds: list[Read]) -> Read:
    return lambda source: kinds[_index(source, len(kinds), "a union's types")](source)


def _blocks(source: Source) -> Iterable[int]:
    while count := source.zigzag():
        if count < 0:
            source.zigzag()  # the block's size
        for number in range(abs(count)):
            source.item()
            yield number


def _array(read: Read) -> Read:
    return lambda source: [read(source) for _ in _blocks(source)]


def _map(read: Read) -> Read:
    return lambda source: {_string(source): read(source) for _ in _blocks(source)}


def _bytes(source: Source) -> bytes:
    return source.take(source.zigzag())


def _string(source: Source) -> str:
    try:
        return _bytes(source).decode()
    except UnicodeDecodeError:
        raise Undecodable(f"expected UTF-8 before byte {source.position:,}") from None


def _boolean(source: Source) -> bool:
    (found,) = source.take(1)
    if found > 1:
        raise Undecodable(f"expected 0 or 1 at byte {source.position - 1:,}, found {found}")
    return bool(found)


_PRIMITIVES: Final[dict[str, Read]] = {
    "null": lambda _: None, "boolean": _boolean, "int": Source.zigzag, "long": Source.zigzag,
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": _bytes, "string": _string,
}  # fmt: skip


def _text_of(read: Read) -> Read:
    return lambda source: bytes_text(read(source))


def _logical(schema: Mapping[str, Any], read: Read) -> Read:
    """Numbers that mean a time or a decimal, as people write them; others as they are."""
    logical = schema.get("logicalType")
    raw_bytes = schema["type"] in ("bytes", "fixed")
    if logical == "decimal" and raw_bytes:
        scale = schema.get("scale", 0)
        if not isinstance(scale, int) or not 0 <= scale <= _SCALE_MAX:
            raise SchemaWrong(f"expected a scale of 0 to {_SCALE_MAX}, found {scale!r}"[:200])
        return lambda source: _decimal(read(source), scale)
    if raw_bytes:
        return _text_of(read)
    if logical == "date":
        return lambda source: _time(read(source), 86_400_000_000, 10)
    if logical in ("timestamp-millis", "timestamp-micros"):
        unit = 1_000 if logical.endswith("millis") else 1
        return lambda source: _time(read(source), unit, None)
    return read


def _decimal(data: bytes, scale: int) -> str:
    if len(data) > 128:
        return bytes_text(data)
    from decimal import Decimal  # here, so that a console without Avro pays nothing for it

    return str(Decimal(f"{int.from_bytes(data, 'big', signed=True)}E-{scale}"))


def _time(found: int, unit_us: int, chars: int | None) -> str | int:
    try:
        return (_EPOCH + datetime.timedelta(microseconds=found * unit_us)).isoformat()[:chars]
    except OverflowError:
        return found
