"""The model: what each node of a cluster uses at the busiest hour, and how many nodes that needs. Pure.

Sources: the formulas of the sizing guides by Apache Kafka and its hosting providers, which docs/capacity.md names, with
coefficients measured here (:mod:`tidelog.cli.work.planner.shipped`). A node runs one event loop, so its processor limit
is one core, however many its machine has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.cli.work.planner.coefficients import Coefficients, NodeRates
from tidelog.cli.work.planner.demand import (
    DAY_S,
    LEAST,
    LIMITS,
    PARTITION_BYTES_MAX,
    PARTITION_MB_S_MAX,
    REPLICAS_MAX,
    Demand,
    DemandWrong,
    Machine,
    check,
)

NODES_MAX: Final = 10_000
SEGMENT_BYTES_LEAST, SEGMENT_BYTES_MOST = 16 * 2**20, 2**30
SEGMENTS: Final = 20
"""Segments per partition's retention: the log exceeds the retention by one of them."""
INDEX_SHARE: Final = 20 / 4096
"""Index and time index: 8 and 12 bytes for each 4 KiB (index.interval.bytes)."""
REBUILD_SHARE: Final = 0.25
"""Share of the network for rebuilding the copies of a lost disk."""
HORIZON_YEARS: Final = 20


@dataclass(frozen=True, slots=True)
class Use:
    """What one node uses of a resource: in the resource's unit, and as a share of the total."""

    amount: float
    unit: str
    share: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The whole cluster's rates, in megabytes of 10^6 bytes per second as they are on the wire and on disk."""

    records_a_second: float
    peak_mb_s: float
    mean_mb_s: float
    batches_a_second: float
    bytes_a_record: float


def rates(demand: Demand, costs: Coefficients) -> Rates:
    """Return the rates at the busiest hour, and the mean bytes."""
    mean = demand.records_a_day / DAY_S
    peak = mean * demand.peak_factor
    each = (demand.record_bytes + costs.record_bytes) / demand.compression_ratio
    each += costs.batch_bytes / demand.batch_records
    return Rates(peak, peak * each / 1e6, mean * each / 1e6, peak / demand.batch_records, each)


def kept_bytes(demand: Demand, costs: Coefficients) -> float:
    """Return the bytes of one copy of everything that retention keeps."""
    return rates(demand, costs).mean_mb_s * 1e6 * demand.retention_hours * 3600 * (1 + INDEX_SHARE)


def partitions_of(demand: Demand, costs: Coefficients, nodes: int) -> int:
    """Return the given partitions, or as many as nodes, members, bytes per second and retained bytes require."""
    if demand.partitions:
        return demand.partitions
    by_rate = rates(demand, costs).peak_mb_s / PARTITION_MB_S_MAX
    by_size = kept_bytes(demand, costs) / PARTITION_BYTES_MAX
    wanted = max(nodes, demand.consumers, math.ceil(by_rate), math.ceil(by_size))
    return math.ceil(wanted / nodes) * nodes


def segment_bytes(demand: Demand, costs: Coefficients, partitions: int) -> float:
    """Return a segment size so small that retention is exceeded by at most a twentieth, within sensible limits."""
    wanted = kept_bytes(demand, costs) / partitions / SEGMENTS
    return min(max(wanted, SEGMENT_BYTES_LEAST), SEGMENT_BYTES_MOST)


def uses(demand: Demand, machine: Machine, costs: Coefficients, nodes: int, away: int) -> dict[str, Use]:
    """Return what each remaining node uses at the busiest hour, with ``away`` of ``nodes`` gone and their data being
    copied to the others."""
    left = nodes - away
    load = rates(demand, costs)
    partitions = partitions_of(demand, costs, nodes)
    replicas = partitions * demand.copies / left
    followed = demand.copies - 1
    append, copied, read = (load.peak_mb_s * times / left for times in (1, followed, demand.readers))
    appends = load.batches_a_second / left
    each_node = NodeRates(appends, appends * followed, appends * demand.readers, append, copied, read)
    cores = costs.cores(each_node)
    cores += costs.tls_cores(each_node, clients=demand.tls_clients, nodes=demand.tls_nodes)
    each = costs.connection_tls_bytes if demand.tls_clients else costs.connection_bytes
    cache = load.peak_mb_s * 1e6 * demand.cached_minutes * 60 * demand.copies / left
    kept = kept_bytes(demand, costs)
    disk = (kept + partitions * segment_bytes(demand, costs, partitions)) * demand.copies / left
    memory = costs.memory_bytes(cores, each_node.mb_s) + replicas * costs.replica_bytes
    memory += demand.connections * each / left + min(cache, disk)
    share = machine.nodes_per_machine
    network = machine.network_mb_s / share
    out = load.peak_mb_s * (followed + demand.readers) / left
    cold = load.peak_mb_s * demand.cold_readers / left
    return {
        "processor": Use(cores, "cores", cores),
        "memory": Use(memory, "bytes", memory * share / machine.memory_bytes),
        "disk": Use(disk, "bytes", disk * share / machine.disk_bytes),
        "disk writes": Use(append + copied, "MB/s", (append + copied) * share / machine.disk_mb_s),
        "disk reads": Use(cold, "MB/s", cold * share / machine.disk_mb_s),
        "network in": Use(append + copied, "MB/s", (append + copied) / network),
        "network out": Use(out, "MB/s", out / network),
        "replicas": Use(replicas, "", replicas / REPLICAS_MAX),
    }


