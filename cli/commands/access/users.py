"""``tidelog users``: users that log in with a password (SCRAM or PLAIN), like ``kafka-configs`` (KIP-554)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.security.scram import BY_SASL_NAME, ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism

STDIN: Final = "-"
_MECHANISMS: Final = click.Choice(list(BY_SASL_NAME), case_sensitive=False)


@click.group()
def users() -> None:
    """List users, set and delete their passwords."""


@users.command("list", short_help="List users and their mechanisms.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@cluster_options
def list_users(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the named users, or all users. Shows nothing about their passwords."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_user_scram_credentials(names)
    rows = [(name, each.mechanism.sasl_name, each.iterations) for name in sorted(found) for each in found[name]]
    if as_json:
        print_json([{"user": name, "mechanism": how, "iterations": count} for name, how, count in rows])
    else:
        print_rows(("user", "mechanism", "iterations"), rows)


@users.command("set", short_help="Create a user, or change its password.")
@click.argument("name")
@click.option("--mechanism", "mechanisms", multiple=True, type=_MECHANISMS, help="Repeatable. Default: SCRAM-SHA-512.")
@click.option(
    "--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN, show_default=True,
    help="More make guessing the password, and logging in, cost more.",
)  # fmt: skip
@click.option(
    "--password-file", metavar="FILE", help="A file with the password on its first line; - for stdin. Default: ask."
)
@cluster_options
def set_user(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None, bootstrap: str, as_json: bool
) -> None:
    """Create the user NAME, or change its password.

    The password is read from a prompt or a file, never from an argument, which others on the machine could see.
    """
    from tidelog import ScramCredentialInfo, UserScramCredentialUpsertion

    password = read_password(password_file)
    made = _mechanisms(mechanisms) or [ScramMechanism.SCRAM_SHA_512]
    with admin_client(bootstrap) as admin:
        for how in made:
            info = ScramCredentialInfo(how, iterations)
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, password, info)])
            if not as_json:
                say(f"{name}: password set for {how.sasl_name}")
    if as_json:
        print_json({"user": name, "mechanisms": [how.sasl_name for how in made], "iterations": iterations})


@users.command(short_help="Delete a user's passwords.")
@click.argument("name")
@click.option(
    "--mechanism", "mechanisms", multiple=True, type=_MECHANISMS, help="Only this one; repeatable. Default: all."
)
@cluster_options
def delete(name: str, mechanisms: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete the passwords of the user NAME. It can no longer log in."""
    from tidelog import UserScramCredentialDeletion

    with admin_client(bootstrap) as admin:
        gone = _mechanisms(mechanisms) or [
            each.mechanism for each in admin.describe_user_scram_credentials([name])[name]
        ]
        for how in gone:
            admin.alter_user_scram_credentials([UserScramCredentialDeletion(name, how)])
    if as_json:
        print_json({"user": name, "deleted": [how.sasl_name for how in gone]})
    else:
        say(f"{name}: {count_of(len(gone), 'password')} deleted")


def _mechanisms(names: tuple[str, ...]) -> list[ScramMechanism]:
    return [BY_SASL_NAME[name] for name in dict.fromkeys(names)]


def read_password(path: str | None, *, twice: bool = True) -> str:
    """The first line of a file, or of stdin for ``-``; without one, ask. ``twice``: it is a new one."""
    if path is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=twice, err=True))
    text = sys.stdin.readline() if path == STDIN else Path(path).read_text(encoding="utf-8")
    first = text.partition("\n")[0].removesuffix("\r")
    if not first:
        raise CommandFailed(f"{path}: expected a password on the first line, found none")
    return first
