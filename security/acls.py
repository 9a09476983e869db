"""Access control lists: who may do what to which resource, as an administrator writes them.

Names and numbers are Kafka's: ``ResourceType``, ``PatternType``, ``AclOperation`` and ``AclPermissionType`` (KIP-11,
KIP-290). :mod:`tidelog.security.authorizer` decides by them.
"""

from __future__ import annotations

import enum
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.security.principal import Principal

WILDCARD: Final = "*"
"""As the name of a literal pattern: any resource. As a host: any host."""
EVERYBODY: Final = "User:*"
"""The principal of entries for everybody."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


class AclNumber(enum.IntEnum):
    """Kafka's numbers. Hashed as plain integers: an enum's own hash costs more than the look-ups of a decision."""

    __hash__ = int.__hash__


class ResourceType(AclNumber):
    """What an entry is about. ANY is for filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(AclNumber):
    """How an entry's name matches a resource's. ANY and MATCH are for filters only: MATCH finds every entry that
    applies to a resource with the filter's name (KIP-290)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(AclNumber):
    """What is done to a resource. ANY is for filters only, ALL for entries."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(AclNumber):
    """Whether an entry allows or denies. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_O = AclOperation
_CONFIGS: Final = (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
SUPPORTED_OPERATIONS: Final[dict[ResourceType, frozenset[AclOperation]]] = {
    ResourceType.TOPIC: frozenset(
        (_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, *_CONFIGS),
    ),
    ResourceType.GROUP: frozenset((_O.READ, _O.DESCRIBE, _O.DELETE, *_CONFIGS)),
    ResourceType.CLUSTER: frozenset(
        (_O.CREATE, _O.CLUSTER_ACTION, *_CONFIGS, _O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE),
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset((_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT)),
    ResourceType.DELEGATION_TOKEN: frozenset((_O.DESCRIBE,)),
    ResourceType.USER: frozenset((_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS)),
}
"""The operations on a resource of each type (``AclEntry.supportedOperations``)."""

IMPLIES: Final[dict[AclOperation, frozenset[AclOperation]]] = {
    _O.DESCRIBE: frozenset((_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset(_CONFIGS),
}
"""Implied operations: permission for any of the values also permits the key (``StandardAuthorizerData``). Entries that
deny imply nothing."""


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One entry: who (``principal``, from ``host``) may or may not (``permission``) do what (``operation``) to what.

    ``principal``: ``User:name``, :data:`EVERYBODY` for all. ``host``: a literal address, or :data:`WILDCARD`.
    """

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    def __str__(self) -> str:
        """Format on one line, for people."""
        what = f"{self.resource_type.name}:{self.pattern_type.name}:{self.resource_name}"
        return f"{self.permission.name} {self.principal} from {self.host}: {self.operation.name} on {what}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects entries to show or delete; ``None`` and ANY match everything (``AclBindingFilter``)."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, acl: AclBinding) -> bool:
        """Return whether the filter selects an entry."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def exact(self) -> AclBinding | None:
        """Return the only entry that can match, if there is just one (``AclBindingFilter.matchesAtMostOne``)."""
        if (
            self.resource_name is None
            or self.principal is None
            or self.host is None
            or self.pattern_type is PatternType.MATCH
            or PatternType.ANY in (self.resource_type, self.pattern_type, self.operation, self.permission)
        ):
            return None
        return AclBinding(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        """Source: ``ResourcePatternFilter.matches``."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


def acl_fault(acl: AclBinding) -> Refusal | None:
    """Return why an entry is invalid. Source: Kafka's ``AclControlManager.validateNewAcl``, ``AclApis`` and
    ``SecurityUtils.parseKafkaPrincipal``."""
    text = None
    if acl.resource_type is ResourceType.ANY:
        text = "resource type: expected one type, found ANY"
    elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        text = f"pattern type: expected LITERAL or PREFIXED, found {acl.pattern_type.name}"
    elif acl.operation is AclOperation.ANY:
        text = "operation: expected one operation or ALL, found ANY"
    elif acl.permission is PermissionType.ANY:
        text = "permission: expected ALLOW or DENY, found ANY"
    elif not acl.resource_name:
        text = "resource name: expected a name, found an empty one"
    elif acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        text = f"resource name: expected {CLUSTER_NAME}, the only one of CLUSTER, found {acl.resource_name[:80]!r}"
    elif not acl.host:
        text = f"host: expected an address or {WILDCARD}, found none"
    else:
        try:
            Principal.parse(acl.principal)
        except ValueError as fault:
            text = str(fault)
    return None if text is None else Refusal(ErrorCode.INVALID_REQUEST, text)
