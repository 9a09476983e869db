"""A principal: the identity that a request acts under. Source: Kafka's ``KafkaPrincipal``."""

from __future__ import annotations

from typing import Final, Self

from tidelog.model.classes.frozen import dataclass

USER: Final = "User"
"""The kind of every principal from a login or a certificate."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Two principals are equal if kind and name are equal, case included."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``User:alice``, the inverse of ``str``. The name may contain further colons. Raises ``ValueError``."""
        kind, colon, name = text.partition(":")
        if not kind or not colon or not name:
            raise ValueError(f"expected a principal such as User:alice, found {text[:80]!r}")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Nobody logged in: PLAINTEXT, or SSL without a client certificate."""
