"""Finds the quota that limits a client, and who shares it. Pure.

Source: Kafka's ``ClientQuotaManager.DefaultQuotaCallback``. The first of these that is set applies:

====================================  ===========================================
quota for                             is shared by
====================================  ===========================================
the user and the client id            connections of this user and client id
the user and the default client id    connections of this user and client id
the user                              connections of this user
the default user and the client id    connections of this user and client id
both defaults                         connections of this user and client id
the default user                      connections of this user
the client id                         connections of this client id
the default client id                 connections of this client id
====================================  ===========================================

For a client without a client id, only the quotas for its user and the default user apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.model.client_quotas import CLIENT_ID, CONNECTION_CREATION_RATE, IP, USER
from tidelog.proto.calls.quota_api import QuotaEntity

Quotas = Mapping[tuple[QuotaEntity, ...], Mapping[str, float]]
"""As in the metadata image."""


class Bound(NamedTuple):
    """``user`` and ``client_id``: who shares it; "" for everyone. These are the tags of Kafka's metrics."""

    limit: float
    user: str
    client_id: str


def bound_of(quotas: Quotas, key: str, user: str, client_id: str) -> Bound | None:
    """Return a client's quota for ``key``; ``None`` if it has none."""
    this_user, any_user = QuotaEntity(USER, user), QuotaEntity(USER, None)
    this_client, any_client = QuotaEntity(CLIENT_ID, client_id), QuotaEntity(CLIENT_ID, None)
    both, users, clients = (user, client_id), (user, ""), ("", client_id)
    candidates: list[tuple[tuple[QuotaEntity, ...], tuple[str, str]]] = [((this_user,), users), ((any_user,), users)]
    if client_id:
        candidates = [
            ((this_user, this_client), both),
            ((this_user, any_client), both),
            ((this_user,), users),
            ((any_user, this_client), both),
            ((any_user, any_client), both),
            ((any_user,), users),
            ((this_client,), clients),
            ((any_client,), clients),
        ]
    for entity, shared in candidates:
        values = quotas.get(entity)
        limit = None if values is None else values.get(key)
        if limit is not None:
            return Bound(limit, *shared)
    return None


def connection_rate_of(quotas: Quotas, address: str) -> float | None:
    """Return the limit of new connections per second from an address; ``None`` if there is none."""
    for name in (address, None):
        values = quotas.get((QuotaEntity(IP, name),))
        limit = None if values is None else values.get(CONNECTION_CREATION_RATE)
        if limit is not None:
            return limit
    return None
