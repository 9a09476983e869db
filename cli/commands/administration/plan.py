"""``tidelog plan``: how many nodes a load needs, and what limits it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.terminal.connection import admin_client, require_listener, running_cluster_option, secured
from tidelog.cli.terminal.numbers import Amount, Seconds
from tidelog.cli.terminal.output import count_of, json_option, print_json, print_pairs, print_rows, say
from tidelog.cli.work.planner.answer import as_object, settings, volumes
from tidelog.cli.work.planner.coefficients import Coefficients, fitted, load, save
from tidelog.cli.work.planner.demand import LIMITS, Demand, DemandWrong, Machine, peak_of
from tidelog.cli.work.planner.live import (
    INTERVALS_LEAST,
    ClusterMetrics,
    Interval,
    fitted_to_cluster,
    found_error,
    watch,
)
from tidelog.cli.work.planner.measuring import CHECKS, LOADS, Load, Seen, campaign, kept_pace
from tidelog.cli.work.planner.model import Plan, Use, plan, what_if
from tidelog.cli.work.planner.shipped import SHIPPED

F = TypeVar("F", bound=Callable[..., Any])

CALIBRATE_S: Final = 8.0
INTERVALS: Final = 30


def _input_options(command: F) -> F:
    """Give a command an option for each input of the model."""
    for given in reversed((*fields(Demand), *fields(Machine))):
        name, default = given.name, given.default
        assert default is not MISSING
        if isinstance(default, bool):
            option = click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=given.metadata["doc"])
        else:
            shown = f"{default:,g}" if default and name != "records_a_day" else False
            option = click.option(
                f"--{name.replace('_', '-')}",
                name,
                type=Amount(whole=isinstance(default, int)),
                metavar="N",
                default=None if name == "records_a_day" else default,
                show_default=shown,
                help=given.metadata["doc"],
            )
        command = option(command)
    return command


@click.group(
    "plan", invoke_without_command=True, short_help="Calculate the nodes that a load needs, and what limits it."
)
@_input_options
@click.option(
    "--curve", metavar="N,...", help="Instead of --records-a-day and --peak-factor: records per hour for 24 hours."
)
@click.option(
    "--coefficients", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measured by `tidelog plan calibrate` on your machines.  [default: shipped with this version]",
)  # fmt: skip
@click.option(
    "--what-if", "varied", is_flag=True, help="Also vary each input by a fifth, and the load up to a hundredfold."
)
@json_option
def plan_command(
    curve: str | None,
    coefficients: Path | None,
    varied: bool,
    as_json: bool,
    records_a_day: float | None,
    **inputs: Any,
) -> None:
    """Calculate how many nodes a load needs, what limits it, and for how long that is enough. Contacts no cluster.

    Numbers may have a unit: 1G records, 500 bytes, 2TB of disk, 16GiB of memory.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        return
    costs = SHIPPED if coefficients is None else load(coefficients)
    if curve is not None:
        if records_a_day is not None or context.get_parameter_source("peak_factor") is not ParameterSource.DEFAULT:
            raise click.UsageError("expected either --curve or --records-a-day and --peak-factor, found both")
        records_a_day, inputs["peak_factor"] = _curve(curve)
    if records_a_day is None:
        raise click.UsageError("expected --records-a-day or --curve, found neither; for example --records-a-day 1G")
    inputs["records_a_day"] = float(records_a_day)
    demand = Demand(**{one.name: inputs[one.name] for one in fields(Demand)})
    machine = Machine(**{one.name: inputs[one.name] for one in fields(Machine)})
    try:
        found = plan(demand, machine, costs)
    except DemandWrong as wrong:
        raise click.UsageError(str(wrong)) from None
    changes = what_if(demand, machine, costs) if varied else {}
    at_volumes = volumes(demand, machine, costs) if varied else {}
    if as_json:
        print_json(as_object(found, costs, changes, at_volumes))
    else:
        _show(found, costs, changes, at_volumes)


def _curve(text: str) -> tuple[float, float]:
    try:
        return peak_of([float(item) for item in text.split(",")])
    except ValueError as wrong:
        raise click.UsageError(f"--curve: {wrong}") from None


def _show(
    found: Plan, costs: Coefficients, changes: dict[str, tuple[int, int]], at_volumes: dict[int, int | None]
) -> None:
    demand, rates = found.demand, found.load
    nodes = count_of(found.nodes, "node")
    where = f" on {count_of(found.machines, 'machine')}" if found.machine.nodes_per_machine > 1 else ""
    say(f"{nodes}{where}; {found.binds} binds: {_percent(found.then[found.binds])} with {found.away} away")
    print_pairs(
        {
            "busiest hour": f"{rates.records_a_second:,.0f} records/s, {rates.peak_mb_s:,.1f} MB/s",
            "mean": f"{rates.mean_mb_s:,.1f} MB/s, {rates.bytes_a_record:,.0f} bytes a record on disk",
            "partitions": found.partitions,
            "files a node": found.files_a_node,
            "a lost disk": f"is copied anew in {found.rebuild_hours:,.1f} h",
            **({"price": f"{found.machines * found.machine.price:,.2f} a month"} if found.machine.price else {}),
        }
    )
    print_rows(
        ("a node uses", "all there", "share", f"{found.away} away", "share", "at most", "reached in"),
        [
            (
                name,
                _amount(now),
                _percent(now),
                _amount(found.then[name]),
                _percent(found.then[name]),
                f"{100 * LIMITS[name]:.0f} %",
                _days(demand, found.days_until[name]),
            )
            for name, now in found.now.items()
        ],
    )
    if found.binds == "processor" and found.machine.nodes_per_machine == 1:
        say("A node uses one core: machines with more can run several nodes (--nodes-per-machine).")
    say("Settings of the nodes:")
    for name, value in settings(found).items():
        say(f"  {name}={value}")
    for name, (less, more) in changes.items():
        say(f"{name.replace('_', '-')}: {_or_none(less)} with a fifth less, {_or_none(more)} with a fifth more")
    if at_volumes:
        say("load: " + ", ".join(f"x{times} {_or_none(count)}" for times, count in at_volumes.items()))
    say(f"Costs of work: {costs.source}")


