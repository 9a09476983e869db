"""Tidelog: a replicated event log with Kafka's guarantees, in Python."""

from __future__ import annotations

__version__ = "0.1.0"
