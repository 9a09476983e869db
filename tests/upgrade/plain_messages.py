"""Every message, record and snapshot that goes between nodes or onto a disk, with sample values, as bytes and as plain
data. A program that runs with the Python of either release: it knows where each of them keeps its classes.

``plain_messages.py encode`` prints for each class its name, its bytes and its values; ``decode`` reads names and bytes
and prints names and values. All as lines of JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import json
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Final

MODULES: Final = (
    "proto.api", "proto.controller_api", "proto.group_api", "proto.reassignment_api", "proto.sink_api",
    "proto.transaction_api", "proto.calls.api", "proto.calls.controller_api", "proto.calls.group_api",
    "proto.calls.reassignment_api", "proto.calls.sink_api", "proto.calls.transaction_api",
)  # fmt: skip


def found(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        try:
            return importlib.import_module(f"tidelog.{name}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"none of {names}")


def kinds() -> dict[str, tuple[type[Any], Callable[[Any], bytes], Callable[[bytes], Any]]]:
    """Each class by its name, with what makes bytes of it and what reads them."""
    convert = found("proto.calls.convert", "proto.convert")
    codec = found("proto.logs.metadata_codec", "proto.metadata_codec")
    records = found("proto.logs.metadata_records", "proto.metadata")
    raft = found("proto.transport.raft_messages", "proto.raft_messages")
    all_kinds: dict[str, tuple[type[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {}
    for name in MODULES:
        try:
            module = importlib.import_module(f"tidelog.{name}")
        except ModuleNotFoundError:
            continue
        for cls in vars(module).values():
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                continue
            if cls.__name__.endswith(("Request", "Response")):
                all_kinds[cls.__name__] = (cls, convert.to_proto, functools.partial(convert.from_proto, cls))
    for cls in typing.get_args(records.MetadataRecord):
        all_kinds[cls.__name__] = (
            cls,
            lambda one: bytes(codec.encode_batch([one])),
            lambda data: codec.decode_batch(data)[0],
        )
    for cls in typing.get_args(raft.RaftMessage):
        if cls.__name__ not in ("Append", "Voters"):  # entries of the first release have an index besides
            all_kinds[f"Raft{cls.__name__}"] = (
                cls,
                lambda one: b"".join(raft.join_messages([raft.encode_message(one)])),
                lambda data: raft.decode_frame(data)[0],
            )
    all_kinds["RaftHello"] = (raft.Hello, raft.encode_hello, raft.decode_hello)
    return all_kinds


def sample(hint: Any) -> Any:
    """A value of a type that is not what a missing field is read as."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in typing.get_args(hint) if one is not type(None)))
    if origin is tuple:
        return (sample(typing.get_args(hint)[0]),)
    if dataclasses.is_dataclass(hint):
        return made(typing.cast("type[Any]", hint))
    if issubclass(hint, enum.Enum):
        return list(hint)[1]
    return {bool: True, int: 7, str: "text", bytes: b"\x01" * 16, float: 2.5}[hint]


def made(cls: type[Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: sample(hints[field.name]) for field in dataclasses.fields(cls)})


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value.value if isinstance(value, enum.Enum) else value


def main() -> None:
    known = kinds()
    if sys.argv[1] == "encode":
        for name, (cls, encode, _) in sorted(known.items()):
            one = made(cls)
            print(json.dumps([name, encode(one).hex(), plain(one)]))
        return
    for line in sys.stdin:
        name, data = json.loads(line)[:2]
        if name in known:
            print(json.dumps([name, plain(known[name][2](bytes.fromhex(data)))]))


if __name__ == "__main__":
    main()
