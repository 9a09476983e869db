"""``tidelog metrics``: what Prometheus and Grafana need to watch a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.output import json_option, print_json

if TYPE_CHECKING:
    from tidelog.broker.health.rule import Alert


@click.group()
def metrics() -> None:
    """Print Prometheus alerting rules and a Grafana dashboard.

    Both are generated from the rules of `tidelog status` and the metrics of this version. Print them again after an
    upgrade.
    """


@metrics.command()
@json_option
def rules(as_json: bool) -> None:
    """Print the alerting rules, for Prometheus's rule_files."""
    from tidelog.broker.health.alerts import rules_file
    from tidelog.broker.health.rules import RULES

    if as_json:
        print_json([_as_object(rule.name, alert) for rule in RULES for alert in rule.alerts])
    else:
        click.echo(rules_file(), nl=False)


def _as_object(rule: str, alert: Alert) -> dict[str, str]:
    return {
        "rule": rule,
        "alert": alert.name,
        "severity": alert.severity.value,
        "expr": alert.expr,
        "for": alert.for_,
        "summary": alert.shows,
    }


@metrics.command()
def dashboard() -> None:
    """Print the dashboard as JSON, for Grafana's import."""
    from tidelog.broker.health.dashboard import dashboard as made

    click.echo(made(), nl=False)
