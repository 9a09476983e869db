"""A node's settings for access control and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.settings.config_def import ConfigError, ValueType, boolean, integer, listing, structured, text
from tidelog.model.settings.http_auth import HTTP_AUTH, NO_AUTH

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name for the authorizer that is implemented here."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of everybody on a listener without authentication."""
NODE_ID: Final = "{id}"
"""The placeholder for a node's id in ``node.principal.pattern``."""
MACHINE_ID: Final = "{machine}"
"""The placeholder for the id of a machine's worker 0, in place of the worker's own."""

AUDIT_KINDS: Final = ("authentication", "denied", "change", "allowed")
DROP: Final = "drop"
REFUSE: Final = "refuse"


@dataclass(frozen=True)
class AuditSettings:
    """The content of the audit log, and its bounds."""

    audit_log_path: str | None = text(
        None,
        "The file of the audit log; by default, with authorizer.class.name, audit.log in the directory of the "
        "metadata log, else none.",
    )
    audit_kinds: tuple[str, ...] = listing(
        ("authentication", "denied", "change"),
        "What the audit log holds: logins, denied requests, changes of the cluster, and what was allowed.",
        choices=AUDIT_KINDS,
    )
    audit_log_file_bytes: int = integer(
        16 * 2**20, "Size at which the audit log's file is renamed and a new one started.", at_least=1024
    )
    audit_log_files: int = integer(
        10, "Most files of the audit log; beyond that, the oldest one is deleted.", at_least=1, at_most=1000
    )
    audit_events_max: int = integer(
        1_000,
        "Most events of each kind per second in the audit log, equal ones counted once; further ones are dropped and "
        "counted.",
        at_least=1,
    )
    audit_on_full: str = text(
        DROP,
        "If the audit log has no room for a change of the cluster: drop makes the change anyway, and drops and counts "
        "the event; refuse does not make the change, and answers with a retriable error.",
        choices=(DROP, REFUSE),
    )
    audit_topic_enable: bool = boolean(
        False, "Whether brokers also write the audit log to the topic __audit, which they create when needed."
    )
    audit_topic_replication_factor: int = integer(
        3, "Replicas of __audit; it is created once there are this many brokers.", at_least=1, at_most=32767
    )
    audit_topic_queue_bytes: int = integer(
        4 * 2**20,
        "Most bytes of the audit log that wait in a broker's memory for the leader of __audit; further ones are "
        "dropped and counted.",
        at_least=64 * 2**10,
    )


def parse_super_users(written: str) -> tuple[str, ...]:
    """Read ``TYPE:NAME;TYPE:NAME;…``: names may hold commas. Raises ``ValueError``."""
    found = tuple(item.strip() for item in written.split(";") if item.strip())
    for item in found:
        _check_principal(item)
    return found


def format_super_users(users: tuple[str, ...]) -> str:
    return ";".join(users)


def parse_node_pattern(written: str) -> str | None:
    """Read a principal that contains ``{id}`` or ``{machine}``. Raises ``ValueError``."""
    if not written:
        return None
    _check_principal(written)
    if NODE_ID not in written and MACHINE_ID not in written:
        raise ValueError(f"expected {NODE_ID} for a node's id, such as User:CN=node-{NODE_ID}, found {written[:80]!r}")
    return written


def format_node_pattern(pattern: str | None) -> str:
    return pattern or ""


def _check_principal(written: str) -> None:
    kind, _, name = written.partition(":")
    if not kind or not name:
        raise ValueError(f"expected TYPE:NAME, such as User:admin, found {written[:80]!r}")


@dataclass(frozen=True)
class AccessSettings:
    """Settings for access control."""

    authorizer_class_name: str | None = text(
        None,
        "The authorizer, which decides by access control lists who may do what. Without it everybody may do "
        "everything.",
        choices=(STANDARD_AUTHORIZER,),
    )
    super_users: tuple[str, ...] = structured(
        (),
        "Principals that may do everything, TYPE:NAME;TYPE:NAME;…: those of the nodes, and of an administrator.",
        read=parse_super_users,
        write=format_super_users,
    )
    allow_everyone_if_no_acl_found: bool = boolean(
        False, "Whether everybody may use a resource that has no access control lists."
    )
    http_auth: str = text(
        NO_AUTH,
        "How clients authenticate at http.listener: a user's password (basic), a token of the issuer (bearer), a "
        "certificate (mtls), or not at all. Metrics need DESCRIBE on the cluster; others get one word of /health and "
        "/ready.",
        choices=HTTP_AUTH,
    )
    node_principal_pattern: str | None = structured(
        None,
        "The principal of a node by its id, such as User:CN=node-{id}.example; then no other principal may speak "
        "as that node. With {machine} instead of {id}, the principal of a machine by the id of its first worker, for "
        "all workers there.",
        read=parse_node_pattern,
        write=format_node_pattern,
        value_type=ValueType.STRING,
    )

    def check_access(self) -> None:
        """Raise :class:`ConfigError` for settings that have no effect, or that lock everybody out."""
        if self.authorizer_class_name is None:
            for name, given in (
                ("super.users", self.super_users),
                ("allow.everyone.if.no.acl.found", self.allow_everyone_if_no_acl_found),
            ):
                if given:
                    raise ConfigError(f"{name}: expected authorizer.class.name too, found none: nothing would obey it")
        elif not self.super_users and not self.allow_everyone_if_no_acl_found:
            raise ConfigError(
                "super.users: expected the principals of the nodes and of an administrator, found none: nobody "
                "could ever make an access control list"
            )
