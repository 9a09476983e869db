"""Prints ../cases.json in the line format that GoldenBatches.java reads: tab-separated, bytes in hex, "-" for null.

``batch name compression base_offset leader_epoch producer_id producer_epoch base_sequence transactional
log_append_time control`` opens a batch, ``record timestamp key value [header value]…`` adds to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent


def expand(value: Any) -> bytes | None:
    """Return the bytes that a case's byte string stands for."""
    if value is None or isinstance(value, str):
        return None if value is None else bytes.fromhex(value)
    if "repeat" in value:
        return bytes.fromhex(value["repeat"]) * int(value["times"])
    size = int(value["size"])
    seed = value["noise"]
    digests = (hashlib.sha256(f"{seed}/{number}".encode()).digest() for number in range(size // 32 + 1))
    return b"".join(digests)[:size]


def load() -> list[dict[str, Any]]:
    """Return the cases, with byte strings and repeated records expanded."""
    cases: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))
    for case in cases:
        case["records"] = [
            (
                record["timestamp"],
                expand(record["key"]),
                expand(record["value"]),
                tuple((name, expand(value)) for name, value in record["headers"]),
            )
            for record in case["records"]
            for _ in range(record["times"])
        ]
    return cases


def lines() -> Iterator[str]:
    def shown(value: bytes | None) -> str:
        return "-" if value is None else value.hex()

    for case in load():
        for compression in case["compressions"]:
            fields = [case["name"], compression]
            fields += [case[name] for name in ("base_offset", "leader_epoch", "producer_id", "producer_epoch")]
            fields += [case["base_sequence"], str(case["is_transactional"]).lower()]
            fields += ["-" if case["log_append_time"] is None else case["log_append_time"]]
            control = case["control"]
            fields += [f"{control['kind']}:{control['coordinator_epoch']}" if control else "-"]
            yield "\t".join(["batch", *map(str, fields)])
            for timestamp, key, value, headers in case["records"]:
                flat = [part for name, content in headers for part in (name.encode().hex(), shown(content))]
                yield "\t".join(["record", str(timestamp), shown(key), shown(value), *flat])


if __name__ == "__main__":
    print("\n".join(lines()))
