"""Parses the options of the laboratory's commands, with an error for invalid ones."""

from __future__ import annotations

from tidelog.chaos.laboratory.faults.nemesis import plan
from tidelog.chaos.laboratory.faults.schedule import Step
from tidelog.cli.failure import CommandFailed


def seeds_of(text: str, option: str = "--seed") -> list[int]:
    """Read ``7`` or ``1-12``. Like all functions here, it raises :class:`CommandFailed`."""
    first, _, last = text.partition("-")
    try:
        found = list(range(int(first), int(last or first) + 1))
    except ValueError:
        found = []
    if not found:
        raise CommandFailed(f"{option}: expected a number, or first-last, found {text!r}")
    return found


def schedule_of(seed: int, seconds: float, nemesis: str) -> list[Step]:
    """Return the schedule of a seed for nemeses separated by commas."""
    try:
        return plan(seed, seconds, [name for name in nemesis.split(",") if name])
    except (ValueError, IndexError) as error:
        raise CommandFailed(f"--nemesis {nemesis}: {error}") from None


def setting_of(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandFailed(f"--set: expected NAME=VALUE, found {text!r}")
    return name, value