def _or_none(nodes: int | None) -> str:
    return count_of(nodes, "node") if nodes else "no number of nodes"


def _amount(use: Use) -> str:
    if use.unit == "bytes":
        return f"{use.amount / 1e9:,.2f} GB"
    return f"{use.amount:,.2f} {use.unit}".strip() if use.unit else f"{use.amount:,.0f}"


def _percent(use: Use) -> str:
    return f"{100 * use.share:,.1f} %"


def _days(demand: Demand, days: float | None) -> str:
    if demand.growth_a_year <= 0:
        return "-"
    return "over 20 years" if days is None else f"{days:,.0f} days"


@plan_command.command(short_help="Measure the cost of work on this machine, on a throw-away cluster.")
@click.option("--seconds", type=Seconds(2.0), default=CALIBRATE_S, show_default=True, help="Duration of each load.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("coefficients.json"), show_default=True,
    help="Where to write the measurements; --coefficients reads them.",
)  # fmt: skip
@click.option(
    "--intervals", type=click.IntRange(INTERVALS_LEAST, 10_000), default=INTERVALS, show_default=True,
    help="With --bootstrap: how often to look, each time after --seconds.",
)  # fmt: skip
@running_cluster_option("A running cluster: take the costs of what it does from its metrics instead.")
@json_option
def calibrate(seconds: float, output: Path, intervals: int, bootstrap: str | None, as_json: bool) -> None:
    """Start three nodes in a temporary directory, run some loads, write down their costs, and remove the nodes.

    It measures processor time, not speed, so other programs disturb it little. Loads that the fit does not use show how
    well it predicts.

    With --bootstrap (or --profile) it starts nothing: it reads the metrics of all brokers of that cluster for a while
    and scales the costs to the processor time that they used.
    """
    if bootstrap is not None:
        _calibrate_by(bootstrap, seconds, intervals, output, as_json)
        return
    found = []
    with tempfile.TemporaryDirectory(prefix="tidelog-plan-") as directory:
        for number, (given, seen) in enumerate(campaign(Path(directory), LOADS + CHECKS, seconds), 1):
            found.append((given, seen))
            if not as_json:
                say(f"{number} of {len(LOADS + CHECKS)} loads: {seen.cores:.3f} cores", err=True)
    costs = fitted([seen for given, seen in found if _fits(given, seen)], SHIPPED, f"measured into {output.name}")
    save(costs, output)
    rows = [
        {"load": given._asdict(), "cores": seen.cores, "predicted": costs.predicted(seen), "fitted": _fits(given, seen)}
        for given, seen in found
    ]
    if as_json:
        print_json({"output": str(output), "coefficients": asdict(costs), "loads": rows})
        return
    print_rows(
        ("batches/s", "bytes", "copies", "readers", "cores", "predicted", "error", "used for the fit"),
        [(*_load_row(given, seen, costs.predicted(seen)), _fits(given, seen)) for given, seen in found],
    )
    say(f"written to {output}: tidelog plan --coefficients {output} ...")


def _calibrate_by(bootstrap: str, seconds: float, count: int, output: Path, as_json: bool) -> None:
    require_listener(bootstrap)
    found: list[Interval] = []
    with admin_client(bootstrap) as admin:
        look = ClusterMetrics(admin, secured()).look
        for one in watch(look, SHIPPED, count, seconds):
            found.append(one)
            if not as_json:
                say(f"{len(found)} of {count} intervals: {one.seen.cores:.3f} cores", err=True)
    costs = fitted_to_cluster(found, SHIPPED, f"taken from the metrics of {bootstrap} into {output.name}")
    save(costs, output)
    errors = [found_error(one, costs) for one in found]
    if as_json:
        seen = [one.seen._asdict() for one in found]
        print_json({"output": str(output), "coefficients": asdict(costs), "intervals": seen, "errors": errors})
        return
    say(
        f"a batch costs {costs.append_s / SHIPPED.append_s:.2f} times what it costs by default, an idle node "
        f"{costs.idle_cores / SHIPPED.idle_cores:.2f} times; single intervals differ from that by up to "
        f"{100 * max(map(abs, errors)):.0f} %"
    )
    say(f"written to {output}: tidelog plan --coefficients {output} ...")


def _fits(given: Load, seen: Seen) -> bool:
    return given in LOADS and kept_pace(given, seen)


def _load_row(given: Load, seen: Seen, predicted: float) -> tuple[Any, ...]:
    error = f"{100 * (predicted / seen.cores - 1):+.0f} %"
    return (
        given.batches,
        given.batch_bytes,
        given.copies,
        given.readers,
        f"{seen.cores:.3f}",
        f"{predicted:.3f}",
        error,
    )
