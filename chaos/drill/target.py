"""The cluster that a drill is held on: one that the drill makes, or one that is there. How it stands, and whether that
is well enough for a drill."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.chaos.live.observer import Held
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local_cluster import SERVER, LocalCluster, default_directory
from tidelog.client.networks import default_network
from tidelog.client.settings import parse_bootstrap
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, TopicPartition
from tidelog.model.properties import format_properties, parse_properties
from tidelog.proto.api import DescribeClusterRequest, MetadataRequest
from tidelog.proto.network import Address, CallTimeout, ConnectionLost

TOPIC_PREFIX: Final = "tidelog-drill-"
CONTROLLERS: Final = 3
"""Of a cluster that is made with brokers and controllers apart; they are nodes 1 to 3."""
NEEDED: Final = 3
"""Brokers, and controllers: with fewer a single loss stops the cluster, and no drill is needed to know that."""
NAMED_MAX: Final = 5
_ASK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster as it told of itself. ``brokers`` are those that serve, at their addresses for clients."""

    cluster_id: str
    brokers: Mapping[int, Address]
    voters: tuple[int, ...]
    controller: int
    fenced: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    partitions: Mapping[TopicPartition, Held] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.brokers, *self.voters}))

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({at.topic for at in self.partitions}))


async def look(bootstrap: str) -> Found:
    """Ask the first of these addresses that answers. Raises :class:`CommandFailed` if none does."""
    network, silent = default_network(), []
    for address in parse_bootstrap(bootstrap):
        connection = network.connect(address)
        try:
            cluster = await connection.call(DescribeClusterRequest(), timeout_s=_ASK_S)
            metadata = await connection.call(MetadataRequest(all_topics=True), timeout_s=_ASK_S)
        except (ConnectionLost, CallTimeout) as trouble:
            silent.append(f"{address}: {trouble}")
            continue
        finally:
            await connection.close()
        fenced = {int(one.node_id) for one in cluster.brokers if one.fenced}
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
                TopicPartition(topic.name, each.partition): Held(
                    int(each.leader), tuple(sorted(map(int, each.isr))), tuple(sorted(map(int, each.replicas)))
                )
                for topic in metadata.topics
                if topic.error is ErrorCode.NONE
                for each in topic.partitions
            },
        )
    raise CommandFailed(f"no broker answers at {'; '.join(silent)}. Is the cluster running?")


def ailments(found: Found, local: LocalCluster | None = None) -> list[str]:
    """What keeps a cluster from a drill, each with what to do; empty if it is well. Pure but for ``local``, whose
    processes are looked at."""
    start = "start it again" if local is None else f"`tidelog cluster start --dir {local.directory}` starts it"
    wrong = []
    if found.controller == NO_NODE:
        wrong.append("no controller is active: a majority of the controllers must run")
    down = [] if local is None else [number for number, node in local.nodes.items() if node.mark is None]
    wrong += [f"node {node} does not run; {start}" for node in down]
    wrong += [f"broker {node} is fenced; {start}" for node in found.fenced if node not in down]
    wrong += [f"broker {node} is shutting down; wait, then {start}" for node in found.leaving]
    torn = sorted(at for at, held in found.partitions.items() if not held.whole)
    if torn:
        named = ", ".join(map(str, torn[:NAMED_MAX])) + (", …" if len(torn) > NAMED_MAX else "")
        wrong.append(
            f"{len(torn)} of {len(found.partitions)} partitions lack a leader or a replica in sync ({named}); "
            "`tidelog topics describe --unhealthy` shows them, wait until it shows none"
        )
    for topic in found.topics:
        if topic.startswith(TOPIC_PREFIX):
            wrong.append(
                f"topic {topic} is there, of a drill that goes on or was killed; `tidelog topics delete {topic}`"
            )
    return wrong


def check_size(found: Found) -> None:
    """Raise :class:`CommandFailed` if the loss of one node would be too much."""
    for what, count in (("brokers", len(found.brokers)), ("controllers", len(found.voters))):
        if count < NEEDED:
            raise CommandFailed(
                f"expected {NEEDED} {what} or more, of which one can be lost, found {count}; without --bootstrap the "
                "drill makes a cluster of its own"
            )


def find_local(cluster_id: str, directory: Path | None = None) -> LocalCluster | None:
    """The directory of ``tidelog cluster`` on this machine that a cluster lives in: the one named, the default one, or
    where a process of ours says it was started. Raises :class:`CommandFailed` if the one named holds something else."""
    if directory is not None:
        cluster = LocalCluster.open(directory)
        if cluster.cluster_id != cluster_id:
            raise CommandFailed(
                f"{directory}: expected cluster {cluster_id}, which answers at --bootstrap, found {cluster.cluster_id}"
            )
        return cluster
    for place in (default_directory(), *_started_from(cluster_id)):
        with suppress(CommandFailed):
            cluster = LocalCluster.open(place)
            if cluster.cluster_id == cluster_id:
                return cluster
    return None


def _started_from(cluster_id: str) -> list[Path]:
    """Where the nodes of this cluster among the processes of this machine have their directories (Linux)."""
    found = []
    processes = Path("/proc")
    for entry in sorted(processes.iterdir()) if processes.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if cluster_id in words and "--config" in words[:-1]:
            found.append(Path(words[words.index("--config") + 1]).parent.parent)
    return list(dict.fromkeys(found))


def make(directory: Path, brokers: int, settings: Mapping[str, str], *, apart: bool) -> LocalCluster:
    """Lay out a cluster for a drill, whose nodes end with this process where the system can do that; ``apart``: three
    controllers that are nothing else, and the brokers beside them. Raises ``ConfigError``, :class:`CommandFailed`."""
    if LocalCluster.exists(directory):
        raise CommandFailed(
            f"{directory} holds a cluster; to hold the drill on that one: --bootstrap HOST:PORT, else use another --dir"
        )
    cluster = LocalCluster.create(directory, nodes=brokers + CONTROLLERS * apart, settings=settings)
    if apart:
        _part_roles(cluster)
    if sys.platform.startswith("linux"):
        for node in cluster.nodes.values():
            node.program = ("tidelog.chaos.live.leash", str(os.getpid()), sys.executable, "-P", "-m", *SERVER)
    return cluster


def _part_roles(cluster: LocalCluster) -> None:
    for number, node in cluster.nodes.items():
        lines = {name: line.value for name, line in parse_properties(node.config_path.read_text()).items()}
        role = "controller" if number <= CONTROLLERS else "broker"
        lines["process.roles"] = role
        lines["controller.quorum.voters"] = ",".join(lines["controller.quorum.voters"].split(",")[:CONTROLLERS])
        lines["listeners"] = ",".join(
            each for each in lines["listeners"].split(",") if each.startswith("CONTROLLER://") == (role == "controller")
        )
        copies = str(min(3, len(cluster.nodes) - CONTROLLERS))
        lines["default.replication.factor"] = copies
        node.config_path.write_text(format_properties(lines))


def bootstrap_of(cluster: LocalCluster, *, apart: bool) -> str:
    """The brokers' addresses for clients."""
    brokers: Sequence[int] = [number for number in cluster.nodes if not apart or number > CONTROLLERS]
    return ",".join(f"127.0.0.1:{cluster.nodes[number].ports.client}" for number in brokers)
