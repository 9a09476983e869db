"""The command's tree: sub-commands are imported when they are asked for; errors become one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Final

import click

import tidelog
from tidelog.cli.failure import CommandFailed
from tidelog.cli.main import EXIT_INTERRUPTED
from tidelog.model.config_def import ConfigError
from tidelog.model.errors import TidelogError

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_COMMANDS: Final = {
    "server": ("tidelog.cli.server:server", "Run one node in the foreground."),
    "cluster": ("tidelog.cli.cluster:cluster", "Start, watch, hurt and stop a cluster on this machine."),
    "topics": ("tidelog.cli.topics:topics", "List, create, describe, grow and delete topics."),
    "groups": ("tidelog.cli.groups:groups", "List and describe consumer groups, reset their offsets, delete them."),
    "transactions": (
        "tidelog.cli.transactions:transactions",
        "List and describe transactions, find those that hang, end them.",
    ),
    "configs": ("tidelog.cli.configs:configs", "Show and change settings of topics and brokers."),
    "reassign": ("tidelog.cli.reassign:reassign", "Move replicas of partitions to other brokers, with a throttle."),
    "elect": ("tidelog.cli.elect:elect", "Elect leaders: the preferred ones, or any where there is none."),
    "produce": ("tidelog.cli.produce:produce", "Send lines of a file or of standard input as records."),
    "consume": ("tidelog.cli.consume:consume", "Print records of a topic."),
    "log": ("tidelog.cli.log:log", "Look into the log files of a stopped or running node."),
    "perf": ("tidelog.cli.perf:perf", "Measure throughput and latency of a cluster."),
}
"""Name → where it is, and its line in the list of commands (which must not import anything)."""

PLUGIN_GROUP: Final = "tidelog.commands"
"""Entry points of other distributions and of folders above this one, e.g. ``demo``."""


class _ReaderLeft(Exception):
    """Whoever read our output has had enough (``| head``). A type of its own, because click would exit with 1."""


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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(point.name for point in entry_points(group=PLUGIN_GROUP))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _COMMANDS:
            module, _, attribute = _COMMANDS[name][0].partition(":")
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


def _as_command(found: Any) -> click.Command:
    if not isinstance(found, click.Command):
        raise CommandFailed(f"expected a click command, found {found!r}")
    return found


@click.group(cls=_Tree, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(tidelog.__version__, prog_name="tidelog")
def tree() -> None:
    """A replicated event log with Kafka's guarantees.

    To begin with: `tidelog cluster start`, then `produce`, `consume`, and `tidelog cluster stop`.
    """


def run(arguments: Sequence[str], command: click.Command = tree, name: str = "tidelog") -> int:
    """Run one command, or the ``command`` called ``name``; return its exit code. Everything that went wrong is one
    line on stderr."""
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
    click.echo(f"tidelog: {' '.join(text.split())}", err=True)
    return code
