"""The true time for the log lines of a process, whatever the shim does to its wall clock."""

from __future__ import annotations

import ctypes
import logging


def tell_real_time() -> None:
    """Use the machine's time for log lines from now on; does nothing in a process without the shim."""
    real_ns = getattr(ctypes.CDLL(None), "tidelog_faults_real_ns", None)
    if real_ns is None:
        return
    real_ns.restype = ctypes.c_int64
    make = logging.getLogRecordFactory()

    def made(*given: object, **named: object) -> logging.LogRecord:
        record = make(*given, **named)
        now_ns = real_ns()
        record.created = now_ns / 1e9
        record.msecs = now_ns // 1_000_000 % 1000
        return record

    logging.setLogRecordFactory(made)
