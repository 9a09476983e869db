"""``tidelog login``: a password that was tried goes into a profile."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from tidelog.cli.commands.access.users import read_password
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import say
from tidelog.cli.terminal.saved_profiles import save
from tidelog.client.config.profiles import (
    BOOTSTRAP,
    PASSWORD,
    PASSWORD_COMMAND,
    PROFILE_ENV,
    Profiles,
    load,
    location,
    password_of,
)
from tidelog.security.scram import BY_SASL_NAME, ScramMechanism

_USER: Final = "sasl_username"
_MECHANISM: Final = "sasl_mechanism"
_PROTOCOL: Final = "security_protocol"


@click.command(short_help="Try a password, and keep it in a profile.")
@click.argument("profile", required=False)
@click.option("--user", metavar="NAME", help="Default: the profile's sasl_username.")
@click.option(
    "--mechanism", type=click.Choice([*BY_SASL_NAME, "PLAIN"], case_sensitive=False),
    help="Default: the profile's, or SCRAM-SHA-512.",
)  # fmt: skip
@click.option(
    "--password-file", metavar="FILE", help="A file with the password in its first line; - for stdin. Default: ask."
)
@click.option(
    "--password-command", "command", metavar="COMMAND",
    help="Keep this program's command line, not the password: it prints it whenever the profile is used.",
)  # fmt: skip
def login(
    profile: str | None, user: str | None, mechanism: str | None, password_file: str | None, command: str | None
) -> None:
    """Try a user's password at the cluster of PROFILE, by default of the one in use, and keep it there.

    The password is asked for, read from a file, or printed by a program such as a password manager: never an argument,
    which others on the machine could see. If the cluster refuses it, the profile stays as it was.
    """
    from tidelog import Admin
    from tidelog.client.errors import SaslAuthenticationError

    if command and password_file:
        raise click.UsageError("expected --password-file or --password-command, found both")
    profiles = load()
    name = profile or os.environ.get(PROFILE_ENV) or profiles.default
    if name is None:
        raise CommandFailed("expected a profile: `tidelog profile create` makes one")
    settings = profiles.find(name)
    protocol = settings.get(_PROTOCOL, "PLAINTEXT")
    if not protocol.startswith("SASL_"):
        raise CommandFailed(f"profile {name}: expected {_PROTOCOL}=SASL_SSL (tidelog profile create), found {protocol}")
    user = user or settings.get(_USER)
    if not user:
        raise CommandFailed(f"profile {name}: expected --user, as it has no {_USER}")
    password = password_of(command) if command else read_password(password_file, twice=False)
    kept: dict[str, Any] = {each: value for each, value in settings.items() if each not in (PASSWORD, PASSWORD_COMMAND)}
    kept |= {_USER: user, _MECHANISM: _name_of(mechanism or settings.get(_MECHANISM))}
    brokers = kept.pop(BOOTSTRAP)
    try:
        with Admin(brokers, **(kept | {PASSWORD: password})) as admin:
            admin.list_topics()  # needs no right: it shows what the user may see
    except SaslAuthenticationError as refused:
        raise CommandFailed(f"{refused}; profile {name} is as it was") from None
    secret = {PASSWORD_COMMAND: command} if command else {PASSWORD: password}
    save(Profiles(profiles.default, {**profiles.named, name: {BOOTSTRAP: brokers, **kept, **secret}}))
    say(f"{brokers} takes {user}; profile {name} in {location()} has the {_what(command)}")


def _name_of(mechanism: str | None) -> str:
    return (mechanism or ScramMechanism.SCRAM_SHA_512.sasl_name).upper()


def _what(command: str | None) -> str:
    return "password" if command is None else "program that tells the password"
