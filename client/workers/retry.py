"""What happens to a record whose handler raised."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster.backoff import Backoff


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries a record in place: later records with its key wait, others continue.

    With ``through``, a delay topic, the record does not wait here: a copy goes there, in one transaction with the
    commit that says that the record is finished, and comes back in the topic ``back`` once it is due, where the same
    group reads it. Records after it do not wait, so its key's order is lost.

    ``attempts``: how often the handler gets it, at least once. ``backoff_ms`` is doubled with each failure up to
    ``backoff_max_ms``, give or take 20 %. ``fatal``: exceptions that no retry fixes. Raises ``ValueError``.
    """

    attempts: int = 5
    backoff_ms: int = 1_000
    backoff_max_ms: int = 30_000
    fatal: tuple[type[BaseException], ...] = ()
    through: str | None = None
    back: str | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: expected 1 or more, found {self.attempts}")
        if not 0 < self.backoff_ms <= self.backoff_max_ms:
            raise ValueError(
                f"backoff_ms: expected more than 0 and at most backoff_max_ms ({self.backoff_max_ms}), "
                f"found {self.backoff_ms}"
            )
        if (self.through is None) != (self.back is None):
            raise ValueError(f"through, back: expected both topics or neither, found {self.through!r}, {self.back!r}")

    def wait_ms(self, failures: int, rng: random.Random) -> int | None:
        """Return how long to wait after this many failures; ``None`` to give the record up."""
        if failures >= self.attempts:
            return None
        return Backoff(self.backoff_ms, self.backoff_max_ms).after(failures, rng)


ONCE: Final = RetryPolicy(attempts=1)
