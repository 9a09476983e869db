"""Writes ../cases.json: what the golden batches hold. Run it before the two writers.

A byte string is null, hex, {"repeat": hex, "times": n} or {"noise": seed, "size": n}, the latter the
concatenated SHA-256 digests of "seed/0", "seed/1", … cut to size. A record with "times" stands n times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

T = 1_700_000_000_000
ALL = ["none", "gzip", "snappy", "lz4", "zstd"]


def text(value: str) -> str:
    return value.encode().hex()


def record(
    ts: int, key: Any, value: Any, headers: Sequence[Sequence[str | None]] = (), times: int = 1
) -> dict[str, Any]:
    return {"timestamp": ts, "key": key, "value": value, "headers": list(headers), "times": times}


def case(name: str, records: list[dict[str, Any]], compressions: list[str] = ALL, **fields: Any) -> dict[str, Any]:
    header = {
        "base_offset": 0,
        "leader_epoch": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "is_transactional": False,
        "log_append_time": None,
        "control": None,
    }
    return {"name": name, "compressions": compressions, **header, **fields, "records": records}


PLAIN = [record(T, None, text("first")), record(T + 1, text("key"), text("second")), record(T + 2, None, text("third"))]
HEADERS: list[list[str | None]] = [
    ["trace", text("abc")],
    ["trace", text("again")],
    ["größe ✓", "00ff80"],
    ["null", None],
    ["empty", ""],
    ["", "01"],
]
ODDITIES = [
    record(T, text("k0"), text("v0"), HEADERS),
    record(T - 1, None, None),
    record(T - 70_000, text("tombstone"), None),
    record(T + 86_400_000 * 40, None, text("far ahead")),
    record(T, "", ""),
    record(0, "ff" * 3, "00" * 3, [[f"h{number}", text(str(number))] for number in range(70)]),
]
EDGES = [
    record(T + size % 200, {"repeat": "6b", "times": size} if size % 2 else None, {"repeat": "76", "times": size})
    for size in (0, 1, 2, 62, 63, 64, 65, 127, 128, 255, 4095, 8191, 8192, 16383, 16384)
]
CASES = [
    case("plain", PLAIN),
    case("oddities", ODDITIES),
    case("edges", EDGES),
    case("many", [record(T + number % 7, text(f"{number}"), text(f"value {number}")) for number in range(300)]),
    case("repetitive", [record(T, None, {"repeat": text("tide"), "times": 60_000})], ALL[1:]),
    case("noise", [record(T, text("n"), {"noise": "golden", "size": 70_000}), record(T, None, text("end"))], ALL[1:]),
    case("three-byte-deltas", [record(T, None, text("x"), times=8300)], ["none", "lz4"]),
    case("idempotent", PLAIN, ["none", "zstd"], producer_id=4000, producer_epoch=3, base_sequence=17),
    case(
        "transactional",
        PLAIN,
        ["none", "snappy"],
        producer_id=(1 << 40) + 5,
        producer_epoch=32767,
        base_sequence=(1 << 31) - 2,
        is_transactional=True,
    ),
    case("stored", PLAIN, ["none", "gzip"], base_offset=(1 << 33) + 1, leader_epoch=12),
    case("log-append-time", PLAIN, ["none", "lz4"], log_append_time=T + 5000),
]
for kind, number in (("abort", 0), ("commit", 1)):
    CASES.append(
        case(
            f"control-{kind}",
            [record(T, f"0000000{number}", "0000" + (7).to_bytes(4, "big").hex())],
            ["none"],
            base_offset=99,
            leader_epoch=4,
            producer_id=4001,
            producer_epoch=2,
            is_transactional=True,
            control={"kind": kind, "coordinator_epoch": 7},
        )
    )

if __name__ == "__main__":
    out = Path(__file__).resolve().parent.parent / "cases.json"
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in CASES)
    out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
