"""``tidelog drill``: runs a drill, shows it, and reports the verdict as its exit code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tidelog.chaos.drill import report
from tidelog.chaos.drill.drills import DRILLS, Drill
from tidelog.chaos.drill.machines import MachineReach, find_machines
from tidelog.chaos.drill.objectives import CONTROLLER_S, LEADER_S, WHOLE_S, Limits
from tidelog.chaos.drill.reach import STOP_S, CommandReach, HandReach, ProcessReach, Reach, Say
from tidelog.chaos.drill.run import HEALTHY_S, Asked, check_healthy, hold, planned, survey
from tidelog.chaos.drill.target import Found, bootstrap_of, find_local, make
from tidelog.chaos.drill.traffic import Load
from tidelog.chaos.laboratory.processes.secured import secure
from tidelog.chaos.laboratory.upgrade.release import begin_with
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster, rack_of
from tidelog.cli.terminal.connection import require_listener, running_cluster_option, secured
from tidelog.cli.terminal.output import count_of, json_option, print_json
from tidelog.cli.terminal.settings import settings_option
from tidelog.client.config.security import SecuritySettings
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NO_NODE
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.transport.network import Address
from tidelog.testing.secured import ADMIN, KINDS

EXIT_MISSED: Final = 1
EXIT_NOT_HELD: Final = 2
BROKERS_MAX: Final = 6
AWAY_S: Final = 5.0


class NotHeld(click.ClickException):
    """The drill could not be run, or not to its end; the text says why and what to do."""

    exit_code = EXIT_NOT_HELD


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all drills share."""

    bootstrap: str | None
    confirm: str | None
    directory: Path | None
    nodes: int
    settings: Mapping[str, str]
    security: str | None
    by_hand: bool
    stop_command: str | None
    start_command: str | None
    fill_command: str | None
    free_command: str | None
    leader_within: float
    controller_within: float
    whole_within: float
    away: float
    rate: float
    plot: Path | None
    dry_run: bool
    as_json: bool
    from_release: str = sys.executable
    to_release: str = sys.executable


_OPTIONS: Final = (
    running_cluster_option("Run the drill on this running cluster. Default: on a temporary cluster of its own."),
    click.option("--confirm", metavar="CLUSTER", help="Confirm the cluster at --bootstrap by its id or its directory."),
    click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="Create the cluster here and keep it; with --bootstrap: that cluster's directory on this machine.",
    ),
    click.option(
        "--nodes",
        type=click.IntRange(3, BROKERS_MAX),
        default=3,
        show_default=True,
        help="Number of brokers in a new cluster.",
    ),
    settings_option("A setting for every node of a new cluster; repeatable."),
    click.option(
        "--security",
        type=click.Choice(tuple(KINDS)),
        help="Secure a new cluster by certificates, passwords or both, with access control.",
    ),
    click.option("--by-hand", is_flag=True, help="Tell you what to do to which node, and wait until it takes effect."),
    click.option("--stop-command", metavar="TEMPLATE", help="Command to stop node {node}; {signal} is KILL or TERM."),
    click.option("--start-command", metavar="TEMPLATE", help="Command to start node {node}."),
    click.option("--fill-command", metavar="TEMPLATE", help="Command to fill the disk of node {node}."),
    click.option("--free-command", metavar="TEMPLATE", help="Command to free that disk space again."),
    click.option(
        "--leader-within",
        type=click.FloatRange(0, min_open=True),
        default=LEADER_S,
        show_default=True,
        help="Objective: seconds until a partition takes records again.",
    ),
    click.option(
        "--controller-within",
        type=click.FloatRange(0, min_open=True),
        default=CONTROLLER_S,
        show_default=True,
        help="Objective: seconds until metadata changes are committed again.",
    ),
    click.option(
        "--whole-within",
        type=click.FloatRange(0, min_open=True),
        default=WHOLE_S,
        show_default=True,
        help="Objective: seconds from a node's start until every replica is in sync.",
    ),
    click.option(
        "--away",
        type=click.FloatRange(0, 600),
        default=AWAY_S,
        show_default=True,
        help="Seconds that nodes stay away, in drills that keep them away.",
    ),
    click.option(
        "--rate", type=click.FloatRange(10, 5_000), default=200.0, show_default=True, help="Records to send per second."
    ),
    click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Plot the drill."),
    click.option("--dry-run", is_flag=True, help="Check the cluster and show the plan, but do nothing."),
    json_option,
)


_RELEASES: Final = (
    click.option(
        "--from",
        "from_release",
        metavar="PYTHON",
        default=sys.executable,
        help="Python of the release that a new cluster starts with. Default: this one.",
    ),
    click.option(
        "--to",
        "to_release",
        metavar="PYTHON",
        default=sys.executable,
        help="Python of the release to move nodes on this machine to. Default: this one.",
    ),
)


