"""``tidelog acls``: who may do what. The options follow Kafka's ``kafka-acls``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tidelog.cli.failure import EXIT_FAILURE, CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.cli.terminal.settings import options
from tidelog.cli.work.acl_entries import FIELDS, Existing, as_object, read_entries
from tidelog.model.names import AUDIT_TOPIC
from tidelog.model.settings.node.access_settings import parse_super_users
from tidelog.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.security.authorizer import Rule, StandardAuthorizer, Who

if TYPE_CHECKING:
    from tidelog import Admin

F = TypeVar("F", bound=Callable[..., Any])
Resource = tuple[ResourceType, str, PatternType]

_NAMED: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
_OPERATIONS: Final = [each.name.lower().replace("_", "-") for each in AclOperation if each > AclOperation.ANY]
_REASONS: Final = {
    Rule.SUPER_USER: "a super user may do everything",
    Rule.ACL: "",
    Rule.DEFAULT_ALLOW: "no entry is about this resource, and allow.everyone.if.no.acl.found is true",
    Rule.DEFAULT_DENY: "no entry allows it",
}
_PRODUCER: Final = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}
"""The operations that the shortcuts --producer and --consumer stand for, by resource."""
_FILE: Final = click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))


def _resource_options(patterns: Iterable[str]) -> Callable[[F], F]:
    return options(
        click.option(
            "--resource-pattern-type", "pattern", default="literal", type=click.Choice(list(patterns)),
            show_default=True, help="How to read names; match: everything that affects a resource of this name.",
        ),
        click.option("--user-principal", multiple=True, metavar="PRINCIPAL", help="A user, as a resource."),
        click.option("--delegation-token", multiple=True, metavar="ID", help="A delegation token."),
        click.option("--transactional-id", multiple=True, metavar="ID", help="A transactional id, or '*'."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--group", multiple=True, metavar="NAME", help="A consumer group, or '*' for all."),
        click.option("--topic", multiple=True, metavar="NAME", help="A topic, or '*' for all; repeatable."),
    )  # fmt: skip


_entry_options: Final = options(
    click.option("--idempotent", is_flag=True, help="With --producer: without a transactional id too."),
    click.option("--consumer", is_flag=True, help="Read and describe topics, read groups."),
    click.option("--producer", is_flag=True, help="Write, describe and create topics; use transactional ids."),
    click.option("--operation", "operations", multiple=True, type=click.Choice(_OPERATIONS, case_sensitive=False),
                 help="The operation; repeatable. Default: all."),
    click.option("--deny-host", multiple=True, metavar="ADDRESS", help="Only from this address. Default: any."),
    click.option("--allow-host", multiple=True, metavar="ADDRESS", help="Only from this address. Default: any."),
    click.option("--deny-principal", multiple=True, metavar="PRINCIPAL", help="User:NAME to deny."),
    click.option("--allow-principal", multiple=True, metavar="PRINCIPAL", help="User:NAME to allow, or User:*."),
)  # fmt: skip


@click.group()
def acls() -> None:
    """List, add and remove access control lists; explain decisions."""


@acls.command("list")
@_resource_options(("literal", "prefixed", "any", "match"))
@click.option("--principal", multiple=True, metavar="PRINCIPAL", help="Only entries for this principal; repeatable.")
@click.option("--orphans", is_flag=True, help="Only entries about missing users or resources, with the reason.")
@cluster_options
def list_acls(
    pattern: str, principal: tuple[str, ...], orphans: bool, bootstrap: str, as_json: bool, **said: Any
) -> None:
    """List the entries about the named resources, or all entries.

    --orphans needs the right to describe everything, because what you may not see looks missing. A user exists if it
    has a password (tidelog users list). If nobody has one, users are not checked. Certificate names (CN=...) are never
    checked.
    """
    resources = _resources(said, pattern)
    wanted = [AclFilter(*resource) for resource in resources] or [AclFilter()]
    with admin_client(bootstrap) as admin:
        found = dict.fromkeys(acl for each in wanted for acl in admin.describe_acls(each))
        shown = [acl for acl in found if not principal or acl.principal in principal]
        reasons = dict(_existing(admin).orphans(shown)) if orphans else None
    _show(shown if reasons is None else list(reasons), as_json, reasons)


def _existing(admin: Admin) -> Existing:
    users = admin.describe_user_scram_credentials()
    return Existing(
        {topic.name for topic in admin.list_topics(internal=True)},
        {group.group_id for group in admin.list_groups()},
        {each.transactional_id for each in admin.list_transactions()},
        users or None,
    )


@acls.command(short_help="Compare the entries with a file.")
@_FILE
@cluster_options
def diff(path: Path, bootstrap: str, as_json: bool) -> None:
    """Show what `apply` would add (+) and remove (-) so that the cluster has exactly the entries in FILE.

    FILE is the output of `tidelog acls list --json`. The exit code is 1 if there is a difference.
    """
    wanted = _read(path)
    with admin_client(bootstrap) as admin:
        added, removed = _compare(wanted, admin.describe_acls())
    _show_difference(added, removed, as_json)
    if added or removed:
        click.get_current_context().exit(EXIT_FAILURE)


@acls.command(short_help="Make the entries match a file.")
@_FILE
@click.option("--force", is_flag=True, help="Remove entries without asking.")
@cluster_options
def apply(path: Path, force: bool, bootstrap: str, as_json: bool) -> None:
    """Add and remove entries so that the cluster has exactly those in FILE. `tidelog acls diff` previews the changes.

    New entries are added before others are removed.
    """
    wanted = _read(path)
    with admin_client(bootstrap) as admin:
        added, removed = _compare(wanted, admin.describe_acls())
        _show_difference(added, removed, as_json)
        if removed and not (force or click.confirm(f"Remove {count_of(len(removed), 'entry')}?", err=True)):
            raise CommandFailed("nothing was changed")
        if added:
            admin.create_acls(added)
        if removed:
            admin.delete_acls(AclFilter(*_fields(acl)) for acl in removed)


def _read(path: Path) -> list[AclBinding]:
    try:
        return read_entries(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as fault:
        raise CommandFailed(f"{path}: expected UTF-8: {fault}") from None


def _compare(wanted: list[AclBinding], present: list[AclBinding]) -> tuple[list[AclBinding], list[AclBinding]]:
    """Return what to add and what to remove."""
    kept = {*wanted} & {*present}
    return [acl for acl in wanted if acl not in kept], [acl for acl in present if acl not in kept]


def _show_difference(added: list[AclBinding], removed: list[AclBinding], as_json: bool) -> None:
    if as_json:
        print_json({"add": [as_object(acl) for acl in added], "remove": [as_object(acl) for acl in removed]})
        return
    for sign, acls_shown in (("+", added), ("-", removed)):
        for acl in acls_shown:
            say(f"{sign} {acl}")


@acls.command(short_help="Allow or deny operations.")
@_resource_options(("literal", "prefixed"))
@_entry_options
@cluster_options
def add(pattern: str, bootstrap: str, as_json: bool, **said: Any) -> None:
    """Allow or deny operations. Entries that deny take precedence over entries that allow.

    tidelog acls add --allow-principal User:alice --producer --topic orders
    """
    wanted = _entries(said, pattern)
    with admin_client(bootstrap) as admin:
        admin.create_acls(wanted)
    if as_json:
        _show(wanted, as_json)
    else:
        for acl in wanted:
            say(str(acl))


@acls.command(short_help="Remove entries.")
@_resource_options(("literal", "prefixed", "any", "match"))
@_entry_options
@click.option("--force", is_flag=True, help="Remove without asking.")
@cluster_options
def remove(pattern: str, force: bool, bootstrap: str, as_json: bool, **said: Any) -> None:
    """Remove the entries with these principals, hosts and operations; without a principal, all entries about the
    resources."""
    if any(said[name] for name in ("allow_principal", "deny_principal")):
        wanted = [AclFilter(*_fields(acl)) for acl in _entries(said, pattern)]
    else:
        resources = _resources(said, pattern)
        if not resources:
            raise click.UsageError("expected a resource (--topic, --group, --cluster, ...), found none")
        wanted = [AclFilter(*resource) for resource in resources]
    with admin_client(bootstrap) as admin:
        if not force:
            found = dict.fromkeys(acl for each in wanted for acl in admin.describe_acls(each))
            for acl in found:
                say(str(acl), err=True)
            if found and not click.confirm(f"Remove {count_of(len(found), 'entry')}?", err=True):
                raise CommandFailed("nothing was removed")
        _show(admin.delete_acls(wanted), as_json)


@acls.command(short_help="Explain whether a principal may do something.")
@_resource_options(("literal",))
@click.option("--principal", required=True, metavar="PRINCIPAL", help="Who: User:NAME.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The principal's address.")
@click.option("--operation", required=True, type=click.Choice(_OPERATIONS, case_sensitive=False), help="The operation.")
@cluster_options
def why(pattern: str, principal: str, host: str, operation: str, bootstrap: str, as_json: bool, **said: Any) -> None:
    """Show whether a principal may do an operation on a resource, and which entry decides.

    tidelog acls why --principal User:alice --operation read --topic orders
    """
    from tidelog import ConfigResource

    resources = _resources(said, pattern)
    if len(resources) != 1:
        raise click.UsageError(f"expected one resource, found {len(resources)}")
    ((kind, name, _),) = resources
    with admin_client(bootstrap) as admin:
        found = admin.describe_acls(AclFilter(kind, name, PatternType.MATCH))
        node = admin.describe_cluster().brokers[0].node_id
        (settings,) = admin.describe_configs([ConfigResource("broker", str(node))]).values()
    users = parse_super_users(settings["super.users"].value or "")
    judge = StandardAuthorizer(users, allows_unnamed=settings["allow.everyone.if.no.acl.found"].value == "true")
    for number, acl in enumerate(found):
        judge.add(number.to_bytes(4, "big"), acl)
    judged = judge.judge(Who(principal, host), AclOperation[_spelt(operation)], kind, name)
    if kind is ResourceType.TOPIC and name == AUDIT_TOPIC:
        say(f"note: {AUDIT_TOPIC} also needs DESCRIBE on the cluster, and ALTER for anything but reading", err=True)
    if as_json:
        entry = None if judged.acl is None else str(judged.acl)
        print_json({"allowed": judged.allowed, "rule": judged.rule.value, "entry": entry})
        return
    say(f"{'allowed' if judged.allowed else 'denied'}: {_REASONS[judged.rule]}{judged.acl or ''}")


def _entries(said: dict[str, Any], pattern: str) -> list[AclBinding]:
    """Return the entries that the options describe."""
    resources = _resources(said, pattern)
    producer, consumer = said["producer"], said["consumer"]
    if said["idempotent"] and not producer:
        raise click.UsageError("--idempotent: expected --producer too")
    if (producer or consumer) and (said["operations"] or said["deny_principal"] or said["deny_host"]):
        raise click.UsageError("--producer and --consumer: expected no --operation, --deny-principal or --deny-host")
    if (producer or consumer) and not said["topic"]:
        raise click.UsageError("--producer and --consumer: expected a --topic")
    if consumer and not said["group"]:
        raise click.UsageError("--consumer: expected a --group")
    if said["idempotent"]:
        resources.append((ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    if not resources:
        raise click.UsageError("expected a resource (--topic, --group, --cluster, ...), found none")
    people = [(PermissionType.ALLOW, *who) for who in _people(said, "allow")]
    people += [(PermissionType.DENY, *who) for who in _people(said, "deny")]
    if not people:
        raise click.UsageError("expected --allow-principal or --deny-principal, found neither")
    return [
        AclBinding(*resource, principal, host, operation, permission)
        for resource in resources
        for operation in _operations(said, resource[0])
        for permission, principal, host in people
    ]


def _people(said: dict[str, Any], verb: str) -> list[tuple[str, str]]:
    principals = said[f"{verb}_principal"]
    hosts = said[f"{verb}_host"] or ((WILDCARD,) if principals else ())
    if hosts and not principals:
        raise click.UsageError(f"--{verb}-host: expected a --{verb}-principal too")
    return list(product(principals, hosts))


def _operations(said: dict[str, Any], kind: ResourceType) -> list[AclOperation]:
    if said["producer"] or said["consumer"]:
        found = list(_PRODUCER.get(kind, ())) if said["producer"] else []
        found += _CONSUMER.get(kind, ()) if said["consumer"] else ()
        found += [AclOperation.IDEMPOTENT_WRITE] if said["idempotent"] and kind is ResourceType.CLUSTER else []
        return list(dict.fromkeys(found))
    asked = [AclOperation[_spelt(name)] for name in said["operations"]] or [AclOperation.ALL]
    able = SUPPORTED_OPERATIONS[kind] | {AclOperation.ALL}
    for operation in asked:
        if operation not in able:
            names = ", ".join(sorted(each.name.lower().replace("_", "-") for each in able))
            raise click.UsageError(f"--operation: expected one of {names} on a {kind.name.lower()}")
    return asked


def _spelt(operation: str) -> str:
    return operation.upper().replace("-", "_")


def _resources(said: dict[str, Any], pattern: str) -> list[Resource]:
    kind = PatternType[pattern.upper()]
    found = [(resource, name, kind) for option, resource in _NAMED.items() for name in said[option]]
    if said["cluster"]:
        found.append((ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def _fields(acl: AclBinding) -> tuple[Any, ...]:
    return tuple(getattr(acl, name) for name in FIELDS)


def _show(found: Iterable[AclBinding], as_json: bool, reasons: Mapping[AclBinding, str] | None = None) -> None:
    """Print entries. ``reasons``: a text for each, shown in an extra column."""
    if as_json:
        more = reasons or {}
        print_json([as_object(acl) | ({"reason": more[acl]} if acl in more else {}) for acl in found])
        return
    rows = [
        (
            acl.permission.name.lower(), acl.principal, acl.host, acl.operation.name.lower(),
            acl.resource_type.name.lower(), acl.resource_name, acl.pattern_type.name.lower(),
            *(() if reasons is None else (reasons[acl],)),
        )
        for acl in found
    ]  # fmt: skip
    columns = ("permission", "principal", "host", "operation", "resource", "name", "pattern")
    print_rows(columns if reasons is None else (*columns, "reason"), rows)
