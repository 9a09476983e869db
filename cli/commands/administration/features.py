"""``tidelog features``: shows and changes feature levels, like ``kafka-features.sh``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.work.feature_levels import feature_rows
from tidelog.model.features import SAFE_DOWNGRADE, UPGRADE

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.types import FeatureMetadata

_dry_run = click.option("--dry-run", is_flag=True, help="Only check whether this would work.")


@click.group()
def features() -> None:
    """Show feature levels, finalize an upgrade, or undo it.

    New nodes keep writing what old ones can read until `tidelog features upgrade`. Until then, every node can go back
    to its previous version.
    """


@features.command(short_help="Show levels in use and levels that the nodes support.")
@cluster_options
def describe(bootstrap: str, as_json: bool) -> None:
    """Show each feature's current level and the highest level that every node supports."""
    with admin_client(bootstrap) as admin:
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
            say(f"{behind} does not support {row['feature']} {row['known_max']}, but other nodes do")


@features.command(short_help="Finalize: use what all nodes support.")
@click.argument("levels", metavar="[FEATURE=LEVEL]...", nargs=-1)
@_dry_run
@cluster_options
def upgrade(levels: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Raise feature levels: the named ones, or all to the highest level that every node supports.

    Do it once the new version has proved itself: nodes with the old version may be unable to rejoin afterwards.
    """
    wanted = _levels(levels)
    with admin_client(bootstrap) as admin:
        found = admin.describe_features()
        if not wanted:
            wanted = {row["feature"]: row["max"] for row in feature_rows(found) if row["max"] > row["level"]}
        _change(admin, found, wanted, UPGRADE, dry_run, as_json)


@features.command(short_help="Lower levels that no written data needs.")
@click.argument("levels", metavar="FEATURE=LEVEL...", nargs=-1, required=True)
@_dry_run
@cluster_options
def downgrade(levels: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Lower feature levels, so that nodes with an older version can rejoin. Level 0 disables a feature.

    Refused for a metadata.version whose records have already been written.
    """
    with admin_client(bootstrap) as admin:
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
