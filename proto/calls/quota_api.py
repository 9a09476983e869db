"""The calls about client quotas: describe and alter.

Conventions as in :mod:`tidelog.proto.calls.api`. Source of fields and meanings: Kafka's requests of the same names
(KIP-546). Types of entities are ``user``, ``client-id`` and ``ip``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.client_quotas import CLIENT_ID, IP, USER, ClientQuotaEntity
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Change, Request, Response

EXACT: Final = "exact"
DEFAULT: Final = "default"
SPECIFIED: Final = "specified"


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """``entity_name`` ``None``: the default of its type ("user", "client-id" or "ip")."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """``match_type``: "exact" matches the entity named ``match``, "default" the default, "specified" any."""

    entity_type: str
    match_type: str
    match: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """Entities that all components match; with ``strict`` those with no other type besides."""

    components: tuple[QuotaFilter, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class QuotaValue:
    key: str
    value: float


@dataclass(frozen=True, slots=True)
class DescribedQuotas:
    entity: tuple[QuotaEntity, ...]
    values: tuple[QuotaValue, ...]


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasResponse(Response):
    error: ErrorCode
    entries: tuple[DescribedQuotas, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """``value`` ``None`` removes the quota."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    entity: tuple[QuotaEntity, ...]
    changes: tuple[QuotaChange, ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotasRequest(Change["AlterClientQuotasResponse"]):
    """Each entity is altered as a whole, or refused by itself."""

    entries: tuple[QuotaAlteration, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlteredQuotas:
    entity: tuple[QuotaEntity, ...]
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AlterClientQuotasResponse(Response):
    """One result for each entry, in their order."""

    entries: tuple[AlteredQuotas, ...] = ()


# --- Conversion ---------------------------------------------------------------------------------------


def wire_entity(entity: ClientQuotaEntity) -> tuple[QuotaEntity, ...]:
    """Convert an entity for the wire."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip))
    return tuple(QuotaEntity(kind, name or None) for kind, name in named if name is not None)


def client_entity(entity: Iterable[QuotaEntity]) -> ClientQuotaEntity:
    """Convert from :func:`wire_entity`. Types that this version does not know are left out."""
    named = {part.entity_type: part.entity_name or "" for part in entity}
    return ClientQuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP))
