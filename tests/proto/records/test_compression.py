"""Codecs of record batches: reads what others write, and refuses incomplete data."""

from __future__ import annotations

import gzip
import struct

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.proto.records.compression import Compression, compress, decompress
from tidelog.proto.records.corrupt_batch import CorruptBatch

CODECS = list(Compression)[1:]
SIZES = [0, 1, 100, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 64 * 1024 + 1, 128 * 1024 + 1, 500_000]


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("size", SIZES)
def test_round_trip_at_block_edges(kind: Compression, size: int) -> None:
    for data in (
        b"tide" * (size // 4),
        bytes(struct.pack(f"<{size // 8}Q", *(i * 2654435761**3 % 2**64 for i in range(size // 8)))),
    ):
        packed = compress(kind, memoryview(data))
        assert decompress(kind, memoryview(packed)) == data
        assert decompress(kind, packed, bytes_max=len(data)) == data


@given(st.sampled_from(Compression), st.binary())
def test_round_trip(kind: Compression, data: bytes) -> None:
    assert decompress(kind, compress(kind, data)) == data


@pytest.mark.parametrize("kind", Compression)
def test_one_byte_over_the_bound_is_refused(kind: Compression) -> None:
    data = b"tide" * 5000
    assert decompress(kind, compress(kind, data), bytes_max=20_000) == data
    with pytest.raises(CorruptBatch, match=f"expected {kind.kafka_name} data of at most 19999 bytes"):
        decompress(kind, compress(kind, data), bytes_max=19_999)


@pytest.mark.parametrize("kind", CODECS)
def test_every_truncation_is_refused(kind: Compression) -> None:
    packed = compress(kind, b"abcdefgh" * 30)
    whole_without_blocks = {16} if kind is Compression.SNAPPY else set()  # a stream of no blocks
    for size in range(len(packed)):
        if size not in whole_without_blocks:
            with pytest.raises(CorruptBatch, match=r"expected .*found"):
                decompress(kind, packed[:size])


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_bytes_after_the_end_are_refused(kind: Compression) -> None:
    with pytest.raises(CorruptBatch):
        decompress(kind, compress(kind, b"abc") + b"left over")


def test_raw_snappy_as_other_clients_write_it() -> None:
    data = b"tide" * 10_000
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_snappy_blocks_of_any_size() -> None:
    """Some producers write the stream's version numbers in the wrong byte order, and larger blocks."""
    blocks = [b"a" * 100_000, b"", b"b"]
    stream = b"\x82SNAPPY\0\x01\0\0\0\x01\0\0\0"
    for block in blocks:
        raw = bytes(cramjam.snappy.compress_raw(block))
        stream += struct.pack(">i", len(raw)) + raw
    assert decompress(Compression.SNAPPY, stream) == b"".join(blocks)


def test_snappy_that_claims_gigabytes_is_refused() -> None:
    for bytes_max in (1000, 1 << 33):
        with pytest.raises(CorruptBatch, match=r"expected .*snappy"):
            decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f", bytes_max=bytes_max)


def test_lz4_frames_as_other_clients_write_them() -> None:
    data = b"tide" * 50_000
    for block_size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB):
        for options in (
            {"store_size": True},
            {"block_linked": True},
            {"content_checksum": True, "block_checksum": True},
        ):
            packed = lz4.frame.compress(data, block_size=block_size, **options)
            assert decompress(Compression.LZ4, packed) == data


def test_lz4_is_written_as_kafka_reads_it() -> None:
    """Independent blocks of 64 KiB, no content size: FLG 0x60, BD 0x40 (KafkaLZ4BlockInputStream)."""
    packed = compress(Compression.LZ4, b"tide" * 50_000)
    assert packed[:6] == b"\x04\x22\x4d\x18\x60\x40"


def test_several_gzip_members_and_zstd_frames_are_one_stream() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    frames = compress(Compression.ZSTD, b"one") + compress(Compression.ZSTD, b"two" * 100_000)
    assert decompress(Compression.ZSTD, frames) == b"one" + b"two" * 100_000


def test_the_same_bytes_every_time() -> None:
    for kind in Compression:
        assert compress(kind, b"tide" * 99) == compress(kind, bytearray(b"tide" * 99))


def test_names() -> None:
    assert [kind.kafka_name for kind in Compression] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert all(Compression.from_name(kind.kafka_name) is kind for kind in Compression)
    with pytest.raises(ValueError, match="expected a compression of none, gzip, snappy, lz4, zstd, found 'LZ5'"):
        Compression.from_name("LZ5")
