"""The replication throttle: bounds the bytes per second for replicas that catch up, on each side.

Source: KIP-73 and Kafka's ``ReplicationQuotaManager``. Only replicas named in ``leader.replication.throttled.replicas``
(on the leader's node) or ``follower.replication.throttled.replicas`` (on the follower's) are held back, and only while
they are *not* in sync: nobody waits for an ISR member because of a throttle. In Kafka, traffic to in-sync replicas
counts too, so a busy topic can leave nothing for replicas that catch up; here only traffic that can be held back
counts.

Pure: time comes in as monotonic milliseconds. The balance of a :class:`Throttle`:

=====================  ==============================================================================
a millisecond passes   ``rate / 1000`` bytes are added, up to what one second brings
bytes were moved       they are taken off; at most one batch makes it negative
it is above zero       more may be moved, up to the balance, at least one batch
else                   nothing, until what is lacking has been added
=====================  ==============================================================================
"""

from __future__ import annotations

from typing import Final

from tidelog.model.settings.config_def import LONG_MAX

CHECK_MS_MAX: Final = 250
"""Longest time until a held-back replica is checked again: it may have joined the ISR, or the rate or the list of
throttled replicas may have changed."""


class Throttle:
    """One side's limit. ``bytes`` and ``holds`` are counters for metrics."""

    __slots__ = ("_at_ms", "_balance", "_rate", "bytes", "holds")

    def __init__(self) -> None:
        self._rate = LONG_MAX
        self._balance = 0.0
        self._at_ms: int | None = None
        self.bytes = 0
        """Bytes sent to, or fetched by, throttled replicas out of sync."""
        self.holds = 0
        """How often a replica was held back."""

    @property
    def rate(self) -> int:
        """Bytes per second; ``LONG_MAX`` means no limit."""
        return self._rate

    def set_rate(self, rate: int) -> None:
        """Change the limit; it begins with one second's worth of bytes."""
        if rate != self._rate:
            self._rate = rate
            self._balance = float(rate)
            self._at_ms = None

    def room(self, now_ms: int) -> int:
        """Return the bytes that may be moved now; 0: hold back, for :meth:`wait_ms`."""
        if self._rate == LONG_MAX:
            return LONG_MAX
        if self._at_ms is not None:
            gained = (now_ms - self._at_ms) * self._rate / 1000
            self._balance = min(self._balance + gained, float(self._rate))
        self._at_ms = now_ms
        return max(int(self._balance), 0)

    def moved(self, size: int) -> None:
        """Note that these bytes of throttled replicas were sent or received."""
        self.bytes += size
        if self._rate != LONG_MAX:
            self._balance -= size

    def wait_ms(self) -> int:
        """Return how long to wait before the next check, after :meth:`room` returned 0."""
        self.holds += 1
        if self._rate <= 0:
            return CHECK_MS_MAX
        return max(1, min(CHECK_MS_MAX, int((1 - self._balance) * 1000 / self._rate) + 1))
