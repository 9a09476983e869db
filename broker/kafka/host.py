"""What a connection needs of the listener that accepted it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.kafka.api_versions import ApiVersions
from tidelog.broker.kafka.apis import Api
from tidelog.broker.kafka.fetch import Fetch
from tidelog.broker.kafka.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.limits import KafkaLimits
from tidelog.broker.kafka.produce import Produce
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.services import Calls

if TYPE_CHECKING:
    from tidelog.broker.kafka.connection import KafkaConnection


class Host(Protocol):
    """See the module."""

    listener: str
    limits: KafkaLimits
    calls: Calls
    apis: Mapping[int, Api]
    served: frozenset[int]
    """The keys of all APIs."""
    api_versions: ApiVersions
    produce: Produce
    fetch: Fetch
    produce_budget: MemoryBudget
    traffic: KafkaTraffic

    def bug(self, error: BaseException) -> None:
        """A handler raised what it must not."""

    def notice(self, peer: str, text: str) -> None:
        """Log who is cut off and why."""

    def closed(self, connection: KafkaConnection) -> None: ...
