"""Limits the connections of each address, and how fast a node accepts new ones.

Implements ``max.connections.per.ip``, its overrides, ``max.connection.creation.rate``, and the quota
``connection_creation_rate`` of an address. One object serves all Kafka listeners of a node. It uses no sockets and no
clock. Source: Kafka's ``ConnectionQuotas``, KIP-612.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.quota_matching import Quotas, connection_rate_of
from tidelog.model.rates import SampledRate
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.listeners import plain_address
from tidelog.model.settings.node.quota_settings import QuotaSettings

WINDOW_S: Final = 10.0
"""The period over which the rate holds. A burst may use up its whole window, as with Kafka's eleven samples of 1 s."""
RATES_MAX: Final = 10_000
"""Maximum addresses whose rate is measured. Beyond this, those that were silent the longest are forgotten."""


class ConnectionQuotas:
    """Counts the connections of each address. Addresses are written as the socket reports them."""

    def __init__(
        self,
        most: int,
        overrides: Mapping[str, int],
        rate: int,
        config: QuotaSettings = QuotaSettings(),  # noqa: B008 - immutable
    ) -> None:
        """``most``: connections of an address without an override; ``rate``: new ones per second."""
        self._samples, self._window_ms = config.quota_window_num, config.quota_window_size_seconds * 1000
        self._quotas: Quotas = {}
        self._rates: dict[str, SampledRate] = {}
        """By address, ordered by last connection, the newest at the end."""
        self._most = most
        self._overrides = dict(overrides)
        self._rate = rate
        self._counts: dict[str, int] = {}
        self._room = rate * WINDOW_S
        """How many more connections may come now."""
        self._seen_s = 0.0

    @classmethod
    def of(cls, config: NodeConfig) -> ConnectionQuotas:
        """Create the quotas of a node's configuration. Host names are resolved once. Raises ``OSError`` naming the
        setting."""
        overrides: dict[str, int] = {}
        for host, most in config.max_connections_per_ip_overrides:
            for address in _addresses(host):
                overrides[address] = most
        return cls(config.max_connections_per_ip, overrides, config.max_connection_creation_rate, config)

    def on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        """Adopt the quotas if they changed."""
        if delta.quotas:
            self._quotas = image.quotas
            bounded = {address: found for address, found in self._rates.items() if self._limit(address) is not None}
            self._rates = bounded
        return ()

    def hold_ms(self, host: str, now_ms: int) -> int:
        """Return how long to hold a new connection of ``host`` before closing it, because its address exceeds its
        quota. 0: the connection is within the quota and is counted. At most one window, as in Kafka."""
        if not self._quotas:
            return 0
        address = plain_address(host)
        limit = self._limit(address)
        if limit is None:
            return 0
        rate = self._rates.pop(address, None) or SampledRate(self._samples, self._window_ms)
        if len(self._rates) >= RATES_MAX:
            del self._rates[next(iter(self._rates))]
        self._rates[address] = rate
        rate.record(1, now_ms)
        wait_ms = rate.wait_ms(limit, now_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return min(wait_ms, self._window_ms)

    def _limit(self, address: str) -> float | None:
        return connection_rate_of(self._quotas, address)

    def take(self, host: str) -> str | None:
        """Count one more connection of ``host``, or return why it may have none."""
        address = plain_address(host)
        most = self._overrides.get(address, self._most)
        count = self._counts.get(address, 0)
        if count >= most:
            return f"expected at most {most} connections of one address (max.connections.per.ip)"
        self._counts[address] = count + 1
        return None

    def give(self, host: str) -> None:
        """Uncount a connection that was closed."""
        address = plain_address(host)
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]

    def pause_s(self, now_s: float) -> float:
        """Return how long to wait before accepting the next connection; 0 for no wait. :meth:`taken` counts it."""
        self._room = min(self._room + (now_s - self._seen_s) * self._rate, self._rate * WINDOW_S)
        self._seen_s = now_s
        return 0.0 if self._room >= 1 else (1 - self._room) / self._rate

    def taken(self) -> None:
        """Count a connection that was accepted."""
        self._room -= 1


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(error.errno, f"max.connections.per.ip.overrides: no address of {host!r}: {error}") from None
    return {plain_address(str(each[4][0])) for each in found}
