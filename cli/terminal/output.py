"""Command output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from tidelog.model.escaping import escaped, escaped_json

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Give a command ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def say(line: str, *, err: bool = False) -> None:
    """Print one line for people. Names in it cannot start another line or control the terminal."""
    click.echo(escaped(line), err=err)


def json_line(value: object, *, indent: int | None = None) -> str:
    """Return JSON that is safe to print: non-ASCII text is readable, terminal control characters are escaped."""
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))


def print_json(value: object) -> None:
    click.echo(json_line(value, indent=2))


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table with numbers aligned right. Without a terminal, lines are never cut or wrapped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold"
    )
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(_numeric(row[at]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=1_000)
    with console.capture() as lines:
        console.print(table)
    text = lines.get()
    click.echo(
        text if console.is_terminal else "\n".join(map(str.rstrip, text.splitlines())), nl=not console.is_terminal
    )


_QUANTITY: Final = re.compile(r"[\d,.]+( [a-zA-Z]+)?|-|")
"""A number with or without a unit, or no number."""


def _numeric(cell: object) -> bool:
    return isinstance(cell, int | float) or cell is None or (isinstance(cell, str) and bool(_QUANTITY.fullmatch(cell)))


def count_of(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values, aligned."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        click.echo(f"{escaped(name):<{width}}  {shown(value)}")


def shown(value: object) -> str:
    """Return the text of a cell, on one line."""
    return escaped(_text(value))


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def megabytes(count: int | None) -> str:
    """Format bytes as MB with one digit, ``-`` for none."""
    return "-" if count is None or count < 0 else f"{count / 1e6:,.1f} MB"
