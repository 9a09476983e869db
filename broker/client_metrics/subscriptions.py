"""Matches clients with the metric subscriptions in the metadata. Pure.

Source: KIP-714, Kafka's ``ClientMetricsManager.createClientInstance`` and ``ClientMetricsInstanceMetadata``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.metadata_quorum.image.image import CLIENT_METRICS, MetadataImage
from tidelog.model.regular_expressions import compiled
from tidelog.model.settings.client_metrics_config import (
    ALL_METRICS,
    ATTRIBUTES,
    CLIENT_METRICS_CONFIG_DEF,
    INTERVAL_MS_DEFAULT,
    ClientMetricsConfig,
)
from tidelog.model.settings.config_def import ConfigError


class Client(NamedTuple):
    """The attributes by which subscriptions select clients, in the order of :data:`ATTRIBUTES`."""

    instance_id: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: str


_POSITIONS: Final = {name: at for at, name in enumerate(ATTRIBUTES)}


class Wanted(NamedTuple):
    """What one client is asked for. Empty ``metrics`` mean nothing."""

    metrics: tuple[str, ...] = ()
    interval_ms: int = INTERVAL_MS_DEFAULT

    def covers(self, name: str) -> bool:
        """Return whether a metric with this name is requested."""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)

    def id_for(self, client_instance_id: bytes) -> int:
        """Return the subscription's id on the wire, a signed 32-bit number. It differs for different content and is the
        same on every node, so that a client may continue with any node."""
        text = f"{','.join(self.metrics)} {self.interval_ms}".encode()
        found = zlib.crc32(client_instance_id, zlib.crc32(text))
        return found - (1 << 32) if found >> 31 else found


def subscriptions(image: MetadataImage) -> tuple[ClientMetricsConfig, ...]:
    """Return the subscriptions in the metadata, without any that this version cannot read."""
    found = []
    for resource, values in image.configs.items():
        if resource.resource_type == CLIENT_METRICS:
            try:
                found.append(ClientMetricsConfig(**CLIENT_METRICS_CONFIG_DEF.parse(_known(values))))
            except ConfigError:
                continue
    return tuple(found)


def _known(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name in CLIENT_METRICS_CONFIG_DEF.settings}


def wanted(found: Iterable[ClientMetricsConfig], client: Client) -> Wanted:
    """Combine all subscriptions that select the client: the union of metrics, and the shortest interval."""
    metrics: set[str] = set()
    interval_ms = INTERVAL_MS_DEFAULT
    for each in found:
        if all(compiled(pattern).fullmatch(client[_POSITIONS[name]]) is not None for name, pattern in each.match):
            metrics.update(each.metrics)
            interval_ms = min(interval_ms, each.interval_ms)
    return Wanted((ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)), interval_ms)
