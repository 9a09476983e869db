"""Sets of access control lists: read them from a file, compare them with those of the cluster. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.security.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    acl_fault,
)
from tidelog.security.principal import USER

FIELDS: Final = AclFilter.__slots__
_NUMBERS: Final = {
    "resource_type": ResourceType, "pattern_type": PatternType, "operation": AclOperation, "permission": PermissionType,
}  # fmt: skip
_DEFAULTS: Final = {"pattern_type": "LITERAL", "host": WILDCARD, "permission": "ALLOW"}


def as_object(acl: AclBinding) -> dict[str, str]:
    """Return an entry in its JSON form."""
    return {name: getattr(getattr(acl, name), "name", getattr(acl, name)) for name in FIELDS}


def read_entries(text: str, source: str) -> list[AclBinding]:
    """Read the entries of a JSON list as :func:`as_object` writes them, without duplicates. Raises
    :class:`CommandFailed` that names ``source``."""
    try:
        found = json.loads(text)
    except ValueError as fault:
        raise CommandFailed(f"{source}: expected JSON, as `tidelog acls list --json` prints it: {fault}") from None
    if not isinstance(found, list):
        raise CommandFailed(f"{source}: expected a list of entries, as `tidelog acls list --json` prints it")
    return list(dict.fromkeys(_entry(each, f"{source}: entry {at}") for at, each in enumerate(found, 1)))


def _entry(given: object, where: str) -> AclBinding:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise CommandFailed(f"{where}: expected an object with the fields {', '.join(FIELDS)}, each a string")
    fields = _DEFAULTS | given
    for name in (*fields, *FIELDS):
        if name not in FIELDS or name not in fields:
            found = f"found {name!r}" if name in fields else f"found no {name}"
            raise CommandFailed(f"{where}: expected the fields {', '.join(FIELDS)}, {found}")
    values = {name: _value(name, fields[name], where) for name in FIELDS}
    acl = AclBinding(**values)
    fault = acl_fault(acl)
    if fault is not None:
        raise CommandFailed(f"{where}: {fault.message}")
    return acl


def _value(name: str, text: str, where: str) -> Any:
    numbers = _NUMBERS.get(name)
    if numbers is None:
        return text
    try:
        return numbers[text.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(each.name for each in numbers if each.name not in ("ANY", "MATCH"))
        raise CommandFailed(f"{where}: {name}: expected one of {known}, found {text[:80]!r}") from None


@dataclass(frozen=True, slots=True)
class Existing:
    """What exists, by name. ``users``: those with a password; ``None`` if the cluster has none at all."""

    topics: Collection[str]
    groups: Collection[str]
    transactional_ids: Collection[str]
    users: Collection[str] | None

    def orphans(self, acls: Iterable[AclBinding]) -> list[tuple[AclBinding, str]]:
        """Return the entries about missing resources or users, each with the reason."""
        judged = ((acl, self._lacks(acl) or self._unknown(acl.principal)) for acl in acls)
        return [(acl, why) for acl, why in judged if why is not None]

    def _lacks(self, acl: AclBinding) -> str | None:
        names = {
            ResourceType.TOPIC: self.topics,
            ResourceType.GROUP: self.groups,
            ResourceType.TRANSACTIONAL_ID: self.transactional_ids,
        }.get(acl.resource_type)
        kind = acl.resource_type.name.lower().replace("_", " ")
        if names is None:
            return None
        if acl.pattern_type is PatternType.PREFIXED:
            present = any(name.startswith(acl.resource_name) for name in names)
            return None if present else f"no {kind} begins with it"
        return None if acl.resource_name == WILDCARD or acl.resource_name in names else f"no such {kind}"

    def _unknown(self, principal: str) -> str | None:
        kind, _, name = principal.partition(":")
        if self.users is None or principal == EVERYBODY or kind != USER or name in self.users or "=" in name:
            return None
        return "no user with a password has this name"
