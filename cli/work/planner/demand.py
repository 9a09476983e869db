"""The planner's inputs: the load of a cluster, and its machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

DAY_S: Final = 86_400
SEED_PEAK: Final = 0.8 * 0.8 * 24 / 3
"""80 % of a day's records come in 16 hours, 80 % of these in the busiest 3: 5.12 times the mean."""


class DemandWrong(ValueError):
    """An impossible input; the text names it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The load. Bytes are those of keys and values as programs see them."""

    records_a_day: float = field(default=0.0, metadata={"doc": "Records per day."})
    record_bytes: float = field(default=1_000.0, metadata={"doc": "Bytes of a record's key and value."})
    peak_factor: float = field(default=SEED_PEAK, metadata={"doc": "The busiest hour's rate over the mean rate."})
    compression_ratio: float = field(default=1.0, metadata={"doc": "Bytes before compression over bytes after."})
    batch_records: float = field(default=100.0, metadata={"doc": "Records in a producer's batch."})
    copies: int = field(default=3, metadata={"doc": "Replicas of each partition."})
    readers: int = field(default=1, metadata={"doc": "Consumer groups that read everything."})
    cold_readers: int = field(default=0, metadata={"doc": "Groups that read from disk, not from the page cache."})
    consumers: int = field(default=1, metadata={"doc": "Members of the largest group, which needs as many partitions."})
    retention_hours: float = field(default=168.0, metadata={"doc": "How long records are kept."})
    cached_minutes: float = field(default=5.0, metadata={"doc": "Minutes of newest records in memory for readers."})
    connections: int = field(default=100, metadata={"doc": "Client connections to all nodes together."})
    partitions: int = field(default=0, metadata={"doc": "Partitions; 0: the planner chooses."})
    tls_clients: bool = field(default=False, metadata={"doc": "Clients connect by TLS."})
    tls_nodes: bool = field(default=False, metadata={"doc": "Nodes connect to each other by TLS."})
    growth_a_year: float = field(default=0.0, metadata={"doc": "Yearly growth of records per day; 0.5: by half."})


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's machine, how much of it may be used, and how many may fail."""

    memory_bytes: float = field(default=16e9, metadata={"doc": "Memory of a machine."})
    disk_bytes: float = field(default=2e12, metadata={"doc": "Disk of a machine."})
    disk_mb_s: float = field(default=200.0, metadata={"doc": "Megabytes a second that its disk writes, and reads."})
    network_mb_s: float = field(default=125.0, metadata={"doc": "Megabytes a second each way: 125 is a gigabit port."})
    nodes_per_machine: int = field(default=1, metadata={"doc": "Nodes per machine: each uses one core."})
    away: int = field(default=1, metadata={"doc": "Machines that may be down at the busiest hour."})
    racks: int = field(default=0, metadata={"doc": "Racks, one of which may be down; 0: none."})
    price: float = field(default=0.0, metadata={"doc": "Monthly price of a machine, in any currency."})


LEAST: Final[Mapping[str, float]] = {
    "records_a_day": 1, "record_bytes": 1, "peak_factor": 1, "compression_ratio": 1, "batch_records": 1, "copies": 1,
    "consumers": 1, "retention_hours": 0.1, "memory_bytes": 1e8, "disk_bytes": 1e9, "disk_mb_s": 1, "network_mb_s": 1,
    "nodes_per_machine": 1,
}  # fmt: skip
MOST: Final[Mapping[str, float]] = {
    "records_a_day": 1e15, "record_bytes": 1e9, "peak_factor": 1_000, "compression_ratio": 100, "copies": 15,
    "batch_records": 1e6, "readers": 1_000, "retention_hours": 1e6, "growth_a_year": 100, "partitions": 1e6,
    "consumers": 1e6, "connections": 1e8, "nodes_per_machine": 256, "away": 100, "racks": 100,
}  # fmt: skip
LIMITS: Final = {
    "processor": 0.6,
    "memory": 0.8,
    "disk": 0.85,
    "disk writes": 0.7,
    "disk reads": 0.7,
    "network in": 0.7,
    "network out": 0.7,
    "replicas": 1.0,
}
"""The maximum share of a resource that a plan uses. Processor: of one core, because a node has one event loop."""
REPLICAS_MAX: Final = 10_000
"""Replicas per node up to which figures were measured (docs/benchmarks.md: 11,006)."""
PARTITION_BYTES_MAX: Final = 20e9
PARTITION_MB_S_MAX: Final = 10.0
"""Beyond this, a partition is slow to copy and hard to spread. Source: the seed's 5 to 20 GB; Kafka's usual rule."""


def peak_of(hours: Sequence[float]) -> tuple[float, float]:
    """Return records per day and the peak factor of a curve: 24 hourly numbers of records. Raises
    :class:`DemandWrong`."""
    if len(hours) != 24 or any(not math.isfinite(hour) or hour < 0 for hour in hours) or not sum(hours):
        raise DemandWrong(f"expected 24 numbers of records, one for each hour, found {len(hours)}: {hours}")
    return sum(hours), max(hours) * 24 / sum(hours)


def check(demand: Demand, machine: Machine) -> None:
    """Check the inputs. Raises :class:`DemandWrong`."""
    for given in (demand, machine):
        for one in fields(given):
            value = getattr(given, one.name)
            low, high = LEAST.get(one.name, 0), MOST.get(one.name, 1e18)
            if not math.isfinite(value) or not low <= value <= high:
                raise DemandWrong(f"--{one.name.replace('_', '-')}: expected {low:g} to {high:g}, found {value:g}")
    if demand.cold_readers > demand.readers:
        raise DemandWrong(f"--cold-readers: expected at most {demand.readers} (--readers), found {demand.cold_readers}")
    if machine.racks and machine.racks < 2:
        raise DemandWrong("--racks: expected at least 2, so that one may be down, found 1")
