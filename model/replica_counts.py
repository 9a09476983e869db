"""How many in-sync replicas a partition needs, also during a reassignment."""

from __future__ import annotations

from collections.abc import Sized


def effective_min_isr(wanted: int, replicas: Sized, adding: Sized = (), removing: Sized = ()) -> int:
    """Return the effective ``min.insync.replicas``: at most the number of replicas and, during a reassignment, at most
    the numbers before and after it.

    So a topic that gets more replicas stays writable while they catch up. Controller and leader must agree: a leader
    that requires less than the controller would commit without a replica that the controller believes to have
    everything (KIP-966). Source: ``ReplicationControlManager.getTopicEffectiveMinIsr``, which also counts the replicas
    being added.
    """
    return min(wanted, len(replicas) - len(adding), len(replicas) - len(removing))
