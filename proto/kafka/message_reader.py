"""Readers of Kafka's messages, built once per version from its schema."""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from tidelog.proto.kafka import wire
from tidelog.proto.kafka.schemas import FIXED, Schema, Shape
from tidelog.proto.kafka.wire import BadMessage, Budget, Data, Reader


def _maker(name: str, names: list[str]) -> Callable[[Iterable[Any]], Any]:
    made: Any = namedtuple(name, names)  # type: ignore[misc]
    make: Callable[[Iterable[Any]], Any] = made._make
    return make


Read = Any
"""``(data, position, budget) -> (value, position)``."""


@cache
def reader_of(schema: Schema) -> Read:
    """Return a reader of one structure: it reads runs of fixed size in one step, other fields one by one, tagged fields
    last."""
    shapes = schema.shapes
    flexible = schema.flexible
    plain = [shape for shape in shapes if shape.tag is None]
    tagged = {
        shape.tag: (number, _value_reader(shape, flexible, tagged=True))
        for number, shape in enumerate(shapes)
        if shape.tag is not None
    }
    # Each version has its own class, so that a field that it lacks is missing rather than empty.
    make = _maker(schema.name, [shape.name for shape in shapes])
    steps: list[tuple[struct.Struct | None, Any]] = []
    run = ""
    for shape in plain:
        if not shape.array and shape.kind in FIXED:
            run += FIXED[shape.kind]
            continue
        if run:
            steps.append((struct.Struct(">" + run), None))
            run = ""
        steps.append((None, _value_reader(shape, flexible, tagged=False)))
    if run:
        steps.append((struct.Struct(">" + run), None))
    order = [number for number, shape in enumerate(shapes) if shape.tag is None]
    in_order = order == list(range(len(shapes)))
    defaults = [_default_of(shape) for shape in shapes]

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        values: list[Any] = []
        for fixed, one in steps:
            if fixed is not None:
                end = position + fixed.size
                if end > len(data):
                    raise BadMessage(f"expected {schema.name} to go on until {end}, found {len(data)} bytes")
                values += fixed.unpack_from(data, position)
                position = end
            else:
                value, position = one(data, position, budget)
                values.append(value)
        if not flexible:
            return make(values), position
        if not in_order:
            plain_values, values = values, defaults.copy()
            for number, value in zip(order, plain_values, strict=True):
                values[number] = value
        if position < len(data) and not data[position]:
            return make(values), position + 1
        count, position = wire.read_tag_count(data, position, budget)
        for _ in range(count):
            tag, position, end = wire.read_tag(data, position)
            known = tagged.get(tag)
            if known is not None:
                number, one = known
                values[number], found_end = one(data[:end], position, budget)
                if found_end != end:
                    raise BadMessage(f"expected tagged field {tag} to end at {end}, found {found_end}")
            position = end
        return make(values), position

    return read


def _default_of(shape: Shape) -> Any:
    """Return the value of a tagged field that was not sent."""
    if shape.of is not None and not shape.array and not shape.nullable:
        inner = shape.of.shapes
        make = _maker(shape.of.name, [one.name for one in inner])
        return make([_default_of(one) for one in inner])
    return shape.default


def _value_reader(shape: Shape, flexible: bool, *, tagged: bool) -> Read:
    if shape.array:
        return _array_reader(shape, flexible)
    if shape.of is not None:
        whole = reader_of(shape.of)
        return _nullable_reader(whole) if shape.nullable and not tagged else whole
    if shape.kind in FIXED:
        return _fixed_reader(struct.Struct(">" + FIXED[shape.kind]))
    read = _variable_reader(shape.kind, flexible)
    name, nullable = shape.name, shape.nullable

    def one(data: Data, position: int, _: Budget) -> tuple[Any, int]:
        value, position = read(data, position)
        if value is None and not nullable:
            raise BadMessage(f"expected a value for {name} before position {position}, found null")
        return value, position

    return one


def _fixed_reader(fixed: struct.Struct) -> Read:
    def one(data: Data, position: int, _: Budget) -> tuple[Any, int]:
        end = position + fixed.size
        if end > len(data):
            raise BadMessage(f"expected {fixed.size} bytes at position {position}, found {len(data) - position}")
        return fixed.unpack_from(data, position)[0], end

    return one


def _variable_reader(kind: str, flexible: bool) -> Reader:
    if kind == "string":
        return wire.read_compact_string if flexible else wire.read_string
    assert kind in ("bytes", "records"), kind
    return wire.read_compact_bytes if flexible else wire.read_bytes


def _nullable_reader(whole: Read) -> Read:
    """Return a reader of a structure after a byte that says whether it is present (KIP-893)."""

    def one(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        if position >= len(data):
            raise BadMessage(f"expected a structure at position {position}, found the end")
        return (None, position + 1) if data[position] >= 0x80 else whole(data, position + 1, budget)

    return one


def _array_reader(shape: Shape, flexible: bool) -> Read:
    read_length = wire.read_compact_length if flexible else wire.read_length
    name, nullable = shape.name, shape.nullable
    letter = FIXED.get(shape.kind)
    item: Read = None
    if shape.of is not None:
        item = reader_of(shape.of)
    elif letter is None:
        item = _item_reader(_variable_reader(shape.kind, flexible))
    item_size = struct.calcsize(">" + letter) if letter is not None else 1

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        count, position = read_length(data, position)
        if count < 0:
            if not nullable:
                raise BadMessage(f"expected an array for {name} before position {position}, found null")
            return None, position
        if count * item_size > len(data) - position:
            raise BadMessage(f"expected {count} items of {name}, found {len(data) - position} bytes for them")
        budget.take(count)
        if item is None:
            end = position + count * item_size
            if letter == "16s":
                return tuple(bytes(data[at : at + 16]) for at in range(position, end, 16)), end
            return struct.unpack_from(f">{count}{letter}", data, position), end
        values = []
        for _ in range(count):
            value, position = item(data, position, budget)
            values.append(value)
        return tuple(values), position

    return read


def _item_reader(read: Reader) -> Read:
    def one(data: Data, position: int, _: Budget) -> tuple[Any, int]:
        value, position = read(data, position)
        if value is None:
            raise BadMessage(f"expected a value before position {position}, found null")
        return value, position

    return one
