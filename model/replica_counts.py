"""How many in-sync replicas a partition needs, also while its replicas are being moved."""

from __future__ import annotations

from collections.abc import Sized


def effective_min_isr(wanted: int, replicas: Sized, adding: Sized = (), removing: Sized = ()) -> int:
    """The effective ``min.insync.replicas``: at most the number of replicas, and of a partition whose replicas are
    moved at most the number before and the number afterwards.

    So a topic that gets more replicas stays writable while they catch up. Controller and leader must agree on it:
    a leader that asks for less than the controller would commit without a replica that the controller believes
    to have everything (KIP-966). Source: ``ReplicationControlManager.getTopicEffectiveMinIsr``, which counts the
    replicas that are added too.
    """
    return min(wanted, len(replicas) - len(adding), len(replicas) - len(removing))
