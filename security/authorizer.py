"""Authorizes requests by access control lists. Pure. Source: Kafka's ``StandardAuthorizerData``.

A super user may do everything. For others, an entry applies if its resource matches (by name, the literal ``*``, or a
prefix), its principal is the caller or everybody, and its host is the caller's or any. A denying entry wins over an
allowing one; without either, access is denied. If no entry at all, for any principal, is about the resource,
``allow.everyone.if.no.acl.found`` decides.

One rule differs. Kafka ignores entries for ``*``, even denying ones, if the name of the resource begins with ``*``.
Here they apply (`docs/decisions/2026-11-23-acls.md`).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.security.acls import (
    EVERYBODY,
    IMPLIES,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

CACHED_MAX: Final = 20_000
"""Maximum cached decisions. The cache is cleared when it is full or an entry changes."""
_NO_NAME: Final = "hardcode"
"""The name that Kafka checks to learn only about super users and defaults."""
_ALL: Final = AclOperation.ALL


class Who(NamedTuple):
    """The caller: ``principal`` as ``User:name``, ``host`` a literal address."""

    principal: str
    host: str


class Rule(enum.Enum):
    """What a decision is based on."""

    SUPER_USER = "SuperUser"
    ACL = "MatchingAcl"
    DEFAULT_ALLOW = "DefaultAllow"
    DEFAULT_DENY = "DefaultDeny"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision and its reason; ``acl`` is the deciding entry, if there was one."""

    allowed: bool
    rule: Rule
    acl: AclBinding | None = None

    def __str__(self) -> str:
        """Format the reason on one line, for people."""
        return self.rule.value if self.acl is None else f"{self.rule.value}: {self.acl}"


_Entries = dict[str, dict[bytes, AclBinding]]
"""The entries of one pattern: principal → id → entry. Not empty."""


