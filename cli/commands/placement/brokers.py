"""``tidelog brokers``: lists brokers, drains them, forgets those that are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.commands.placement.moves import lift_throttle, pace_options, take_back, telling
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options, secured
from tidelog.cli.terminal.numbers import INT32_MAX
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say
from tidelog.cli.work.replicas.moving import Mover, Outcome, Pace, cordon, names_of, uncordon
from tidelog.cli.work.replicas.placement import Overview, overview_of, placement_of, sizes_of
from tidelog.cli.work.replicas.safe_moves import drain_plan
from tidelog.cli.work.replicas.spreading import Assignment, cost_of
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.calls.failure_domains import machine_of
from tidelog.proto.kafka.schemas import api_name
from tidelog.proto.transport.network import Address

if TYPE_CHECKING:
    from tidelog import Admin

_NODE: Final = click.IntRange(0, INT32_MAX)
ROUNDS_MAX: Final = 20
"""How often to plan again because topics were created in the meantime."""


@click.group()
def brokers() -> None:
    """List brokers, move everything off one, and forget those that are gone for good."""


@brokers.command("list", short_help="Show each broker: state, rack, machine, replicas, leaders, bytes.")
@cluster_options
def list_brokers(bootstrap: str, as_json: bool) -> None:
    """Show each registered broker, live or not, with the replicas that partitions assign to it."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_cluster().brokers
        live = [int(broker.node_id) for broker in found if not broker.fenced]
        placed = placement_of(admin)
        used = {node: sum(held.values()) for node, held in sizes_of(admin, live).items()}
    replicas = Counter(node for part in placed.values() for node in part.replicas)
    leaders = Counter(part.leader for part in placed.values())
    states = {
        int(broker.node_id): "fenced" if broker.fenced else "stopping" if broker.in_controlled_shutdown else "live"
        for broker in found
    }
    cordoned = {int(broker.node_id) for broker in found if broker.cordoned}
    racks = {int(broker.node_id): broker.rack for broker in found}
    machines = {int(broker.node_id): machine_of(broker) for broker in found}
    rows: list[dict[str, Any]] = [
        {
            "node": node, "state": states.get(node, "not registered"), "rack": racks.get(node),
            "machine": machines.get(node),
            "replicas": replicas[node], "leaders": leaders[node], "bytes": used.get(node), "cordoned": node in cordoned,
        }
        for node in sorted({*states, *replicas})
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    print_rows(
        ("node", "state", "rack", "machine", "replicas", "leaders", "data"),
        [(row["node"], row["state"] + (", cordoned" if row["cordoned"] else ""),
          *(row[name] for name in ("rack", "machine", "replicas", "leaders")), megabytes(row["bytes"]))
         for row in rows],
    )  # fmt: skip


@brokers.command("api-versions", short_help="Show each node's Kafka APIs, versions and features.")
@click.argument("nodes", metavar="[NODE]...", type=_NODE, nargs=-1)
@cluster_options
def api_versions(nodes: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Show which APIs and versions the Kafka listener of each live broker, or of the named ones, supports, and which
    feature levels it supports and uses."""
    from tidelog.cli.work.kafka_versions import ask_versions
    from tidelog.client.config.admin import AdminConfig

    with admin_client(bootstrap) as admin:
        listening = kafka_addresses(admin, nodes)
    tls = AdminConfig.of(secured()).tls()
    answers = {node: ask_versions(address, tls) for node, address in listening.items()}
    if as_json:
        print_json([_versions_json(node, listening[node], answer) for node, answer in answers.items()])
        return
    apis = {
        node: {one.api_key: f"{one.min_version}-{one.max_version}" for one in answer.api_keys}
        for node, answer in answers.items()
    }
    columns = [f"node {node}" for node in answers]
    print_rows(
        ("key", "API", *columns),
        [
            (str(key), api_name(key), *(own.get(key) for own in apis.values()))
            for key in sorted({*chain(*apis.values())})
        ],
    )
    click.echo()
    levels = {
        node: {one.name: f"{one.min_version}-{one.max_version}" for one in answer.supported_features}
        for node, answer in answers.items()
    }
    used = {one.name: one.max_version_level for answer in answers.values() for one in answer.finalized_features}
    names = sorted({*used, *chain(*levels.values())})
    print_rows(
        ("feature", "in use", *columns),
        [(name, used.get(name, 0), *(own.get(name) for own in levels.values())) for name in names],
    )


def kafka_addresses(admin: Admin, nodes: Collection[int]) -> dict[int, Address]:
    """Return where the live brokers, or those in ``nodes``, listen for Kafka clients."""
    found = {int(broker.node_id): broker for broker in admin.describe_cluster().brokers if not broker.fenced}
    if missing := set(nodes) - found.keys():
        raise CommandFailed(f"expected live brokers, of {sorted(found)}, found {min(missing)}")
    addresses = {}
    for node in sorted(set(nodes) or found):
        at = ConfigResource("broker", str(node))
        named = admin.describe_configs([at])[at]["kafka.listener.names"].value or ""
        own = [one for one in found[node].listeners if one.listener in named.split(",")]
        if not own:
            raise CommandFailed(f"node {node} has no listener for Kafka clients (kafka.listener.names={named})")
        addresses[node] = Address(own[0].host, own[0].port)
    return addresses


def _versions_json(node: int, address: Address, answer: Any) -> dict[str, Any]:
    return {
        "node": node, "address": str(address),
        "apis": [
            {"key": one.api_key, "name": api_name(one.api_key), "min": one.min_version, "max": one.max_version}
            for one in answer.api_keys
        ],
        "supported_features": [
            {"name": one.name, "min": one.min_version, "max": one.max_version} for one in answer.supported_features
        ],
        "finalized_features": [
            {"name": one.name, "level": one.max_version_level} for one in answer.finalized_features
        ],
        "finalized_features_epoch": answer.finalized_features_epoch,
    }  # fmt: skip


@brokers.command(short_help="Forget a broker that is gone for good.")
@click.argument("node", metavar="NODE", type=_NODE)
@click.option("--force", is_flag=True, help="Even if partitions have replicas on it.")
@cluster_options
def unregister(node: int, force: bool, bootstrap: str, as_json: bool) -> None:
    """Forget a broker that is down and will not come back, so that it no longer holds up feature upgrades.

    Partitions with a replica on it keep the replica assigned, and miss it, until it is moved. So the command refuses
    while there are any, unless --force. A broker that starts again under this id registers anew.
    """
    with admin_client(bootstrap) as admin:
        held = sorted(at for at, part in placement_of(admin).items() if node in part.replicas)
        if held and not force:
            raise CommandFailed(
                f"expected a broker without replicas, found {node} with {count_of(len(held), 'replica')}, such as "
                f"{held[0].topic}-{held[0].partition}: move them first (tidelog brokers drain), or use --force"
            )
        admin.unregister_broker(node)
    if as_json:
        print_json({"unregistered": node, "replicas": len(held)})
        return
    say(f"broker {node} is no longer registered")
    if held:
        say(f"{count_of(len(held), 'partition')} still miss{'es' if len(held) == 1 else ''} their replica on it")


@brokers.command(short_help="Move every replica off brokers.")
@click.argument("nodes", metavar="NODE...", type=_NODE, nargs=-1, required=True)
@click.option("--dead", is_flag=True, help="The brokers are down for good: copy their replicas from the others.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("--cancel", "cancels", is_flag=True, help="Cancel the moves in progress, and end the cordon.")
@pace_options
@cluster_options
def drain(
    nodes: tuple[int, ...],
    dead: bool,
    dry_run: bool,
    cancels: bool,
    throttle: int | None,
    at_once: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move every replica off brokers, to live brokers with the most room, on other racks if possible.

    Nothing else moves, and no partition has fewer replicas in the meantime. From the start, and after the end, the
    brokers are cordoned: they get no new replicas until `undrain` or --cancel. Ctrl-C leaves moves in progress running;
    the same command continues later, and --cancel cancels them. At the end, the throttle is removed.
    """
    gone = frozenset(nodes)
    with admin_client(bootstrap) as admin:
        if cancels:
            _undrain(admin, gone)
            ongoing = admin.list_partition_reassignments()
            take_back(admin, [at for at, one in ongoing.items() if gone.intersection(one.removing_replicas)], as_json)
            return
        if dry_run:
            found = overview_of(admin)
            _say_plan(found, drain_plan(admin, found, gone, dead=dead), as_json)
            return
        moved = _drain(admin, gone, Pace(throttle, at_once), dead=dead, as_json=as_json)
        lifted = lift_throttle(admin)
    if as_json:
        print_json(
            {
                "drained": sorted(gone), "partitions": len(moved.done), "bytes": moved.size,
                "throttles_removed": lifted,
            }
        )  # fmt: skip
        return
    them = ", ".join(map(str, sorted(gone)))
    say(f"moved {count_of(len(moved.done), 'partition')}, {megabytes(moved.size)}: broker {them} is empty")
    say("it gets no new replicas until `tidelog brokers undrain`")
    if not lifted:
        say("the throttle is kept: other partitions are still moving")


@brokers.command(short_help="Let drained brokers get replicas again.")
@click.argument("nodes", metavar="NODE...", type=_NODE, nargs=-1, required=True)
@cluster_options
def undrain(nodes: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Allow brokers that were drained, or are being drained, to get replicas of new partitions again.

    It moves nothing: `tidelog rebalance` moves replicas there, `tidelog brokers drain --cancel` cancels moves in
    progress.
    """
    with admin_client(bootstrap) as admin:
        known = {int(broker.node_id) for broker in admin.describe_cluster().brokers}
        if unknown := sorted(set(nodes) - known):
            raise CommandFailed(f"expected brokers among {sorted(known)}, found {', '.join(map(str, unknown))}")
        ended = _undrain(admin, nodes)
    if as_json:
        print_json({"undrained": ended})
    elif ended:
        say(f"broker {', '.join(map(str, ended))} may get new replicas again")
    else:
        say("none of these brokers was drained")


def _undrain(admin: Admin, nodes: Collection[int]) -> list[int]:
    """Uncordon the brokers. Returns those that were cordoned."""
    cordoned = {int(broker.node_id) for broker in admin.describe_cluster().brokers if broker.cordoned}
    ended = sorted(cordoned.intersection(nodes))
    uncordon(admin, ended)
    return ended


def _drain(admin: Admin, gone: Collection[int], pace: Pace, *, dead: bool, as_json: bool) -> Outcome:
    """Plan and move until nothing is left, because topics may be created in the meantime."""
    moved = Outcome()
    for _ in range(ROUNDS_MAX):
        found = overview_of(admin)
        wanted = drain_plan(admin, found, gone, dead=dead)
        also = [at for at, one in found.ongoing.items() if not set(gone).isdisjoint(one.removing_replicas)]
        if open_ones := [node for node in gone if node in found.brokers and not found.brokers[node].cordoned]:
            cordon(admin, open_ones)
        elif not (wanted or also):
            return moved
        if not as_json:
            _say_plan(found, wanted, as_json)
        moved.add(Mover(admin, found, wanted, pace, telling(as_json), also=also).run())
        moved.check()
    raise CommandFailed(
        f"expected brokers without replicas after {ROUNDS_MAX} plans, found {names_of(wanted.keys() | set(also))}: "
        "something keeps putting replicas on them; run it again"
    )


def _say_plan(found: Overview, wanted: Assignment, as_json: bool) -> None:
    cost = cost_of(found.parts(), wanted)
    targets = sorted({node for at, replicas in wanted.items() for node in set(replicas) - set(found.before(at))})
    if as_json:
        print_json(
            {"partitions": len(wanted), "replicas": cost.replicas, "bytes": cost.size, "to": targets,
             "under_way": len(found.ongoing)}
        )  # fmt: skip
        return
    if wanted:
        onto = ", ".join(map(str, targets))
        say(f"to move: {count_of(cost.replicas, 'replica')}, {megabytes(cost.size)}, to broker {onto}")
    if found.ongoing:
        say(f"already in progress: {names_of(found.ongoing)}")
