"""The services behind a node's Kafka listeners, and the hook through which the node binds them.

A node in a simulation has no sockets, so the function that binds is passed in, or is absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.logins import FindLogins
from tidelog.broker.connection_quotas import ConnectionQuotas
from tidelog.broker.kafka.fetch_sessions import FetchSessionCache
from tidelog.broker.kafka.wire.apis import Api
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.services import Calls
from tidelog.broker.traffic import Traffic
from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.transport.network import Address, Server
from tidelog.replication.manager import ReplicaManager
from tidelog.security.tls_store import FindTls


@dataclass(frozen=True, slots=True)
class KafkaServices:
    """The calls, replicas and budgets that the node's other listeners also use."""

    calls: Calls
    apis: Mapping[int, Api]
    replicas: ReplicaManager
    view: MetadataView
    produce_budget: MemoryBudget
    fetch_budget: MemoryBudget
    files_crowded: Callable[[], bool]
    """Whether so many log files are held open that fetches should copy."""
    data_traffic: Traffic
    traffic: KafkaTraffic
    quotas: ConnectionQuotas
    config: NodeConfig
    ready: asyncio.Event
    """Nothing is read before it is set: a starting node would deny partitions that it is about to lead."""
    tls: FindTls
    on_bug: Callable[[BaseException], None]
    grpc_address: Mapping[str, Address]
    """For each Kafka listener, the address to which gRPC clients are referred."""
    control: AccessControl
    logins: FindLogins
    client_quotas: ClientQuotas
    fetch_sessions: FetchSessionCache


ServeKafka = Callable[[str, Address, KafkaServices], Awaitable[Server]]
"""Binds the listener of this name to an address and serves. Raises ``OSError`` naming the address."""
