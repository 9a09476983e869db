"""Which replicas of a topic are throttled: the value of ``leader.`` and ``follower.replication.throttled.replicas``.

Source: KIP-73, Kafka's ``ThrottledReplicaListValidator`` and ``TopicConfigHandler``.
"""

from __future__ import annotations

import re
from typing import Final, Self

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.config_def import split_list

EVERY: Final = "*"
NONE: Final = "none"
_ITEM: Final = re.compile(r"(\d{1,10}):(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """``every`` replica of a topic, or ``named`` ones as (partition, node). A set, since it is checked for each
    partition."""

    every: bool = False
    named: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``*``, ``partition:node,…``, or nothing (Kafka's ``none``). Raises ``ValueError``."""
        items = split_list(text)
        if items == (EVERY,):
            return cls(every=True)
        if items in ((), (NONE,)):
            return cls()
        named: set[tuple[int, int]] = set()
        for item in items:
            found = _ITEM.fullmatch(item)
            if found is None:
                raise ValueError(f"expected '*' or partition:node pairs with commas between, found {item[:80]!r}")
            named.add((int(found[1]), int(found[2])))
        return cls(named=frozenset(named))

    def format(self) -> str:
        """Return it as text for :meth:`parse`."""
        if self.every:
            return EVERY
        return ",".join(f"{partition}:{node}" for partition, node in sorted(self.named))

    def has(self, partition: int, node: int) -> bool:
        return self.every or (partition, node) in self.named


NOBODY: Final = ThrottledReplicas()
