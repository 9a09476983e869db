"""Handlers for worker processes, which import them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tidelog import ConsumerRecord


def note_process(record: ConsumerRecord) -> None:
    """Write the record's value and this process into the directory that the record's key names."""
    directory = Path((record.key or b"").decode())
    (directory / (record.value or b"").decode()).write_text(str(os.getpid()))


def refuse(record: ConsumerRecord) -> None:
    raise ValueError(f"not {record.value!r}")


def die_once(record: ConsumerRecord) -> None:
    """The first call for a record kills its process."""
    mark = Path((record.key or b"").decode()) / (record.value or b"").decode()
    if not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    mark.write_text("done")
