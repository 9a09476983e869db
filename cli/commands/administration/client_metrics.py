"""``tidelog client-metrics``: which metrics clients push to the brokers (KIP-714), like ``kafka-client-metrics``."""

from __future__ import annotations

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.proto.calls.api import ConfigResource, DescribedConfig

_KIND = "client metrics"
_SETTINGS = ("metrics", "interval.ms", "match")


@click.group("client-metrics")
def client_metrics() -> None:
    """Subscribe to metrics that clients push; the brokers show them under /client-metrics."""


@client_metrics.command("list")
@cluster_options
def list_subscriptions(bootstrap: str, as_json: bool) -> None:
    """List the names of all subscriptions."""
    with admin_client(bootstrap) as admin:
        names = [found.name for found in admin.list_config_resources([_KIND])]
    if as_json:
        print_json(names)
    else:
        for name in names:
            say(name)


@client_metrics.command(short_help="Show what subscriptions ask for.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@cluster_options
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the named subscriptions, or all."""
    with admin_client(bootstrap) as admin:
        known = admin.list_config_resources([_KIND])
        if missing := sorted(set(names) - {found.name for found in known}):
            raise CommandFailed(f"expected a subscription that exists, found {missing[0]!r}")
        wanted = [ConfigResource(_KIND, name) for name in dict.fromkeys(names)] or known
        found = admin.describe_configs(wanted) if wanted else {}
    rows = [(resource.name, *map(_value, _chosen(found[resource]))) for resource in wanted]
    if as_json:
        print_json([dict(zip(("name", *_SETTINGS), row, strict=True)) for row in rows])
    else:
        print_rows(("name", *_SETTINGS), rows)


@client_metrics.command(short_help="Create or change a subscription.")
@click.argument("name")
@click.option("--metrics", metavar="PREFIX,...", help="Prefixes of metric names; * for all.")
@click.option("--interval", metavar="MS", help="Milliseconds between a client's pushes: 100 to 3600000.")
@click.option(
    "--match", metavar="ATTRIBUTE=REGEX,...", help="Which clients, such as client_id=orders-.*; all must match."
)
@click.option("--reset", "resets", multiple=True, type=click.Choice(_SETTINGS), help="Reset to default; repeatable.")
@cluster_options
def alter(
    name: str,
    metrics: str | None,
    interval: str | None,
    match: str | None,
    resets: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create or change the subscription NAME. Settings that you do not name are unchanged."""
    given = {"metrics": metrics, "interval.ms": interval, "match": match}
    changes: dict[str, str | None] = {each: value for each, value in given.items() if value is not None}
    if both := sorted(changes.keys() & set(resets)):
        raise click.UsageError(f"expected each setting once, found {both[0]} in an option and in --reset")
    changes.update(dict.fromkeys(resets))
    if not changes:
        raise click.UsageError("expected --metrics, --interval, --match or --reset, found none")
    with admin_client(bootstrap) as admin:
        admin.alter_configs({ConfigResource(_KIND, name): changes})
    if as_json:
        print_json({"name": name, "settings": changes})
    else:
        say(f"changed: {name}")


@client_metrics.command()
@click.argument("name")
@cluster_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:
    """Delete the subscription NAME. Clients stop pushing for it."""
    resource = ConfigResource(_KIND, name)
    with admin_client(bootstrap) as admin:
        if resource not in admin.list_config_resources([_KIND]):
            raise CommandFailed(f"expected a subscription that exists, found {name!r}")
        admin.alter_configs({resource: dict.fromkeys(_SETTINGS)})
    if as_json:
        print_json({"deleted": name})
    else:
        say(f"deleted: {name}")


def _chosen(found: dict[str, DescribedConfig]) -> list[DescribedConfig]:
    return [found[name] for name in _SETTINGS]


def _value(config: DescribedConfig) -> str:
    return config.value or "-"
