"""What a unit of work costs a node: measured, each with its source; and the fit from measured loads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.cli.failure import CommandFailed

if TYPE_CHECKING:
    from tidelog.cli.work.planner.measuring import Seen

SHARED_FROM: Final = 100.0
"""From this many batches per second on a node, batches share wake-ups of the event loop, so one more costs less."""
SENT_LEAST: Final = 0.4
"""Readers that keep up get each batch by itself, so it costs at least this share of one that is sent alone. If they
fall behind, they get several at once, and a fit would find further batches free: ``bench/capacity_bound.jsonl``."""
LOADS_LEAST: Final = 12


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Costs of one node. Processor time in seconds; a megabyte is 10^6 bytes. Batch costs have two steps: the first
    :data:`SHARED_FROM` per second, and those beyond."""

    idle_cores: float
    append_s: float
    append_shared_s: float
    """A producer's batch."""
    copy_s: float
    copy_shared_s: float
    """A batch copied by a follower: its own work and its leader's."""
    send_s: float
    send_shared_s: float
    """A batch sent to a group."""
    append_mb_s: float
    """A megabyte from producers."""
    replicate_mb_s: float
    """A megabyte copied by a follower: its own work and its leader's."""
    read_mb_s: float
    """A megabyte to readers."""
    tls_in_mb_s: float
    tls_out_mb_s: float
    """An encrypted megabyte from producers, to readers."""
    tls_copy_mb_s: float
    """An encrypted megabyte between nodes, for both of them."""
    tls_batch_s: float
    """A batch on an encrypted connection of any kind."""
    base_bytes: float
    busy_bytes: float
    """Memory of a node whose event loop is busy all the time beyond an idle one, without page cache."""
    stream_bytes: float
    """Memory for each megabyte per second that a node takes in or sends to groups."""
    replica_bytes: float
    connection_bytes: float
    connection_tls_bytes: float
    record_bytes: float
    """On disk, in addition to a record's key and value."""
    batch_bytes: float
    """On disk, for each batch."""
    source: str

    def cores(self, rates: NodeRates) -> float:
        """Return the processors that one node uses, without TLS."""
        costs = (
            self.idle_cores, self.append_s, self.append_shared_s, self.copy_s, self.copy_shared_s, self.send_s,
            self.send_shared_s, self.append_mb_s, self.replicate_mb_s, self.read_mb_s,
        )  # fmt: skip
        return sum(cost * value for cost, value in zip(costs, rates.row(), strict=True))

    def memory_bytes(self, cores: float, mb_s: float) -> float:
        """Return the memory of a node that uses this much of its processor for :meth:`NodeRates.mb_s`, without
        replicas, connections and page cache."""
        return self.base_bytes + self.busy_bytes * min(cores, 1.0) + self.stream_bytes * mb_s

    def tls_cores(self, rates: NodeRates, *, clients: bool, nodes: bool) -> float:
        """Return what TLS adds to that, on the connections of clients and between nodes."""
        cores = 0.0
        if clients:
            cores += rates.append_mb * self.tls_in_mb_s + rates.read_mb * self.tls_out_mb_s
            cores += (rates.appends + rates.sends) * self.tls_batch_s
        if nodes:
            cores += rates.replicated_mb * self.tls_copy_mb_s + rates.copies * self.tls_batch_s
        return cores

    def predicted(self, seen: Seen, *, tls: bool = False) -> float:
        """Return the processors that these coefficients predict for a measured load, all nodes together. ``tls``: on
        all connections."""
        rates = node_rates(seen)
        return seen.nodes * (self.cores(rates) + self.tls_cores(rates, clients=tls, nodes=tls))


class NodeRates(NamedTuple):
    """What one node does per second: batches appended, copied as a follower, sent to groups; megabytes of each."""

    appends: float
    copies: float
    sends: float
    append_mb: float
    replicated_mb: float
    read_mb: float

    @property
    def mb_s(self) -> float:
        """Megabytes per second taken in and sent to groups."""
        return self.append_mb + self.replicated_mb + self.read_mb

    def row(self) -> tuple[float, ...]:
        """Return the factors of the processor time coefficients."""
        return (
            1.0,
            *_split(self.appends),
            *_split(self.copies),
            *_split(self.sends),
            self.append_mb,
            self.replicated_mb,
            self.read_mb,
        )


def node_rates(seen: Seen) -> NodeRates:
    """Return the mean node's rates."""
    n = seen.nodes
    batches = seen.batches / n
    return NodeRates(
        batches,
        batches * (seen.copies - 1),
        batches * seen.readers,
        seen.append_mb / n,
        seen.replicated_mb / n,
        seen.read_mb / n,
    )


