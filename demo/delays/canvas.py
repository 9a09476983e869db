"""A drawing surface for plots: axes with ticks and grid, dots, lines, bands, a legend. It needs only Pillow.

A plotting library would bring numpy, which pyarrow imports if it is installed: imports would take twice as long in
every Python worker of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
INK: Final[Color] = (38, 38, 38)
SOFT: Final[Color] = (110, 110, 110)
GRID: Final[Color] = (228, 228, 228)
PAPER: Final[Color] = (255, 255, 255)
_OVER: Final = 2
"""Scale factor for drawing before scaling down, which smooths lines."""
_TICK: Final = 6
TEXT_PT: Final = 17
COLORS_MAX: Final = 256
"""Colors of the finished picture; a few tints on white need no more, and the file is a third of the size."""


@dataclass(frozen=True, slots=True)
class Axes:
    """A plot's position in the picture, in pixels, and the ranges of its values."""

    left: int
    top: int
    right: int
    bottom: int
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a value; values out of range are at the edge."""
        across = (min(max(x, self.x[0]), self.x[1]) - self.x[0]) / (self.x[1] - self.x[0])
        up = (min(max(y, self.y[0]), self.y[1]) - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)


class Canvas:
    """A picture of this size. All sizes and positions are in pixels of the finished picture, from its upper left."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._image = Image.new("RGB", (width * _OVER, height * _OVER), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def save(self, path: Path) -> None:
        """Write a PNG."""
        smooth = self._image.resize(self._size, Image.Resampling.LANCZOS)
        smooth.quantize(COLORS_MAX).save(path, "PNG", optimize=True)

    def text(
        self, x: float, y: float, words: str, *, size: int = TEXT_PT, color: Color = INK, anchor: str = "la"
    ) -> None:
        """Draw text. ``anchor`` as in Pillow: l, m, r, then a (top), m, s (baseline)."""
        font = ImageFont.load_default(size * _OVER)
        self._draw.text((x * _OVER, y * _OVER), words, fill=color, font=font, anchor=anchor)

    def frame(
        self,
        axes: Axes,
        x_ticks: Sequence[tuple[float, str]],
        y_ticks: Sequence[tuple[float, str]],
        x_name: str,
        y_name: str,
    ) -> None:
        """Draw the grid, ticks with labels, and axis names. Draw them first, under everything else."""
        for value, words in y_ticks:
            x, y = axes.at(axes.x[0], value)
            self._stroke([(x, y), (axes.right, y)], GRID, 1)
            self.text(x - _TICK - 3, y, words, color=SOFT, anchor="rm")
        for value, words in x_ticks:
            x, y = axes.at(value, axes.y[0])
            self._stroke([(x, y), (x, y + _TICK)], SOFT, 1)
            self.text(x, y + _TICK + 5, words, color=SOFT, anchor="ma")
        self._stroke([(axes.left, axes.top), (axes.left, axes.bottom), (axes.right, axes.bottom)], SOFT, 1.5)
        self.text((axes.left + axes.right) / 2, axes.bottom + 34, x_name, anchor="ma")
        self._upright(axes.left - 62, (axes.top + axes.bottom) / 2, y_name)

    def dots(self, axes: Axes, points: Sequence[tuple[float, float]], color: Color, radius: float) -> None:
        for x, y in (axes.at(*point) for point in points):
            box = [(x - radius) * _OVER, (y - radius) * _OVER, (x + radius) * _OVER, (y + radius) * _OVER]
            self._draw.ellipse(box, fill=color)

    def line(self, axes: Axes, points: Sequence[tuple[float, float]], color: Color, width: float) -> None:
        self._stroke([axes.at(*point) for point in points], color, width)

    def upright(self, axes: Axes, x: float, color: Color, width: float) -> None:
        """Draw a dashed line over the plot's whole height, at a value of its x axis."""
        at, _ = axes.at(x, axes.y[0])
        for y in range(axes.top, axes.bottom, 12):
            self._stroke([(at, y), (at, min(y + 7, axes.bottom))], color, width)

    def band(self, axes: Axes, x_from: float, x_to: float, color: Color) -> None:
        """Shade a range of the x axis."""
        left, right = axes.at(x_from, axes.y[0])[0], axes.at(x_to, axes.y[0])[0]
        box = [left * _OVER, axes.top * _OVER, max(right, left + 1) * _OVER, axes.bottom * _OVER]
        self._draw.rectangle(box, fill=color)

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, Color, str]]) -> None:
        """Draw a legend of entries below each other, upper left at ``x``, ``y``. Kinds: line, dots, band, dashes."""
        for number, (kind, color, words) in enumerate(entries):
            middle = y + 13 + 25 * number
            if kind == "band":
                self._draw.rectangle(
                    [x * _OVER, (middle - 8) * _OVER, (x + 30) * _OVER, (middle + 8) * _OVER], fill=color
                )
            elif kind == "dots":
                for step in (6, 15, 24):
                    box = [(x + step - 3) * _OVER, (middle - 3) * _OVER, (x + step + 3) * _OVER, (middle + 3) * _OVER]
                    self._draw.ellipse(box, fill=color)
            else:
                pieces = ((0, 30),) if kind == "line" else ((0, 8), (11, 19), (22, 30))
                for start, end in pieces:
                    self._stroke([(x + start, middle), (x + end, middle)], color, 3)
            self.text(x + 40, middle, words, anchor="lm")

    def _stroke(self, points: Sequence[tuple[float, float]], color: Color, width: float) -> None:
        if len(points) < 2:
            return
        scaled = [(x * _OVER, y * _OVER) for x, y in points]
        self._draw.line(scaled, fill=color, width=max(1, round(width * _OVER)), joint="curve")

    def _upright(self, x: float, y: float, words: str) -> None:
        """Draw upward text, centered at ``x``, ``y``."""
        font = ImageFont.load_default(TEXT_PT * _OVER)
        left, top, right, bottom = map(int, font.getbbox(words))
        made = Image.new("RGB", (right - left + 4, bottom - top + 4), PAPER)
        ImageDraw.Draw(made).text((2 - left, 2 - top), words, fill=INK, font=font)
        turned = made.rotate(90, expand=True)
        self._image.paste(turned, (int(x * _OVER - turned.width / 2), int(y * _OVER - turned.height / 2)))
