"""Every message, frame, record and snapshot that goes between nodes or onto a disk, with sample values, as bytes and as
plain data. A program that runs with the Python of either release: it knows where each of them keeps its classes.

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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

MODULES: Final = (
    "proto.api", "proto.controller_api", "proto.group_api", "proto.reassignment_api", "proto.sink_api",
    "proto.transaction_api", "proto.calls.api", "proto.calls.controller_api", "proto.calls.group_api",
    "proto.calls.reassignment_api", "proto.calls.sink_api", "proto.calls.transaction_api",
)  # fmt: skip


NOT_ENCODED: Final = {"refused_records", "in_files", "expire_timestamp"}
"""Fields that stay in the process, or that only Kafka writes."""

ONGOING: Final = 1
"""Status of a prepared transaction in the log, as Kafka's tools know it."""


class Kind(NamedTuple):
    """How a sample is made, what makes bytes of it, and what reads them."""

    make: Callable[[], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def found(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        try:
            return importlib.import_module(f"tidelog.{name}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"none of {names}")


def kinds() -> dict[str, Kind]:
    """Each kind by its name."""
    return dict((*messages(), *frames(), *coordinator_records(), ("Snapshot", snapshot())))


def messages() -> Iterator[tuple[str, Kind]]:
    """Calls, records of the metadata log, Raft's messages."""
    convert = found("proto.calls.convert", "proto.convert")
    codec = found("proto.logs.metadata_codec", "proto.metadata_codec")
    records = found("proto.logs.metadata_records", "proto.metadata")
    raft = found("proto.transport.raft_messages", "proto.raft_messages")
    for name in MODULES:
        try:
            module = importlib.import_module(f"tidelog.{name}")
        except ModuleNotFoundError:
            continue
        for cls in vars(module).values():
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                continue
            if cls.__name__.endswith(("Request", "Response")):
                yield cls.__name__, kind(cls, convert.to_proto, functools.partial(convert.from_proto, cls))
    for cls in typing.get_args(records.MetadataRecord):
        yield (
            cls.__name__,
            kind(cls, lambda one: bytes(codec.encode_batch([one])), lambda data: codec.decode_batch(data)[0]),
        )
    for cls in typing.get_args(raft.RaftMessage):
        if cls.__name__ not in ("Append", "Voters"):  # entries of the first release have an index besides
            yield (
                f"Raft{cls.__name__}",
                kind(
                    cls,
                    lambda one: b"".join(raft.join_messages([raft.encode_message(one)])),
                    lambda data: raft.decode_frame(data)[0],
                ),
            )
    yield "RaftHello", kind(raft.Hello, raft.encode_hello, raft.decode_hello)


def frames() -> Iterator[tuple[str, Kind]]:
    """What streams carry, of clients and followers."""
    codec = found("proto.transport.frames", "proto.frames")

    def framed(cls: type[Any], encode: Callable[[int, Any], Any], decode: Callable[[Any], Any]) -> Kind:
        return kind(cls, lambda one: b"".join(encode(7, one)), lambda data: decode(memoryview(data))[1])

    yield (
        "FrameProduceRequest",
        framed(codec.ProduceRequest, codec.encode_produce_request, codec.decode_produce_request),
    )
    yield (
        "FrameProducedPartition",
        framed(
            codec.ProducedPartition,
            lambda correlation, one: codec.encode_produce_response(correlation, [one]),
            lambda data: (None, codec.decode_produce_response(data)[1][0]),
        ),
    )
    yield "FrameFetchRequest", framed(codec.FetchRequest, codec.encode_fetch_request, codec.decode_fetch_request)
    yield "FrameFetchResponse", framed(codec.FetchResponse, codec.encode_fetch_response, codec.decode_fetch_response)


def coordinator_records() -> Iterator[tuple[str, Kind]]:
    """Keys and values of groups, transactions and sinks."""
    groups = found("proto.logs.coordinator_records", "proto.coordinator_records")
    transactions = found("proto.logs.transaction_records", "proto.transaction_records")
    sinks = found("proto.logs.sink_records", "proto.sink_records")
    yield "OffsetCommitKey", kind(groups.OffsetCommitKey, lambda key: groups.encode_offset_key(*key), groups.decode_key)
    yield "OffsetCommitValue", kind(groups.OffsetCommitValue, groups.encode_offset_value, groups.decode_offset_value)
    yield (
        "GroupMetadataKey",
        kind(groups.GroupMetadataKey, lambda key: groups.encode_group_key(*key), groups.decode_key),
    )
    yield "GroupMetadataValue", kind(groups.GroupMetadataValue, groups.encode_group_value, groups.decode_group_value)
    yield (
        "TransactionLogKey",
        kind(
            transactions.TransactionLogKey,
            lambda key: transactions.encode_transaction_key(*key),
            transactions.decode_transaction_key,
        ),
    )
    yield (
        "TransactionLogValue",
        Kind(
            lambda: made(transactions.TransactionLogValue)._replace(status=ONGOING),
            transactions.encode_transaction_value,
            transactions.decode_transaction_value,
        ),
    )
    yield "SinkLedgerKey", Kind(lambda: "text", sinks.encode_sink_key, sinks.decode_sink_key)
    yield "SinkLedgerValue", kind(sinks.SinkLedgerValue, sinks.encode_sink_value, sinks.decode_sink_value)


def snapshot() -> Kind:
    """Of the metadata, as the records that it consists of. Only records that both releases have: a node goes back to
    release 0.1 with the first level's snapshot."""
    codec = found("metadata_quorum.image.snapshot", "metadata_quorum.image_snapshot")
    records = found("proto.logs.metadata_records", "proto.metadata")

    def image(content: Sequence[Any]) -> Any:
        return codec.image_from_records(content, 9, 3)

    content = [
        records.FeatureLevelRecord("metadata.version", 1),
        made(records.ProducerIdsRecord),
        made(records.RegisterBrokerRecord),
        made(records.PartitionRecord),
        made(records.TopicRecord),
        dataclasses.replace(made(records.PartitionRecord), topic_id=b"\x02" * 16),
        made(records.ConfigRecord),
        made(records.AccessControlEntryRecord),
        made(records.ClientQuotaRecord),
    ]
    return Kind(
        lambda: tuple(codec.image_records(image(content))),
        lambda given: bytes(codec.encode_snapshot(image(given))),
        lambda data: tuple(codec.image_records(codec.decode_snapshot(data))),
    )


def kind(cls: type[Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Kind:
    return Kind(functools.partial(made, cls), encode, decode)


def sample(hint: Any) -> Any:
    """A value of a type that is not what a missing field is read as."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in typing.get_args(hint) if one is not type(None)))
    if origin in (tuple, Sequence):
        inner = typing.get_args(hint)
        return tuple(map(sample, inner if origin is tuple and inner[1:] != (...,) else inner[:1]))
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return made(typing.cast("type[Any]", hint))
    if issubclass(hint, enum.Enum):
        return list(hint)[1]
    return {bool: True, int: 7, str: "text", bytes: b"\x01" * 16, float: 2.5}[hint]


def made(cls: type[Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{name: sample(hints[name]) for name in names_of(cls) if name not in NOT_ENCODED})


def names_of(cls: Any) -> Sequence[str]:
    """The fields of a dataclass or a named tuple."""
    return getattr(cls, "_fields", None) or [field.name for field in dataclasses.fields(cls)]


def plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in names_of(value)}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value.value if isinstance(value, enum.Enum) else value


def main() -> None:
    known = kinds()
    if sys.argv[1] == "encode":
        for name, (make, encode, _) in sorted(known.items()):
            one = make()
            print(json.dumps([name, encode(one).hex(), plain(one)]))
        return
    for line in sys.stdin:
        name, data = json.loads(line)[:2]
        if name in known:
            print(json.dumps([name, plain(known[name].decode(bytes.fromhex(data)))]))


if __name__ == "__main__":
    main()
