"""Clusters at the addresses that a foreign test suite expects, and a stand-in for the ``docker`` that it calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tidelog import Admin, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tidelog.bench import clusters
from tidelog.bench.ecosystem.checks.kafka_tools import kafka_topics
from tidelog.bench.ecosystem.installing import Missing
from tidelog.cli.local.cluster import LocalCluster
from tidelog.model.settings.node.access_settings import STANDARD_AUTHORIZER
from tidelog.security.authority import Authority
from tidelog.testing.ports import LOOPBACK, taken

ACCESS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
}
"""Access control as the suites of kafkajs and kafka-go configure it: who does not log in may do everything."""
CALM: Final = {"controller.quorum.election.timeout.ms": "5000"}
"""No change of the controller is to interrupt the creation of a topic on a busy machine: these programs do not ask
twice."""
SHA_256: Final = ScramMechanism.SCRAM_SHA_256
SHA_512: Final = ScramMechanism.SCRAM_SHA_512
_ITERATIONS: Final = 4096
_DAYS: Final = 2
_DOCKER: Final = """#!/bin/sh
for last; do :; done
case "$1 $2" in
"compose start" | "compose stop") exec {tidelog} cluster "$2" --dir {cluster} "${{last#kafka-}}" ;;
"compose logs") exec cat {cluster}/node-"${{last#kafka-}}"/server.log ;;
"ps "*) echo kafka1 ;;
"exec "*) shift 2; exec "$@" ;;
*) echo "docker $*: not expected" >&2; exit 1 ;;
esac
"""


class Listener(NamedTuple):
    """A listener of a node. ``advertised``: the port that clients are told, if it is another's."""

    protocol: str
    port: int
    advertised: int = 0


class User(NamedTuple):
    name: str
    password: str
    mechanisms: Sequence[ScramMechanism] = (SHA_256, SHA_512)


@contextmanager
def running(
    root: Path,
    nodes: Sequence[Mapping[str, Listener]],
    settings: Mapping[str, str],
    users: Sequence[User] = (),
    *,
    racks: bool = False,
    first: int = 1,
) -> Iterator[LocalCluster]:
    """Yield a cluster whose nodes have these listeners too, on localhost. ``racks``: each node is in one of its own,
    named by its number; ``first``: the lowest node id. Raises :class:`Missing` if a port is
    taken."""
    wanted = [one.port for listeners in nodes for one in listeners.values()]
    if busy := taken(wanted):
        raise Missing(f"expected port {busy[0]} of {LOOPBACK} to be free, as this suite uses it, found it taken")
    authority = Authority.make("ecosystem", _DAYS)
    (root / "node.pem").write_text(authority.issue("node", (LOOPBACK, "localhost"), _DAYS))

    def listen(cluster: LocalCluster) -> None:
        for (number, node), listeners in zip(cluster.nodes.items(), nodes, strict=True):
            node.listen_too(
                {name: one.protocol for name, one in listeners.items()}, [one.port for one in listeners.values()]
            )
            told = (f"{name}://localhost:{one.advertised or one.port}" for name, one in listeners.items())
            own = {"advertised.listeners": ",".join(told), "ssl.keystore.location": str(root / "node.pem")}
            rack = {"broker.rack": str(number)} if racks else {}
            node.configure({**node.settings, **own, **rack})

    with clusters.running(root, len(nodes), {**CALM, **settings}, listen, first) as cluster:
        with Admin(cluster.bootstrap) as admin:
            for how in ScramMechanism if users else ():  # a request may name a user once
                found = ScramCredentialInfo(how, _ITERATIONS)
                chosen = [UserScramCredentialUpsertion(*user[:2], found) for user in users if how in user.mechanisms]
                admin.alter_user_scram_credentials(chosen)
        yield cluster


def with_docker(root: Path, cluster: LocalCluster) -> dict[str, str]:
    """Return an environment in which ``docker`` starts and stops the nodes of the cluster instead of containers
    ``kafka-1`` …, and runs Kafka's own tool for topics."""
    folder = root / "bin"
    folder.mkdir()
    docker = folder / "docker"
    tidelog = f"'{sys.executable}' -P -m tidelog.cli.main"
    docker.write_text(_DOCKER.format(tidelog=tidelog, cluster=f"'{cluster.directory}'"))
    docker.chmod(0o755)
    at = f'[ "$1" = --zookeeper ] && shift 2\nset -- --bootstrap-server {cluster.bootstrap} "$@"\n'
    kafka_topics(folder / "kafka-topics", before=at)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
