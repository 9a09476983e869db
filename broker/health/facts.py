"""The input of the health rules: a snapshot of a cluster, from admin calls, the quorum and nodes' metrics.

A part that could not be determined is ``None``; rules that need it are skipped, and :attr:`Facts.unknown` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from tidelog.broker.metrics import MetricName
from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. ``stopping``: it is in controlled shutdown."""

    node: int
    fenced: bool
    stopping: bool = False
    rack: str | None = None
    machine: str | None = None

    @property
    def live(self) -> bool:
        return not (self.fenced or self.stopping)


@dataclass(frozen=True, slots=True)
class Partition:
    """``leader`` is -1 for none. ``min_isr`` is ``None`` if it was not queried, because every replica is in sync."""

    at: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """A broker's log directory. Bytes are those of its disk."""

    node: int
    path: str
    failed: bool
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature's current level, the range that every node supports, and the nodes that support less than others."""

    name: str
    level: int
    lowest: int
    highest: int
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A prepared transaction that waits for an external decision."""

    transactional_id: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition and that no coordinator will end."""

    at: TopicPartition
    producer_id: int
    since_ms: int


class Progress(StrEnum):
    """A group's progress in a partition, after Burrow's evaluator."""

    OK = "ok"
    UNSETTLED = "not judged yet"
    """It has lag, and was not watched long enough."""
    SLOW = "slow"
    """Its offset advances, but its lag never fell."""
    STALLED = "stalled"
    """It has a reader, but its offset does not advance."""
    STOPPED = "stopped"
    """It has no reader, and its offset does not advance."""
    REWOUND = "rewound"
    """Its offset went back, and has not recovered."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's position in one partition. ``lost``: records that were deleted before the group read them."""

    at: TopicPartition
    progress: Progress
    lag: int
    lost: int = 0
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group. ``members``: whether it has any now."""

    name: str
    members: bool
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class LinkPartition:
    """A link's standing in one partition, as it said last. ``lag``: records that the source had more. ``lag_ms``: for
    how long something was left to fetch, or nobody has looked. ``heard_ms``: how long ago it said so. ``reason``: why
    it has stopped here, or ""."""

    at: TopicPartition
    lag: int
    lag_ms: int
    heard_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A link into this cluster, with the partitions that it still fills."""

    name: str
    partitions: tuple[LinkPartition, ...]


Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of its label names."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """One reading of a node's metrics page, by exported name. ``busy``: the busy share of its event loop
    between two readings (0 to 1). ``clock_ahead_s``: how far the node's clock is ahead of the reader's, within
    ``clock_error_s``. Either is ``None`` if it was not measured."""

    node: int
    values: Mapping[str, Mapping[Labels, float]]
    busy: float | None = None
    clock_ahead_s: float | None = None
    clock_error_s: float = 0.0

    def total(self, metric: MetricName) -> float:
        """Return the sum over all labels; 0 if the node lacks the metric."""
        return sum(self.values.get(metric.exported, {}).values())

    def each(self, metric: MetricName) -> Iterator[tuple[Labels, float]]:
        yield from self.values.get(metric.exported, {}).items()


@dataclass(frozen=True, slots=True)
class Facts:
    """A cluster at ``now_ms`` (since 1970). ``controller``: the active controller's node id, -1 for none. ``voters``:
    the controllers' node ids."""

    now_ms: int
    controller: int | None = None
    voters: Sequence[int] | None = None
    brokers: Mapping[int, Broker] | None = None
    partitions: Sequence[Partition] | None = None
    directories: Sequence[Directory] | None = None
    features: Sequence[Feature] | None = None
    prepared: Sequence[OpenTransaction] | None = None
    hanging: Sequence[HangingTransaction] | None = None
    groups: Sequence[Group] | None = None
    links: Sequence[Link] | None = None
    nodes: Mapping[int, NodeMetrics] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What could not be queried, and why."""
