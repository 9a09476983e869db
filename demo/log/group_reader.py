"""A process that reads a topic as a member of a group, and saves its records before it asks for more.

Run by :mod:`tidelog.demo.log.group_reading`: ``python -m tidelog.demo.log.group_reader BOOTSTRAP TOPIC GROUP NAME RATE
FILE``. It leaves the group cleanly and ends when its standard input does.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tidelog.demo.log.flights import row_digest
from tidelog.demo.log.group_judge import Handed

if TYPE_CHECKING:
    from tidelog import ConsumerRecord

ENTRY: Final = struct.Struct("<iqi16s")
"""Partition, offset, row, digest."""
POLL_S: Final = 0.1
SETTINGS: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 1_000,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
}


def row_of(record: ConsumerRecord) -> int:
    """Return the source row in a record's header; -1 if there is none."""
    for name, value in record.headers:
        if name == "row" and value is not None and value.isdigit():
            return int(value)
    return -1


def entries(data: bytes) -> Iterator[Handed]:
    """Return the recorded entries; a torn one at the end does not count."""
    whole = len(data) - len(data) % ENTRY.size
    return map(Handed._make, ENTRY.iter_unpack(data[:whole]))


def read(bootstrap: str, topic: str, group: str, name: str, rate: float, path: str) -> None:
    """Read at most ``rate`` records per second until standard input ends."""
    from tidelog import Consumer

    records_max = max(1, min(500, int(rate * POLL_S / 2)))
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Consumer(bootstrap, group_id=group, client_id=name, **SETTINGS) as consumer:
        consumer.subscribe([topic])
        while not select.select([sys.stdin], [], [], 0)[0]:
            records = consumer.poll(POLL_S, max_records=records_max)
            if not records:
                continue
            began = time.monotonic()
            data = b"".join(
                ENTRY.pack(r.partition, r.offset, row_of(r), row_digest(r.key or b"", r.value or b"")) for r in records
            )
            while data:
                data = data[os.write(out, data) :]
            time.sleep(max(0.0, len(records) / rate - (time.monotonic() - began)))


if __name__ == "__main__":
    _, where, what, whose, who, pace, file = sys.argv
    read(where, what, whose, who, float(pace), file)
