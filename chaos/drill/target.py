"""The cluster that a drill runs on, made for it or existing; its state, and whether that is healthy enough for a
drill."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.broker.health.cluster_rules import BROKERS_STOPPING
from tidelog.broker.health.facts import Broker, Facts, Partition
from tidelog.broker.health.rule import Severity
from tidelog.broker.health.rules import report
from tidelog.chaos import proc
from tidelog.chaos.laboratory.links.client_network import secured_network
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.secured import default_directory
from tidelog.cli.local.watch import PartitionState
from tidelog.client.config.security import SecuritySettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.api import DescribeClusterRequest, MetadataRequest
from tidelog.proto.calls.failure_domains import failure_domains
from tidelog.proto.transport.network import Address, CallTimeout, ConnectionLost, NotServedHere

TOPIC_PREFIX: Final = "tidelog-drill-"
CONTROLLERS: Final = 3
"""Controllers of a cluster that is made with separate brokers and controllers; they are nodes 1 to 3."""
NEEDED: Final = 3
"""Minimum number of brokers, and of controllers: with fewer a single loss stops the cluster, and no drill is needed to
know that."""
NAMED_MAX: Final = 5
_ASK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster as it described itself. ``brokers`` are those that serve, with their addresses for clients."""

    cluster_id: str
    brokers: Mapping[int, Address]
    voters: tuple[int, ...]
    controller: int
    fenced: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)
    """The rack of each broker that has one, or its machine."""

    @property
    def by_rack(self) -> dict[str, tuple[int, ...]]:
        """Return the brokers of each rack."""
        return {
            rack: tuple(sorted(node for node in self.brokers if self.racks.get(node) == rack))
            for rack in sorted({*self.racks.values()})
        }

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.brokers, *self.voters}))

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({at.topic for at in self.partitions}))


async def look(bootstrap: str, security: SecuritySettings) -> Found:
    """Ask the first of these addresses that answers. Raises :class:`CommandFailed` if none does."""
    network, silent = secured_network(**security), []
    addresses = list(parse_bootstrap(bootstrap))
    for address in addresses:
        connection = network.connect(address)
        try:
            cluster = await connection.call(DescribeClusterRequest(), timeout_s=_ASK_S)
            metadata = await connection.call(MetadataRequest(all_topics=True), timeout_s=_ASK_S)
        except (ConnectionLost, CallTimeout) as trouble:
            silent.append(str(trouble))
            elsewhere = trouble.elsewhere if isinstance(trouble, NotServedHere) else None
            if elsewhere is not None and elsewhere not in addresses:
                addresses.append(elsewhere)  # a broker's Kafka listener, which names the one to use
            continue
        finally:
            await connection.close()
        if cluster.error is not ErrorCode.NONE:
            text = cluster.error_message or cluster.error.name
            raise CommandFailed(
                f"{address} does not describe its cluster: {text}; a drill needs a user that may do that"
            )
        fenced = {int(one.node_id) for one in cluster.brokers if one.fenced}
        racks = failure_domains({int(one.node_id): one for one in cluster.brokers})
        return Found(
            cluster_id=cluster.cluster_id,
            brokers={
                int(one.node_id): Address(one.host, one.port) for one in metadata.brokers if one.node_id not in fenced
            },
            voters=tuple(sorted(int(one.node_id) for one in cluster.voters)),
            controller=int(cluster.controller_id),
            fenced=tuple(sorted(fenced)),
            leaving=tuple(sorted(int(one.node_id) for one in cluster.brokers if one.in_controlled_shutdown)),
            partitions={
                TopicPartition(topic.name, each.partition): PartitionState(
                    int(each.leader), tuple(sorted(map(int, each.isr))), tuple(sorted(map(int, each.replicas)))
                )
                for topic in metadata.topics
                if topic.error is ErrorCode.NONE
                for each in topic.partitions
            },
            racks={node: rack for node, rack in racks.items() if rack},
        )
    raise CommandFailed(f"no broker answers at {'; '.join(silent)}. Is the cluster running?")


def _facts(found: Found, stopped: Sequence[int]) -> Facts:
    """Return the facts that the health rules need, without brokers that are known to be ``stopped``: those are reported
    separately."""
    nodes = {*found.brokers, *found.fenced, *found.leaving} - {*stopped}
    return Facts(
        time.time_ns() // 1_000_000,
        controller=found.controller,
        brokers={
            node: Broker(node, node in found.fenced, node in found.leaving, found.racks.get(node)) for node in nodes
        },
        partitions=[
            Partition(at, held.leader, held.replicas, held.isr) for at, held in sorted(found.partitions.items())
        ],
    )


def ailments(found: Found, local: LocalCluster | None = None) -> list[str]:
    """Return the reasons why a cluster is unfit for a drill, each with what to do; empty if it is healthy. The health
    rules judge that; a drill also waits until no node is shutting down. Pure except for ``local``, whose processes are
    examined."""
    start = "start it again" if local is None else f"`tidelog cluster start --dir {local.directory}` starts it"
    down = [] if local is None else [number for number, node in local.nodes.items() if node.mark is None]
    wrong = [f"node {node} does not run; {start}" for node in down]
    for one in report(_facts(found, down)).findings:
        if one.rule == BROKERS_STOPPING:
            wrong.append(f"{one.what}; wait, then {start}")
        elif one.severity is not Severity.NOTE:
            wrong.append(f"{one.what}; {one.do}")
    return wrong + [
        f"topic {topic} is there, of a drill that goes on or was killed; `tidelog topics delete {topic}`"
        for topic in found.topics
        if topic.startswith(TOPIC_PREFIX)
    ]


