"""Protobuf, by descriptors: those of a file that ``protoc`` wrote, or those of a schema registry."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tidelog.console.schemas.structured import SchemaWrong, Source, Undecodable

_WELL_KNOWN: Final = re.compile(r"google/protobuf/([a-z_]+)\.proto")
_INDEXES_MAX: Final = 64


class ProtobufSchema:
    """``files``: serialized ``FileDescriptorProto``, each before its users; the last one's messages have the indexes of
    the wire format. ``message``: the full name of the message, if there is none in the wire format. Raises
    :class:`SchemaWrong`."""

    kind: Final = "protobuf"

    def __init__(self, files: Iterable[bytes], message: str | None = None) -> None:
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        try:
            last = ""
            for data in files:
                last = self._add(descriptor_pb2.FileDescriptorProto.FromString(data))
            self._file = self._pool.FindFileByName(last)
            self._message = None if message is None else self._pool.FindMessageTypeByName(message)
        except KeyError as error:
            raise SchemaWrong(f"expected it among the descriptors: {str(error)[:150]}") from None
        except (TypeError, ValueError, DecodeError) as error:
            raise SchemaWrong(f"expected descriptors of Protobuf: {str(error)[:150]}") from None
        self.name = message or ""

    @classmethod
    def of_set(cls, data: bytes, message: str) -> ProtobufSchema:
        """Of a ``FileDescriptorSet``, as ``protoc --include_imports --descriptor_set_out`` writes it."""
        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(data)
        except DecodeError:
            raise SchemaWrong("expected what `protoc --include_imports --descriptor_set_out=FILE` writes") from None
        return cls([one.SerializeToString() for one in found.file], message)

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> str:
        for needed in file.dependency:
            known = _WELL_KNOWN.fullmatch(needed)
            if known and needed not in self._added:
                try:
                    module = importlib.import_module(f"google.protobuf.{known[1]}_pb2")
                except ImportError:
                    raise SchemaWrong(f"there is no {needed}") from None
                self._add(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
        if file.name not in self._added:
            self._pool.Add(file)
            self._added.add(file.name)
        return str(file.name)

    def decode(self, data: bytes) -> Any:
        """A message without the wire format's head. Raises :class:`Undecodable`."""
        assert self._message is not None
        return self._of(self._message, data)

    def decode_framed(self, data: bytes) -> tuple[str, Any]:
        """The message's name, and what follows its indexes: how many they are and each, zigzag; one 0 stands for the
        first message. Raises :class:`Undecodable`."""
        source = Source(data)
        count = source.zigzag()
        if not 0 <= count <= _INDEXES_MAX:
            raise Undecodable(f"expected 0 to {_INDEXES_MAX} indexes of a message, found {count}")
        kinds = list(self._file.message_types_by_name.values())
        chosen = None
        for index in [source.zigzag() for _ in range(count)] or [0]:
            if not 0 <= index < len(kinds):
                raise Undecodable(f"expected one of {len(kinds)} messages, found number {index}")
            chosen = kinds[index]
            kinds = list(chosen.nested_types)
        assert chosen is not None
        return str(chosen.full_name), self._of(chosen, source.take(source.left))

    def _of(self, kind: Any, data: bytes) -> Any:
        made: Message = GetMessageClass(kind)()
        try:
            made.ParseFromString(data)
            return MessageToDict(made, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (DecodeError, TypeError, ValueError, RecursionError) as error:
            raise Undecodable(f"expected a {kind.full_name}: {str(error)[:150]}") from None
