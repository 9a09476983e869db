"""The rights of one caller, and a node's access control as a whole.

Without ``authorizer.class.name`` there is no access control: :meth:`AccessControl.of` returns ``None``, and nothing is
checked. Denials, logins and, if configured, allowed operations go to the audit log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import Refusal
from tidelog.model.names import AUDIT_TOPIC, is_delay_service
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.listener_security import MECHANISMS
from tidelog.proto.calls.acl_api import binding_of
from tidelog.proto.calls.forwarded import Forwarded
from tidelog.proto.transport.network import CallContext
from tidelog.security.acls import CLUSTER_NAME, IMPLIES, AclOperation, ResourceType
from tidelog.security.audit import Audit, AuditEvent, AuditKind, Touched
from tidelog.security.authorizer import StandardAuthorizer, Who
from tidelog.security.principal import ANONYMOUS, USER
from tidelog.security.sasl import Cause
from tidelog.security.session import Session

TLS: Final = "SSL"
"""Used as the mechanism of TLS handshakes."""
OTHER: Final = "other"
"""Used for unknown mechanisms."""
CALLERS_MAX: Final = 10_000
"""Maximum connections whose callers are cached; beyond it, the cache is cleared."""


class Trail(NamedTuple):
    """What the audit log records about one request."""

    audit: Audit
    listener: str
    request: str
    allowed: bool
    """Whether it records allowed operations,"""
    denied: bool
    """and denials."""


class Access(NamedTuple):
    """The rights of ``who``. A session may keep them: the authorizer itself follows the metadata, and what the audit
    log wants is fixed."""

    authorizer: StandardAuthorizer
    who: Who
    trail: Trail | None = None

    def topic(self, operation: AclOperation, name: str) -> bool:
        if name == AUDIT_TOPIC:
            return self._audit_topic(operation)
        return self._allows(operation, ResourceType.TOPIC, name)

    def group(self, operation: AclOperation, name: str) -> bool:
        if is_delay_service(name) and operation is not AclOperation.DESCRIBE:
            return self.denials_only.cluster(AclOperation.CLUSTER_ACTION)
        return self._allows(operation, ResourceType.GROUP, name)

    def transaction(self, operation: AclOperation, name: str) -> bool:
        if is_delay_service(name) and operation is not AclOperation.DESCRIBE:
            return self.denials_only.cluster(AclOperation.CLUSTER_ACTION)
        return self._allows(operation, ResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: AclOperation) -> bool:
        return self._allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def user(self, operation: AclOperation, principal: str) -> bool:
        """Return whether ``who`` may act on users. ``principal``: the owner of the delegation tokens concerned."""
        return self._allows(operation, ResourceType.USER, principal)

    def delegation_token(self, operation: AclOperation, token_id: str) -> bool:
        return self._allows(operation, ResourceType.DELEGATION_TOKEN, token_id)

    def any_topic(self, operation: AclOperation) -> bool:
        """Return whether ``who`` may do the operation to some possible topic. Not recorded in the audit log."""
        return self.authorizer.allows_any(self.who, operation, ResourceType.TOPIC)

    def any_delegation_token(self, operation: AclOperation) -> bool:
        """Return the same for a delegation token."""
        enough = (operation, *IMPLIES.get(operation, ()))
        return any(self.authorizer.allows_any(self.who, each, ResourceType.DELEGATION_TOKEN) for each in enough)

    def _audit_topic(self, operation: AclOperation) -> bool:
        """Check rights on the audit topic. Entries about topics are not enough, because many users have one for all
        topics. Allowed operations are not recorded here: reading the audit log would create its next line."""
        reads = operation in (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        access = self.denials_only
        return access._allows(operation, ResourceType.TOPIC, AUDIT_TOPIC) and access.cluster(
            AclOperation.DESCRIBE if reads else AclOperation.ALTER
        )

    @property
    def denials_only(self) -> Access:
        """The same rights, without recording allowed operations."""
        return self if self.trail is None else self._replace(trail=self.trail._replace(allowed=False))

    @property
    def quiet(self) -> Access:
        """The same rights, without recording denials, for checks whose denial refuses nothing: a list becomes shorter,
        or another right suffices."""
        return self if self.trail is None else self._replace(trail=self.trail._replace(denied=False))

    def of_request(self, name: str) -> Access:
        """Return the rights for another request of the same caller."""
        return self if self.trail is None else self._replace(trail=self.trail._replace(request=name))

    def _allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        allowed = self.authorizer.allows(self.who, operation, resource_type, name)
        trail = self.trail
        if trail is not None and (trail.allowed if allowed else trail.denied):
            kind = AuditKind.ALLOWED if allowed else AuditKind.DENIED
            what = (Touched(resource_type.name.lower(), name),)
            event = AuditEvent(kind, *self.who, trail.listener, allowed, trail.request, operation.name.lower(), what)
            trail.audit.note(event, lambda: str(self.authorizer.judge(self.who, operation, resource_type, name)))
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the allowed operations on a resource, as bits (KIP-430)."""
        found = self.authorizer.operations(self.who, resource_type, name)
        if resource_type is ResourceType.TOPIC and name == AUDIT_TOPIC:
            found = sum(1 << each for each in AclOperation if found >> each & 1 and self.quiet.topic(each, name))
        return found


