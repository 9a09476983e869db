"""Writers of Kafka's messages, built once per version from its schema."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from tidelog.proto.kafka import wire
from tidelog.proto.kafka.schemas import FIXED, Schema, Shape
from tidelog.proto.kafka.wire import Writer
from tidelog.proto.records.varint import write_uvarint


@cache
def writer_of(schema: Schema) -> Writer:
    """Return a writer of one structure from a mapping."""
    shapes = schema.shapes
    flexible = schema.flexible
    steps: list[tuple[struct.Struct | None, Any, Any, Any]] = []
    run: list[Shape] = []

    def end_run() -> None:
        if run:
            fixed = struct.Struct(">" + "".join(FIXED[shape.kind] for shape in run))
            steps.append((fixed, tuple((shape.name, shape.default) for shape in run), None, None))
            run.clear()

    for shape in shapes:
        if shape.tag is not None:
            continue
        if not shape.array and shape.kind in FIXED:
            run.append(shape)
            continue
        end_run()
        steps.append((None, shape.name, shape.default, _value_writer(shape, flexible, tagged=False)))
    end_run()
    tagged = sorted(
        (shape.tag, shape.name, shape.default, _value_writer(shape, flexible, tagged=True))
        for shape in shapes
        if shape.tag is not None
    )

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        get = values.get
        for fixed, names, default, one in steps:
            if fixed is not None:
                out += fixed.pack(*[get(name, otherwise) for name, otherwise in names])
            else:
                one(out, get(names, default))
        if not flexible:
            return
        given = [
            (tag, values[name], one) for tag, name, default, one in tagged if name in values and values[name] != default
        ]
        out.append(len(given))
        for tag, value, one in given:
            inner = bytearray()
            one(inner, value)
            write_uvarint(out, tag)
            write_uvarint(out, len(inner))
            out += inner

    return write


def _value_writer(shape: Shape, flexible: bool, *, tagged: bool) -> Writer:
    if shape.array:
        return _array_writer(shape, flexible)
    if shape.of is not None:
        whole = writer_of(shape.of)
        return _nullable_writer(whole) if shape.nullable and not tagged else whole
    if shape.kind in FIXED:
        pack = struct.Struct(">" + FIXED[shape.kind]).pack

        def fixed(out: bytearray, value: object) -> None:
            out += pack(value)

        return fixed
    return _never_null(shape, _variable_writer(shape.kind, flexible))


def _never_null(shape: Shape, write: Writer) -> Writer:
    if shape.nullable:
        return write
    name = shape.name

    def one(out: bytearray, value: object) -> None:
        if value is None:
            raise ValueError(f"expected a value for {name}, found None")
        write(out, value)

    return one


def _variable_writer(kind: str, flexible: bool) -> Writer:
    if kind == "string":
        return wire.write_compact_string if flexible else wire.write_string
    assert kind in ("bytes", "records"), kind
    return wire.write_compact_bytes if flexible else wire.write_bytes


def _nullable_writer(whole: Writer) -> Writer:
    """Return a writer of a structure after a byte that says whether it is present (KIP-893)."""

    def one(out: bytearray, value: object) -> None:
        if value is None:
            out.append(0xFF)
            return
        out.append(1)
        whole(out, value)

    return one


def _array_writer(shape: Shape, flexible: bool) -> Writer:
    write_length = wire.write_compact_length if flexible else wire.write_length
    letter = FIXED.get(shape.kind)
    item: Writer | None = None
    if shape.of is not None:
        item = writer_of(shape.of)
    elif letter is None:
        item = _variable_writer(shape.kind, flexible)

    def write(out: bytearray, values: Any) -> None:
        if values is None:
            write_length(out, -1)
            return
        write_length(out, len(values))
        if item is None:
            out += b"".join(values) if letter == "16s" else struct.pack(f">{len(values)}{letter}", *values)
            return
        for value in values:
            item(out, value)

    return _never_null(shape, write)
