"""``tidelog profile``: named clusters, each with its connection settings."""

from __future__ import annotations

from pathlib import Path

import click

from tidelog.cli.terminal.connection import read_command_config
from tidelog.cli.terminal.output import json_option, print_json, print_rows, say
from tidelog.cli.terminal.saved_profiles import save
from tidelog.client.config.admin import AdminConfig
from tidelog.client.config.profiles import BOOTSTRAP, Profiles, check_name, load, location
from tidelog.client.config.settings import parse_bootstrap


@click.group()
def profile() -> None:
    """Name clusters and store how to connect to each: its address, its certificates.

    Commands use the profile from --profile NAME or $TIDELOG_PROFILE, or the one chosen by `tidelog profile use`. The
    SDK uses it with tidelog.profile(). Profiles are in ~/.config/tidelog/profiles.toml, which you may edit.
    """


@profile.command(short_help="Create or replace a profile.")
@click.argument("name")
@click.option("--bootstrap", "-b", required=True, metavar="HOST:PORT,...", help="Some brokers.")
@click.option(
    "--command-config",
    "config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A .properties file with security.protocol, ssl.truststore.location and so on.",
)
@click.option("--use", is_flag=True, help="Make it the default for commands.")
def create(name: str, bootstrap: str, config: Path | None, use: bool) -> None:
    """Create or replace the profile NAME."""
    check_name(name)
    parse_bootstrap(bootstrap)
    security = {} if config is None else read_command_config(config)
    security = {name: _absolute(name, value) for name, value in security.items()}
    client = AdminConfig.of(security)
    client.tls()  # check that the certificates exist and fit
    client.login()
    profiles = load()
    settings = {BOOTSTRAP: bootstrap, **security}
    save(Profiles(name if use else profiles.default, {**profiles.named, name: settings}))
    say(f"{'made' if name not in profiles.named else 'replaced'} profile {name} in {location()}")


@profile.command("list", short_help="List profiles.")
@json_option
def list_profiles(as_json: bool) -> None:
    """List profiles, with a mark at the default one."""
    profiles = load()
    names = sorted(profiles.named)
    if as_json:
        print_json({"default": profiles.default, "profiles": {name: profiles.named[name][BOOTSTRAP] for name in names}})
        return
    rows = [("*" if name == profiles.default else "", name, profiles.named[name][BOOTSTRAP]) for name in names]
    print_rows(("used", "profile", "bootstrap"), rows)


@profile.command(short_help="Choose the default profile.")
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no profile.")
def use(name: str | None, none: bool) -> None:
    """Make the profile NAME the default for commands."""
    if (name is None) != none:
        raise click.UsageError("expected either NAME or --none")
    profiles = load()
    if name is not None:
        profiles.find(name)
    save(Profiles(name, profiles.named))
    say("commands use no profile now" if name is None else f"commands use profile {name} now")


@profile.command(short_help="Remove a profile.")
@click.argument("name")
def delete(name: str) -> None:
    """Remove the profile NAME. The files that it names are kept."""
    profiles = load()
    profiles.find(name)
    left = {other: settings for other, settings in profiles.named.items() if other != name}
    save(Profiles(None if profiles.default == name else profiles.default, left))
    say(f"removed profile {name}")


def _absolute(name: str, value: str) -> str:
    return str(Path(value).absolute()) if name.endswith("file") else value
