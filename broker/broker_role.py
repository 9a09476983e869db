"""The broker role of a node: logs, replicas, listeners for clients and followers, standing with the controller.

Order of start: directories and logs, replica manager, listeners (they hold what comes in), registration,
metadata up to that registration, replicas as the metadata wants them, unfenced.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog.broker.alter_partition import alter_partition
from tidelog.broker.controller_channel import ControllerChannel
from tidelog.broker.directory_assignments import DirectoryAssignments
from tidelog.broker.dynamic_config import Settings
from tidelog.broker.groups import Groups
from tidelog.broker.handlers.configs import Configs
from tidelog.broker.handlers.data_streams import FetchSession, ProduceSession
from tidelog.broker.handlers.find_coordinator import FindCoordinator, Place
from tidelog.broker.handlers.forwarding import Forwarding
from tidelog.broker.handlers.log_dirs import LogDirs
from tidelog.broker.handlers.metadata import Metadata
from tidelog.broker.handlers.offsets import Offsets
from tidelog.broker.handlers.producer_ids import allocator
from tidelog.broker.handlers.reassignments import Reassignments
from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.kafka.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.services import KafkaServices, ServeKafka
from tidelog.broker.kafka.table import Surroundings, served
from tidelog.broker.lifecycle import LifecycleRunner, RegistrationRefused
from tidelog.broker.lifecycle_state import BrokerLifecycle, Identity, Standing
from tidelog.broker.log_cleaning import LogCleaning
from tidelog.broker.log_end_reports import LogEndReports
from tidelog.broker.log_upkeep import LogUpkeep
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.peers import Peers
from tidelog.broker.reconciler import Reconciler, strays
from tidelog.broker.services import Calls, broker_service, held_until
from tidelog.broker.supervisor import Supervisor
from tidelog.broker.traffic import Traffic
from tidelog.broker.transactions import Transactions
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta
from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import Clock
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, Offset, TopicIdPartition, random_id
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.proto.api import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.controller_api import Endpoint, SupportedFeature
from tidelog.proto.group_api import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, FindCoordinatorRequest
from tidelog.proto.network import Address, CallContext, Network, Server
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.partition_state import PartitionState
from tidelog.replication.settings import ReplicationSettings
from tidelog.storage.log_manager import LogManager
from tidelog.transactions.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKEN_GRACE_SESSIONS: Final = 15
"""How many session timeouts a taken node id is borne with: its last holder may just have died."""
HEARTBEAT_RETRY_MS: Final = 20
STREAM_BYTES_MAX: Final = 16 * 2**20
"""Most unanswered produce bytes of one stream."""
CLOSE_GRACE_S: Final = 0.1
CONTROLLER_GONE_S: Final = 2.0
"""How long a stopping broker looks for a controller; longer than a failover takes."""


class BrokerRole:
    """See the module. Everything runs on the event loop. ``logs`` is started already."""

    def __init__(
        self,
        config: NodeConfig,
        cluster_id: str,
        logs: LogManager,
        *,
        network: Network,
        clock: Clock,
        rng: random.Random,
        supervisor: Supervisor,
        channel: ControllerChannel,
        view: MetadataView,
        run_blocking: RunBlocking,
        serve_kafka: ServeKafka | None = None,
    ) -> None:
        """``serve_kafka`` binds the listeners that speak Kafka's protocol; without it there are none."""
        self._serve_kafka = serve_kafka
        self._config = config
        self._cluster_id = cluster_id
        self._network = network
        self._clock = clock
        self._supervisor = supervisor
        self._channel = channel
        self._view = view
        self._run_blocking = run_blocking
        self._servers: dict[str, Server] = {}
        self._ready = asyncio.Event()
        self._lifecycle: LifecycleRunner | None = None
        self._log_chores: list[asyncio.Task[None]] = []
        self.cleaning: LogCleaning | None = None
        self._live_epochs: dict[NodeId, BrokerEpoch] = {}
        self.logs = logs
        self.traffic = Traffic()
        # Two, so that consumers that do not take their answers hold up nobody but consumers.
        self.produce_budget = MemoryBudget(config.queued_max_request_bytes)
        self.fetch_budget = MemoryBudget(config.queued_max_request_bytes)
        self.kafka_traffic = KafkaTraffic()
        self.client_address: Address | None = None
        self.kafka_address: Address | None = None
        """Where clients of Kafka's protocol reach this broker; ``None`` where none does."""
        self._peers = Peers(config.replication_listener, view, network.connect)
        self.replicas = ReplicaManager(
            config.node_id,
            logs,
            clock,
            random.Random(rng.random()),
            ReplicationSettings.of(config),
            connect=self._peers.connection,
            alter_partition=alter_partition(config.node_id, channel, self.broker_epoch),
            broker_epoch_of=self._broker_epoch_of,
            verify=lambda transaction: self.transactions.partitions.ask(transaction),
            on_fatal=lambda error: supervisor.fail("replication", error),
            run_blocking=run_blocking,
        )
        self._throttle(config)
        self._assignments = DirectoryAssignments(config.node_id, channel, self.broker_epoch, self._directory_of)
        self._log_ends = LogEndReports(
            config.node_id, channel, self.broker_epoch, lambda: view.image, self.replicas.partition
        )
        self._reconciler = Reconciler(
            config, clock, self.replicas, self._settings_changed, self._states_applied, self._is_gone
        )
        self._producer_ids = ProducerIds(allocator(channel, config.node_id, self.broker_epoch))
        self._creation = TopicCreation(config, view, channel)
        self._metadata = Metadata(cluster_id, config, view, channel, self._creation)
        self._incarnation_id = random_id(rng)
        self.groups = Groups(
            config,
            self.replicas,
            view,
            clock=clock,
            rng=random.Random(rng.random()),
            on_fatal=lambda error: supervisor.fail("group coordination", error),
            add_partitions=lambda transaction: self.transactions.partitions.ask(transaction),
        )
        self.transactions = Transactions(
            config,
            self.replicas,
            view,
            self._peers.connection,
            self.groups.coordinator,
            self._producer_ids,
            clock=clock,
            on_fatal=lambda error: supervisor.fail("transaction coordination", error),
            newest_connection=lambda: self.kafka_traffic.accepted,
        )
        view.subscribe(self._on_metadata)

    # --- Life ---------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Bind the listeners. What comes in is held until the broker is ready. Raises ``OSError``."""
        calls = held_until(self._ready, self._calls())
        kafka = self._config.kafka_listeners
        for listener in self._config.broker_listeners:
            if listener in kafka:
                continue
            follow = self.replicas.replica_session if listener.name == self._config.replication_listener else None
            service = broker_service(calls, self._produce_session, self._fetch_session, follow)
            address = Address(listener.host, listener.port)
            self._servers[listener.name] = await self._network.serve(listener.name, address, service)
        self.client_address = next(iter(self._servers.values())).address
        if self._serve_kafka is None or not kafka:
            return
        services = self._kafka_services(calls)
        for listener in kafka:
            address = Address(listener.host, listener.port)
            self._servers[listener.name] = await self._serve_kafka(listener.name, address, services)
        self.kafka_address = self._servers[kafka[0].name].address

    async def register(self) -> None:
        """Begin to speak with the controller, and return once this broker is unfenced.

        Raises :class:`RegistrationRefused` where a controller refused it for good, or none let it in
        within ``initial.broker.registration.timeout.ms``. A refusal later goes to the supervisor.
        """
        config = self._config
        identity = Identity(
            self._cluster_id,
            config.node_id,
            self._incarnation_id,
            self._endpoints(),
            config.broker_rack,
            tuple(SupportedFeature(name, low, high) for name, (low, high) in sorted(SUPPORTED_FEATURES.items())),
        )
        lifecycle = BrokerLifecycle(
            identity,
            self.logs.clean_shutdown_epoch(),
            config.broker_heartbeat_interval_ms,
            HEARTBEAT_RETRY_MS,
            TAKEN_GRACE_SESSIONS * config.broker_session_timeout_ms,
        )
        self._lifecycle = LifecycleRunner(
            lifecycle,
            self._channel,
            self._clock,
            self._live_dirs,
            lambda: Offset(self._view.applied_offset),
            self._caught_up,
            self._standing_changed,
            answer_timeout_ms=max(config.broker_session_timeout_ms // 3, 1),
        )
        await self.replicas.start()
        self._supervisor.run("registration and heartbeats", self._lifecycle.run())
        offline = self.logs.offline_directory_ids
        if offline:
            self._lifecycle.dir_failed(offline)
        timeout_s = config.initial_broker_registration_timeout_ms / 1000
        if not await self._lifecycle.wait_for(Standing.RUNNING, Standing.FAILED, timeout_s=timeout_s):
            raise RegistrationRefused(
                f"no controller of {', '.join(map(str, config.voters))} admitted node {config.node_id} within "
                f"{timeout_s:g} s (initial.broker.registration.timeout.ms)"
            )
        if lifecycle.standing is Standing.FAILED:
            raise RegistrationRefused(lifecycle.failure)
        self._lifecycle.started = True
        self._supervisor.run("directory assignments", self._assignments.run())
        self._supervisor.run("log end reports", self._log_ends.run())
        upkeep = LogUpkeep(config, self.logs, self.replicas, self._clock, self._run_blocking)
        self._log_chores.append(self._supervisor.run("log upkeep", upkeep.run()))
        if config.log_cleaner_enable:
            self.cleaning = LogCleaning(
                lambda: self.settings.node, self.logs, upkeep.high_watermark_of, self._clock, self._run_blocking
            )
            self._log_chores.append(self._supervisor.run("log cleaner", self.cleaning.run()))

    async def stop(self, *, handed_over_s: float) -> None:
        """Hand over leaderships within the bound, stop serving, and leave the logs clean on disk."""
        epoch = self.broker_epoch()
        lifecycle = self._lifecycle
        if lifecycle is not None and handed_over_s > 0:
            let_go = await lifecycle.shut_down(handed_over_s, CONTROLLER_GONE_S)
            if not let_go:
                log.warning("no controller let this broker go in time: stopping all the same")
        self.replicas.fence()  # who still waits here is told to look for another leader
        await self.transactions.stop()
        await self.groups.stop()
        await self._close_network(CLOSE_GRACE_S)
        # From here on the logs are left alone, so that a thread may close them.
        self._view.close()
        for chore in self._log_chores:
            chore.cancel()
        if self._log_chores:
            await asyncio.wait(self._log_chores)
        await self.replicas.stop()
        self.logs.checkpoint(self.replicas.high_watermarks())
        if epoch >= 0:
            await self._run_blocking(lambda: self.logs.write_clean_shutdown(epoch))
        self.logs.close()

    def kill(self) -> None:
        """From here on nothing of this broker acts."""
        self.transactions.kill()
        self.groups.kill()
        self.replicas.kill()

    async def drop(self) -> None:
        """After a kill: let go of what the operating system would have."""
        self.kill()
        await self._close_network(0)

    async def _close_network(self, grace_s: float) -> None:
        self._producer_ids.close()
        self._creation.close()
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.close(grace_s) for server in servers.values()))
        await self._peers.close()

    # --- Standing -----------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        return Standing.REGISTERING if self._lifecycle is None else self._lifecycle.standing

    @property
    def settings(self) -> Settings:
        """The dynamic and static settings in force."""
        return self._reconciler.settings

    def broker_epoch(self) -> BrokerEpoch:
        """This broker's epoch, -1 while it has none."""
        return BrokerEpoch(-1) if self._lifecycle is None else self._lifecycle.epoch

    def directory_failed(self, directory_id: DirectoryId) -> None:
        """A log directory went out of service: its replicas go offline, and the controller is told at once.

        Called in the middle of what failed, so it only takes note.
        """
        asyncio.get_running_loop().call_soon(self._take_offline, directory_id)

    def _take_offline(self, directory_id: DirectoryId) -> None:
        for found in self.logs.describe():
            if found.directory_id == directory_id:
                self.replicas.directory_failed(found.path)
        if self._lifecycle is not None:
            self._lifecycle.dir_failed([directory_id])

    def sending(self) -> None:
        """This node's controller has just sent to others: a good moment for a heartbeat that is nearly due."""
        if self._lifecycle is not None:
            self._lifecycle.sending()

    def _caught_up(self) -> None:
        """The metadata holds this broker's registration: act on it, and be ready then."""
        self._supervisor.once("acting on metadata", self._act_on_metadata())

    async def _act_on_metadata(self) -> None:
        self._view.open()
        await self._view.wait_until(lambda image: True, timeout_s=None)
        held = [TopicIdPartition(found.topic_id, found.partition) for found in self.logs.logs()]
        for key in strays(self._config.node_id, self._view.image, held):
            found = self.logs.get(key.topic_id, key.partition)
            if found is not None:
                log.info("removing %s, which the metadata no longer knows as this broker's", found)
                self.logs.delete(found)
        self._ready.set()
        assert self._lifecycle is not None
        self._lifecycle.ready()

    def _on_metadata(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        self.groups.before_roles(image)
        self.transactions.before_roles(image)
        yield from self._reconciler.on_metadata(image, delta)
        self.groups.after_roles(delta)
        self.transactions.after_roles()
        known = self._live_epochs
        changed = []
        for node_id in delta.brokers:
            epoch = self._broker_epoch_of(node_id)
            if known.get(node_id) != epoch:
                changed.append(node_id)
            known[node_id] = epoch
        if changed:
            self.replicas.brokers_changed(changed)

    def _standing_changed(self, standing: Standing) -> None:
        if standing is Standing.REGISTERING:
            self.replicas.fence()

    def _settings_changed(self, settings: Settings) -> None:
        log.info("dynamic settings changed")
        self._throttle(settings.node)

    def _throttle(self, config: NodeConfig) -> None:
        self.replicas.set_throttles(
            config.leader_replication_throttled_rate, config.follower_replication_throttled_rate
        )

    def _broker_epoch_of(self, node_id: NodeId) -> BrokerEpoch:
        if node_id == self._config.node_id:
            return self.broker_epoch()
        found = self._view.image.broker(node_id)
        return BrokerEpoch(-1) if found is None or not found.active else found.broker_epoch

    def _states_applied(self, states: Sequence[PartitionState]) -> None:
        self._assignments.applied(states)
        self._log_ends.applied(states)

    def _directory_of(self, key: TopicIdPartition) -> DirectoryId | None:
        return self.logs.directory_of(key)

    def _is_gone(self, directory_id: DirectoryId) -> bool:
        """Whether a directory's disk was replaced: it is none of ours, and none of ours fails to say which it is."""
        live = self.logs.directory_ids
        return directory_id not in live and len(live) == len(self._config.directories)

    def _live_dirs(self) -> list[DirectoryId]:
        return list(self.logs.directory_ids)

    def _endpoints(self) -> tuple[Endpoint, ...]:
        ports = {name: server.address.port for name, server in self._servers.items()}
        return tuple(Endpoint(found.name, found.host, found.port) for found in self._config.advertised(ports))

    # --- Serving ------------------------------------------------------------------------------------

    def _produce_session(self, _: CallContext) -> ProduceSession:
        return ProduceSession(self.replicas, self.produce_budget, self.traffic, STREAM_BYTES_MAX, self._ready)

    def _fetch_session(self, _: CallContext) -> FetchSession:
        return FetchSession(self.replicas, self.fetch_budget, self.traffic, self._config.fetch_max_bytes, self._ready)

    def _kafka_services(self, calls: Calls) -> KafkaServices:
        return KafkaServices(
            calls,
            served(Surroundings(self._config, self._view, lambda: self.settings)),
            self.replicas,
            self._view,
            self.produce_budget,
            self.fetch_budget,
            lambda: self.logs.files_crowded,
            self.traffic,
            self.kafka_traffic,
            self._config,
            self._ready,
            lambda error: self._supervisor.fail("a handler raised", error),
        )

    def _calls(self) -> Calls:
        forwarding = Forwarding(self._channel, self._view)
        places = {
            GROUP_COORDINATOR: Place(GROUP_OFFSETS_TOPIC, self.groups.coordinator.partition_for),
            TRANSACTION_COORDINATOR: Place(TRANSACTION_STATE_TOPIC, self.transactions.coordinator.partition_for),
        }
        return {
            MetadataRequest: self._metadata.handle,
            DescribeClusterRequest: self._metadata.describe_cluster,
            CreateTopicsRequest: forwarding.create_topics,
            DeleteTopicsRequest: forwarding.delete_topics,
            CreatePartitionsRequest: forwarding.create_partitions,
            IncrementalAlterConfigsRequest: forwarding.alter_configs,
            UpdateFeaturesRequest: forwarding.update_features,
            DescribeConfigsRequest: Configs(self._config.node_id, self._view, lambda: self.settings).describe,
            DescribeLogDirsRequest: LogDirs(self.logs).describe,
            FindCoordinatorRequest: FindCoordinator(self._view, self._creation, places).handle,
            **Reassignments(self._channel, self._view).calls(),
            **Offsets(self.replicas, self._view).calls(),
            **self.groups.calls(),
            **self.transactions.calls(),
        }
