"""``tidelog connections``: the connections to brokers, and closing them."""

from __future__ import annotations

import dataclasses

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT32_MAX
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.connection_api import CONNECTIONS_SHOWN, CONNECTIONS_SHOWN_MAX
from tidelog.proto.transport.network import Address

_PRINCIPAL = click.option("--principal", default="", metavar="PRINCIPAL", help="Only of this principal: User:alice.")
_ADDRESS = click.option("--address", default="", metavar="HOST[:PORT]", help="Only from this address of the client.")
_NODES = click.option(
    "--node", "nodes", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only at this broker; repeatable."
)


@click.group()
def connections() -> None:
    """List the connections to brokers, and close them."""


@connections.command("list", short_help="List connections: who, from where, since when.")
@_PRINCIPAL
@_ADDRESS
@_NODES
@click.option(
    "--limit",
    type=click.IntRange(1, CONNECTIONS_SHOWN_MAX),
    default=CONNECTIONS_SHOWN,
    show_default=True,
    help="Of each broker.",
)
@cluster_options
def list_connections(
    principal: str, address: str, nodes: tuple[int, ...], limit: int, bootstrap: str, as_json: bool
) -> None:
    """List the connections to all live brokers, or to those named.

    Connections to gRPC listeners are listed while they have streams; their bytes and idle time are unknown.
    """
    with admin_client(bootstrap) as admin:
        found = admin.describe_connections(principal, *_split(address), nodes=nodes, limit=limit)
    every = [(int(node), one) for node, page in sorted(found.items()) for one in page.connections]
    more = sum(page.total - len(page.connections) for page in found.values())
    if as_json:
        print_json(
            {"connections": [{"node": node, **dataclasses.asdict(one)} for node, one in every], "not_listed": more}
        )
        return
    print_rows(
        (
            "node",
            "listener",
            "address",
            "protocol",
            "principal",
            "client id",
            "software",
            "age s",
            "idle s",
            "in",
            "out",
        ),
        [
            (
                node,
                one.listener,
                str(Address(one.host, one.port)),
                one.security_protocol,
                one.principal,
                one.client_id,
                one.software,
                one.age_ms // 1000,
                _known(one.idle_ms, 1000),
                _known(one.bytes_in),
                _known(one.bytes_out),
            )
            for node, one in every
        ],
    )
    if more:
        say(f"{count_of(more, 'connection')} more (--limit)", err=True)


@connections.command(short_help="Close connections of a principal or an address.")
@_PRINCIPAL
@_ADDRESS
@_NODES
@cluster_options
def close(principal: str, address: str, nodes: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Close the connections of a principal, or from an address, to all live brokers or to those named.

    To shut somebody out, first remove what lets them in: the user, the entries in the access control lists, the
    certificate. Clients connect again.

    A Kafka listener closes the connection. A gRPC listener cannot: it ends the connection's streams and, unless a port
    is given, forgets the logins, so that the next request needs another one.
    """
    if not principal and not address:
        raise CommandFailed("expected --principal or --address, found neither")
    with admin_client(bootstrap) as admin:
        closed = admin.close_connections(principal, *_split(address), nodes=nodes)
    if as_json:
        print_json([{"node": int(node), "closed": count} for node, count in sorted(closed.items())])
        return
    for node, count in sorted(closed.items()):
        say(f"node {node}: {count_of(count, 'connection')} closed")


def _split(address: str) -> tuple[str, int]:
    """Return the host and the port, 0 for none."""
    host, port = address, 0
    if address.count(":") == 1 or "]:" in address:
        try:
            host, port = Address.read(address)
        except ValueError:
            raise CommandFailed(f"--address: expected HOST or HOST:PORT, found {address!r}") from None
    return plain_address(host.strip("[]")) if host else "", port


def _known(number: int, unit: int = 1) -> int | None:
    return None if number < 0 else number // unit
