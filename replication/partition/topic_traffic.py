"""Counts what clients append to and read from a topic's partitions on this node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, weakref_slot=True, eq=False)
class TopicTraffic:
    """Shared by a topic's replicas here, and dropped with the last of them."""

    name: str
    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
