"""``--set name=value``, wherever settings are given on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def parse_settings(items: tuple[str, ...]) -> dict[str, str]:
    """Read ``name=value`` items. Raises ``click.BadParameter``."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"expected name=value, found {item!r}")
        if name.strip() in found:
            raise click.BadParameter(f"expected each setting once, found {name.strip()} twice")
        found[name.strip()] = value
    return found


def settings_option(text: str, name: str = "--set") -> Callable[[F], F]:
    """Give a command ``--set name=value``; it receives ``settings`` as a dictionary."""

    def read(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
        return parse_settings(value)

    return click.option(name, "settings", multiple=True, metavar="NAME=VALUE", callback=read, help=text)