class AccessControl:
    """A node's authorizer, kept up to date with the metadata. ``authorizer`` is ``None`` if everybody may do
    everything. ``audit`` records its decisions and logins; ``None`` for no audit log."""

    def __init__(self, config: NodeConfig, audit: Audit | None = None) -> None:
        self._callers: dict[str, tuple[Session, Who]] = {}
        """By the connection's address."""
        self.audit = audit
        self.node_listeners = config.replication_listeners
        """Listeners at which brokers send requests to each other."""
        self.failed_logins: Counter[tuple[str, str]] = Counter()
        """Refused handshakes and logins at any listener, by mechanism and cause."""
        self.authorizer: StandardAuthorizer | None = None
        if config.authorizer_class_name is not None:
            self.authorizer = StandardAuthorizer(
                config.super_users, allows_unnamed=config.allow_everyone_if_no_acl_found
            )

    def of(self, context: CallContext, request: str = "", client: Forwarded | None = None) -> Access | None:
        """Return the rights of a request's sender; ``None`` without access control. ``request``: its name in Kafka.
        ``client``: the client on whose behalf the sender asks."""
        if self.authorizer is None:
            if self.audit is not None:
                self.who(context)
            return None
        audit = self.audit
        trail = None
        if audit is not None:
            allowed, denied = audit.wants(AuditKind.ALLOWED), audit.wants(AuditKind.DENIED)
            trail = Trail(audit, context.listener if client is None else client.listener, request, allowed, denied)
        who = self.who(context) if client is None else Who(client.principal, client.host)
        return Access(self.authorizer, who, trail)

    def who(self, context: CallContext) -> Who:
        """Return the sender of a request. The first request of a session is recorded as a login, because neither gRPC
        nor a renewed session records one."""
        known = self._callers.get(context.peer)
        if known is not None and known[0] is context.session:
            return known[1]
        if len(self._callers) >= CALLERS_MAX:
            self._callers.clear()
        session = context.session
        who = Who(str(session.principal), context.host)
        self._callers[context.peer] = session, who
        if session.principal != ANONYMOUS:
            self.logged_in(context.listener, who, session.protocol.name)
        return who

    def login_failed(
        self, context: CallContext, tried: str, protocol: str, reason: str, mechanism: str, cause: Cause
    ) -> None:
        """Record a failed login. ``tried``: the unproved user name that the sender gave, "" if none."""
        self.failed_logins[mechanism if mechanism in (*MECHANISMS, TLS) else OTHER, cause.value] += 1
        who = Who(f"{USER}:{tried}" if tried else "", context.host)
        self.logged_in(context.listener, who, protocol, reason)

    def logged_in(self, listener: str, who: Who, protocol: str, refused: str = "") -> None:
        """Record that somebody proved an identity, or failed to. ``refused``: the reason, without a secret."""
        if self.audit is not None:
            event = AuditEvent(AuditKind.AUTHENTICATION, *who, listener, not refused, protocol)
            self.audit.note(event, lambda: refused)

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        """Apply all changes synchronously, without steps, so that no right outlives the image."""
        self.take_over(image, delta)
        return ()

    def take_over(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply the entries that changed."""
        if self.authorizer is None:
            return
        for acl_id in delta.acls:
            record = image.acls.get(acl_id)
            if record is None:
                self.authorizer.remove(acl_id)
                continue
            acl = binding_of(record)
            assert not isinstance(acl, Refusal), f"expected an entry that the controller judged, found {record}"
            self.authorizer.add(acl_id, acl)
