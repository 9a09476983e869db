"""Kept for a process's next task or decision of the sink: connections to brokers, and the thread that serves them.

Writers and ledgers live for one batch; connecting anew would be a good part of what a small batch takes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.cluster.kept_connections import KeptConnections
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.admin import AdminConfig
from tidelog.client.config.security import ClientSecurity


class Kept(NamedTuple):
    network: KeptConnections
    loop: BackgroundLoop


_kept: dict[object, Kept] = {}
"""By how they are secured, and by client id: nobody gets a connection that others have opened with another key, and
each client's quota is its own."""


def kept(settings: Mapping[str, Any]) -> Kept:
    """The process's own, for clients with these settings of the admin client; made if there are none."""
    config = AdminConfig.of(dict(settings))
    key = (config.client_id, *(getattr(config, found.name) for found in fields(ClientSecurity)))
    if key not in _kept:
        network = default_network(config.tls(), config.login(), config.client_id)
        _kept[key] = Kept(KeptConnections(network), background.acquire())
    return _kept[key]


def close() -> None:
    """Close what is kept; the next to ask begins anew. For when nobody has a client."""
    while _kept:
        _, found = _kept.popitem()
        found.loop.run(found.network.close())
        background.release(found.loop)


def _forget() -> None:
    """A child of ``fork()`` has none of the threads that its parent's connections need."""
    _kept.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
