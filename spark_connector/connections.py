"""Connections to brokers, and their IO thread, kept for a process's next task or the sink's next decision.

Writers and ledgers live for one batch; reconnecting would be a good part of a small batch's time.
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
"""By security settings and client id: nobody gets a connection that was opened with another key, and each client has
its own quota."""


def kept(settings: Mapping[str, Any]) -> Kept:
    """Return the process's connections for clients with these admin client settings; create them if there are none."""
    config = AdminConfig.of(dict(settings))
    key = (config.client_id, *(getattr(config, found.name) for found in fields(ClientSecurity)))
    if key not in _kept:
        network = default_network(config.tls(), config.login(), config.client_id)
        _kept[key] = Kept(KeptConnections(network), background.acquire())
    return _kept[key]


def close() -> None:
    """Close the kept connections; the next caller opens new ones. Call it only while no client uses them."""
    while _kept:
        _, found = _kept.popitem()
        found.loop.run(found.network.close())
        background.release(found.loop)


def _forget() -> None:
    """Drop the connections in a child of ``fork()``, which has none of the threads that they need."""
    _kept.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
