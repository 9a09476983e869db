"""Frames for a Kafka port: well-formed requests of every API and version, damaged ones, and noise.

Everything follows from the seed: ``(seed, number of the batch)`` alone reproduces a batch of frames.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidelog.model.settings.listener_security import MECHANISMS
from tidelog.proto.kafka.headers import is_flexible
from tidelog.proto.kafka.messages import encode_request
from tidelog.proto.kafka.schemas import Schema, Shape, schema_of
from tidelog.proto.kafka.wire import ITEMS_MAX, TAGS_MAX
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC
from tidelog.proto.records.varint import write_uvarint

API_VERSIONS: Final = 18
PRODUCE: Final = 0
PRODUCE_KNOWN_FROM: Final = 3
"""The schemas' first version of Produce."""
DELETE_TOPICS: Final = 20
POOL_FRAMES: Final = 12_000
"""Number of well-formed requests from which batches are made."""
POOL_BATCHES: Final = 2_000
"""After this many batches there are new ones."""
OF_LOGINS: Final = (17, 18, 36)
"""SaslHandshake, ApiVersions and SaslAuthenticate."""
READ_BY_HAND: Final = (0, 1)
"""Produce and Fetch, whose readers are written by hand for each of their shapes."""
CAPTURED_COPIES: Final = 2
"""How often each captured request is among them."""
RAW_BYTES_MAX: Final = 400
_HEADER_BYTES: Final = 14
"""Header size of a request whose client calls itself "fuzz"."""
_FRAME_BYTES_MAX: Final = 64 * 1024
_DEPTH_MAX: Final = 6
_TAGGED_SHARE: Final = 0.03
"""The share of places with tagged fields, where these are possible: header, and end of the message."""
_SESSION_SHARE: Final = 0.7
"""The share of fetches in a session that exists or existed."""
_TAG_COUNTS: Final = (1, 2, TAGS_MAX, TAGS_MAX + 1, 5_000)
_WIDE_SHARE: Final = 0.001
"""The share of arrays that are as long as, or longer than, the maximum number of items in a request."""
_WIDE_COUNTS: Final = (1_000, ITEMS_MAX - 10, ITEMS_MAX + 1, 3 * ITEMS_MAX)
_NAMES: Final = ("fuzz", "fuzz-2", "__consumer_offsets", "", "no-such", "a" * 249, "\u00e9/..", "x" * 300)
_WORDS: Final = (
    "range",
    "consumer",
    "roundrobin",
    "cooperative-sticky",
    "retention.ms",
    "cleanup.policy",
    "PLAIN",
    "1",
)
_EDGES: Final = (0, 1, -1, 2, 3, 127, 128, 255, 256, 32_767, -32_768, 65_535, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_LOGINS: Final = (
    b"",
    b"\0alice\0wrong",
    b"n,,n=alice,r=fuzz",
    b"y,a=bob,n=alice,r=fuzz,tokenauth=true",
    b"c=biws,r=fuzz,p=AAAA",
    b"n,,\x01auth=Bearer e30.e30.\x01\x01",
    b"\x01",
)
"""First and second messages of each mechanism."""
_WIDE_RECORDS: Final = (
    b"\0",
    b"\xff",
    HEADER.pack(0, HEADER_SIZE - LENGTH_OVERHEAD, -1, MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 0),
    HEADER.pack(0, HEADER_SIZE - LENGTH_OVERHEAD - 1, -1, MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 0),
)
"""Fillings for records: bytes that are no batch, and batches without a record."""
_WIDE_BYTES: Final = (10_000, 100_000, 2**20)
_WIDE_RECORDS_SHARE: Final = 0.002
_BITS: Final = {
    "int8": 8, "int16": 16, "int32": 32, "int64": 64, "error_code": 16, "timedelta_i32": 32, "timedelta_i64": 64,
    "datetime_i64": 64,
}  # fmt: skip
_UNSIGNED: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}

