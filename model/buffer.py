"""Bytes of any kind: immutable, mutable, or a view of either."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
