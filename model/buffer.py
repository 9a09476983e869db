"""Bytes of any kind: immutable, mutable, or a view of either."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
"""As a field of a call: megabytes, which are neither copied into a message object nor out of one
(:mod:`tidelog.proto.calls.convert`)."""