def _split(batches: float) -> tuple[float, float]:
    return min(batches, SHARED_FROM), max(0.0, batches - SHARED_FROM)


_PARTS: Final = (
    "idle nodes", "few batches", "many batches", "few copied batches", "many copied batches", "few batches for readers",
    "many batches for readers", "appended bytes", "replicated bytes", "read bytes",
)  # fmt: skip


def fitted(loads: Sequence[Seen], before: Coefficients, source: str) -> Coefficients:
    """Fit processor time by non-negative least squares, relative to each load's own time, and memory; keep the others.

    Raises :class:`CommandFailed` if there are too few loads, or they do not cover everything.
    """
    if len(loads) < LOADS_LEAST:
        raise CommandFailed(
            f"expected at least {LOADS_LEAST} measured loads in which the producer kept pace, found {len(loads)}: "
            "is the machine busy?"
        )
    weights = [seen.nodes / max(seen.cores, 0.03) for seen in loads]
    rows = [[value * weight for value in node_rates(seen).row()] for seen, weight in zip(loads, weights, strict=True)]
    if missing := [name for at, name in enumerate(_PARTS) if not any(row[at] for row in rows)]:
        raise CommandFailed(f"expected measured loads with {', '.join(missing)}, found none")
    wanted = [seen.cores / seen.nodes * weight for seen, weight in zip(loads, weights, strict=True)]
    idle, append, append_more, copy, copy_more, send, send_more, append_mb, replicate, read = (
        non_negative_least_squares(rows, wanted)
    )
    base = min(seen.memory_bytes for seen in loads)
    busy, stream = non_negative_least_squares(
        [[min(seen.cores / seen.nodes, 1.0), node_rates(seen).mb_s] for seen in loads],
        [seen.memory_bytes - base for seen in loads],
    )
    return replace(
        before,
        idle_cores=idle,
        append_s=append,
        append_shared_s=min(append_more, append),
        copy_s=copy,
        copy_shared_s=min(copy_more, copy),
        send_s=send,
        send_shared_s=min(max(send_more, SENT_LEAST * send), send),
        append_mb_s=append_mb,
        replicate_mb_s=replicate,
        read_mb_s=read,
        tls_in_mb_s=append_mb * before.tls_in_mb_s / before.append_mb_s,
        base_bytes=base,
        busy_bytes=busy,
        stream_bytes=stream,
        source=source,
    )


def non_negative_least_squares(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Return the non-negative ``x`` for which rows times ``x`` is nearest to ``wanted``, by cyclic descent."""
    width = len(rows[0])
    scale = [math.sqrt(sum(row[at] ** 2 for row in rows)) or 1.0 for at in range(width)]
    scaled = [[row[at] / scale[at] for at in range(width)] for row in rows]
    product = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    aim = [sum(row[i] * value for row, value in zip(scaled, wanted, strict=True)) for i in range(width)]
    found = [0.0] * width
    for _ in range(20_000):
        moved = 0.0
        for i in range(width):
            if product[i][i]:
                step = (aim[i] - sum(product[i][j] * found[j] for j in range(width))) / product[i][i]
                value = max(0.0, found[i] + step)
                moved = max(moved, abs(value - found[i]))
                found[i] = value
        if moved < 1e-12:
            break
    return [value / scale[at] for at, value in enumerate(found)]


def save(coefficients: Coefficients, path: Path) -> None:
    path.write_text(json.dumps(asdict(coefficients), indent=2) + "\n", encoding="utf-8")


def load(path: Path) -> Coefficients:
    """Read what ``tidelog plan calibrate`` wrote. Raises :class:`CommandFailed`."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CommandFailed(f"{path}: expected JSON from `tidelog plan calibrate`: {error}") from None
    return _checked(found, str(path))


def _checked(found: object, place: str) -> Coefficients:
    wanted = {one.name for one in fields(Coefficients)}
    if not isinstance(found, Mapping) or found.keys() != wanted:
        keys = sorted(found) if isinstance(found, Mapping) else type(found).__name__
        raise CommandFailed(f"{place}: expected {', '.join(sorted(wanted))}, found {keys}")
    for name, value in found.items():
        ok = isinstance(value, str) if name == "source" else _is_cost(value)
        if not ok:
            raise CommandFailed(f"{place}: {name}: expected a finite number of at least 0, found {value!r}")
    return Coefficients(**found)


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
