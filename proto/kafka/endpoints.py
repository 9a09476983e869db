"""Addresses of the leaders named in a response: a tagged field of Produce and Fetch responses (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.proto.kafka.wire import write_compact_string
from tidelog.proto.records.varint import write_uvarint

_NODE: Final = struct.Struct(">i")


class NodeEndpoint(NamedTuple):
    """A broker, with its address at the listener that received the request."""

    node_id: int
    host: str
    port: int
    rack: str | None


def write_node_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Append tagged field 0: its tag, its size, the array."""
    inner = bytearray()
    write_uvarint(inner, len(endpoints) + 1)
    for item in endpoints:
        inner += _NODE.pack(item.node_id)
        write_compact_string(inner, item.host)
        inner += _NODE.pack(item.port)
        write_compact_string(inner, item.rack)
        inner.append(0)
    out.append(0)
    write_uvarint(out, len(inner))
    out += inner
