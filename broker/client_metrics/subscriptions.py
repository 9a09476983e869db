"""What operators want to know of which clients: the subscriptions in the metadata, matched. Pure.

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
    """The attributes that subscriptions choose clients by, in the order of :data:`ATTRIBUTES`."""

    instance_id: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: str


_POSITIONS: Final = {name: at for at, name in enumerate(ATTRIBUTES)}


class Wanted(NamedTuple):
    """What one client is asked for. No ``metrics``: nothing."""

    metrics: tuple[str, ...] = ()
    interval_ms: int = INTERVAL_MS_DEFAULT

    def covers(self, name: str) -> bool:
        """Whether a metric of this name is asked for."""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)

    def id_for(self, client_instance_id: bytes) -> int:
        """Names it on the wire, as a signed number of 32 bits: another one for another content, and on every node the
        same, so that a client may go on with any of them."""
        text = f"{','.join(self.metrics)} {self.interval_ms}".encode()
        found = zlib.crc32(client_instance_id, zlib.crc32(text))
        return found - (1 << 32) if found >> 31 else found


def subscriptions(image: MetadataImage) -> tuple[ClientMetricsConfig, ...]:
    """Those in the metadata. One that this version cannot read is left out."""
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
    """Of all subscriptions that choose the client: the metrics together, and the shortest interval."""
    metrics: set[str] = set()
    interval_ms = INTERVAL_MS_DEFAULT
    for each in found:
        if all(compiled(pattern).fullmatch(client[_POSITIONS[name]]) is not None for name, pattern in each.match):
            metrics.update(each.metrics)
            interval_ms = min(interval_ms, each.interval_ms)
    return Wanted((ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)), interval_ms)