ROUGH_ENDS: Final = (
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f\xff\xff\xff" + bytes(64),
    b"\0\0\0\0",
    b"\0\0\0\7" + bytes(7),
    b"\0\0\1\0half",
    b"\0\0",
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
"""Wrong lengths, truncated frames, and other protocols."""


class Batch(NamedTuple):
    """Frames with length prefixes, in the order of sending. Their correlation ids count up from 1."""

    number: int
    frames: tuple[bytes, ...]


class FrameSource:
    """Makes the batches of one seed against one node.

    ``served``: lowest and highest version by API key, as the node reports; now and then others are used too.
    ``captured``: requests of real clients, without length, which are damaged like our own. ``harmless``: values for
    fields by name that keep well-formed requests from changing the node for good. ``favoured``: API keys for every
    other frame. ``sessions``: ids of fetch sessions that the node has. Their epochs are small, so some requests hit the
    next one.
    """

    def __init__(
        self,
        seed: int,
        served: Mapping[int, tuple[int, int]],
        *,
        captured: Sequence[bytes] = (),
        harmless: Mapping[str, Any] | None = None,
        pool_frames: int = POOL_FRAMES,
        favoured: Sequence[int] = READ_BY_HAND,
        sessions: Sequence[int] = (),
    ) -> None:
        self._seed = seed
        self._served = [
            (key, version) for key, (least, most) in sorted(served.items()) for version in range(least, most + 1)
        ]
        self._harmless = dict(harmless or {})
        self._captured = list(captured)
        self._pool_frames = pool_frames
        self._favoured = favoured
        self._sessions = sessions
        self._pools: dict[int, list[bytes]] = {}

    def batch(self, number: int, size: int) -> Batch:
        """Return batch ``number``: a fifth of it damaged requests, the rest well-formed ones and some noise."""
        rng = random.Random(f"{self._seed}:{number}")
        pool = self._pool(number // POOL_BATCHES)
        count, real = len(pool), rng.random
        frames = []
        for index in range(1, size + 1):
            dice = real()
            if dice < 0.2:
                body = damaged(rng, pool[int(real() * count)], pool)
            elif dice < 0.96:
                body = pool[int(real() * count)]
            elif dice < 0.99:
                body = self.well_formed(rng, *self._served[int(real() * len(self._served))])
            else:
                body = rng.randbytes(8 + int(real() * RAW_BYTES_MAX))
            frames.append(b"".join((len(body).to_bytes(4, "big"), body[:4], index.to_bytes(4, "big"), body[8:])))
        return Batch(number, tuple(frames))

    def _pool(self, number: int) -> list[bytes]:
        """Return the well-formed requests for a range of batches: each API and version, and more of any; captured
        ones."""
        if number not in self._pools:
            rng = random.Random(f"{self._seed}:pool:{number}")
            made = [self.well_formed(rng, *kind) for kind in self._served]
            by_hand = [kind for kind in self._served if kind[0] in self._favoured] or self._served
            made += [
                self.well_formed(rng, *rng.choice(by_hand if turn % 2 else self._served))
                for turn in range(self._pool_frames - len(made))
            ]
            if len(self._pools) > 1:
                del self._pools[min(self._pools)]
            self._pools[number] = [*made, *self._captured * CAPTURED_COPIES]
        return self._pools[number]

    def rough_end(self, number: int) -> bytes | None:
        """Return the last bytes that batch ``number`` sends on its connection, if any: no frame, or half of one."""
        rng = random.Random(f"{self._seed}:{number}:end")
        return rng.choice(ROUGH_ENDS) if rng.random() < 0.05 else None

    def well_formed(self, rng: random.Random, key: int, version: int) -> bytes:
        """Return a request, header and body, with the right structure and random values.

        Produce of versions 0 to 2 is that of version 3 without the transactional id, which comes first.
        """
        if key == PRODUCE and version < PRODUCE_KNOWN_FROM:
            fields = self._fields(rng, key, PRODUCE_KNOWN_FROM) | {"transactional_id": None}
            body = encode_request(key, PRODUCE_KNOWN_FROM, fields)[2:]
        else:
            body = encode_request(key, version, self._fields(rng, key, version))
        tags = b""
        if is_flexible(key, version):
            tags = tagged_fields(rng)
            if body.endswith(b"\0"):
                body = body[:-1] + tagged_fields(rng)
        return b"".join((key.to_bytes(2, "big"), version.to_bytes(2, "big"), bytes(4), b"\0\4fuzz", tags, body))

    def _fields(self, rng: random.Random, key: int, version: int) -> dict[str, Any]:
        spared = {} if key != DELETE_TOPICS else {"name": "strange", "topic_names": ["strange"]}
        return self._structure(rng, schema_of(key, version, "request"), {**self._harmless, **spared}, 0)

    def _structure(self, rng: random.Random, schema: Schema, harmless: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {shape.name: self._value(rng, shape, harmless, depth) for shape in schema.shapes}

    def _value(self, rng: random.Random, shape: Shape, harmless: Mapping[str, Any], depth: int) -> Any:
        if shape.name in harmless and rng.random() < 0.97:
            return harmless[shape.name]
        if shape.name == "session_id" and self._sessions and rng.random() < _SESSION_SHARE:
            return rng.choice(self._sessions)
        if shape.nullable and shape.kind != "uuid" and rng.random() < 0.1:
            return -1 if shape.kind in _BITS and not shape.array else None
        if shape.array:
            if rng.random() < _WIDE_SHARE:
                return [self._item(rng, shape, harmless, _DEPTH_MAX)] * rng.choice(_WIDE_COUNTS)
            count = 0 if depth >= _DEPTH_MAX else min(int(rng.expovariate(0.7)), 5)
            return [self._item(rng, shape, harmless, depth) for _ in range(count)]
        return self._item(rng, shape, harmless, depth)

    def _item(self, rng: random.Random, shape: Shape, harmless: Mapping[str, Any], depth: int) -> Any:
        if shape.of is not None:
            return self._structure(rng, shape.of, harmless, depth + 1)
        return primitive(rng, shape.kind, shape.name)


def tagged_fields(rng: random.Random) -> bytes:
    """Return tagged fields: mostly none; now and then some unknown ones, with little or nothing in them."""
    if rng.random() >= _TAGGED_SHARE:
        return b"\0"
    return some_tags(rng, rng.choice(_TAG_COUNTS))


def some_tags(rng: random.Random, count: int) -> bytes:
    """Return this many tagged fields after their count; with random tags, Kafka's own among them."""
    out = bytearray()
    write_uvarint(out, count)
    size = rng.choice((0, 0, 0, 1, 5))
    out += (bytes((rng.randrange(100), size)) + rng.randbytes(size)) * count
    return bytes(out)


def primitive(rng: random.Random, kind: str, name: str) -> Any:
    """Return a value of a type of Kafka's protocol: mostly a plausible one, now and then an edge of its range."""
    if name == "mechanism" and kind == "string":
        return rng.choice((*MECHANISMS, "GSSAPI", ""))
    if name == "auth_bytes":
        return rng.choice(_LOGINS)
    if kind == "string":
        return rng.choice(_WORDS if "name" not in name or "protocol" in name else _NAMES)
    if kind == "records" and rng.random() < _WIDE_RECORDS_SHARE:
        unit = rng.choice(_WIDE_RECORDS)
        return unit * (rng.choice(_WIDE_BYTES) // len(unit))
    if kind in ("bytes", "records"):
        return rng.randbytes(int(rng.expovariate(0.02)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "uuid":
        return rng.choice((bytes(16), b"\1" * 16, rng.randbytes(16)))
    if kind == "float64":
        return rng.choice((0.0, 1.5, -1.0, 1e308, float("nan"), float("inf")))
    waits = "timeout" in name or "wait" in name
    if (bits := _UNSIGNED.get(kind)) is not None:
        return rng.choice(_EDGES) & ((1 << bits) - 1)
    bits = _BITS[kind]
    if waits and rng.random() < 0.98:
        return rng.randrange(20)
    value = rng.choice(_EDGES) if rng.random() < 0.25 else rng.randrange(-1, 4)
    half = 1 << (bits - 1)
    return min(max(value, -half), half - 1)


# --- Damage ------------------------------------------------------------------------------------------------


def damaged(rng: random.Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    """Return the frame after one to four kinds of damage; the correlation id is set again afterwards."""
    data = bytearray(frame)
    real = rng.random
    for _ in range(1 + int(real() * real() * 4)):
        _HARMS[int(real() * len(_HARMS))](rng, data, others)
    if len(data) < 8:
        data += bytes(8 - len(data))
    return bytes(data[:_FRAME_BYTES_MAX])


def _random_index(rng: random.Random, data: bytearray) -> int:
    """Return an index, mostly behind the header: a wrong key, version or client id ends a connection immediately, and
    shows little."""
    first = _HEADER_BYTES if len(data) > _HEADER_BYTES and rng.random() < 0.95 else 0
    return first + int(rng.random() * (len(data) - first))


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[_random_index(rng, data)] ^= 1 << int(rng.random() * 8)


def _overwrite(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[_random_index(rng, data)] = int(rng.random() * 256)


def _lie(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Write a number of another size in the place of a length, a count or an id."""
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice(_EDGES) & ((1 << (8 * width)) - 1)
    at = _random_index(rng, data)
    data[at : at + width] = value.to_bytes(width, "big")


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[max(8, int(rng.random() * len(data))) :]


def _insert(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _random_index(rng, data)
    data[at:at] = rng.randbytes(1 + int(rng.random() * 8))


def _remove(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if len(data) > 16:
        at = int(rng.random() * (len(data) - 8))
        del data[at : at + 1 + int(rng.random() * 8)]


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _random_index(rng, data)
    data[at:at] = data[at : at + 1 + int(rng.random() * 32)] * (1 + int(rng.random() * 6))


def _graft(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """Append the rest of another request."""
    other = others[int(rng.random() * len(others))]
    at = _random_index(rng, data)
    data[at:] = other[int(rng.random() * len(other)) :] or b"\0"


def _tags(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Insert tagged fields at a possible end of a structure: it ends with a zero if it has none."""
    at = data.find(b"\0", _random_index(rng, data))
    if at >= 0:
        data[at : at + 1] = some_tags(rng, rng.choice(_TAG_COUNTS))


def _other_version(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[2:4] = int(rng.random() * 18).to_bytes(2, "big")


_Harm = Callable[[random.Random, bytearray, Sequence[bytes]], None]
_HARMS: Final[tuple[_Harm, ...]] = (
    *(_flip, _overwrite) * 4, *(_lie,) * 2, _cut, _insert, _remove, _repeat, _graft, _other_version, _tags,
)  # fmt: skip
