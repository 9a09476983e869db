"""The methods that a connection needs of the listener that accepted it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidelog.broker.access.access import Access
from tidelog.broker.access.logins import Logins
from tidelog.broker.kafka.calls.cluster.api_versions import ApiVersions
from tidelog.broker.kafka.data.fetch import Fetch
from tidelog.broker.kafka.data.produce import Produce
from tidelog.broker.kafka.login import LoginOver
from tidelog.broker.kafka.wire.apis import Api
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.wire.limits import KafkaLimits
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.services import Calls
from tidelog.proto.transport.http2_referral import Referral
from tidelog.proto.transport.network import CallContext


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
    client_quotas: ClientQuotas
    shared_buffer: memoryview
    """The buffer that its connections read into."""
    traffic: KafkaTraffic
    logins: Logins | None
    """How clients log in; ``None`` if they do not."""

    def access(self, context: CallContext, request: str = "") -> Access | None:
        """Return the rights of the sender of a request, given its name in Kafka; ``None`` without access control."""

    def bug(self, error: BaseException) -> None:
        """Handle a handler's exception, which is a bug."""

    def login_failed(self, peer: str, over: LoginOver) -> None:
        """Log it, and tell the audit log."""

    def notice(self, peer: str, text: str) -> None:
        """Log the closed connection and the reason."""

    def referral(self) -> Referral:
        """Return the referral for a gRPC client."""
