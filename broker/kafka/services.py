"""What a node puts behind its Kafka listeners, and the seam by which it binds them.

A node in a simulation has no sockets: what binds is handed to it, or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidelog.broker.kafka.apis import Api
from tidelog.broker.kafka.kafka_traffic import KafkaTraffic
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.broker.traffic import Traffic
from tidelog.model.broker_config import NodeConfig
from tidelog.proto.network import Address, Server
from tidelog.replication.manager import ReplicaManager


@dataclass(frozen=True, slots=True)
class KafkaServices:
    """The same calls, replicas and budgets as behind a node's other listeners."""

    calls: Calls
    apis: Mapping[int, Api]
    replicas: ReplicaManager
    view: MetadataView
    produce_budget: MemoryBudget
    fetch_budget: MemoryBudget
    files_crowded: Callable[[], bool]
    """Whether so many log files are held open that fetches had better copy."""
    data_traffic: Traffic
    traffic: KafkaTraffic
    config: NodeConfig
    ready: asyncio.Event
    """Nothing is read before it is set: a starting node would deny what it is about to lead."""
    on_bug: Callable[[BaseException], None]


ServeKafka = Callable[[str, Address, KafkaServices], Awaitable[Server]]
"""Binds the listener of this name to an address and serves. Raises ``OSError`` naming the address."""
