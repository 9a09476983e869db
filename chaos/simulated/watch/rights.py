"""Judges access rights by reading every entry afresh, without index or cache. Source: ``StandardAuthorizerData``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.security.acls import (
    EVERYBODY,
    IMPLIES,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)


def may(
    entries: Iterable[AclBinding], principal: str, operation: AclOperation, resource_type: ResourceType, name: str
) -> bool:
    """Return whether the entries, all of them for any host, allow an operation to a user who has no other rights."""
    allowed = False
    for acl in entries:
        if acl.resource_type is not resource_type or acl.principal not in (principal, EVERYBODY):
            continue
        if acl.pattern_type is PatternType.PREFIXED:
            if not name.startswith(acl.resource_name):
                continue
        elif acl.resource_name not in (name, WILDCARD):
            continue
        if acl.permission is PermissionType.DENY:
            if acl.operation in (operation, AclOperation.ALL):
                return False
        elif acl.operation in (operation, AclOperation.ALL, *IMPLIES.get(operation, ())):
            allowed = True
    return allowed
