"""Client quotas: the entities that have them, their keys, and the valid values.

Source: Kafka's ``ClientQuotaEntity``, ``QuotaConfig``, ``ClientQuotaControlManager``.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Collection
from typing import Final

from tidelog.model.classes.frozen import dataclass

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_WHOLE_MAX: Final = {
    PRODUCER_BYTE_RATE: float(2**63 - 1),
    CONSUMER_BYTE_RATE: float(2**63 - 1),
    CONNECTION_CREATION_RATE: float(2**31 - 1),
}
"""Keys whose values are whole numbers, with the largest value."""
_FRACTION_MAX: Final = 1e-6
NAME_CHARS_MAX: Final = 1_000
"""Longest name of a user, client id or address."""


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """The subject of a quota: a user, a client id, both, or an address. ``None``: not part of the entity; an empty
    name: the default, for each user, client id or address without its own quota."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in named if name is not None)


def entity_fault(named: Collection[tuple[str, str | None]]) -> str | None:
    """Return why these types and names (``None``: default) are not a valid entity; ``None`` if they are."""
    types = [entity_type for entity_type, _ in named]
    if not named:
        return "expected a user, a client-id or an ip, found an empty entity"
    for entity_type, name in named:
        if entity_type not in ENTITY_TYPES:
            return f"expected an entity of type {', '.join(ENTITY_TYPES)}, found {entity_type[:80]!r}"
        if types.count(entity_type) > 1:
            return f"expected each type of an entity once, found {entity_type} twice"
        if name is not None and not 0 < len(name) <= NAME_CHARS_MAX:
            return f"expected a {entity_type} of 1 to {NAME_CHARS_MAX} characters, found {len(name)}"
        if entity_type == IP:
            if len(named) > 1:
                return "expected an ip by itself, found it together with a user or client-id"
            if name is not None and not _is_address(name):
                return f"expected an IPv4 or IPv6 address, found {name[:80]!r}: names of hosts are not looked up"
    return None


def value_fault(types: Collection[str], key: str, value: float) -> str | None:
    """Return why an entity of these types cannot have this quota value; ``None`` if it can."""
    known = (CONNECTION_CREATION_RATE,) if IP in types else _CLIENT_KEYS
    if key not in known:
        return f"expected one of {', '.join(known)} for {' and '.join(types)}, found {key[:80]!r}"
    if not value > 0 or math.isinf(value):
        return f"{key}: expected a number greater than 0, found {value:g}"
    most = _WHOLE_MAX.get(key)
    if most is not None and value > most:
        return f"{key}: expected at most {most:.0f}, found {value:g}"
    if most is not None and value % 1.0 > _FRACTION_MAX:
        return f"{key}: expected a whole number, found {value!r}"
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
