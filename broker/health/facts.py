"""What rules of health look at: one picture of a cluster, taken from admin calls, the quorum and nodes' metrics.

A part that nobody could tell is ``None``; the rules that need it are left out, and :attr:`Facts.unknown` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidelog.broker.metrics import MetricName
from tidelog.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. ``stopping``: it is in its controlled shutdown."""

    node: int
    fenced: bool
    stopping: bool = False
    rack: str | None = None

    @property
    def live(self) -> bool:
        return not (self.fenced or self.stopping)


@dataclass(frozen=True, slots=True)
class Partition:
    """``leader`` is -1 for none. ``min_isr`` is ``None`` where it was not asked for: every replica is in sync."""

    at: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """A log directory of a broker. Bytes are of its disk."""

    node: int
    path: str
    failed: bool
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature's level in use, the range that every node supports, and the nodes that know less than others."""

    name: str
    level: int
    lowest: int
    highest: int
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A prepared transaction that waits for an outside decision."""

    transactional_id: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    at: TopicPartition
    producer_id: int
    since_ms: int


class Progress(StrEnum):
    """How a group gets on with a partition, after Burrow's evaluator."""

    OK = "ok"
    UNSETTLED = "not judged yet"
    """It lags, and was not watched for long enough."""
    SLOW = "slow"
    """Its offset moves, and its lag never fell."""
    STALLED = "stalled"
    """It has a reader, and its offset stands still."""
    STOPPED = "stopped"
    """It has no reader, and its offset stands still."""
    REWOUND = "rewound"
    """Its offset went back, and has not come forward again."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's standing in one partition. ``lost``: records that were deleted before the group read them."""

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
    """One look at a node's metrics page, by exported name. ``busy``: the share of a processor that its event loop used
    between two looks (0 to 1). ``clock_ahead_s``: how far the node's clock is ahead of the looker's, within
    ``clock_error_s``. Either is ``None`` if it was not measured."""

    node: int
    values: Mapping[str, Mapping[Labels, float]]
    busy: float | None = None
    clock_ahead_s: float | None = None
    clock_error_s: float = 0.0

    def total(self, metric: MetricName) -> float:
        """The sum over all labels; 0 for a metric that the node does not have."""
        return sum(self.values.get(metric.exported, {}).values())

    def each(self, metric: MetricName) -> Iterator[tuple[Labels, float]]:
        yield from self.values.get(metric.exported, {}).items()


@dataclass(frozen=True, slots=True)
class Facts:
    """A cluster at ``now_ms`` (since 1970). ``controller``: the active one's node id, -1 for none. ``voters``: node ids
    of the controllers."""

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
    """What could not be asked, and why."""
