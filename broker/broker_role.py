"""The broker role of a node: logs, replicas, listeners for clients and followers, standing with the controller.

Order of start: directories and logs, replica manager, listeners (they hold what comes in), registration,
metadata up to that registration, replicas as the metadata wants them, unfenced.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from tidelog.broker.alter_partition import alter_partition
from tidelog.broker.controller_channel import ControllerChannel
from tidelog.broker.directory_assignments import DirectoryAssignments
from tidelog.broker.dynamic_config import Settings
from tidelog.broker.handlers.configs import Configs
from tidelog.broker.handlers.data_streams import FetchSession, ProduceSession
from tidelog.broker.handlers.forwarding import Forwarding
from tidelog.broker.handlers.log_dirs import LogDirs
from tidelog.broker.handlers.metadata import Metadata
from tidelog.broker.handlers.producer_ids import InitProducerId, allocator
from tidelog.broker.lifecycle import LifecycleRunner
from tidelog.broker.lifecycle_state import BrokerLifecycle, Identity, Standing
from tidelog.broker.log_upkeep import LogUpkeep
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.peers import Peers
from tidelog.broker.reconciler import Reconciler, strays
from tidelog.broker.services import Calls, as_async, broker_service, held_until
from tidelog.broker.supervisor import Supervisor
from tidelog.broker.traffic import Traffic
from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import Clock
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, TopicIdPartition, random_id
from tidelog.proto.api import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    Endpoint,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.network import Address, CallContext, Network, Server
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.settings import ReplicationSettings
from tidelog.storage.files import FileLayer
from tidelog.storage.log_manager import LogManager
from tidelog.transactions.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKEN_GRACE_SESSIONS: Final = 5
"""How many session timeouts a taken node id is borne with at start."""
STREAM_BYTES_MAX: Final = 16 * 2**20
"""Most unanswered produce bytes of one stream."""


class BrokerRole:
    """See the module. Everything runs on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        cluster_id: str,
        *,
        network: Network,
        files: FileLayer,
        clock: Clock,
        rng: random.Random,
        supervisor: Supervisor,
        channel: ControllerChannel,
        view: MetadataView,
        run_blocking: RunBlocking,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._network = network
        self._clock = clock
        self._rng = rng
        self._supervisor = supervisor
        self._channel = channel
        self._view = view
        self._servers: list[Server] = []
        self._ready = asyncio.Event()
        self._lifecycle: LifecycleRunner | None = None
        self.traffic = Traffic()
        self.budget = MemoryBudget(config.queued_max_request_bytes)
        self.endpoints: tuple[Endpoint, ...] = ()
        self.client_address: Address | None = None
        self._peers = Peers(config.replication_listener, view, network.connect)
