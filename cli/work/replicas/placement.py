"""Where the partitions of a cluster are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.work.replicas.spreading import Part, Target
from tidelog.model.errors import ErrorCode, TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.failure_domains import failure_domains, machine_of

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.reassignments import OngoingReassignment
    from tidelog.proto.calls.api import ClusterBroker


class Placed(NamedTuple):
    """``leader`` is -1 if there is none."""

    replicas: tuple[int, ...]
    leader: int
    isr: tuple[int, ...]


def targets_of(brokers: Mapping[int, ClusterBroker], nodes: Iterable[int]) -> list[Target]:
    """Return these nodes with their machines and racks, or what stands for a rack among all ``brokers``."""
    domains = failure_domains(brokers)
    return [Target(node, domains[node], machine_of(brokers[node])) for node in nodes]


class Overview(NamedTuple):
    """The input of a plan of moves."""

    brokers: dict[int, ClusterBroker]
    placed: dict[TopicPartition, Placed]
    ongoing: dict[TopicPartition, OngoingReassignment]
    sizes: dict[TopicPartition, int]
    """The bytes of one replica; a partition without a live replica is missing."""
    rates: Mapping[TopicPartition, int] = {}
    """The bytes written per second; see :func:`rates_of`."""

    @property
    def live(self) -> set[int]:
        return {node for node, found in self.brokers.items() if _is_live(found)}

    @property
    def targets(self) -> list[Target]:
        """The brokers that may get replicas: live ones that are not being drained."""
        usable = [node for node, found in sorted(self.brokers.items()) if _is_live(found) and not found.cordoned]
        return targets_of(self.brokers, usable)

    def parts(self) -> dict[TopicPartition, Part]:
        """Return every partition as it will be after the moves in progress. A move to a broker that is down counts as
        not started, so that a plan replaces it."""
        live = self.live
        found = {}
        for at, placed in self.placed.items():
            replicas = placed.replicas
            if (move := self.ongoing.get(at)) is not None:
                waits = not live.issuperset(move.adding_replicas)
                dropped = move.adding_replicas if waits else move.removing_replicas
                replicas = tuple(int(node) for node in move.replicas if node not in dropped)
            found[at] = Part(replicas, self.sizes.get(at, 0), self.rates.get(at, 0))
        return found

    def before(self, at: TopicPartition) -> tuple[int, ...]:
        """Return a partition's replicas, without those that are only being added."""
        if (move := self.ongoing.get(at)) is None:
            return self.placed[at].replicas
        return tuple(int(node) for node in move.replicas if node not in move.adding_replicas)


def _is_live(broker: ClusterBroker) -> bool:
    return not (broker.fenced or broker.in_controlled_shutdown)


def placement_of(admin: Admin) -> dict[TopicPartition, Placed]:
    """Return every partition, including internal topics."""
    names = [topic.name for topic in admin.list_topics(internal=True)]
    while names:
        try:
            described = admin.describe_topics(names)
        except TidelogError as error:
            check_only_deleted(error)
            names = [name for name in names if name not in error.failures]
            continue
        return {
            TopicPartition(topic.name, part.partition): Placed(
                tuple(map(int, part.replicas)), int(part.leader), tuple(map(int, part.isr))
            )
            for topic in described
            for part in topic.partitions
        }
    return {}


def check_only_deleted(error: TidelogError) -> None:
    """Raise the error, unless only topics failed that were deleted in the meantime."""
    if {one.code for one in error.failures.values()} != {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
        raise error


def overview_of(admin: Admin) -> Overview:
    """Query the cluster. Topics and moves are requested one after the other, so a move that starts or ends in between
    may appear in only one of them. The controller then refuses a request with another number of replicas."""
    brokers = {int(found.node_id): found for found in admin.describe_cluster().brokers}
    ongoing = admin.list_partition_reassignments()
    placed = placement_of(admin)
    held = sizes_of(admin, (node for node, found in brokers.items() if _is_live(found)))
    sizes = {
        at: held.get(part.leader, {}).get(at, max((on.get(at, 0) for on in held.values()), default=0))
        for at, part in placed.items()
    }
    return Overview(brokers, placed, ongoing, sizes)


def rates_of(admin: Admin, found: Overview, window_s: int) -> dict[TopicPartition, int]:
    """Return the bytes written to each partition per second, on average over the last ``window_s``: the number of
    records with timestamps in that window, times the bytes of a record in this log. A partition without a leader is
    missing."""
    from tidelog.client.admin.types import OffsetSpec

    led = [at for at, part in found.placed.items() if part.leader >= 0 and found.sizes.get(at)]
    since = OffsetSpec.for_timestamp(int(time.time() - window_s) * 1000)
    specs = (OffsetSpec.earliest(), since, OffsetSpec.latest())
    firsts, begun, ends = (admin.list_offsets(dict.fromkeys(led, spec)) if led else {} for spec in specs)
    rates = {}
    for at in led:
        end = ends[at].offset
        young = end - begun[at].offset if begun[at].offset >= 0 else 0
        rates[at] = found.sizes[at] * young // (max(end - firsts[at].offset, young, 1) * window_s)
    return rates


def sizes_of(admin: Admin, nodes: Iterable[int]) -> dict[int, dict[TopicPartition, int]]:
    """Return, by broker, the bytes of each replica on it, without copies on their way to another disk. A broker that
    does not answer is left out: it may have just died."""
    found = {}
    for node in nodes:
        try:
            ((_, dirs),) = admin.describe_log_dirs([node]).items()
        except TidelogError as error:
            if error.code not in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT):
                raise
            continue
        found[node] = {
            TopicPartition(replica.topic, replica.partition): replica.size_bytes
            for one in dirs
            for replica in one.replicas
            if not replica.is_future
        }
    return found
