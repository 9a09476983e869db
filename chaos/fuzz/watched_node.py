"""A node as a separate process for hostile clients, and its measurements."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.chaos.fuzz.open_files import OpenFiles, open_files
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process import use_of

if TYPE_CHECKING:
    from tidelog import AclBinding

SETTINGS: Final[Mapping[str, str]] = {
    # Leftovers of hostile but well-formed requests disappear soon; the measurements are of what stays.
    "auto.create.topics.enable": "false",
    # Everybody may do whatever no entry forbids, and the right to it is checked each time.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.min.session.timeout.ms": "1000",
    "group.max.session.timeout.ms": "5000",
    "log.retention.bytes": str(32 * 2**20),
    "log.segment.bytes": str(8 * 2**20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transactional.id.expiration.ms": "60000",
    "producer.id.expiration.ms": "60000",
}
WITNESS_TOPIC: Final = "witness"
LOGIN: Final = "LOGIN"
"""A second listener for Kafka's clients, which requires a login."""
WITH_LOGIN: Final[Mapping[str, str]] = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "connection.failed.authentication.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement of the process."""

    memory_bytes: int
    open: OpenFiles
    threads: int
    cpu_s: float


class NodeGone(Exception):
    """The node's process has ended; the text is its last output."""


class WatchedNode:
    """The one node of a cluster."""

    def __init__(self, cluster: LocalCluster, login_port: int) -> None:
        self.cluster = cluster
        self.kafka_bootstrap = cluster.bootstrap
        self.login_port = login_port
        """The port of the listener that requires a login; 0 if there is none."""

    @property
    def pid(self) -> int:
        """Return the process id. Raises :class:`NodeGone`."""
        mark = self.cluster.nodes[1].mark
        if mark is None:
            raise NodeGone(self.cluster.nodes[1].last_words())
        return mark.pid

    def measure(self) -> Measure:
        """Measure the process. Raises :class:`NodeGone`."""
        node = self.cluster.nodes[1]
        mark = node.mark
        use = None if mark is None else use_of(mark)
        if mark is None or use is None:
            raise NodeGone(node.last_words())
        found = open_files(mark.pid, node.directory)
        return Measure(use.memory_bytes, found, len(os.listdir(f"/proc/{mark.pid}/task")), use.cpu_s)

    def complaints(self) -> list[str]:
        """Return lines of the node's log that no client may cause: errors, and Python's reports of a bug."""
        found: list[str] = []
        for path in (self.cluster.nodes[1].log_path, self.cluster.nodes[1].directory / "server.err"):
            if not path.exists():
                continue
            with path.open(errors="replace") as lines:
                for line in lines:
                    if any(word in line for word in (" ERROR ", " CRITICAL ", "Traceback", "never retrieved")):
                        found.append(line.rstrip())
                        if len(found) == 20:
                            return found
        return found


@contextmanager
def watched_node(
    directory: Path, settings: Mapping[str, str] | None = None, *, with_login: bool = False, denies: bool = False
) -> Iterator[WatchedNode]:
    """Start a fresh node that serves, with the topics ``fuzz``, ``fuzz-2`` and ``witness``; kill it afterwards.
    ``denies``: everybody is denied some of the resources, and changes to the cluster."""
    from tidelog import Admin, NewTopic

    everything = {} if denies else {"super.users": "User:ANONYMOUS"}
    given = {**SETTINGS, **everything, **(WITH_LOGIN if with_login else {}), **(settings or {})}
    cluster = LocalCluster.create(directory / "cluster", nodes=1, settings=given)
    login_port = cluster.nodes[1].listen_too({LOGIN: "SASL_PLAINTEXT"})[LOGIN] if with_login else 0
    try:
        cluster.start()
        cluster.wait_ready()
        with Admin(cluster.bootstrap) as admin:
            keep = {"retention.bytes": "-1", "retention.ms": "-1"}
            admin.create_topics(
                [NewTopic("fuzz", 2, 1), NewTopic("fuzz-2", 1, 1), NewTopic(WITNESS_TOPIC, 1, 1, configs=keep)]
            )
            if denies:
                admin.create_acls(_denials())
        yield WatchedNode(cluster, login_port)
    finally:
        for node_id in cluster.nodes:
            cluster.kill(node_id)


def _denials() -> list[AclBinding]:
    from tidelog import AclBinding, AclOperation, PatternType, PermissionType, ResourceType

    every, denied = AclOperation.ALL, PermissionType.DENY
    denials = (
        (ResourceType.TOPIC, "fuzz-2", every),
        (ResourceType.GROUP, "consumer", every),
        (ResourceType.TRANSACTIONAL_ID, "consumer", every),
        (ResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER),
    )
    return [
        AclBinding(kind, name, PatternType.LITERAL, "User:*", "*", operation, denied)
        for kind, name, operation in denials
    ]
