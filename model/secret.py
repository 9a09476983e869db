"""A value that must not be shown."""

from __future__ import annotations


class Secret(str):
    """Text whose ``repr`` hides it, and with it that of each configuration that holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"
