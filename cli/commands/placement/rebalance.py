"""``tidelog rebalance``: balances bytes, leaders and traffic across the brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.commands.placement.moves import lift_throttle, pace_options, take_back, telling
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say
from tidelog.cli.work.replicas.moving import Mover, Pace, names_of
from tidelog.cli.work.replicas.placement import Overview, overview_of, rates_of
from tidelog.cli.work.replicas.reassignment_plan import as_file
from tidelog.cli.work.replicas.safe_moves import unmovable
from tidelog.cli.work.replicas.spreading import Assignment, cost_of, rebalanced

if TYPE_CHECKING:
    from tidelog import Admin

TOLERANCE_PERCENT: Final = 10
WINDOW_S: Final = 3_600


@click.command(short_help="Balance bytes, leaders and traffic across the brokers: propose a plan, carry it out.")
@click.option("--execute", is_flag=True, help="Carry out the plan; otherwise only show it.")
@click.option("--cancel", "cancels", is_flag=True, help="Cancel all of the cluster's moves in progress.")
@click.option(
    "--tolerance", type=click.IntRange(0, 100), default=TOLERANCE_PERCENT, show_default=True, metavar="PERCENT",
    help="How far a broker's bytes, and bytes written to it, may be from the average.",
)  # fmt: skip
@click.option(
    "--window", type=click.IntRange(60, 7 * 24 * 3_600), default=WINDOW_S, show_default=True, metavar="SECONDS",
    help="How far back to look at traffic.",
)  # fmt: skip
@pace_options
@cluster_options
def rebalance(
    execute: bool,
    cancels: bool,
    tolerance: int,
    window: int,
    throttle: int | None,
    at_once: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Balance bytes, leaders and traffic across the live brokers, after one was added or a topic grew.

    The plan moves as few bytes as possible to bring each broker within the tolerance, and never crowds a rack. It then
    balances leaders: their number, and the bytes written to them in the last hour. Partitions that are moving, or whose
    replicas are not all in sync, are left alone. --execute carries the plan out, some partitions at a time; Ctrl-C
    leaves moves in progress running, and the next plan starts from there.
    """
    if execute and cancels:
        raise click.UsageError("expected either --execute or --cancel")
    with admin_client(bootstrap) as admin:
        if cancels:
            take_back(admin, admin.list_partition_reassignments(), as_json)
            return
        found = overview_of(admin)
        if len(found.targets) < 2:
            drained = sum(broker.cordoned for broker in found.brokers.values())
            beside = f" beside {drained} that are drained" if drained else ""
            raise CommandFailed(
                f"expected at least two live brokers, found {len(found.targets)}{beside}: start or add some"
            )
        found = _with_rates(admin, found, window)
        stay = unmovable(found)
        wanted = rebalanced(found.parts(), found.targets, tolerance / 100, stay)
        plan = _described(found, wanted)
        if not as_json:
            _say(plan, found, tolerance, len(stay))
        if not execute:
            if as_json:
                print_json(plan | {"stay": len(stay), "proposal": as_file(wanted)})
            elif wanted:
                say("nothing was moved: use --execute to carry this out")
            return
        mover = Mover(admin, found, wanted, Pace(throttle, at_once), telling(as_json), also=found.ongoing)
        moved = mover.run()
        moved.check()
        lifted = lift_throttle(admin)
    if as_json:
        print_json(plan | {"stay": len(stay), "moved": len(moved.done), "throttles_removed": lifted})
        return
    say(f"moved {count_of(len(moved.done), 'partition')}, {megabytes(moved.size)}")
    if moved.changed:
        say(f"left alone, because somebody else changed them in the meantime: {names_of(moved.changed)}")


def _with_rates(admin: Admin, found: Overview, window_s: int) -> Overview:
    from tidelog.client.errors import TidelogError

    try:
        return found._replace(rates=rates_of(admin, found, window_s))
    except TidelogError as error:
        say(f"traffic is unknown, so leaders are balanced by number alone: {error}", err=True)
        return found


def _described(found: Overview, wanted: Assignment) -> dict[str, Any]:
    """Return, by broker, what it has and leads before and after, and the cost of the change."""
    parts = found.parts()
    replicas, bytes_ = (Counter[int](), Counter[int]()), (Counter[int](), Counter[int]())
    for at, part in parts.items():
        for index, nodes in enumerate((part.replicas, wanted.get(at, part.replicas))):
            for node in nodes:
                replicas[index][node] += 1
                bytes_[index][node] += part.size
    leaders = (
        Counter(placed.leader for placed in found.placed.values()),
        Counter(wanted.get(at, part.replicas)[0] for at, part in parts.items()),
    )
    rates = (
        _led((placed.leader, parts[at].rate) for at, placed in found.placed.items()),
        _led((wanted.get(at, part.replicas)[0], part.rate) for at, part in parts.items()),
    )
    cost = cost_of(parts, wanted)
    return {
        "brokers": [
            {
                "node": target.node, "rack": target.rack,
                **{
                    when: {
                        "replicas": replicas[index][target.node], "leaders": leaders[index][target.node],
                        "bytes": bytes_[index][target.node], "bytes_per_second": rates[index][target.node],
                    }
                    for index, when in enumerate(("before", "after"))
                },
            }
            for target in found.targets
        ],
        "partitions": len(wanted), "replicas": cost.replicas, "bytes": cost.size,
    }  # fmt: skip


def _led(rates: Iterable[tuple[int, int]]) -> Counter[int]:
    found = Counter[int]()
    for node, rate in rates:
        found[node] += rate
    return found


def _say(plan: dict[str, Any], found: Overview, tolerance: int, stay: int) -> None:
    columns = ("broker", "rack", "replicas", "after", "leaders", "after", "data", "after", "written/s", "after")
    print_rows(
        columns,
        [
            (
                row["node"], row["rack"], row["before"]["replicas"], row["after"]["replicas"],
                row["before"]["leaders"], row["after"]["leaders"],
                megabytes(row["before"]["bytes"]), megabytes(row["after"]["bytes"]),
                megabytes(row["before"]["bytes_per_second"]), megabytes(row["after"]["bytes_per_second"]),
            )
            for row in plan["brokers"]
        ],
    )  # fmt: skip
    click.echo()
    if plan["partitions"]:
        orders = "" if plan["replicas"] else ", only other preferred leaders"
        say(
            f"to move: {count_of(plan['replicas'], 'replica')} of {count_of(plan['partitions'], 'partition')}, "
            f"{megabytes(plan['bytes'])}{orders}"
        )
    else:
        say(f"nothing to move: each broker is within {tolerance} % of the average, or no move helps")
    if stay:
        say(f"{count_of(stay, 'partition')} left alone: replicas are already moving, or not all in sync")
