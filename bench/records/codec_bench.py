"""Speed of the record batch codec on one core: ``python -m tidelog.bench.records.codec_bench`` (from a checkout).

Prints millions of records per second, the best of several runs, for batches of 100-byte records as the SDK makes them.
With ``--json``, prints one line of JSON for the history; ``TIDELOG_PURE_CODEC=1`` measures the plain codec even if the
compiled one is built.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

from tidelog.proto.records import decoder as record_decoder
from tidelog.proto.records.batches import Batch, patched_header, split_batches
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.compression import Compression, compress, decompress
from tidelog.proto.records.encoder import BatchBuilder, encode_values
from tidelog.proto.records.validation import validate_for_append

COUNT = 1000
RUNS = 7
RUN_S = 0.15


def best(work: Callable[[], object], per_call: int) -> float:
    """Return the best rate of :data:`RUNS` runs, in units per second."""
    work()
    rate = 0.0
    for _ in range(RUNS):
        calls = 0
        start = now = time.perf_counter()
        while now - start < RUN_S:
            work()
            calls += 1
            now = time.perf_counter()
        rate = max(rate, calls * per_call / (now - start))
    return rate


def one(data: bytes | bytearray) -> Batch:
    return split_batches(data)[0]


def append_values(values: list[bytes]) -> bytearray:
    builder = BatchBuilder(bytes_max=1 << 20)
    append = builder.append
    for value in values:
        append(1_700_000_000_000, None, value)
    return builder.build()


def append_full(values: list[bytes], keys: list[bytes]) -> bytearray:
    builder = BatchBuilder(bytes_max=1 << 20)
    append = builder.append
    timestamp = 1_700_000_000_000
    for key, value in zip(keys, values, strict=True):
        append(timestamp, key, value, (("row", key),))
        timestamp += 1
    return builder.build()


def measure() -> dict[str, float]:
    rng = random.Random(7)
    same = [rng.randbytes(100) for _ in range(COUNT)]
    mixed = [rng.randbytes(rng.randrange(60, 140)) for _ in range(COUNT)]
    keys = [b"key-%06d" % number for number in range(COUNT)]
    batch_same = one(encode_values(same, 1_700_000_000_000))
    batch_mixed = one(encode_values(mixed, 1_700_000_000_000))
    batch_full = one(append_full(same, keys))
    text = b"".join(b'{"carrier":"UA","flight":%d,"origin":"EWR","delay":%d}' % (n, n % 60) for n in range(2000))
    rates = {
        "encode_values, same length": best(lambda: encode_values(same, 1_700_000_000_000), COUNT) / 1e6,
        "encode_values, mixed": best(lambda: encode_values(mixed, 1_700_000_000_000), COUNT) / 1e6,
        "append value": best(lambda: append_values(same), COUNT) / 1e6,
        "append key, value, header": best(lambda: append_full(same, keys), COUNT) / 1e6,
        "decode records, same length": best(lambda: record_decoder.decode_records(batch_same), COUNT) / 1e6,
        "decode records, mixed": best(lambda: record_decoder.decode_records(batch_mixed), COUNT) / 1e6,
        "decode records, key and header": best(lambda: record_decoder.decode_records(batch_full), COUNT) / 1e6,
        "decode values, same length": best(lambda: record_decoder.decode_values(batch_same), COUNT) / 1e6,
        "decode values, mixed": best(lambda: record_decoder.decode_values(batch_mixed), COUNT) / 1e6,
        "decode values, key and header": best(lambda: record_decoder.decode_values(batch_full), COUNT) / 1e6,
        "broker: split, validate, patch (batches)": best(
            lambda: [
                (validate_for_append(b, message_max_bytes=1 << 20), patched_header(b, base_offset=1, leader_epoch=1))
                for b in split_batches(batch_same.view)
            ],
            1,
        )
        / 1e6,
    }
    for kind in list(Compression)[1:]:
        packed = compress(kind, text)
        rates[f"{kind.kafka_name} compress (GB)"] = best(lambda k=kind: compress(k, text), len(text)) / 1e9  # type: ignore[misc]
        rates[f"{kind.kafka_name} decompress (GB)"] = (
            best(lambda k=kind, p=packed: decompress(k, p), len(text)) / 1e9  # type: ignore[misc]
        )
    return rates


def main() -> None:
    rates = measure()
    codec = "plain" if COMPILED is None else "compiled"
    if "--json" in sys.argv[1:]:
        print(json.dumps({"codec": codec, "million_per_second": rates}))
        return
    print(f"codec: {codec}")
    for name, rate in rates.items():
        print(f"{rate:9.3f} M/s  {name}")


if __name__ == "__main__":
    main()
