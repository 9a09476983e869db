"""What commands that move replicas share: options, how they end, and cancelling."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import print_json, say
from tidelog.cli.terminal.settings import options
from tidelog.cli.work.replicas.moving import cancel, clear_throttles, name_of, names_of
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin

AT_ONCE: Final = 20


pace_options: Final = options(
    click.option(
        "--at-once", type=click.IntRange(1, INT32_MAX), default=AT_ONCE, show_default=True, metavar="N",
        help="How many partitions to move at a time.",
    ),
    click.option(
        "--throttle", type=click.IntRange(1, INT64_MAX), metavar="BYTES/S",
        help="How fast each broker may send to, and fetch for, replicas that are catching up.",
    ),
)  # fmt: skip
"""Give a command ``--throttle`` and ``--at-once``."""


def telling(as_json: bool) -> Callable[[str], None]:
    """Return a function that reports progress to people."""
    return (lambda _: None) if as_json else say


def lift_throttle(admin: Admin) -> bool:
    """Remove the throttle, unless something else is still moving. Returns whether it was removed."""
    if admin.list_partition_reassignments():
        return False
    clear_throttles(admin)
    return True


def take_back(admin: Admin, places: Collection[TopicPartition], as_json: bool) -> None:
    """Cancel these moves, then remove the throttle."""
    cancel(admin, places)
    lifted = lift_throttle(admin)
    if as_json:
        print_json({"cancelled": [name_of(at) for at in sorted(places)], "throttles_removed": lifted})
        return
    say(f"cancelled: {names_of(places)}" if places else "nothing to cancel: none of these moves is in progress")
    say("the throttle is removed" if lifted else "the throttle is kept: other partitions are still moving")
