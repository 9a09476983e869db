"""Numbers on the command line: finite, and within the range of the protocol's fields."""

from __future__ import annotations

import math
import re
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


_UNITS = {
    prefix + unit: factor
    for prefix, factor in {
        "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 2**10, "Mi": 2**20,
        "Gi": 2**30, "Ti": 2**40,
    }.items()
    for unit in ("", "B")
}  # fmt: skip


class Amount(click.ParamType[float]):
    """A finite number of at least 0, perhaps with a unit: 1e9, 1G, 500 MB, 16GiB. ``whole``: without a fraction."""

    name = "amount"

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int | float):
            return value
        found = re.fullmatch(r"([0-9.,_]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)", value.strip())
        try:
            if found is None or found[2] not in _UNITS:
                raise ValueError
            number = float(found[1].replace(",", "").replace("_", "")) * _UNITS[found[2]]
        except ValueError:
            self.fail(f"expected a number, such as 1e9, 1G or 16GiB, found {value!r}", param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, found {value!r}", param, ctx)
        if not self.whole:
            return number
        if number != int(number):
            self.fail(f"expected a whole number, found {value!r}", param, ctx)
        return int(number)
