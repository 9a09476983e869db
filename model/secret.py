"""A value that must not be shown."""

from __future__ import annotations


class Secret(str):
    """Text that its own ``repr`` hides, and so does the ``repr`` of any configuration that holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"
