"""``tidelog tokens``: delegation tokens, like ``kafka-delegation-tokens`` (KIP-48, KIP-373)."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.commands.access.spark_token import NAME, token_file
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import replace_private
from tidelog.cli.terminal.connection import admin_client, cluster_options, secured
from tidelog.cli.terminal.output import print_json, print_pairs, print_rows, say
from tidelog.model.settings.security_protocol import SecurityProtocol

if TYPE_CHECKING:
    from tidelog import Admin, DelegationToken

_PERIOD: Final = click.IntRange(min=1)


class _SparkName(click.ParamType[str]):
    """A cluster's name in Spark's settings."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not NAME.fullmatch(value):
            self.fail(f"expected up to 64 letters, digits, underscores and hyphens, found {value!r}", param, ctx)
        return value


@click.group()
def tokens() -> None:
    """Create, renew, expire and list delegation tokens.

    Anyone with a token's id and HMAC can log in as its owner until it expires.
    """


@tokens.command(short_help="Create a token.")
@click.option("--owner", metavar="PRINCIPAL", help="The owner, such as User:alice. Default: you.")
@click.option(
    "--renewer", "renewers", multiple=True, metavar="PRINCIPAL", help="May also renew and expire it; repeatable."
)
@click.option("--max-lifetime-ms", type=_PERIOD, help="Maximum lifetime, renewals included. Default: the cluster's.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it to a file for --command-config, readable by you only, and do not print its HMAC.",
)
@click.option(
    "--save-for-spark",
    nargs=2,
    type=(_SparkName(), click.Path(dir_okay=False, path_type=Path)),
    metavar="NAME FILE",
    help="The same as a Hadoop token file, for the cluster of spark.kafka.clusters.NAME.",
)
@cluster_options
def create(
    owner: str | None,
    renewers: tuple[str, ...],
    max_lifetime_ms: int | None,
    save: Path | None,
    save_for_spark: tuple[str, Path] | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create a delegation token. Kafka's tools can also use the file that --save writes."""
    with admin_client(bootstrap) as admin:
        made = admin.create_delegation_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms or -1)
    if save is not None:
        replace_private(save, _login_file(made, secured()))
    if save_for_spark is not None:
        cluster, path = save_for_spark
        replace_private(path, token_file(made.token_id, made.hmac_as_base64, cluster))
    shows = save is None and save_for_spark is None
    if as_json:
        print_json(_fields(made, hmac=shows))
    else:
        print_pairs(_row(made, hmac=shows))


@tokens.command(short_help="Renew a token.")
@click.argument("token_id")
@click.option("--period-ms", type=_PERIOD, help="New period from now. Default and maximum: the cluster's.")
@cluster_options
def renew(token_id: str, period_ms: int | None, bootstrap: str, as_json: bool) -> None:
    """Renew the token TOKEN_ID, which you must own or be allowed to renew."""
    with admin_client(bootstrap) as admin:
        until_ms = admin.renew_delegation_token(_hmac_of(admin, token_id), renew_time_period_ms=period_ms or -1)
    if as_json:
        print_json({"token_id": token_id, "expiry_timestamp": until_ms})
    else:
        say(f"{token_id}: expires {_time(until_ms)}")


@tokens.command(short_help="Remove a token, or let it expire sooner.")
@click.argument("token_id")
@click.option("--period-ms", type=_PERIOD, help="Let it expire after this time. Default: remove it now.")
@cluster_options
def expire(token_id: str, period_ms: int | None, bootstrap: str, as_json: bool) -> None:
    """Remove the token TOKEN_ID, which you must own or be allowed to renew. Closes connections that logged in with
    it."""
    with admin_client(bootstrap) as admin:
        until_ms = admin.expire_delegation_token(_hmac_of(admin, token_id), expiry_time_period_ms=period_ms or -1)
    if as_json:
        print_json({"token_id": token_id, "expiry_timestamp": until_ms})
    elif period_ms is None:
        say(f"{token_id}: removed")
    else:
        say(f"{token_id}: expires {_time(until_ms)}")


@tokens.command("list", short_help="List the tokens that you may see.")
@click.option(
    "--owner", "owners", multiple=True, metavar="PRINCIPAL", help="Only tokens that it owns or may renew; repeatable."
)
@click.option("--hmac", is_flag=True, help="Also show HMACs, which are the passwords of tokens.")
@cluster_options
def list_tokens(owners: tuple[str, ...], hmac: bool, bootstrap: str, as_json: bool) -> None:
    """List your tokens, tokens that you may renew, and tokens that access control lists let you see."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_delegation_token(owners or None)
    if as_json:
        print_json([_fields(each, hmac=hmac) for each in found])
        return
    rows = [_row(each, hmac=hmac) for each in found]
    columns = list(rows[0]) if rows else ["token id", "owner"]
    print_rows(columns, [list(row.values()) for row in rows])


def _hmac_of(admin: Admin, token_id: str) -> bytes:
    """Return a token's HMAC. The cluster identifies tokens by HMAC, people by id."""
    for found in admin.describe_delegation_token():
        if found.token_id == token_id:
            return found.hmac
    raise CommandFailed(f"{token_id}: expected a token that you may see (`tidelog tokens list`), found none")


def _fields(found: DelegationToken, *, hmac: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "token_id": found.token_id,
        "owner": found.owner,
        "requester": found.requester,
        "renewers": list(found.renewers),
        "issue_timestamp": found.issue_timestamp,
        "expiry_timestamp": found.expiry_timestamp,
        "max_timestamp": found.max_timestamp,
    }
    return fields | ({"hmac": found.hmac_as_base64} if hmac else {})


def _row(found: DelegationToken, *, hmac: bool) -> dict[str, str]:
    row = {
        "token id": found.token_id,
        "owner": found.owner,
        "requester": found.requester,
        "renewers": ",".join(found.renewers) or "-",
        "issued": _time(found.issue_timestamp),
        "expires": _time(found.expiry_timestamp),
        "at the latest": _time(found.max_timestamp),
    }
    return row | ({"HMAC": found.hmac_as_base64} if hmac else {})


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):  # beyond the year 9999
        return "never"


def _login_file(made: DelegationToken, settings: dict[str, Any]) -> str:
    """Return the settings for a client that logs in with the token, under the names of Kafka's Java clients. Your own
    client certificate is left out, because the token is for others."""
    protocol = SecurityProtocol(settings.get("security_protocol", SecurityProtocol.PLAINTEXT))
    lines = [f"security.protocol={SecurityProtocol.SASL_SSL if protocol.tls else SecurityProtocol.SASL_PLAINTEXT}"]
    if (roots := settings.get("ssl_cafile")) is not None:
        path = os.path.abspath(roots).replace("\\", 2 * "\\")
        lines += [f"ssl.truststore.location={path}", "ssl.truststore.type=PEM"]
    lines += [
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{made.token_id}" password="{made.hmac_as_base64}" tokenauth="true";',
    ]
    return "\n".join(lines) + "\n"
