"""How long to wait before trying again."""

from __future__ import annotations

import random
from dataclasses import dataclass

JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """``initial_ms`` doubled with each failure up to ``max_ms``, give or take 20 %.

    Source: Kafka's ``ExponentialBackoff`` (KIP-580).
    """

    initial_ms: int
    max_ms: int

    def after(self, failures: int, rng: random.Random) -> int:
        """Milliseconds to wait after this many failures, at least one."""
        top = max(self.initial_ms, self.max_ms)
        raised = min(top, self.initial_ms * 2 ** min(30, max(0, failures - 1)))
        return min(top, int(raised * rng.uniform(1 - JITTER, 1 + JITTER)))
