"""A self-contained HTML page: elements with escaped text, one style sheet, no script.

Everything that :func:`tag` did not make is text and is escaped; so no content of a history becomes markup.
"""

from __future__ import annotations

from html import escape
from typing import Final

_VOID: Final = frozenset({"meta", "br", "line", "rect", "circle", "path", "polyline"})


class Html(str):
    """Markup. Only :func:`tag` and :func:`joined` make it."""

    __slots__ = ()


Child = Html | str | int | float | None


def tag(element: str, /, *children: Child, **attributes: str | int | float | None) -> Html:
    """Make an element. ``class_`` is the class, other names have hyphens for underscores; attributes of ``None`` are
    left out, and so are such children."""
    parts = [f"<{element}"]
    for key, value in attributes.items():
        if value is not None:
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    if element in _VOID and not children:
        return Html("".join((*parts, "/>" if element not in {"meta", "br"} else ">")))
    return Html("".join((*parts, ">", joined(*children), f"</{element}>")))


def joined(*children: Child) -> Html:
    """Concatenate children; text is escaped."""
    return Html(
        "".join(child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    )


def table(head: list[str], rows: list[list[Child]], numbers: frozenset[int] = frozenset()) -> Html:
    """Make a table that scrolls by itself if it is too wide. ``numbers``: right-aligned columns."""

    def cells(name: str, values: list[Child]) -> list[Html]:
        return [tag(name, value, class_="number" if index in numbers else None) for index, value in enumerate(values)]

    heads: list[Child] = list(head)
    lines = [tag("tr", *cells("td", row)) for row in rows]
    whole = tag("table", tag("thead", tag("tr", *cells("th", heads))), tag("tbody", *lines))
    return tag("div", whole, class_="wide")


def page(title: str, *body: Child) -> Html:
    """Make a whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{STYLE}</style>"),
    )
    return Html("<!DOCTYPE html>\n" + tag("html", head, tag("body", tag("main", *body)), lang="en") + "\n")


STYLE: Final = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --faint: #667078; --line: #d5dade; --soft: #f3f5f7;
  --good: #1a7f37; --bad: #c62828; --odd: #9a6700; --band: #e0564720;
  --n1: #3b7dc4; --n2: #d9822b; --n3: #3f9b5b; --n4: #a45fc0; --n5: #c4483f; --n6: #7f7f2c; --n7: #2a9d9d;
  --n8: #8d6e56; --n9: #6d7391; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e3e7ea; --faint: #98a3ab; --line: #343b41;
  --soft: #1d2226; --good: #4cc26b; --bad: #ff7b72; --odd: #e0b040; --band: #ff7b7226;
  --n1: #6ca6e6; --n2: #eaa25a; --n3: #62bf7f; --n4: #c48adb; --n5: #e47a72; --n6: #b3b35a; --n7: #5cc4c4;
  --n8: #b8987f; --n9: #9aa0bf; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0; max-width: 78ch; } .faint, figcaption { color: var(--faint); }
code, pre, .mono { font: .88em/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; margin: .5rem 0; }
a { color: var(--n1); }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .22rem .7rem .22rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.odd { color: var(--odd); font-weight: 600; }
.verdict { border-left: 5px solid var(--good); background: var(--soft); padding: .6rem .9rem; margin: .8rem 0; }
.verdict.broken { border-color: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: .4rem 1.8rem; margin: .6rem 0; padding: 0; list-style: none; }
.figures b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.figures span { color: var(--faint); font-size: .85rem; }
figure { margin: .8rem 0; overflow-x: auto; } figcaption { font-size: .88rem; }
svg { display: block; width: 100%; min-width: 760px; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .scale { fill: var(--faint); } svg .axis { stroke: var(--line); stroke-width: 1; }
svg .band { fill: var(--band); } svg .bound { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .onbar { fill: #fff; pointer-events: none; font-size: 10px; }
@media (prefers-color-scheme: dark) { svg .onbar { fill: #101214; } }
svg .curve { fill: none; stroke-width: 1.5; } svg .none { fill: none; stroke: var(--bad); }
details { margin: .4rem 0; } summary { cursor: pointer; }
"""
"""Colours are pairs, for light and for dark; ``--n1`` to ``--n9`` are the nodes."""
