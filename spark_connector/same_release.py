"""Pickling that makes executors refuse objects from a driver with another release of Tidelog.

Spark pickles readers and writers. Another release may have other fields, and would fail late and obscurely, or read
something else. So their state travels as bytes, beside the release that packed it.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from typing import Any

from tidelog import __version__ as release
from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.worker_errors import told_in_a_line


def packed(make: Callable[..., object], *state: object) -> tuple[Any, ...]:
    """Return the ``__reduce__`` value for an object that ``make(*state)`` recreates."""
    return unpacked, (release, pickle.dumps((make, state)))


def unpacked(by: str, content: bytes) -> object:
    """Recreate the object. Raises :class:`OptionError` if another release packed it."""
    with told_in_a_line():
        if by != release:
            raise OptionError(
                f"expected tidelog {by}, as on the driver, found {release} on {socket.gethostname()}: install the same "
                "release of tidelog for the Python of the driver and of every executor"
            )
    make, state = pickle.loads(content)
    found: object = make(*state)
    return found
