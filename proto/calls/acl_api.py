"""The calls about access control lists: describe, create and delete entries.

Conventions as in :mod:`tidelog.proto.calls.api`. Source of fields and meanings: Kafka's requests of the same names
(KIP-140, KIP-290). Types, operations and permissions are the lower-case names of :mod:`tidelog.security.acls`, as in
the metadata log: ``topic``, ``literal``, ``read``, ``allow``. Unset fields of a filter are ``any``, or ``None``.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.calls.request import Change, Request, Response
from tidelog.security.acls import (
    AclBinding,
    AclFilter,
    AclNumber,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)


@dataclass(frozen=True, slots=True)
class AclEntry:
    """:class:`tidelog.security.acls.AclBinding` on the wire."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class AclEntryFilter:
    """:class:`tidelog.security.acls.AclFilter` on the wire."""

    resource_type: str
    resource_name: str | None
    pattern_type: str
    principal: str | None
    host: str | None
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    filter: AclEntryFilter


@dataclass(frozen=True, slots=True)
class DescribeAclsResponse(Response):
    error: ErrorCode
    entries: tuple[AclEntry, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class CreateAclsRequest(Change["CreateAclsResponse"]):
    """Existing entries are unchanged."""

    entries: tuple[AclEntry, ...]


@dataclass(frozen=True, slots=True)
class CreatedAcl:
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class CreateAclsResponse(Response):
    """One result for each entry, in their order. ``error`` is that of the whole call."""

    error: ErrorCode
    results: tuple[CreatedAcl, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest(Change["DeleteAclsResponse"]):
    """Deletes every entry that one of the filters matches."""

    filters: tuple[AclEntryFilter, ...]


@dataclass(frozen=True, slots=True)
class DeletedAcls:
    """What one filter matched."""

    error: ErrorCode
    entries: tuple[AclEntry, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteAclsResponse(Response):
    """One result for each filter, in their order. ``error`` is that of the whole call."""

    error: ErrorCode
    results: tuple[DeletedAcls, ...] = ()
    error_message: str = ""


# --- Conversion ---------------------------------------------------------------------------------------


class _Said(Protocol):
    """The common part of an entry on the wire, a filter and a metadata record."""

    @property
    def resource_type(self) -> str: ...
    @property
    def pattern_type(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def permission(self) -> str: ...


class SaidEntry(_Said, Protocol):
    """An entry on the wire, or in the metadata log."""

    @property
    def resource_name(self) -> str: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...


N = TypeVar("N", bound=AclNumber)


def entry_of(acl: AclBinding) -> AclEntry:
    """Convert an entry for the wire."""
    return AclEntry(
        acl.resource_type.name.lower(),
        acl.resource_name,
        acl.pattern_type.name.lower(),
        acl.principal,
        acl.host,
        acl.operation.name.lower(),
        acl.permission.name.lower(),
    )


def filter_entry_of(wanted: AclFilter) -> AclEntryFilter:
    """Convert a filter for the wire."""
    return AclEntryFilter(
        wanted.resource_type.name.lower(),
        wanted.resource_name,
        wanted.pattern_type.name.lower(),
        wanted.principal,
        wanted.host,
        wanted.operation.name.lower(),
        wanted.permission.name.lower(),
    )


def binding_of(said: SaidEntry) -> AclBinding | Refusal:
    """Read an entry from the wire or from the metadata log."""
    read = _numbers(said)
    if isinstance(read, Refusal):
        return read
    kind, pattern, operation, permission = read
    return AclBinding(kind, said.resource_name, pattern, said.principal, said.host, operation, permission)


def filter_of(said: AclEntryFilter) -> AclFilter | Refusal:
    """Read a filter from the wire."""
    read = _numbers(said)
    if isinstance(read, Refusal):
        return read
    kind, pattern, operation, permission = read
    return AclFilter(kind, said.resource_name, pattern, said.principal, said.host, operation, permission)


def _numbers(said: _Said) -> tuple[ResourceType, PatternType, AclOperation, PermissionType] | Refusal:
    try:
        return (
            _number(ResourceType, "resource type", said.resource_type),
            _number(PatternType, "pattern type", said.pattern_type),
            _number(AclOperation, "operation", said.operation),
            _number(PermissionType, "permission", said.permission),
        )
    except ValueError as wrong:
        return Refusal(ErrorCode.INVALID_REQUEST, str(wrong))


def _number(of: type[N], what: str, name: str) -> N:
    found = of.__members__.get(name.upper())
    if found is None:
        raise ValueError(f"{what}: expected one of {', '.join(of.__members__).lower()}, found {name[:80]!r}")
    return found
