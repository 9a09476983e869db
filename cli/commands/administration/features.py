"""``tidelog features``: the levels of a cluster's features, as ``kafka-features.sh`` shows and changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import bootstrap_option, secured
from tidelog.cli.terminal.output import json_option, print_json, print_rows, say
from tidelog.cli.work.feature_levels import feature_rows
from tidelog.model.features import SAFE_DOWNGRADE, UPGRADE

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.types import FeatureMetadata

_dry_run = click.option("--dry-run", is_flag=True, help="Only say whether it would be done.")


@click.group()
def features() -> None:
    """Show the levels of features, finalise an upgrade, or undo it.

    New nodes go on writing what old ones can read until `tidelog features upgrade` says otherwise. Until then every
    node can go back to its former version.
    """


@features.command(short_help="Show levels in use and levels that the nodes support.")
@bootstrap_option
@json_option
def describe(bootstrap: str, as_json: bool) -> None:
    """Show each feature's level in use and the highest one that every node supports."""
    from tidelog import Admin

    with Admin(bootstrap, **secured()) as admin:
        found = admin.describe_features()
    rows = feature_rows(found)
    if as_json:
        print_json({"epoch": found.finalized_features_epoch, "features": rows, "nodes": _nodes(found)})
        return
    print_rows(
        ("feature", "in use", "supported", "meaning"),
        [(row["feature"], row["level"], f"{row['min']}-{row['max']}", row["meaning"]) for row in rows],
    )
    for row in rows:
        if row["level"] < row["max"]:
            say(f"{row['feature']} can be raised to {row['max']}: `tidelog features upgrade`")
        for behind in row["behind"]:
            say(f"{behind} does not support {row['feature']} {row['known_max']}, which others do")


@features.command(short_help="Finalise: use what all nodes support.")
@click.argument("levels", metavar="[FEATURE=LEVEL]...", nargs=-1)
@_dry_run
@bootstrap_option
@json_option
def upgrade(levels: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Raise levels: those named, or every feature to the highest level that all nodes support.

    Do it once the new version has proved itself: nodes of the old one may not come back afterwards.
    """
    from tidelog import Admin

    wanted = _levels(levels)
    with Admin(bootstrap, **secured()) as admin:
        found = admin.describe_features()
        if not wanted:
            wanted = {row["feature"]: row["max"] for row in feature_rows(found) if row["max"] > row["level"]}
        _change(admin, found, wanted, UPGRADE, dry_run, as_json)


@features.command(short_help="Lower levels, where nothing written needs them.")
@click.argument("levels", metavar="FEATURE=LEVEL...", nargs=-1, required=True)
@_dry_run
@bootstrap_option
@json_option
def downgrade(levels: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Lower levels, so that nodes of an older version may come back. Level 0 switches a feature off.

    Refused for a metadata.version whose records have been written already.
    """
    from tidelog import Admin

    with Admin(bootstrap, **secured()) as admin:
        _change(admin, admin.describe_features(), _levels(levels), SAFE_DOWNGRADE, dry_run, as_json)


def _change(
    admin: Admin, found: FeatureMetadata, wanted: dict[str, int], kind: str, dry_run: bool, as_json: bool
) -> None:
    if wanted:
        admin.update_features(wanted, upgrade_type=kind, validate_only=dry_run)
    before = {name: found.finalized_features.get(name, 0) for name in wanted}
    if as_json:
        print_json({"changed": not dry_run, "before": before, "after": wanted})
    elif not wanted:
        say("every feature has the highest level that all nodes support; nothing was changed")
    for name, level in () if as_json else sorted(wanted.items()):
        say(f"{name}: {before[name]} {'would become' if dry_run else 'became'} {level}")


def _levels(items: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in items:
        name, _, level = item.partition("=")
        if not (name and level.isascii() and level.isdigit() and len(level) <= 5):
            raise click.UsageError(f"expected FEATURE=LEVEL, such as metadata.version=1, found {item!r}")
        if name in found:
            raise CommandFailed(f"expected each feature once, found {name} twice")
        found[name] = int(level)
    return found


def _nodes(found: FeatureMetadata) -> list[dict[str, Any]]:
    return [
        {
            "role": node.role,
            "node": node.node_id,
            "features": {one.name: [one.level_min, one.level_max] for one in node.features},
        }
        for node in found.nodes
    ]
