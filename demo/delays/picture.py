"""The picture of the demo's second half: delays through the year, with the kill, and through the day."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from tidelog.demo.delays.canvas import SOFT, Axes, Canvas, Color

WIDTH: Final = 1600
HEIGHT: Final = 1160
CARRIERS_SHOWN: Final = 5
NEW_YORK: Final = timedelta(hours=-5)
"""Standard time, in which the days of the year begin."""
_BLUE: Final[Color] = (0, 90, 158)
_PALE: Final[Color] = (178, 206, 226)
_RED: Final[Color] = (200, 30, 30)
_ROSE: Final[Color] = (250, 222, 216)
_CARRIER_COLORS: Final[Sequence[Color]] = ((230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))
_HOURS_AXIS_MAX: Final = 90.0
_HOURS_AXIS_MIN: Final = -15.0


class Mean(NamedTuple):
    """Minutes of delay, and how many flights left."""

    minutes: int = 0
    departed: int = 0

    def with_row(self, row: Mapping[str, Any]) -> Mean:
        departed = row["flights"] - row["cancelled"]
        return Mean(self.minutes + (row["delay_minutes"] or 0), self.departed + departed)

    @property
    def value(self) -> float:
        return self.minutes / self.departed


def means(rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> dict[Any, Mean]:
    """Return mean delays by the key of each row; none if no flight left."""
    found: dict[Any, Mean] = defaultdict(Mean)
    for key, row in rows:
        found[key] = found[key].with_row(row)
    return {key: found[key] for key in sorted(found) if found[key].departed}


def draw(path: Path, values: Sequence[str], unseen: Sequence[str], batch: int, outcome: str) -> None:
    """Draw rows of topic ``delays`` (their JSON) into a PNG. ``unseen``: the rows that the killed driver had written of
    micro-batch ``batch``; ``outcome``: a few words on the comparison."""
    rows = [json.loads(value) for value in values]
    lost = sorted(_time(json.loads(value)["hour"]) for value in unseen)
    canvas = Canvas(WIDTH, HEIGHT)
    flights = sum(row["flights"] for row in rows)
    canvas.text(100, 26, "Departures from New York in 2013: delay by scheduled hour", size=32)
    canvas.text(
        100, 68,
        f"topic delays: {len(values):,} rows by carrier and hour, of {flights:,} flights; {outcome}",
        color=SOFT, size=20,
    )  # fmt: skip
    _draw_year(canvas, rows, lost, batch)
    _draw_day(canvas, rows)
    canvas.save(path)


def _draw_year(canvas: Canvas, rows: Sequence[Mapping[str, Any]], lost: Sequence[datetime], batch: int) -> None:
    times = {row["hour"]: _time(row["hour"]) for row in rows}
    first, last = min(times.values()), max(times.values())
    first, last = _month(first), max(_month(last + timedelta(days=27)), first + timedelta(days=1))
    axes = Axes(100, 190, WIDTH - 60, 620, (0.0, _days(first, last)), (_HOURS_AXIS_MIN, _HOURS_AXIS_MAX))
    if lost:
        canvas.band(axes, _days(first, lost[0]), _days(first, lost[-1]), _ROSE)
    months = [month for month in _months(first, last) if first <= month <= last]
    x_ticks = [(_days(first, month), f"{month:%b}" if month.month > 1 else f"{month:%b %Y}") for month in months]
    y_ticks = [(float(minutes), str(minutes)) for minutes in range(0, 91, 15)]
    canvas.frame(axes, x_ticks, y_ticks, "hour of the scheduled departure (UTC)", "mean delay at departure, minutes")
    hours = means((row["hour"], row) for row in rows)
    days = means(((times[row["hour"]] + NEW_YORK).date(), row) for row in rows)
    canvas.dots(axes, [(_days(first, times[hour]), mean.value) for hour, mean in hours.items()], _PALE, 1.6)
    noon = {day: datetime(day.year, day.month, day.day, 12, tzinfo=UTC) - NEW_YORK for day in days}
    canvas.line(axes, [(_days(first, noon[day]), mean.value) for day, mean in days.items()], _BLUE, 2.6)
    entries = [
        ("dots", _PALE, f"one hour, all carriers (above {_HOURS_AXIS_MAX:.0f}: at the edge)"),
        ("line", _BLUE, "one day"),
    ]
    canvas.legend(112, 112, entries)
    if lost:
        canvas.upright(axes, _days(first, lost[-1]), _RED, 2.6)
        killed = [
            ("dashes", _RED, f"driver killed with kill -9, micro-batch {batch} written and not decided"),
            ("band", _ROSE, f"hours of the {len(lost):,} rows it had written: seen by nobody, written again"),
        ]
        canvas.legend(620, 112, killed)


def _draw_day(canvas: Canvas, rows: Sequence[Mapping[str, Any]]) -> None:
    by_carrier: dict[str, int] = defaultdict(int)
    for row in rows:
        by_carrier[row["airline"] or row["carrier"]] += row["flights"]
    shown = sorted(by_carrier, key=lambda name: (-by_carrier[name], name))[:CARRIERS_SHOWN]
    lines = {
        name: means((row["local_hour"], row) for row in rows if (row["airline"] or row["carrier"]) == name)
        for name in shown
    }
    whole = means((row["local_hour"], row) for row in rows)
    values = [mean.value for line in (whole, *lines.values()) for hour, mean in line.items() if _enough(mean)]
    top = max(10.0, 5.0 * (int(max(values, default=0.0) / 5) + 1))
    bottom = min(0.0, 5.0 * (int(min(values, default=0.0) / 5) - 1))
    axes = Axes(100, 730, WIDTH - 420, 1080, (4.5, 23.5), (bottom, top))
    y_ticks = [(float(minutes), str(minutes)) for minutes in range(int(bottom), int(top) + 1, 5 if top <= 40 else 10)]
    x_ticks = [(float(hour), f"{hour}:00") for hour in range(5, 24)]
    canvas.frame(axes, x_ticks, y_ticks, "scheduled hour of the day (New York)", "mean delay, minutes")
    for name, color in zip(shown, _CARRIER_COLORS, strict=False):
        points = [(float(hour), mean.value) for hour, mean in lines[name].items() if _enough(mean)]
        canvas.line(axes, points, color, 2.4)
        canvas.dots(axes, points, color, 3)
    points = [(float(hour), mean.value) for hour, mean in whole.items() if _enough(mean)]
    canvas.line(axes, points, _BLUE, 4.5)
    entries: list[tuple[str, Color, str]] = [("line", _BLUE, "all carriers")]
    entries += [("line", color, name) for name, color in zip(shown, _CARRIER_COLORS, strict=False)]
    canvas.legend(WIDTH - 395, 735, entries)
    canvas.text(WIDTH - 395, 745 + 25 * len(entries), "hours with 30 departures or more", color=SOFT, size=15)


def _enough(mean: Mean) -> bool:
    """Return whether there are enough flights: a mean over a few means nothing."""
    return mean.departed >= 30


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _days(start: datetime, moment: datetime) -> float:
    return (moment - start) / timedelta(days=1)


def _month(moment: datetime) -> datetime:
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _months(first: datetime, last: datetime) -> list[datetime]:
    """Return the first days of months between the two times."""
    found = [_month(first)]
    while found[-1] < last:
        found.append(_month(found[-1] + timedelta(days=32)))
    return found