class StandardAuthorizer:
    """Keeps an index of the entries, so that a decision looks only at patterns that match.

    ``super_users`` are principals. ``allows_unnamed``: ``allow.everyone.if.no.acl.found``.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allows_unnamed: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allows_unnamed = allows_unnamed
        self._acls: dict[bytes, AclBinding] = {}
        self.denials = 0
        """How often :meth:`allows` returned false."""
        self._literal: dict[tuple[ResourceType, str], _Entries] = {}
        self._prefixed: dict[tuple[ResourceType, str], _Entries] = {}
        self._lengths: dict[ResourceType, Counter[int]] = {}
        """How many prefixes there are of each length."""
        self._cached: dict[tuple[Who, AclOperation, ResourceType, str | None], bool] = {}
        """By caller, operation and resource; without a name: for any resource of the type."""
        self.version = 0
        """Increases with each change: decisions made under an earlier version may no longer hold."""

    # --- Keeping up ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._acls)

    def acls(self) -> Mapping[bytes, AclBinding]:
        """Return every entry by its id."""
        return self._acls

    def add(self, acl_id: bytes, acl: AclBinding) -> None:
        """Add an entry, replacing one with the same id."""
        self.remove(acl_id)
        self._acls[acl_id] = acl
        key = (acl.resource_type, acl.resource_name)
        index = self._index_of(acl)
        if key not in index:
            index[key] = {}
            if index is self._prefixed:
                self._lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        index[key].setdefault(acl.principal, {})[acl_id] = acl
        self._changed()

    def remove(self, acl_id: bytes) -> None:
        """Remove an entry, if present."""
        acl = self._acls.pop(acl_id, None)
        if acl is None:
            return
        key = (acl.resource_type, acl.resource_name)
        index = self._index_of(acl)
        entries = index[key]
        del entries[acl.principal][acl_id]
        if not entries[acl.principal]:
            del entries[acl.principal]
        if not entries:
            del index[key]
            if index is self._prefixed:
                lengths = self._lengths[acl.resource_type]
                lengths[len(acl.resource_name)] -= 1
                if not lengths[len(acl.resource_name)]:
                    del lengths[len(acl.resource_name)]
        self._changed()

    def _index_of(self, acl: AclBinding) -> dict[tuple[ResourceType, str], _Entries]:
        return self._prefixed if acl.pattern_type is PatternType.PREFIXED else self._literal

    def _changed(self) -> None:
        self._cached.clear()
        self.version += 1

    # --- Deciding -----------------------------------------------------------------------------------

    def allows(self, who: Who, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether ``who`` may do ``operation`` to a resource."""
        key = (who, operation, resource_type, name)
        known = self._cached.get(key)
        if known is None:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            known = self._cached[key] = self.judge(who, operation, resource_type, name).allowed
        if not known:
            self.denials += 1
        return known

    def judge(self, who: Who, operation: AclOperation, resource_type: ResourceType, name: str) -> Judgement:
        """Return the decision with its reason."""
        if who.principal in self._super_users:
            return Judgement(True, Rule.SUPER_USER)
        allowing: AclBinding | None = None
        named = False
        implied_by = IMPLIES.get(operation) or (operation,)
        for entries in self._about(resource_type, name):
            named = True
            for acl in _of(entries, who.principal):
                if acl.host != WILDCARD and acl.host != who.host:
                    continue
                if acl.permission is PermissionType.DENY:
                    if acl.operation is _ALL or acl.operation is operation:
                        return Judgement(False, Rule.ACL, acl)
                elif allowing is None and (acl.operation is _ALL or acl.operation in implied_by):
                    allowing = acl
        if allowing is not None:
            return Judgement(True, Rule.ACL, allowing)
        if named or not self._allows_unnamed:
            return Judgement(False, Rule.DEFAULT_DENY)
        return Judgement(True, Rule.DEFAULT_ALLOW)

    def allows_any(self, who: Who, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether ``who`` may do ``operation`` to at least one possible resource of the type.

        Source: ``Authorizer.authorizeByResourceType`` (KIP-679).
        """
        key = (who, operation, resource_type, None)
        known = self._cached.get(key)
        if known is None:
            known = self._cached[key] = self._judge_any(who, operation, resource_type)
        return known

    def _judge_any(self, who: Who, operation: AclOperation, resource_type: ResourceType) -> bool:
        if self.allows(who, operation, resource_type, _NO_NAME):
            return True
        found = [
            acl
            for acl in self._acls.values()
            if acl.resource_type is resource_type
            and acl.host in (WILDCARD, who.host)
            and acl.principal in (EVERYBODY, who.principal)
            and acl.operation in (_ALL, operation)
        ]
        denied = {(acl.pattern_type, acl.resource_name) for acl in found if acl.permission is PermissionType.DENY}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        allowed = {(acl.pattern_type, acl.resource_name) for acl in found if acl.permission is PermissionType.ALLOW}
        return (PatternType.LITERAL, WILDCARD) in allowed or any(
            not _dominated(kind, name, denied) for kind, name in allowed
        )

    def operations(self, who: Who, resource_type: ResourceType, name: str) -> int:
        """Return what ``who`` may do to a resource, as a bit set of operation numbers (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.allows(who, operation, resource_type, name)
        )

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[_Entries]:
        """Yield the entries of every pattern that matches a resource."""
        literal = self._literal
        if (found := literal.get((resource_type, name))) is not None:
            yield found
        if name != WILDCARD and (found := literal.get((resource_type, WILDCARD))) is not None:
            yield found
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name) and (found := self._prefixed.get((resource_type, name[:length]))) is not None:
                yield found


def _of(entries: _Entries, principal: str) -> Iterator[AclBinding]:
    if (own := entries.get(principal)) is not None:
        yield from own.values()
    if principal != EVERYBODY and (of_all := entries.get(EVERYBODY)) is not None:
        yield from of_all.values()


def _dominated(kind: PatternType, name: str, denied: set[tuple[PatternType, str]]) -> bool:
    """Return whether denying entries cover everything that an allowing entry is about."""
    if kind is PatternType.LITERAL and (PatternType.LITERAL, name) in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