@click.group(short_help="Run a drill: a deliberate fault, watched, measured and undone.")
def drill() -> None:
    """Run a drill: cause a fault on purpose, watch it, measure its effects, undo it, and judge the result.

    The drill runs on a temporary cluster of its own, or on a running one (--bootstrap, --confirm). Exit code 0: every
    objective was met; 1: at least one was missed; 2: the drill could not run.
    """


def _command(one: Drill) -> click.Command:
    def held(**given: Any) -> int:
        return _hold(one, Options(**given))

    wrapped: Callable[..., int] = held
    for option in reversed((*_OPTIONS, *(_RELEASES if one.between_releases else ()))):
        wrapped = option(wrapped)
    return click.command(one.name, help=one.summary, short_help=one.summary)(wrapped)


for _one in DRILLS.values():
    drill.add_command(_command(_one))


def _hold(one: Drill, options: Options) -> int:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # on the way out, everything is undone
    try:
        _check(options)
        say = report.Voice(err=options.as_json)
        if options.bootstrap is None:
            return _on_made(one, options, say)
        return _on_running(one, options, say, options.bootstrap)
    except (CommandFailed, ConfigError) as failed:
        raise NotHeld(" ".join(str(failed).split())) from None
    except TidelogError as failed:
        raise NotHeld(f"the drill broke off: {type(failed).__name__}: {failed}") from None
    except OSError as failed:
        raise NotHeld(f"the drill broke off: {failed or type(failed).__name__}") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(options: Options) -> None:
    """Reject invalid combinations before anything is done."""
    if options.bootstrap is None:
        for name, value in (
            ("--confirm", options.confirm),
            ("--by-hand", options.by_hand),
            ("--stop-command", options.stop_command),
            ("--start-command", options.start_command),
            ("--fill-command", options.fill_command),
            ("--free-command", options.free_command),
        ):
            if value:
                raise CommandFailed(
                    f"expected {name} with --bootstrap, which names a running cluster; without "
                    "--bootstrap the drill makes a cluster of its own"
                )
    elif options.settings or options.security:
        found = "--set" if options.settings else "--security"
        raise CommandFailed(f"expected {found} only without --bootstrap: it is for a cluster that the drill creates")
    if options.bootstrap is not None and options.from_release != sys.executable:
        raise CommandFailed("expected --from only without --bootstrap: a running cluster has its release")
    if shutil.which(options.to_release) is None:
        raise CommandFailed(f"--to: expected the Python of an installed release, found {options.to_release}")
    if bool(options.stop_command) != bool(options.start_command):
        raise CommandFailed("expected --stop-command and --start-command together, found one of them")
    if options.by_hand and options.stop_command:
        raise CommandFailed("expected either --by-hand or commands, found both")
    if options.plot is not None:
        if importlib.util.find_spec("PIL") is None:
            raise CommandFailed("--plot needs Pillow, which is not installed: pip install 'tidelog[picture]'")
        if not options.plot.absolute().parent.is_dir():
            raise CommandFailed(f"--plot: expected an existing directory, found none at {options.plot.parent}")
        if not os.access(options.plot.absolute().parent, os.W_OK):
            raise CommandFailed(f"--plot: {options.plot.parent} cannot be written to")


def _on_made(one: Drill, options: Options, say: Say) -> int:
    """Run on a cluster made for this drill. Its data is kept if requested, or if the drill failed."""
    if options.dry_run:
        controllers = (1, 2, 3) if one.apart else tuple(range(1, options.nodes + 1))
        brokers = {number + 3 * one.apart: Address("127.0.0.1", 0) for number in range(1, options.nodes + 1)}
        racks = {number: rack_of(number, one.racks) for number in brokers} if one.racks else {}
        _show_plan(one, options, say, Found("", brokers, controllers, NO_NODE, racks=racks))
        return 0
    root = options.directory or Path(tempfile.mkdtemp(prefix="tidelog-drill-"))
    cluster: LocalCluster | None = None
    keep = True
    try:
        cluster = make(root, options.nodes, options.settings, apart=one.apart, racks=one.racks)
        connecting = (
            secure(cluster, options.security).client_settings(ADMIN) if options.security else SecuritySettings()
        )
        controllers_too = ", with three separate controllers," if one.apart else ""
        if options.from_release != sys.executable:
            begin_with(cluster.nodes.values(), options.from_release)
        say(f"a cluster of {count_of(options.nodes, 'broker')}{controllers_too} is made in {root}")
        cluster.start()
        cluster.wait_ready()
        bootstrap = bootstrap_of(cluster, apart=one.apart)
        found = survey(bootstrap, connecting, HEALTHY_S)
        code = _go(one, options, say, bootstrap, connecting, ProcessReach(cluster, options.to_release), cluster, found)
        keep = code != 0
        return code
    except KeyboardInterrupt:
        keep = False
        raise
    finally:
        if cluster is not None:
            cluster.stop(timeout_s=STOP_S)
        if options.directory is None:
            if cluster is None or not keep:
                shutil.rmtree(root, ignore_errors=True)
            else:
                click.echo(f"Data and logs of the nodes: {root}", err=True)


