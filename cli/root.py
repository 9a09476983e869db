"""The command tree: sub-commands are imported on demand; errors become one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Final

import click

import tidelog
from tidelog.cli.failure import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed
from tidelog.model.errors import TidelogError
from tidelog.model.escaping import escaped
from tidelog.model.settings.config_def import ConfigError

CONNECTING: Final = ("bootstrap", "profile")
"""The connection options that commands also define themselves (:mod:`tidelog.cli.terminal.connection`)."""

_COMMANDS: Final = {
    "server": ("nodes.server:server", "Run one node in the foreground."),
    "status": ("nodes.status:status", "Show whether the cluster is healthy, and what to do if not."),
    "cluster": ("nodes.cluster:cluster", "Start, watch, break and stop a cluster on this machine."),
    "quorum": ("nodes.quorum:quorum", "Recover a cluster that lost most of its controllers' disks."),
    "metadata-shell": (
        "nodes.metadata_shell:metadata_shell",
        "Browse a controller's metadata directory like a file system.",
    ),
    "topics": ("administration.topics:topics", "List, create, describe, grow and delete topics."),
    "groups": (
        "coordination.groups:groups",
        "List and describe consumer groups, reset their offsets, delete them.",
    ),
    "transactions": (
        "coordination.transactions:transactions",
        "List and describe transactions, find and end hanging ones.",
    ),
    "lineage": (
        "coordination.lineage:lineage",
        "Show which programs read from which topics and write to which.",
    ),
    "acls": ("access.acls:acls", "List, add and remove access control lists."),
    "quotas": ("access.quotas:quotas", "Show and change quotas of users, client ids and addresses."),
    "users": ("access.users:users", "List users with passwords; set and delete passwords."),
    "login": ("access.login:login", "Try a password at a cluster, and keep it in the cluster's profile."),
    "tokens": ("access.tokens:tokens", "Create, renew, expire and list delegation tokens."),
    "connections": ("access.connections:connections", "List the connections to brokers; close them."),
    "configs": ("administration.configs:configs", "Show and change settings of topics, groups and brokers."),
    "client-metrics": (
        "administration.client_metrics:client_metrics",
        "Subscribe to metrics that Kafka clients push.",
    ),
    "brokers": (
        "placement.brokers:brokers",
        "List brokers, drain one, forget brokers that are gone for good.",
    ),
    "log-dirs": (
        "placement.log_dirs:log_dirs",
        "Show brokers' log directories; move replicas from one disk to another.",
    ),
    "features": ("administration.features:features", "Show feature levels, finalize or undo an upgrade."),
    "reassign": (
        "placement.reassign:reassign",
        "Move replicas of partitions to other brokers, with a throttle.",
    ),
    "rebalance": (
        "placement.rebalance:rebalance",
        "Balance bytes and leaders across the brokers: propose a plan, carry it out.",
    ),
    "elect": ("placement.elect:elect", "Elect preferred leaders, or any leader where there is none."),
    "metrics": (
        "administration.metrics:metrics",
        "Print Prometheus alerting rules and a Grafana dashboard.",
    ),
    "profile": ("administration.profile:profile", "Name clusters and store how to connect to each."),
    "backup": ("administration.backup:backup", "Back up a cluster into a directory; check and show backups."),
    "links": ("administration.links:links", "Keep topics of another cluster up to date here; promote them."),
    "restore": ("administration.backup:restore", "Restore a backup into a new cluster."),
    "plan": ("administration.plan:plan_command", "Calculate how many nodes a load needs, and what limits it."),
    "security": ("access.security:security", "Make TLS certificates for nodes and users."),
    "produce": ("records.produce:produce", "Send lines from a file or standard input as records."),
    "consume": ("records.consume:consume", "Print the records of a topic."),
    "dlq": ("records.dlq:dlq", "Inspect, redrive and delete dead letters."),
    "replay": ("records.replay:replay", "Read a part of a topic again: through a new group, or as a copy."),
    "trace": ("records.trace:trace", "Show what became of a message, from topic to topic."),
    "delay": ("records.delay:delay", "Show what waits in a delay topic; cancel it."),
    "verifiable-producer": (
        "records.verifiable:verifiable_producer",
        "Send numbers and report each acknowledgement, as JSON.",
    ),
    "verifiable-consumer": (
        "records.verifiable:verifiable_consumer",
        "Read as a group member and report records and commits, as JSON.",
    ),
    "log": ("nodes.log:log", "Inspect the log files of a stopped or running node."),
    "perf": ("records.perf:perf", "Measure a cluster's throughput and latency."),
}
"""Name → its module below ``cli/commands``, and its line in the list of commands (which must not import anything)."""

PLUGIN_GROUP: Final = "tidelog.commands"
"""Entry points in other distributions and in folders above this one, e.g. ``demo``."""


class _ReaderLeft(Exception):
    """The reader of our output closed the pipe (``| head``). A separate type, because click would exit with 1."""


class _Tree(click.Group):
    """Finds commands by name without importing the others."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise _ReaderLeft from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            found = super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as unknown:  # click suggests only what it has imported
            raise click.exceptions.NoSuchCommand(
                unknown.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None
        given = [name for name in CONNECTING if ctx.params.get(name) is not None]
        if given and not ctx.resilient_parsing:
            _check_connects(ctx, args, given[0])
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(point.name for point in entry_points(group=PLUGIN_GROUP))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _COMMANDS:
            module, _, attribute = f"tidelog.cli.commands.{_COMMANDS[name][0]}".partition(":")
            return _as_command(getattr(importlib.import_module(module), attribute))
        for point in entry_points(group=PLUGIN_GROUP, name=name):
            return _as_command(point.load())
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, summary) in _COMMANDS.items()]
        for name in self.list_commands(ctx)[len(_COMMANDS) :]:
            command = self.get_command(ctx, name)
            rows.append((name, command.get_short_help_str(80) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _check_connects(ctx: click.Context, words: Sequence[str], given: str) -> None:
    """Refuse an address before a command that cannot use one, instead of ignoring it."""
    command, path = ctx.command, ctx.command_path
    for word in words:
        found = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, path = found, f"{path} {word}"
    if not isinstance(command, click.Group) and all(option.name != given for option in command.params):
        raise click.UsageError(f"expected no --{given}: {path} does not connect to a cluster", ctx)


def _as_command(found: object) -> click.Command:
    if not isinstance(found, click.Command):
        raise CommandFailed(f"expected a click command, found {found!r}")
    return found


@click.group(cls=_Tree, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(tidelog.__version__, prog_name="tidelog")
@click.option("--bootstrap", "-b", metavar="HOST:PORT,...", help="For the command, which also accepts it.")
@click.option("--profile", metavar="NAME", help="Likewise.")
def tree(bootstrap: str | None, profile: str | None) -> None:
    """A replicated event log with Kafka's guarantees.

    To get started: `tidelog cluster start`, then `produce`, `consume`, and `tidelog cluster stop`.
    """


def run(arguments: Sequence[str], command: click.Command = tree, name: str = "tidelog") -> int:
    """Run one command, or the ``command`` called ``name``; return its exit code. Any error is one line on stderr."""
    try:
        result = command.main(list(arguments), prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as unsaid:
        click.echo(unsaid.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as wrong:
        context = getattr(wrong, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context is not None else ""
        return _say(wrong.format_message() + hint, wrong.exit_code)
    except ConfigError as wrong:
        return _say(str(wrong), EXIT_USAGE)
    except CommandFailed as failed:
        return _say(str(failed), EXIT_FAILURE)
    except TidelogError as failed:
        return _say(f"{failed.code.name}: {failed}" if str(failed) != failed.code.name else str(failed), EXIT_FAILURE)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except MemoryError:
        return _say("out of memory: this command needs more than is available; request less at a time", EXIT_FAILURE)
    except UnicodeEncodeError as wrong:
        return _say(f"expected UTF-8, found {wrong.object[:80]!r}", EXIT_USAGE)
    except _ReaderLeft:
        # Python would complain about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as failed:
        place = f"{os.fsdecode(failed.filename)}: " if isinstance(failed.filename, str | bytes) else ""
        return _say(f"{place}{failed.strerror or failed}", EXIT_FAILURE)


def _say(text: str, code: int) -> int:
    click.echo(escaped(f"tidelog: {' '.join(text.split())}"), err=True)
    return code
