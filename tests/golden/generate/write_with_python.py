"""Writes the golden batches with aiokafka and kafka-python, as far as their record builders go.

They always begin at offset 0 without a leader epoch, and write no control batches and no log append time.
Incompressible data is left to the Java writer.
"""

from __future__ import annotations

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from cases_as_text import GOLDEN, load
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def build(builder_class: Any, case: dict[str, Any], compression: str) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=NUMBERS[compression],
        is_transactional=case["is_transactional"],
        producer_id=case["producer_id"],
        producer_epoch=case["producer_epoch"],
        base_sequence=case["base_sequence"],
        batch_size=1 << 24,
    )
    for offset, (timestamp, key, value, headers) in enumerate(case["records"]):
        builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


def write() -> None:
    for case in load():
        if case["control"] or case["base_offset"] or case["log_append_time"] or case["name"] == "noise":
            continue
        for compression in case["compressions"]:
            writers = {"aiokafka": AiokafkaBuilder}
            if compression in ("none", "gzip", "lz4"):
                writers["kafka-python"] = KafkaPythonBuilder
            for writer, builder_class in writers.items():
                raw = build(builder_class, case, compression)
                if raw[22] & 7 == NUMBERS[compression]:  # kafka-python leaves small batches uncompressed
                    (GOLDEN / f"{case['name']}.{compression}.{writer}.bin").write_bytes(raw)


if __name__ == "__main__":
    write()