def check_size(found: Found) -> None:
    """Raise :class:`CommandFailed` if the loss of one node would be too much."""
    for what, count in (("brokers", len(found.brokers)), ("controllers", len(found.voters))):
        if count < NEEDED:
            raise CommandFailed(
                f"expected {NEEDED} {what} or more, of which one can be lost, found {count}; without --bootstrap the "
                "drill makes a cluster of its own"
            )


def check_racks(found: Found) -> None:
    """Raise :class:`CommandFailed` unless the cluster survives the loss of each rack; the text says what would be lost,
    and where."""
    if bare := sorted(set(found.brokers) - found.racks.keys()):
        raise CommandFailed(
            f"expected a rack of each broker (broker.rack), found none of {', '.join(map(str, bare))}: without racks, "
            "replicas are not spread over them; without --bootstrap the drill makes a cluster of three racks"
        )
    wrong = [words for rack, nodes in found.by_rack.items() for words in _lost_with(found, rack, nodes)]
    if not wrong and len(found.by_rack) < NEEDED:
        wrong.append(
            f"there are only {len(found.by_rack)} racks ({', '.join(found.by_rack)}): of three replicas, two are in "
            "one rack, and the third alone takes no records (min.insync.replicas=2)"
        )
    if wrong:
        raise CommandFailed(f"expected racks that can be lost, and if one is: {'; '.join(wrong)}")


def _lost_with(found: Found, rack: str, nodes: Sequence[int]) -> list[str]:
    gone = set(nodes)
    wrong = []
    controllers = sorted(gone.intersection(found.voters))
    if len(found.voters) - len(controllers) <= len(found.voters) // 2:
        wrong.append(
            f"rack {rack} has {len(controllers)} of {len(found.voters)} controllers (nodes "
            f"{', '.join(map(str, controllers))}): without a majority no metadata can change, and nobody else can "
            "lead; put controllers into other racks"
        )
    if alone := sorted(at for at, held in found.partitions.items() if gone.issuperset(held.replicas)):
        named = ", ".join(map(str, alone[:NAMED_MAX])) + (", …" if len(alone) > NAMED_MAX else "")
        wrong.append(
            f"rack {rack} has every replica of {len(alone)} of {len(found.partitions)} partitions ({named}): nobody "
            "could read or write them, and with the disks their records would be lost; `tidelog reassign` moves "
            "replicas into other racks, `tidelog topics alter --replicas` makes more of them"
        )
    return wrong


def find_local(cluster_id: str, directory: Path | None = None) -> LocalCluster | None:
    """Return the directory of ``tidelog cluster`` on this machine that holds a cluster: the one named, the default one,
    or the one from which one of our processes was started. Raises :class:`CommandFailed` if the one named holds
    something else."""
    if directory is not None:
        cluster = LocalCluster.open(directory)
        if cluster.cluster_id != cluster_id:
            raise CommandFailed(
                f"{directory}: expected cluster {cluster_id}, which answers at --bootstrap, found {cluster.cluster_id}"
            )
        return cluster
    for path in (default_directory(), *_started_from(cluster_id)):
        with suppress(CommandFailed):
            cluster = LocalCluster.open(path)
            if cluster.cluster_id == cluster_id:
                return cluster
    return None


def _started_from(cluster_id: str) -> list[Path]:
    """Return the directories of this cluster's nodes, from the processes on this machine (Linux)."""
    found = [
        Path(words[words.index("--config") + 1]).parent.parent
        for words in proc.commands()
        if cluster_id in words and "--config" in words[:-1]
    ]
    return list(dict.fromkeys(found))


def make(directory: Path, brokers: int, settings: Mapping[str, str], *, apart: bool, racks: int = 0) -> LocalCluster:
    """Lay out a cluster for a drill; its nodes end with this process if the system supports that; ``apart``: three
    controllers without another role, and the brokers beside them; ``racks``: how many the nodes are spread over. Raises
    ``ConfigError``, :class:`CommandFailed`."""
    if LocalCluster.exists(directory):
        raise CommandFailed(
            f"{directory} holds a cluster; to hold the drill on that one: --bootstrap HOST:PORT, else use another --dir"
        )
    cluster = LocalCluster.create(directory, nodes=brokers + CONTROLLERS * apart, settings=settings)
    if apart:
        _part_roles(cluster)
    if racks:
        cluster.spread_over_racks(racks)
    if sys.platform.startswith("linux"):
        for node in cluster.nodes.values():
            node.launcher = (
                sys.executable,
                "-P",
                "-m",
                "tidelog.chaos.laboratory.processes.parent_death",
                str(os.getpid()),
            )
    return cluster


def _part_roles(cluster: LocalCluster) -> None:
    for number, node in cluster.nodes.items():
        lines = node.settings
        role = "controller" if number <= CONTROLLERS else "broker"
        lines["process.roles"] = role
        lines["controller.quorum.voters"] = ",".join(lines["controller.quorum.voters"].split(",")[:CONTROLLERS])
        lines["listeners"] = ",".join(
            each for each in lines["listeners"].split(",") if each.startswith("CONTROLLER://") == (role == "controller")
        )
        copies = str(min(3, len(cluster.nodes) - CONTROLLERS))
        lines["default.replication.factor"] = copies
        node.configure(lines)


def bootstrap_of(cluster: LocalCluster, *, apart: bool) -> str:
    """Return the brokers' addresses for clients."""
    brokers: Sequence[int] = [number for number in cluster.nodes if not apart or number > CONTROLLERS]
    return ",".join(f"127.0.0.1:{cluster.nodes[number].ports.client}" for number in brokers)
