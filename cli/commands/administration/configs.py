"""``tidelog configs``: settings of topics, groups and brokers, and the source of each."""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.terminal.settings import options, settings_option
from tidelog.proto.calls.api import ConfigResource

_resource_options: Final = options(
    click.option("--all-brokers", is_flag=True, help="Settings for all brokers, made at run time."),
    click.option("--broker", type=click.IntRange(0), metavar="NODE", help="A broker's settings."),
    click.option("--group", metavar="NAME", help="A consumer protocol group's own settings."),
    click.option("--topic", metavar="NAME", help="A topic's settings."),
)


def _resource(topic: str | None, group: str | None, broker: int | None, all_brokers: bool) -> ConfigResource:
    if [topic is not None, group is not None, broker is not None, all_brokers].count(True) != 1:
        raise click.UsageError("expected one of --topic, --group, --broker and --all-brokers")
    if group is not None:
        return ConfigResource("group", group)
    if topic is not None:
        return ConfigResource("topic", topic)
    return ConfigResource("broker", "" if broker is None else str(broker))


@click.group()
def configs() -> None:
    """Show and change settings of topics, groups and brokers."""


@configs.command()
@_resource_options
@click.option("--changed", is_flag=True, help="Only settings that differ from their default.")
@cluster_options
def describe(
    topic: str | None,
    group: str | None,
    broker: int | None,
    all_brokers: bool,
    changed: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show settings with value and source; with --json also type and documentation."""
    resource = _resource(topic, group, broker, all_brokers)
    with admin_client(bootstrap) as admin:
        (found,) = admin.describe_configs([resource]).values()
    chosen = [config for config in found.values() if not changed or config.source != "DEFAULT_CONFIG"]
    if as_json:
        print_json(
            [
                {
                    "name": config.name, "value": config.value, "source": config.source, "type": config.value_type,
                    "read_only": config.read_only, "sensitive": config.sensitive, "documentation": config.documentation,
                }
                for config in chosen
            ]
        )  # fmt: skip
        return
    rows = [
        (config.name, "(hidden)" if config.sensitive else "-" if config.value is None else config.value, config.source)
        for config in chosen
    ]
    print_rows(("setting", "value", "from"), rows)


@configs.command()
@_resource_options
@settings_option("Set a setting; repeatable.")
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="Reset a setting to its default; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only check whether this would work.")
@cluster_options
def alter(
    topic: str | None,
    group: str | None,
    broker: int | None,
    all_brokers: bool,
    settings: dict[str, str],
    resets: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change settings. Settings that you do not name are unchanged."""
    resource = _resource(topic, group, broker, all_brokers)
    if not settings and not resets:
        raise click.UsageError("expected --set or --reset, found neither")
    if both := sorted(settings.keys() & set(resets)):
        raise click.UsageError(f"expected each setting once, found {both[0]} in --set and in --reset")
    changes: dict[str, str | None] = {**settings, **dict.fromkeys(resets)}
    with admin_client(bootstrap) as admin:
        admin.alter_configs({resource: changes}, validate_only=dry_run)
    if as_json:
        print_json({"changed": not dry_run, "settings": changes})
    else:
        what = ", ".join(f"{name}={value}" if value is not None else f"{name} reset" for name, value in changes.items())
        say(f"{'could be changed' if dry_run else 'changed'}: {what}")
