"""The client behind a request that a broker forwards to the controller (KIP-590)."""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The client, as reported by its broker: it connected from the address ``host`` to that broker's ``listener``."""

    principal: str
    host: str
    listener: str
