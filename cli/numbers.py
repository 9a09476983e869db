"""Numbers on the command line: within what the protocol's fields hold, and finite."""

from __future__ import annotations

import math
from typing import Any, Final

import click

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


class Seconds(click.FloatRange):
    """A finite number of seconds of at least ``min``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"expected a finite number of seconds, found {value!r}", param, ctx)
        return found
