"""``--set name=value``, for settings on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
CLIENT_TAKEN: Final[Mapping[str, str]] = MappingProxyType({"bootstrap_servers": "use --bootstrap"})
"""Client settings that have their own option."""


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


def options(*given: Callable[[F], F]) -> Callable[[F], F]:
    """Give a command all of these; its help begins with the last one."""

    def give(command: F) -> F:
        for option in given:
            command = option(command)
        return command

    return give


def settings_option(text: str, name: str = "--set", *, taken: Mapping[str, str] = EMPTY) -> Callable[[F], F]:
    """Give a command ``--set name=value``; it receives ``settings`` as a dictionary. ``taken``: settings that the
    command itself sets, each with what to use instead."""

    def read(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
        found = parse_settings(value)
        for given in found:
            if (instead := taken.get(given.replace(".", "_"))) is not None:
                raise click.BadParameter(f"{given}: expected another setting; {instead}")
        return found

    return click.option(name, "settings", multiple=True, metavar="NAME=VALUE", callback=read, help=text)
