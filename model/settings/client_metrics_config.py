"""A subscription to client metrics (KIP-714). Source: Kafka's ``ClientMetricsConfigs``."""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.regular_expressions import compiled
from tidelog.model.settings.config_def import ConfigDef, integer, listing, split_list, structured

ALL_METRICS: Final = "*"
INTERVAL_MS_DEFAULT: Final = 300_000
ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The attributes by which a subscription can choose clients."""
Match = tuple[tuple[str, str], ...]
"""Attribute, and the regular expression that must match its whole value."""


def read_match(text: str) -> Match:
    """Read the attributes. Raises ``ValueError``: "expected …, found …"."""
    found: dict[str, str] = {}
    for item in split_list(text):
        name, equals, pattern = (part.strip() for part in item.partition("="))
        if name not in ATTRIBUTES or not equals or not pattern:
            raise ValueError(f"expected ATTRIBUTE=REGEX,… with one of {', '.join(ATTRIBUTES)}, found {item!r}")
        if name in found:
            raise ValueError(f"expected each attribute once, found {name} twice")
        compiled(pattern)
        found[name] = pattern
    return tuple(found.items())


def write_match(match: Match) -> str:
    return ",".join(f"{name}={pattern}" for name, pattern in match)


@dataclass(frozen=True, slots=True)
class ClientMetricsConfig:
    """The settings of one subscription."""

    metrics: tuple[str, ...] = listing(
        (), "Beginnings of the names of the metrics that clients push; * for all, none for none."
    )
    interval_ms: int = integer(
        INTERVAL_MS_DEFAULT, "Time between two pushes of a client.", at_least=100, at_most=3_600_000
    )
    match: Match = structured(
        (),
        "Which clients push: ATTRIBUTE=REGEX,…, all of which must match; none for all clients.",
        read=read_match,
        write=write_match,
    )


CLIENT_METRICS_CONFIG_DEF: Final = ConfigDef(ClientMetricsConfig)
