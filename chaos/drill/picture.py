"""A drill as a chart: acknowledgements and reads over time, their latency, and the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tidelog.chaos.drill.evidence import Evidence
from tidelog.chaos.drill.run import HeldDrill
from tidelog.chaos.drill.stage import FAULT, HEAL, SEEN, Moment
from tidelog.demo.delays.canvas import INK, SOFT, Axes, Canvas, Color

WIDTH: Final = 1600
SLOT_S: Final = 0.25
"""Width of a point of the rates."""
EVENTS_MAX: Final = 24
"""Events that are numbered and listed below; of a longer time line, the first ones."""
_LINE: Final = 25
_BLUE: Final[Color] = (0, 90, 158)
_PALE: Final[Color] = (140, 184, 214)
_RED: Final[Color] = (200, 30, 30)
_GREEN: Final[Color] = (0, 138, 92)
_AMBER: Final[Color] = (214, 130, 0)
_ROSE: Final[Color] = (250, 226, 220)
_GREY: Final[Color] = (150, 150, 150)
_COLORS: Final = {FAULT: _RED, HEAL: _GREEN, SEEN: _GREY}


def draw(path: Path, held: HeldDrill) -> None:
    """Draw a drill into a PNG."""
    events = [moment for moment in held.moments if moment.kind in _COLORS][:EVENTS_MAX]
    canvas = Canvas(WIDTH, 930 + _LINE * len(events))
    end_s = max(held.length_s, 1.0)
    canvas.text(100, 24, f"Drill {held.drill}: {'objectives met' if held.met else 'OBJECTIVES MISSED'}", size=32)
    lost, duplicated = held.measures.get("lost"), held.measures.get("duplicated")
    canvas.text(
        100, 66,
        f"{held.evidence.sent:,} records sent, {len(held.evidence.places):,} acknowledged, {lost} lost, "
        f"{duplicated} duplicated; cluster {held.cluster_id}",
        color=SOFT, size=20,
    )  # fmt: skip
    _draw_rates(canvas, held.evidence, events, end_s)
    _draw_waits(canvas, held.evidence, events, end_s)
    for number, event in enumerate(events):
        canvas.text(
            100, 910 + _LINE * number, f"{number + 1}   {event.at_s:.2f} s   {event.text}", color=_dark(event), size=17
        )
    canvas.save(path)


def rates(times: Iterable[tuple[float, int]], end_s: float) -> list[tuple[float, float]]:
    """Return (middle of a slot, count per second) for all slots up to the end, including those without any."""
    counts: Counter[int] = Counter()
    for at_s, count in times:
        counts[int(at_s / SLOT_S)] += count
    return [((slot + 0.5) * SLOT_S, counts[slot] / SLOT_S) for slot in range(int(end_s / SLOT_S))]


def outages(events: Sequence[Moment], end_s: float) -> list[tuple[float, float]]:
    """Return the spans from each fault to the next healing, or to the end."""
    found = []
    for event in events:
        if event.kind == FAULT:
            heals = [other.at_s for other in events if other.kind == HEAL and other.at_s > event.at_s]
            found.append((event.at_s, min(heals, default=end_s)))
    return found


def _draw_rates(canvas: Canvas, evidence: Evidence, events: Sequence[Moment], end_s: float) -> None:
    acknowledged = rates(((one.ended_s, 1) for one in evidence.acknowledgements), end_s)
    handed = rates(((at_s, count) for at_s, _, count in evidence.handed), end_s)
    top = max([rate for _, rate in [*acknowledged, *handed]], default=1.0) or 1.0
    step = _step(top / 5)
    axes = Axes(100, 170, WIDTH - 60, 470, (0.0, end_s), (0.0, step * (int(top / step) + 1)))
    _frame(canvas, axes, events, step, end_s, "", "records/s")
    canvas.line(axes, handed, _PALE, 2.2)
    canvas.line(axes, acknowledged, _BLUE, 2.8)
    canvas.legend(112, 100, [("line", _BLUE, "acknowledged"), ("line", _PALE, "handed to a reader")])
    canvas.legend(480, 100, [("dashes", _RED, "fault"), ("dashes", _GREEN, "undone")])


def _draw_waits(canvas: Canvas, evidence: Evidence, events: Sequence[Moment], end_s: float) -> None:
    records = [(one.began_s, one.ended_s - one.began_s) for one in evidence.acknowledgements]
    changes = [(one.began_s, one.took_s) for one in evidence.commits]
    top = max([took for _, took in [*records, *changes]], default=1.0)
    step = _step(top / 5)
    axes = Axes(100, 560, WIDTH - 60, 830, (0.0, end_s), (0.0, step * (int(top / step) + 1)))
    _frame(canvas, axes, events, step, end_s, "seconds since the drill began", "seconds to an answer")
    canvas.dots(axes, records, _BLUE, 1.6)
    canvas.dots(axes, changes, _AMBER, 2.4)
    entries: list[tuple[str, Color, str]] = [
        ("dots", _BLUE, "a record, at the time it was sent"),
        ("dots", _AMBER, "a change of metadata, at the time it was asked for"),
    ]
    canvas.legend(760, 100, entries)


def _frame(
    canvas: Canvas, axes: Axes, events: Sequence[Moment], step: float, end_s: float, x_name: str, y_name: str
) -> None:
    for began_s, ended_s in outages(events, end_s):
        canvas.band(axes, began_s, ended_s, _ROSE)
    count = round(axes.y[1] / step)
    x_step = _step(end_s / 12)
    canvas.frame(
        axes,
        [(number * x_step, f"{number * x_step:g}") for number in range(int(end_s / x_step) + 1)],
        [(number * step, f"{number * step:g}") for number in range(count + 1)],
        x_name,
        y_name,
    )
    last = -100.0
    for number, event in enumerate(events, 1):
        if event.kind != SEEN:
            canvas.upright(axes, event.at_s, _COLORS[event.kind], 2.2)
        x, _ = axes.at(event.at_s, 0.0)
        if x - last > 20:
            canvas.text(x, axes.top - 6, str(number), color=_dark(event), size=15, anchor="ms")
            last = x


def _dark(event: Moment) -> Color:
    return INK if event.kind == SEEN else _COLORS[event.kind]


def _step(about: float) -> float:
    """Return 1, 2 or 5 times a power of ten, not below ``about``."""
    power = 1e-4
    while True:
        for factor in (1, 2, 5):
            if factor * power >= about:
                return factor * power
        power *= 10
