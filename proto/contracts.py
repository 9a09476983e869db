"""Writes the gRPC contracts ``proto/v1/*.proto`` from our types: ``python -m tidelog.proto.contracts DIRECTORY``.

The classes of calls and metadata records are handwritten, once; a contract presents them to a protobuf compiler of any
language. ``./dev generate`` runs this first.

A contract also has memory: the committed one is read before it is rewritten. A field keeps its first number and width,
wherever it is in its class. A new field gets the next free number; a removed field leaves its number reserved. A new
``int`` is an ``int64``, the ids have the widths of ``_WIDTHS``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tidelog.model import ids
from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.voter_set import VoterSet
from tidelog.proto.calls import (
    acl_api,
    api,
    audit_api,
    backup_api,
    connection_api,
    consumer_group_api,
    controller_api,
    delegation_token_api,
    forwarded,
    group_api,
    quota_api,
    reassignment_api,
    sink_api,
    transaction_api,
    user_api,
)
from tidelog.proto.calls.convert import OneOf
from tidelog.proto.calls.table import CALL_MODULES, CALLS
from tidelog.proto.logs import metadata_records as metadata
from tidelog.proto.logs.metadata_codec import RECORD
from tidelog.proto.transport import raft_messages
from tidelog.proto.transport.raft_messages import BODY

T = TypeVar("T")

_WIDTHS: Final[dict[object, str]] = {
    ids.NodeId: "int32",
    ids.LeaderEpoch: "int32",
    ids.PartitionEpoch: "int32",
    ErrorCode: "int32",
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    bytes: "bytes",
    Buffer: "bytes",
    VoterSet: "bytes",
}

_INTEGERS: Final = {
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_UINT32: "uint32",
    FieldDescriptorProto.TYPE_UINT64: "uint64",
}

_PREFIXES: Final = {raft_messages.__name__: "Raft"}
"""Prefix of the names of a module's classes in the contract."""

_FRAMES: Final = """\
// Record data: the payload is laid out as tidelog.proto.transport.frames says.
message Frame {
  bytes payload = 1;
}
"""

_STREAMS: Final = """\
  // Streams of data.
  rpc Produce(stream Frame) returns (stream Frame);
  rpc Fetch(stream Frame) returns (stream Frame);
  rpc ReplicaFetch(stream Frame) returns (stream Frame);
  rpc Raft(stream Frame) returns (stream Frame);
  // Any of the calls above as frames of one stream, laid out as tidelog.proto.transport.call_stream says.
  rpc Calls(stream Frame) returns (stream Frame);
"""


@dataclass(frozen=True, slots=True)
class Bodies:
    """A message whose body is one of several, and the message that holds many of it."""

    name: str
    body: OneOf
    many: str
    field: str
    about: str
    """The description of ``many``."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One ``.proto`` file: the modules of its classes, and the contracts that it imports."""

    modules: tuple[ModuleType, ...]
    imports: tuple[str, ...] = ()
    bodies: Bodies | None = None


CONTRACTS: Final[Mapping[str, Contract]] = {
    "api": Contract(
        (
            api,
            acl_api,
            quota_api,
            user_api,
            delegation_token_api,
            audit_api,
            backup_api,
            controller_api,
            connection_api,
        ),
        ("forwarded", "groups", "reassignments", "sinks", "transactions"),
    ),
    "forwarded": Contract((forwarded,)),
    "groups": Contract((group_api, consumer_group_api)),
    "metadata": Contract(
        (metadata,),
        ("api",),
        Bodies(
            "MetadataRecord",
            RECORD,
            "MetadataBatch",
            "records",
            "One entry of the metadata log: its records take effect together.",
        ),
    ),
    "raft": Contract(
        (raft_messages,),
        bodies=Bodies(
            "RaftMessage",
            BODY,
            "RaftFrame",
            "messages",
            "Any later frame of a stream: everything that was waiting for this peer.",
        ),
    ),
    "reassignments": Contract((reassignment_api,), ("forwarded",)),
    "sinks": Contract((sink_api,)),
    "transactions": Contract((transaction_api,), ("groups",)),
}


class Remembered:
    """The committed message: number and type of each field, and the numbers that must not be reused."""

    def __init__(self, message: DescriptorProto | None) -> None:
        found = message or DescriptorProto()
        self.fields = {one.name: (one.number, _INTEGERS.get(one.type)) for one in found.field}
        self.reserved = {span.start: name for span, name in zip(found.reserved_range, found.reserved_name, strict=True)}

    def number_free(self) -> int:
        return 1 + max([0, *self.reserved, *(number for number, _ in self.fields.values())])


def remembered(name: str) -> dict[str, Remembered]:
    """Return what must stay, by message name, from the code that the committed contract generated."""
    try:
        committed = import_module(f"tidelog.proto.v1.{name}_pb2")
    except ModuleNotFoundError:
        return {}
    file = FileDescriptorProto()
    committed.DESCRIPTOR.CopyToProto(file)
    return {message.name: Remembered(message) for message in file.message_type}


