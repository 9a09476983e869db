"""What a process keeps for the sink's next task or decision: connections to brokers, and the thread that serves them.

Writers and ledgers live for one batch; connecting anew would be a good part of what a small batch takes.
"""

from __future__ import annotations

import atexit
import os
from typing import NamedTuple

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.kept_connections import KeptConnections
from tidelog.client.networks import default_network


class Kept(NamedTuple):
    network: KeptConnections
    loop: BackgroundLoop


_kept: Kept | None = None


def kept() -> Kept:
    """The process's own; made if there are none."""
    global _kept
    if _kept is None:
        _kept = Kept(KeptConnections(default_network()), background.acquire())
    return _kept


def close() -> None:
    """Close what is kept; the next to ask begins anew. For when nobody has a client."""
    global _kept
    if _kept is not None:
        found, _kept = _kept, None
        found.loop.run(found.network.close())
        background.release(found.loop)


def _forget() -> None:
    """A child of ``fork()`` has none of the threads that its parent's connections need."""
    global _kept
    _kept = None


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
