"""Sorts, filters and pages long lists, so that a browser gets only what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tidelog.console.routes import Call

T = TypeVar("T")

PAGE_ROWS: Final = 200


def page_of(
    call: Call, items: Sequence[T], name: Callable[[T], str], keys: Mapping[str, Callable[[T], Any]]
) -> tuple[list[T], dict[str, Any]]:
    """Return the items that the call selects by ``search``, ``sort``, ``order`` and ``page``, with a summary. Items
    without a value for the key come last."""
    search = call.text("search").casefold()
    chosen = [one for one in items if search in name(one).casefold()] if search else list(items)
    sort = call.choice("sort", keys, next(iter(keys)))
    backwards = call.choice("order", ("up", "down"), "up") == "down"
    key = keys[sort]
    known = [one for one in chosen if key(one) is not None]
    known.sort(key=key, reverse=backwards)
    ordered = known + [one for one in chosen if key(one) is None]
    pages = max(1, -(-len(ordered) // PAGE_ROWS))
    number = min(call.number("page", 1, 1, 10**6), pages)
    start = (number - 1) * PAGE_ROWS
    about = {"page": number, "pages": pages, "total": len(items), "matching": len(ordered), "sort": sort}
    return ordered[start : start + PAGE_ROWS], {**about, "order": "down" if backwards else "up"}
