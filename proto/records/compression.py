"""The five codecs of record batches, as one pair of functions with a bound on the output.

The written formats are those of Kafka's Java classes: gzip with its usual header; snappy in the blocked stream of
``org.xerial.snappy.SnappyOutputStream``; LZ4 frames of independent 64 KiB blocks without a content size
(``Lz4BlockOutputStream``); zstd frames. The reader also accepts several gzip members, a raw snappy block (other clients
write those), and zstd frames with and without a content size.

The libraries are loaded by the first batch that needs them: they take 2 MB, and many programs never see one.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Final

from tidelog.model.buffer import Buffer
from tidelog.proto.records.corrupt_batch import CorruptBatch

DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Default limit on one batch's decompressed bytes; more is treated as an attack."""

_GZIP_WBITS: Final = 31
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_HEADER: Final = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 32
"""A snappy copy of at most 64 bytes takes at least two; a higher ratio means a false length field."""
_ZSTD_MAGIC: Final = 0xFD2F_B528
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024


class UnpacksTooLarge(CorruptBatch):
    """Data that decompresses to more than its reader accepts."""


class Compression(enum.IntEnum):
    """The codec of a batch: the three lowest bits of its attributes (Kafka's ``CompressionType``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def kafka_name(self) -> str:
        """The name in settings, e.g. ``lz4``."""
        return self.name.lower()

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """Read a setting's value. Raises ``ValueError`` that lists the valid names."""
        for kind in cls:
            if kind.kafka_name == name:
                return kind
        raise ValueError(f"expected a compression of {', '.join(k.kafka_name for k in cls)}, found {name!r}")


def compress(kind: Compression, data: Buffer) -> bytes:
    """Compress the records of one batch with the codec's default level."""
    if kind is Compression.LZ4:
        import lz4.frame

        compressed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
        return compressed
    if kind is Compression.ZSTD:
        import cramjam

        return bytes(cramjam.zstd.compress(data))
    if kind is Compression.SNAPPY:
        return _compress_snappy(data)
    if kind is Compression.GZIP:
        return zlib.compress(data, wbits=_GZIP_WBITS)
    return bytes(data)


def decompress(kind: Compression, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress the output of :func:`compress` or of another implementation.

    Raises :class:`CorruptBatch` if ``data`` is not exactly one complete stream of the codec or decompresses to more
    than ``bytes_max`` bytes; memory use never exceeds about that much.
    """
    try:
        if kind is Compression.LZ4:
            return _decompress_lz4(data, bytes_max)
        if kind in (Compression.ZSTD, Compression.SNAPPY):
            return _decompress_by_cramjam(kind, data, bytes_max)
        if kind is Compression.GZIP:
            return _decompress_gzip(data, bytes_max)
    except (zlib.error, RuntimeError, EOFError, struct.error) as error:
        raise _unlike(kind, data, error) from None
    if len(data) > bytes_max:
        raise _too_large(kind, bytes_max)
    return bytes(data)


def _too_large(kind: Compression, bytes_max: int) -> UnpacksTooLarge:
    return UnpacksTooLarge(f"expected {kind.kafka_name} data of at most {bytes_max} bytes unpacked, found more")


def _unlike(kind: Compression, data: Buffer, error: Exception) -> CorruptBatch:
    return CorruptBatch(f"expected {kind.kafka_name} data, found {len(data)} bytes that are not: {error}")


def _decompress_by_cramjam(kind: Compression, data: Buffer, bytes_max: int) -> bytes:
    import cramjam

    try:
        return (_decompress_zstd if kind is Compression.ZSTD else _decompress_snappy)(data, bytes_max)
    except cramjam.DecompressionError as error:
        raise _unlike(kind, data, error) from None


def _decompress_gzip(data: Buffer, bytes_max: int) -> bytes:
    out: list[bytes] = []
    room = bytes_max
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        piece = member.decompress(rest, room + 1)
        room -= len(piece)
        if room < 0:
            raise _too_large(Compression.GZIP, bytes_max)
        if not member.eof:
            raise CorruptBatch("expected whole gzip data, found its end missing")
        out.append(piece)
        rest = member.unused_data
        if not rest:
            return out[0] if len(out) == 1 else b"".join(out)


def _decompress_lz4(data: Buffer, bytes_max: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    out: bytes = frame.decompress(data, max_length=bytes_max + 1)
    if len(out) > bytes_max:
        raise _too_large(Compression.LZ4, bytes_max)
    if not frame.eof:
        raise CorruptBatch("expected a whole lz4 frame, found its end missing")
    if frame.unused_data:
        raise CorruptBatch(f"expected one lz4 frame, found {len(frame.unused_data)} bytes after it")
    return out


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    out: list[bytes] = [_SNAPPY_HEADER]
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        out.append(len(block).to_bytes(4, "big"))
        out.append(block)
    return b"".join(out)


def _decompress_snappy(data: Buffer, bytes_max: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        return _decompress_snappy_block(view, bytes_max, bytes_max)
    if len(view) < len(_SNAPPY_HEADER):
        raise CorruptBatch(f"expected a snappy stream header of {len(_SNAPPY_HEADER)} bytes, found {len(view)}")
    out: list[bytes] = []
    room = bytes_max
    position = len(_SNAPPY_HEADER)
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if position + size > len(view):
            raise CorruptBatch(f"expected a snappy block of {size} bytes, found {max(0, len(view) - position)}")
        block = _decompress_snappy_block(view[position : position + size], room, bytes_max)
        room -= len(block)
        position += size
        out.append(block)
    return b"".join(out)


def _decompress_snappy_block(block: memoryview, room: int, bytes_max: int) -> bytes:
    import cramjam

    size = cramjam.snappy.decompress_raw_len(block)
    if size > room:
        raise _too_large(Compression.SNAPPY, bytes_max)
    if not len(block) or size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptBatch(f"expected a snappy block, found {len(block)} bytes that claim to unpack to {size}")
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_zstd(data: Buffer, bytes_max: int) -> bytes:
    import cramjam

    view = memoryview(data)
    bound = _zstd_bound(view)
    out = bytearray(min(bound, bytes_max))
    try:
        size = cramjam.zstd.decompress_into(view, out)
    except cramjam.DecompressionError:
        if bound > bytes_max:
            raise _too_large(Compression.ZSTD, bytes_max) from None
        raise
    return bytes(memoryview(out)[:size])


def _zstd_bound(view: memoryview) -> int:
    """Return the most bytes that complete zstd frames can decompress to, from their block headers alone.

    Raises :class:`CorruptBatch` if they are incomplete. Source: RFC 8878, section 3.1.
    """
    bound = 0
    position = 0
    end = len(view)
    while position < end:
        magic, descriptor = struct.unpack_from("<IB", view, position)
        if magic != _ZSTD_MAGIC:
            raise CorruptBatch(f"expected a zstd frame's magic {_ZSTD_MAGIC:#x}, found {magic:#x}")
        single_segment = descriptor & 0x20
        position += 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
        position += (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        last = False
        while not last:
            if position + 3 > end:
                raise CorruptBatch("expected whole zstd data, found its end missing")
            head = int.from_bytes(view[position : position + 3], "little")
            last = bool(head & 1)
            kind, size = head >> 1 & 3, head >> 3
            bound += size if kind < 2 else _ZSTD_BLOCK_BYTES_MAX
            position += 3 + (1 if kind == 1 else size)
        position += 4 if descriptor & 4 else 0
    if position != end or not end:
        raise CorruptBatch(f"expected zstd data of {position} bytes, found {end}")
    return bound