def contract(name: str) -> str:
    """Return the text of ``proto/v1/NAME.proto``."""
    before, new = remembered(name), Remembered(None)
    chosen = CONTRACTS[name]
    about = " ".join(inspect.getdoc(module) or "" for module in chosen.modules)
    parts = [
        "// Generated by ./dev generate from "
        + ", ".join(module.__name__ for module in chosen.modules)
        + ".\n"
        + _comment(about.split("\n\n")[0])
        + 'syntax = "proto3";\n\npackage tidelog.v1;\n'
    ]
    if chosen.imports:
        parts.append("".join(f'import "tidelog/proto/v1/{other}.proto";\n' for other in chosen.imports))
    if name == "api":
        parts += [_FRAMES, _service()]
    for module in chosen.modules:
        parts += [_enum(cls) for cls in _own(module, enum.IntEnum)]
        parts += [_message(cls, before.get(_named(cls), new)) for cls in message_types(module)]
    if chosen.bodies is not None:
        parts.append(_any_of(chosen.bodies, before.get(chosen.bodies.name, new)))
    return "\n".join(parts)


def message_types(module: ModuleType) -> list[type]:
    """Return the message classes that ``module`` defines, in its order."""
    return [cls for cls in _own(module, object) if dataclasses.is_dataclass(cls)]


def _own(module: ModuleType, base: type[T]) -> list[type[T]]:
    return [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, base) and cls.__module__ == module.__name__
    ]


def _named(cls: type) -> str:
    """Return the name of a class in the contract."""
    return _PREFIXES.get(cls.__module__, "") + cls.__name__


def _service() -> str:
    lines = ["// One service for every listener; a listener answers UNIMPLEMENTED to what is not its own."]
    lines.append("service Tidelog {")
    for module in CALL_MODULES:
        lines.append(_comment(_summary(module), "  ").rstrip())
        lines += [
            f"  rpc {request.__name__.removesuffix('Request')}({request.__name__}) returns ({answer.__name__});"
            for request, answer in CALLS.items()
            if request.__module__ == module.__name__
        ]
    return "\n".join(lines) + "\n" + _STREAMS + "}\n"


def _message(cls: type, kept: Remembered) -> str:
    hints = typing.get_type_hints(cls)
    lines = []
    number = kept.number_free()
    names = [found.name for found in dataclasses.fields(cls)]
    for name in names:
        label, kind = _kind(hints[name])
        if name in kept.fields:
            own, width = kept.fields[name]
            kind = width or kind
        else:
            own, number = number, number + 1
        lines.append(f"  {label}{kind} {name} = {own};")
    gone = {own: name for name, (own, _) in kept.fields.items() if name not in names} | kept.reserved
    lines += [f'  reserved {own};\n  reserved "{name}";' for own, name in sorted(gone.items())]
    body = "\n".join(lines)
    # The standard ``dataclass`` sets the signature as docstring of a class without one.
    said = cls.__doc__ or f"{cls.__name__}("
    comment = "" if said.startswith(f"{cls.__name__}(") else _comment(inspect.cleandoc(said))
    return comment + (f"message {_named(cls)} {{\n{body}\n}}\n" if body else f"message {_named(cls)} {{}}\n")


def _enum(cls: type[enum.IntEnum]) -> str:
    prefix = _PREFIXES.get(cls.__module__, "").upper()
    lines = "".join(f"  {prefix}_{member.name} = {member.value};\n" for member in cls)
    return f"{_comment(inspect.getdoc(cls) or '')}enum {_named(cls)} {{\n{lines}}}\n"


def _any_of(bodies: Bodies, kept: Remembered) -> str:
    number = kept.number_free()
    lines = []
    for cls, name in bodies.body.fields.items():
        if name in kept.fields:
            own = kept.fields[name][0]
        else:
            own, number = number, number + 1
        lines.append(f"    {_named(cls)} {name} = {own};")
    return (
        f"message {bodies.name} {{\n  oneof {bodies.body.name} {{\n" + "\n".join(lines) + "\n  }\n}\n\n"
        f"{_comment(bodies.about)}message {bodies.many} {{\n  repeated {bodies.name} {bodies.field} = 1;\n}}\n"
    )


def _kind(hint: object) -> tuple[str, str]:
    """Return the label and type of a field."""
    origin = None if hint in _WIDTHS else typing.get_origin(hint)
    if origin is tuple:
        return "repeated ", _plain_kind(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        # A message field has presence without a label.
        return ("" if dataclasses.is_dataclass(inner) else "optional "), _plain_kind(inner)
    return "", _plain_kind(hint)


def _plain_kind(hint: Any) -> str:
    while hint not in _WIDTHS:
        if dataclasses.is_dataclass(hint) or isinstance(hint, enum.EnumType):
            return _named(typing.cast(type, hint))
        hint = hint.__supertype__
    return _WIDTHS[hint]


def _summary(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").split("\n")[0]


def _comment(text: str, indent: str = "") -> str:
    plain = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text).replace("``", "`")
    out = []
    for paragraph in plain.split("\n\n"):
        out += textwrap.wrap(" ".join(paragraph.split()), 110 - len(indent)) or [""]
        out.append("")
    return "".join(f"{indent}// {line}".rstrip() + "\n" for line in out[:-1])


if __name__ == "__main__":
    for _name in CONTRACTS:
        (Path(sys.argv[1]) / f"{_name}.proto").write_text(contract(_name), encoding="utf-8")
