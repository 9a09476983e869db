"""A consumer's subscription: topics by name or by pattern, or manually assigned partitions. Pure.

Source: Kafka's ``SubscriptionState``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.client.cluster.metadata import TopicView
from tidelog.client.errors import IllegalStateError
from tidelog.client.group.consumer_membership import Interest
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.model.ids import TopicPartition


class Wanted(enum.Enum):
    NOTHING = "nothing"
    TOPICS = "topics by name"
    PATTERN = "topics by pattern"
    BY_HAND = "partitions by hand"


@dataclass(slots=True)
class SubscribedTopics:
    """``topics``: those that the consumer joins with; ``matched``: the topics that match the pattern are known.
    ``regex``: a pattern that the coordinator matches (``by_server``); then ``topics`` are those assigned."""

    exclude_internal: bool = True
    by_server: bool = False
    wanted: Wanted = Wanted.NOTHING
    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    regex: str | None = None
    listener: ConsumerRebalanceListener = field(default_factory=ConsumerRebalanceListener)
    matched: bool = True

    @property
    def grouped(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.wanted in (Wanted.TOPICS, Wanted.PATTERN)

    @property
    def wanted_by_pattern(self) -> bool:
        return self.wanted is Wanted.PATTERN

    @property
    def interest(self) -> Interest:
        """What a member of a group with coordinator-side assignment reports."""
        return Interest(self.topics) if self.regex is None else Interest(frozenset(), self.regex)

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None) -> None:
        """Subscribe to topics. Raises ``IllegalStateError`` if partitions were assigned manually."""
        if isinstance(topics, str):
            raise TypeError(f"topics: expected a list of names, such as [{topics!r}], found the string {topics!r}")
        names = frozenset(topics)
        if not names:
            raise ValueError(
                "topics: expected topics or a pattern, found neither; to give up everything, use unsubscribe()"
            )
        for name in sorted(names, key=str):
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"topics: expected non-empty names, found {name!r}")
        self._become(Wanted.TOPICS, listener)
        self.topics = names

    def subscribe_pattern(self, pattern: str | re.Pattern[str], listener: ConsumerRebalanceListener | None) -> None:
        """Subscribe to a pattern. Text is sent to the coordinator if that matches patterns; a compiled pattern is
        always matched here."""
        if not (pattern if isinstance(pattern, str) else pattern.pattern):
            raise ValueError("pattern: expected a non-empty pattern, found ''")
        if self.by_server and isinstance(pattern, str):
            self._become(Wanted.PATTERN, listener)
            self.regex = pattern
            self.topics = frozenset()
            return
        compiled = re.compile(pattern)
        self._become(Wanted.PATTERN, listener)
        self.pattern = compiled
        self.topics = frozenset()
        self.matched = False

    def by_hand(self, anything: bool) -> None:
        """Note that partitions are assigned manually, or (none) no longer. Raises ``IllegalStateError`` if there is a
        subscription."""
        if self.grouped:
            raise IllegalStateError(
                f"subscribed to {self.wanted.value}: unsubscribe() before you assign partitions manually"
            )
        self.wanted = Wanted.BY_HAND if anything else Wanted.NOTHING

    def unsubscribe(self) -> None:
        self.wanted = Wanted.NOTHING
        self.topics = frozenset()
        self.pattern = self.regex = None
        self.matched = True
        self.listener = ConsumerRebalanceListener()

    def _become(self, wanted: Wanted, listener: ConsumerRebalanceListener | None) -> None:
        if self.wanted is Wanted.BY_HAND:
            raise IllegalStateError("partitions are assigned manually: unsubscribe() before subscribe()")
        self.wanted = wanted
        self.pattern = self.regex = None
        self.matched = True
        self.listener = listener or ConsumerRebalanceListener()

    def match(self, topics: Mapping[str, TopicView]) -> bool:
        """Find the ``topics`` that match the pattern. Returns whether they have changed."""
        pattern = self.pattern
        if pattern is None:
            return False
        found = frozenset(
            name
            for name, view in topics.items()
            if pattern.fullmatch(name) and not (self.exclude_internal and view.is_internal)
        )
        changed = not self.matched or found != self.topics
        self.matched = True
        self.topics = found
        return changed

    def covers(self, partition: TopicPartition) -> bool:
        """Return whether the group may assign this partition to us."""
        if self.pattern is not None:
            return self.pattern.fullmatch(partition.topic) is not None
        if self.regex is not None:
            return True  # the coordinator knows
        return partition.topic in self.topics

    def add_matching(self, topics: Iterable[str]) -> None:
        """Add matching topics that the leader knew before we did."""
        if self.pattern is not None:
            self.topics |= frozenset(topics)
