"""Charts of a run, as SVG: lanes of states, curves over time, recovery times as dots.

All charts over time share one axis, so that points above one another are simultaneous.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Final, NamedTuple

from tidelog.chaos.laboratory.judge.timeline import Span
from tidelog.chaos.laboratory.report.page import Html, tag

WIDTH: Final = 1060.0
LEFT: Final = 150.0
RIGHT: Final = 14.0
LANE: Final = 20.0
AXIS: Final = 22.0
CURVES: Final = 110.0
NODE_COLOURS: Final = 9
_TICKS: Final = 10
_LABEL_LEAST: Final = 14.0
"""A narrower bar has no text in it; its title appears on hover."""
_LETTER: Final = 6.0


class Bar(NamedTuple):
    """Part of a lane. ``colour`` is a CSS value, ``title`` appears on hover."""

    begin_s: float
    end_s: float
    colour: str
    label: str
    title: str
    opacity: float = 1.0
    hollow: bool = False


class Curve(NamedTuple):
    """Values over time, each in the middle of its bin; ``None`` interrupts the line."""

    name: str
    colour: str
    values: Sequence[float | None]


class Dots(NamedTuple):
    """A row of recovery times, in seconds, each with its title; ``bounds`` are named lines."""

    name: str
    values: Sequence[tuple[float, str, bool]]
    """Seconds, title, whether it is judged."""
    bounds: Sequence[tuple[float, str]]
    median_s: float | None


def node_colour(node: int) -> str:
    return f"var(--n{(node - 1) % NODE_COLOURS + 1})" if node > 0 else "none"


def lanes(rows: Sequence[tuple[str, Sequence[Bar]]], end_s: float, name: str) -> Html:
    """Draw lanes with their names at the left."""
    height = LANE * len(rows) + AXIS
    parts = []
    for index, (label, bars) in enumerate(rows):
        top = index * LANE
        parts.append(tag("text", label, x=LEFT - 8, y=top + 14, text_anchor="end"))
        parts.append(_line(LEFT, top + LANE - 1, WIDTH - RIGHT, top + LANE - 1))
        parts += [_bar(bar, top, end_s) for bar in bars]
    return _svg(height, name, *parts, *_time_axis(end_s, len(rows) * LANE))


def curves(
    lines: Sequence[Curve], width_s: float, end_s: float, name: str, bands: Sequence[Span], *, logarithmic: bool = False
) -> Html:
    """Draw curves one above the other, with their names at the left and faults as bands behind them."""
    values = [value for line in lines for value in line.values if value is not None]
    low, high = _range(values, logarithmic)

    def y(value: float) -> float:
        share = (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low)) if logarithmic else value / high
        return CURVES - 4 - share * (CURVES - 14)

    parts = [_band(band, end_s, CURVES) for band in bands]
    for mark in _marks(low, high, logarithmic):
        parts.append(_line(LEFT, y(mark), WIDTH - RIGHT, y(mark)))
        parts.append(tag("text", f"{mark:g}", x=LEFT - 8, y=y(mark) + 4, text_anchor="end", class_="scale"))
    for index, line in enumerate(lines):
        parts.append(tag("text", line.name, x=4, y=16 + 16 * index, style=f"fill: {line.colour}"))
        for points in _runs(line.values):
            path = " ".join(f"{_x((at + 0.5) * width_s, end_s):.1f},{y(value):.1f}" for at, value in points)
            if len(points) == 1:
                at, value = points[0]
                parts.append(
                    tag("circle", cx=_x((at + 0.5) * width_s, end_s), cy=y(value), r=1.5, style=f"fill: {line.colour}")
                )
            else:
                parts.append(tag("polyline", points=path, class_="curve", style=f"stroke: {line.colour}"))
    return _svg(CURVES + AXIS, name, *parts, *_time_axis(end_s, CURVES))


def dots(rows: Sequence[Dots], name: str) -> Html:
    """Draw recovery times on one logarithmic axis; hollow ones are not judged, a stroke is the median."""
    every = [value for row in rows for value, _, _ in row.values] + [at for row in rows for at, _ in row.bounds]
    low, high = _range(every, True)
    tall = 2 * LANE

    def x(value: float) -> float:
        share = (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low))
        return LEFT + share * (WIDTH - RIGHT - LEFT)

    bottom = tall * len(rows)
    parts = []
    for mark in _marks(low, high, True):
        parts.append(_line(x(mark), 0, x(mark), bottom))
        parts.append(tag("text", f"{mark:g} s", x=x(mark), y=bottom + 15, text_anchor="middle", class_="scale"))
    for index, row in enumerate(rows):
        middle = index * tall + tall / 2
        parts.append(tag("text", row.name, x=LEFT - 8, y=middle + 4, text_anchor="end"))
        parts.append(_line(LEFT, middle + tall / 2, WIDTH - RIGHT, middle + tall / 2))
        for at, words in row.bounds:
            mark_line = tag("line", x1=x(at), x2=x(at), y1=middle - 16, y2=middle + 16, class_="bound")
            parts.append(tag("g", mark_line, tag("title", words)))
        for number, (value, title, judged) in enumerate(row.values):
            cy = middle + (number * 7 % 21 - 10)
            style = "fill: var(--n1); fill-opacity: .65" if judged else "fill: none; stroke: var(--faint)"
            parts.append(tag("circle", tag("title", title), cx=x(value), cy=cy, r=3.2, style=style))
        if row.median_s is not None:
            at = x(row.median_s)
            style = "stroke: var(--text); stroke-width: 2.5"
            parts.append(tag("line", x1=at, x2=at, y1=middle - 14, y2=middle + 14, style=style))
    return _svg(bottom + AXIS, name, *parts)


def _svg(height: float, name: str, *parts: Html) -> Html:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=name)


def _x(at_s: float, end_s: float) -> float:
    return LEFT + min(max(at_s, 0.0), end_s) / end_s * (WIDTH - RIGHT - LEFT)


def _line(x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="axis")


def _bar(bar: Bar, top: float, end_s: float) -> Html:
    left, right = _x(bar.begin_s, end_s), _x(bar.end_s, end_s)
    width = max(2.0, right - left)
    style = f"fill: {bar.colour}; fill-opacity: {bar.opacity:g}"
    if bar.hollow:
        style = f"fill: {bar.colour}; fill-opacity: .12; stroke: {bar.colour}"
    rectangle = tag("rect", x=left, y=top + 2, width=width, height=LANE - 5, rx=2, style=style)
    text = None
    if width >= max(_LABEL_LEAST, len(bar.label) * _LETTER):
        shown = "" if bar.hollow else "onbar"
        text = tag("text", bar.label, x=left + width / 2, y=top + 13, text_anchor="middle", class_=shown or None)
    return tag("g", tag("title", bar.title), rectangle, text)


def _band(band: Span, end_s: float, height: float) -> Html:
    left, right = _x(band.begin_s, end_s), _x(band.end_s, end_s)
    return tag(
        "rect", tag("title", band.label), x=left, y=0, width=max(1.0, right - left), height=height, class_="band"
    )


def _time_axis(end_s: float, top: float) -> list[Html]:
    step = _step(end_s / _TICKS)
    parts = [_line(LEFT, top, WIDTH - RIGHT, top)]
    at = 0.0
    while at <= end_s:
        parts.append(_line(_x(at, end_s), top, _x(at, end_s), top + 4))
        parts.append(tag("text", f"{at:g} s", x=_x(at, end_s), y=top + 15, text_anchor="middle", class_="scale"))
        at += step
    return parts


def _step(about: float) -> float:
    """Return a round number near ``about``."""
    size = 10.0 ** floor(log10(about))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= about)


def _range(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Return the range of an axis; never empty."""
    high = max(values, default=1.0)
    if not logarithmic:
        return 0.0, max(high, 1e-9) * 1.05
    positive = [value for value in values if value > 0]
    low = min(positive, default=0.1)
    bottom, top = 10.0 ** floor(log10(low)), 10.0 ** -floor(-log10(max(high, low)))
    return bottom, top if top > bottom else bottom * 10


def _marks(low: float, high: float, logarithmic: bool) -> list[float]:
    if not logarithmic:
        step = _step(high / 4)
        return [number * step for number in range(int(high / step) + 1)]
    exponents = range(round(log10(low)), round(log10(high)) + 1)
    return [10.0**exponent for exponent in exponents]


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the stretches that have values."""
    found: list[list[tuple[int, float]]] = []
    open_now = False
    for at, value in enumerate(values):
        if value is None:
            open_now = False
            continue
        if not open_now:
            found.append([])
        found[-1].append((at, value))
        open_now = True
    return found
