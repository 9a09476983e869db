"""Secures every listener of a new cluster of processes: certificates, passwords or both, and an authorizer.

The kinds are those of a test cluster (:mod:`tidelog.testing.secured`). The nodes and ``admin`` may do everything. The
clients under judgement are the user ``client``, whose rights come from access control lists.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from tidelog.aio import Admin
from tidelog.chaos.laboratory.links.client_network import secured_network
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.private_files import write_private
from tidelog.client.config.security import SecuritySettings
from tidelog.model.ids import id_text, random_id
from tidelog.model.settings.listener_security import SCRAM_SHA_512
from tidelog.model.settings.listeners import parse_listeners
from tidelog.proto.calls.acl_api import DescribeAclsRequest, filter_entry_of
from tidelog.proto.transport.network import Address
from tidelog.security.acls import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.testing.secured import ClusterSecurity

CLIENT_USER: Final = "client"
_POLL_S: Final = 0.05
_LISTENER: Final = "listener.name."
_LOOKS_OFTEN: Final = {"ssl.files.check.interval.ms": "200"}
"""Makes nodes load a renewed certificate within an episode."""


def secure(cluster: LocalCluster, kind: str) -> ClusterSecurity:
    """Give the nodes of a new cluster their certificates, settings and first users, before its first run. Call it when
    the nodes have their programs. Raises ``ModuleNotFoundError``, which says what to install."""
    rng = random.SystemRandom()
    security = ClusterSecurity(kind, cluster.nodes, rng)
    security.make(cluster.directory / "certificates")
    users = cluster.directory / "users"
    if security.passwords:
        security.passwords[CLIENT_USER] = id_text(random_id(rng))
        lines = (f"{SCRAM_SHA_512}=[name={name},password={word}]\n" for name, word in security.passwords.items())
        write_private(users, "".join(lines))
    for number, node in cluster.nodes.items():
        lines_of = node.settings
        heard = {found.name for found in parse_listeners(lines_of["listeners"])}
        lines_of |= {
            name: value
            for name, value in {**security.settings, **security.node_settings(number), **_LOOKS_OFTEN}.items()
            if not name.startswith(_LISTENER) or name.split(".")[2].upper() in heard
        }
        node.configure(lines_of)
        if security.passwords:
            node.program = (*node.program, "--add-scram", f"@{users}")
    return security


async def let_in(bootstrap: str, nodes: Iterable[Address], settings: SecuritySettings, bound_s: float) -> None:
    """Give the clients under judgement their rights: all on topics, groups and transactional ids, none on the cluster.
    Return when every node knows them. ``settings`` are those of ``admin``. Raises ``TimeoutError`` and errors of the
    SDK."""
    entries = [
        AclBinding(kind, "*", PatternType.LITERAL, f"User:{CLIENT_USER}", "*", AclOperation.ALL, PermissionType.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    async with asyncio.timeout(bound_s):
        async with Admin(bootstrap, **settings) as admin:
            await admin.create_acls(entries)
        network = secured_network(**settings)
        for address in nodes:
            connection = network.connect(address)
            try:
                wanted = DescribeAclsRequest(filter_entry_of(AclFilter()))
                found = await connection.call(wanted, timeout_s=bound_s)
                while len(found.entries) < len(entries):
                    await asyncio.sleep(_POLL_S)
                    found = await connection.call(wanted, timeout_s=bound_s)
            finally:
                await connection.close()