def away_of(machine: Machine, nodes: int) -> int:
    """Return how many of the nodes may be down: those of the machines, or of the largest rack."""
    by_rack = math.ceil(nodes / machine.racks) if machine.racks else 0
    return max(machine.away * machine.nodes_per_machine, by_rack)


def fits(demand: Demand, machine: Machine, costs: Coefficients, nodes: int) -> bool:
    """Return whether this many nodes bear the load with some of them down."""
    away = away_of(machine, nodes)
    if nodes - away < demand.copies - min(away, demand.copies - 1) or nodes < demand.copies:
        return False
    found = uses(demand, machine, costs, nodes, away)
    return all(use.share <= LIMITS[name] for name, use in found.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster that bears the demand. ``now``: each node's use with all nodes up; ``then``: with ``away`` down."""

    demand: Demand
    machine: Machine
    nodes: int
    away: int
    partitions: int
    segment_bytes: int
    load: Rates
    now: Mapping[str, Use]
    then: Mapping[str, Use]
    binds: str
    """The resource that is nearest to its limit."""
    files_a_node: int
    rebuild_hours: float
    """How long the others take to rebuild one node's copies."""
    days_until: Mapping[str, float | None]
    """Days until a resource reaches its limit at the given growth; ``None``: not within twenty years."""

    @property
    def machines(self) -> int:
        return math.ceil(self.nodes / self.machine.nodes_per_machine)

    @property
    def min_insync(self) -> int:
        return max(1, self.demand.copies - 1)


def plan(demand: Demand, machine: Machine, costs: Coefficients) -> Plan:
    """Return the plan with the fewest nodes that bear the demand. Raises :class:`DemandWrong`, also if no number of
    nodes does."""
    check(demand, machine)
    nodes = next((count for count in _counts(demand, machine) if fits(demand, machine, costs, count)), None)
    if nodes is None:
        away = away_of(machine, NODES_MAX)
        most = uses(demand, machine, costs, NODES_MAX, away)
        name = max(most, key=lambda one: most[one].share / LIMITS[one])
        raise DemandWrong(
            f"{NODES_MAX:,} nodes are too few: each would use {100 * most[name].share:,.0f} % of its {name}; "
            "reduce the load, or use larger machines"
        )
    away = away_of(machine, nodes)
    now, then = uses(demand, machine, costs, nodes, 0), uses(demand, machine, costs, nodes, away)
    partitions = partitions_of(demand, costs, nodes)
    size = segment_bytes(demand, costs, partitions)
    a_partition = kept_bytes(demand, costs) / partitions
    segments = math.ceil(a_partition / size) + 1
    network = machine.network_mb_s / machine.nodes_per_machine
    return Plan(
        demand,
        machine,
        nodes,
        away,
        partitions,
        int(size),
        rates(demand, costs),
        now,
        then,
        max(then, key=lambda one: then[one].share / LIMITS[one]),
        math.ceil(partitions * demand.copies * segments * 3 / nodes),
        now["disk"].amount / (REBUILD_SHARE * network * 1e6 * max(1, nodes - 1)) / 3600,
        {name: _days(demand, machine, costs, nodes, name) for name in then},
    )


def _counts(demand: Demand, machine: Machine) -> Iterator[int]:
    """Yield numbers of nodes to try, in whole machines: each up to a thousand, then in steps of a hundredth."""
    step = machine.nodes_per_machine
    count = math.ceil(demand.copies / step) * step
    while count <= NODES_MAX:
        yield count
        count += step if count < 1_000 else step * max(1, count // (100 * step))


def grown(demand: Demand, days: float) -> Demand:
    """Return the demand after so many days of its growth."""
    return replace(demand, records_a_day=demand.records_a_day * (1 + demand.growth_a_year) ** (days / 365))


def _days(demand: Demand, machine: Machine, costs: Coefficients, nodes: int, name: str) -> float | None:
    """Return when a resource is used up at the growth of the demand, by bisection."""
    if demand.growth_a_year <= 0:
        return None

    def reached(days: float) -> bool:
        found = uses(grown(demand, days), machine, costs, nodes, away_of(machine, nodes))
        return found[name].share > LIMITS[name]

    low, high = 0.0, 365.0 * HORIZON_YEARS
    if not reached(high):
        return None
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


WHAT_IF: Final = (
    "records_a_day", "record_bytes", "peak_factor", "compression_ratio", "batch_records", "readers", "retention_hours",
    "cached_minutes",
)  # fmt: skip


def what_if(demand: Demand, machine: Machine, costs: Coefficients, change: float = 0.2) -> dict[str, tuple[int, int]]:
    """Return, for each input, the nodes needed with a fifth less and a fifth more of it; 0: no number is enough."""

    def nodes(name: str, factor: float) -> int:
        value = getattr(demand, name)
        changed = round(value * factor) if isinstance(value, int) else value * factor
        if isinstance(value, int) and factor != 1 and changed == value:
            changed = value + (1 if factor > 1 else -1)
        try:
            given: dict[str, Any] = {name: max(changed, LEAST.get(name, 0))}
            return plan(replace(demand, **given), machine, costs).nodes
        except DemandWrong:
            return 0

    return {name: (nodes(name, 1 - change), nodes(name, 1 + change)) for name in WHAT_IF}