def _on_running(one: Drill, options: Options, say: Say, bootstrap: str) -> int:
    """Run on a running cluster, which the operator has confirmed."""
    require_listener(bootstrap)
    connecting: SecuritySettings = secured()  # type: ignore[assignment]  # a file's settings, as text
    found = survey(bootstrap, connecting)
    local = find_local(found.cluster_id, options.directory)
    _check_confirmed(options, bootstrap, found, local)
    return _go(one, options, say, bootstrap, connecting, _reach(options, say, found, local), local, found)


def _check_confirmed(options: Options, bootstrap: str, found: Found, local: LocalCluster | None) -> None:
    names = [found.cluster_id]
    if local is not None:
        names.append(str(local.directory))
        if options.confirm and Path(options.confirm).absolute() == local.directory:
            return
    if options.confirm in names or options.dry_run:
        return
    what = f"The cluster at {bootstrap} has {count_of(len(found.brokers), 'broker')} and "
    what += count_of(len(found.topics), "topic")
    found_words = f"found --confirm {options.confirm}" if options.confirm else "found none"
    raise CommandFailed(
        f"a drill takes nodes of a running cluster away: expected --confirm with its id, {found_words}. {what}; if it "
        f"is the one that is meant: --confirm {' or '.join(names)}"
    )


def _reach(options: Options, say: Say, found: Found, local: LocalCluster | None) -> Reach:
    """Return the access to nodes: by hand or by commands if requested, otherwise by process."""
    if options.by_hand:
        return HandReach(found.brokers, say)
    if options.stop_command and options.start_command:
        return CommandReach(
            found.brokers,
            options.stop_command,
            options.start_command,
            options.fill_command or "",
            options.free_command or "",
            say,
        )
    if local is None and (machines := find_machines(found.cluster_id)):
        if elsewhere := sorted({*found.nodes}.difference(*(one.nodes for one in machines))):
            raise CommandFailed(
                f"expected every node of the cluster under `tidelog server --workers` on this host, found no process "
                f"of node {elsewhere[0]}: use --stop-command and --start-command, or --by-hand"
            )
        return MachineReach(found.brokers, machines)
    if local is None:
        raise CommandFailed(
            f"the nodes of cluster {found.cluster_id} are no processes of `tidelog cluster` or `tidelog server "
            "--workers` on this machine (if they are of the former, name its directory: --dir), so the drill cannot "
            "stop them: tell it how, as in --stop-command 'ssh broker-{node} systemctl kill --signal={signal} tidelog' "
            "--start-command 'ssh broker-{node} systemctl start tidelog', or do it yourself when told to: --by-hand"
        )
    return ProcessReach(local, options.to_release)


def _go(
    one: Drill,
    options: Options,
    say: Say,
    bootstrap: str,
    security: SecuritySettings,
    reach: Reach,
    local: LocalCluster | None,
    found: Found,
) -> int:
    """Examine the cluster, announce, run, report."""
    check_healthy(found, local)
    one.check(found, reach)
    say(f"drill {one.name} on cluster {found.cluster_id} at {bootstrap}:")
    _show_plan(one, options, say, found)
    if options.dry_run:
        return 0
    say("")
    limits = _limits(options)
    load = Load(per_s=options.rate, value_bytes=one.value_bytes)
    asked = Asked(one, bootstrap, reach, limits, load, options.away, local, security)
    held = hold(asked, found, lambda moment: say(report.moment_line(moment)))
    if options.as_json:
        print_json(report.as_json(held))
    else:
        report.print_held(held)
    if options.plot is not None:
        from tidelog.chaos.drill.picture import draw

        draw(options.plot, held)
        say(f"drawn: {options.plot}")
    return 0 if held.met else EXIT_MISSED


def _show_plan(one: Drill, options: Options, say: Say, found: Found) -> None:
    steps, objectives = planned(one, found, _limits(options), options.away)
    report.say_plan(say, steps, objectives)


def _limits(options: Options) -> Limits:
    return Limits(options.leader_within, options.controller_within, options.whole_within)
