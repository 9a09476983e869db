"""``tidelog quotas``: bounds on users, client ids and addresses. The options follow Kafka's ``kafka-configs``."""

from __future__ import annotations

from typing import Any, Final

import click

from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.terminal.settings import options, settings_option
from tidelog.model.client_quotas import CLIENT_ID, IP, USER, ClientQuotaEntity

_entity_options: Final = options(
    click.option("--ip-defaults", is_flag=True, help="All addresses without quotas of their own."),
    click.option("--ip", metavar="ADDRESS", help="A client's address."),
    click.option("--client-defaults", is_flag=True, help="All client ids without quotas of their own."),
    click.option("--client", metavar="ID", help="A client id."),
    click.option("--user-defaults", is_flag=True, help="All users without quotas of their own."),
    click.option("--user", metavar="NAME", help="A user: the name of a principal, without its type."),
)


def _entity(said: dict[str, Any]) -> ClientQuotaEntity:
    def one(option: str) -> str | None:
        name, default = said[option], said[f"{option}_defaults"]
        if name is not None and default:
            raise click.UsageError(f"expected one of --{option} and --{option}-defaults, found both")
        if name == "":
            raise click.UsageError(f"--{option}: expected a name, found none; --{option}-defaults means all others")
        return "" if default else name

    return ClientQuotaEntity(one("user"), one("client"), one("ip"))


@click.group()
def quotas() -> None:
    """Show and change quotas of users, client ids and addresses."""


@quotas.command(short_help="Show quotas.")
@_entity_options
@click.option("--strict", is_flag=True, help="Only quotas for exactly these types, without combinations.")
@cluster_options
def describe(strict: bool, bootstrap: str, as_json: bool, **said: Any) -> None:
    """Show the quotas of the named users, client ids or addresses, or all quotas.

    tidelog quotas describe --user alice
    """
    wanted = _entity(said)
    with admin_client(bootstrap) as admin:
        found = admin.describe_client_quotas(wanted, strict=strict)
    if as_json:
        print_json([{"entity": _shown(entity), "quotas": values} for entity, values in found.items()])
        return
    rows = [
        (entity.user, entity.client_id, entity.ip, key, value)
        for entity, values in found.items()
        for key, value in values.items()
    ]
    print_rows(
        ("user", "client id", "ip", "quota", "value"),
        [(*(_cell(name) for name in names), key, f"{value:.15g}") for *names, key, value in rows],
    )


@quotas.command(short_help="Set and remove quotas.")
@_entity_options
@settings_option("Set a quota, such as producer_byte_rate=1048576; repeatable.")
@click.option("--delete", "deleted", multiple=True, metavar="NAME", help="Remove a quota; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only check whether this would work.")
@cluster_options
def alter(
    settings: dict[str, str], deleted: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool, **said: Any
) -> None:
    """Set and remove quotas. Quotas that you do not name are unchanged.

    tidelog quotas alter --user alice --set producer_byte_rate=1048576 --set consumer_byte_rate=2097152
    """
    entity = _entity(said)
    if entity == ClientQuotaEntity():
        raise click.UsageError("expected --user, --client or --ip, or one of their -defaults, found none")
    if not settings and not deleted:
        raise click.UsageError("expected --set or --delete, found neither")
    if both := sorted(settings.keys() & set(deleted)):
        raise click.UsageError(f"expected each quota once, found {both[0]} in --set and in --delete")
    changes: dict[str, float | None] = {name: _number(name, value) for name, value in settings.items()}
    changes |= dict.fromkeys(deleted)
    with admin_client(bootstrap) as admin:
        admin.alter_client_quotas({entity: changes}, validate_only=dry_run)
    if as_json:
        print_json({"changed": not dry_run, "entity": _shown(entity), "quotas": changes})
        return
    what = ", ".join(f"{key}={value:.15g}" if value is not None else f"{key} removed" for key, value in changes.items())
    say(f"{'could be changed' if dry_run else 'changed'} for {entity}: {what}")


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.UsageError(f"--set {name}: expected a number, found {value!r}") from None


def _cell(name: str | None) -> str:
    return "-" if name is None else name or "<default>"


def _shown(entity: ClientQuotaEntity) -> dict[str, str | None]:
    """Format an entity as Kafka does: a default has no name."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip))
    return {kind: name or None for kind, name in named if name is not None}
