"""The broker role of a node: logs, replicas, listeners for clients and followers, standing with the controller.

Start-up order: directories and logs, replica manager, listeners (they hold incoming requests), registration, metadata
up to that registration, replicas as the metadata wants them, unfencing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.changes import made_by_use
from tidelog.broker.access.connections import Connections
from tidelog.broker.access.guard import GuardedReplicas, Replicas, guarded
from tidelog.broker.access.logins import NodeLogins
from tidelog.broker.access.nodes import NodeGuard
from tidelog.broker.access.reserved import reserving
from tidelog.broker.client_metrics.telemetry import Telemetry
from tidelog.broker.connection_quotas import ConnectionQuotas
from tidelog.broker.coordinators.delays.delays import Delays
from tidelog.broker.coordinators.groups import Groups
from tidelog.broker.coordinators.peers import Peers
from tidelog.broker.coordinators.transaction_partitions import TransactionPartitions
from tidelog.broker.coordinators.transactions import Transactions
from tidelog.broker.handlers.acls import Acls
from tidelog.broker.handlers.backups import Backups
from tidelog.broker.handlers.configs import Configs
from tidelog.broker.handlers.data_streams import FetchSession, ProduceSession
from tidelog.broker.handlers.delegation_tokens import DelegationTokens
from tidelog.broker.handlers.features import Features
from tidelog.broker.handlers.find_coordinator import CoordinatorTopic, FindCoordinator
from tidelog.broker.handlers.forwarding import Forwarding
from tidelog.broker.handlers.log_dirs import LogDirs
from tidelog.broker.handlers.logins import TokenLogins
from tidelog.broker.handlers.metadata import Metadata
from tidelog.broker.handlers.offsets import Offsets
from tidelog.broker.handlers.producer_ids import allocator
from tidelog.broker.handlers.quotas import Quotas
from tidelog.broker.handlers.reassignments import Reassignments
from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.handlers.users import Users
from tidelog.broker.kafka.calls.services import KafkaServices, ServeKafka
from tidelog.broker.kafka.calls.table import Surroundings, served
from tidelog.broker.kafka.fetch_sessions import FetchSessionCache
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.logs.backup_reading import BackupReading
from tidelog.broker.logs.filter_indexing import FilterIndexing
from tidelog.broker.logs.log_cleaning import LogCleaning
from tidelog.broker.logs.log_mending import LogMending
from tidelog.broker.logs.log_moving import LogMoving
from tidelog.broker.logs.log_scrubbing import LogScrubbing
from tidelog.broker.logs.log_upkeep import LogUpkeep
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.metadata.alter_partition import alter_partition
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.directory_assignments import DirectoryAssignments
from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.lifecycle import LifecycleRunner, RegistrationRefused
from tidelog.broker.metadata.lifecycle_state import BrokerLifecycle, BrokerStanding, Identity
from tidelog.broker.metadata.log_end_reports import LogEndReports
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.metadata.reconciler import Reconciler, strays
from tidelog.broker.node.audit_topic import AuditQueue, AuditTopic
from tidelog.broker.node.supervisor import Supervisor
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.usage import StreamUsage, metered
from tidelog.broker.services import Calls, broker_service, held_until
from tidelog.broker.traffic import Traffic
from tidelog.metadata_quorum.controller.features import supported_features
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import Clock
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, Offset, TopicIdPartition, random_id
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.node.replication_settings import RACK_AWARE_SELECTOR
from tidelog.proto.calls.api import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    UnregisterBrokerRequest,
)
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.calls.group_api import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, FindCoordinatorRequest
from tidelog.proto.transport.network import Address, CallContext, Network, Server, StreamKind
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.security.audit import Audit
from tidelog.security.tls_store import FindTls
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.transactions.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKEN_GRACE_SESSIONS: Final = 15
"""How many session timeouts to wait before giving up on a node id in use: its last holder may just have died."""
HEARTBEAT_RETRY_MS: Final = 20
STREAM_BYTES_MAX: Final = 16 * 2**20
"""Maximum unanswered produce bytes per stream."""
CLOSE_GRACE_S: Final = 0.1
CONTROLLER_GONE_S: Final = 2.0
"""How long a stopping broker looks for a controller; longer than a failover takes."""


class BrokerRole:
    """See the module. Everything runs on the event loop. ``logs`` has already been started."""

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
        tls: FindTls,
        audit: Audit | None = None,
        audit_queue: AuditQueue | None = None,
        serve_kafka: ServeKafka | None = None,
    ) -> None:
        """``serve_kafka`` binds the Kafka listeners; without it there are none."""
        self._serve_kafka = serve_kafka
        self._config = config
        self._cluster_id = cluster_id
        self._network = network
        self._tls = tls
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
        self._live_brokers: dict[NodeId, tuple[BrokerEpoch, tuple[DirectoryId, ...]]] = {}
        self.logs = logs
        # Two budgets, so that consumers that do not take their answers only hold up consumers.
        self.produce_budget = MemoryBudget(config.queued_max_request_bytes)
        self.fetch_budget = MemoryBudget(config.queued_max_request_bytes)
        self._connection_quotas = ConnectionQuotas.of(config)
        self.kafka_traffic = KafkaTraffic()
        self.fetch_sessions = FetchSessionCache(config.max_incremental_fetch_session_cache_slots, rng)
        self.access = AccessControl(config, audit)
        self._logins = NodeLogins(config, lambda: view.image, clock)
        self._token_logins = TokenLogins(self._logins.find, self.access)
        self._nodes = NodeGuard(self.access, config.node_principal_pattern)
        view.subscribe(self.access.on_metadata)  # before others act on older rights
        self.client_quotas = ClientQuotas(config, clock)
        view.subscribe(self.client_quotas.on_metadata)
        view.subscribe(self._connection_quotas.on_metadata)
        self.telemetry = Telemetry(clock, random.Random(rng.random()), lambda: config.telemetry_max_bytes)
        view.subscribe(self.telemetry.on_metadata)
        self.client_address: Address | None = None
        self.kafka_address: Address | None = None
        """The address for Kafka clients; ``None`` without a listener for them."""
        connect = partial(network.connect, listener=config.replication_listener)
        self._peers = Peers(config.replication_listener, view, connect)
        questions = TransactionPartitions(
            config.node_id,
            view,
            self._peers.connection,
            partial(supervisor.fail, "transaction coordination"),
            verifies=config.transaction_partition_verification_enable,
        )
        self.replicas = ReplicaManager(
            config.node_id,
            logs,
            clock,
            random.Random(rng.random()),
            ReplicationSettings.of(config),
            connect=self._peers.connection,
            alter_partition=alter_partition(config.node_id, channel, self.broker_epoch),
            broker_epoch_of=self._broker_epoch_of,
            has_directory=self._has_directory,
            verify=questions.ask,
            rack_of=self._rack_of if config.replica_selector_class.endswith(RACK_AWARE_SELECTOR) else None,
            on_fatal=partial(supervisor.fail, "replication"),
            run_blocking=run_blocking,
        )
        self.traffic = Traffic(self.replicas.topics)
        self._throttle(config)
        self._assignments = DirectoryAssignments(
            config.node_id, channel, self.broker_epoch, logs.directory_of, logs.offline, logs.moves.settle
        )
        logs.moves.on_moved = self._assignments.moved
        self._log_ends = LogEndReports(
            config.node_id, channel, self.broker_epoch, lambda: view.image, self.replicas.partition
        )
        self._reconciler = Reconciler(
            config, clock, self.replicas, self._settings_changed, self._states_applied, self._is_gone
        )
        self.scrubbing = LogScrubbing(self._reconciler.node_config, logs, run_blocking)
        self.mending = LogMending(
            self._reconciler.node_config,
            lambda: self.scrubbing.damaged,
            self.replicas.partition,
            self._peers.connection,
            clock,
            run_blocking,
            self._mended,
        )
        self._moving = LogMoving(self._reconciler.node_config, logs, run_blocking)
        self._backup_reading = BackupReading(
            config.backup_dirs, self.replicas.importing.take, lambda: view.image, clock
        )
        self._producer_ids = ProducerIds(allocator(channel, config.node_id, self.broker_epoch))
        self._creation = TopicCreation(
            config, view, channel, partial(made_by_use, self.access), lambda: audit is None or audit.has_room()
        )
        self.audit_topic = AuditTopic(
            audit_queue,
            config.node_id,
            self.replicas,
            view,
            clock,
            connection=self._peers.connection,
            create=self._creation.create,
        )
        self._sends_audit = audit_queue is not None
        self._metadata = Metadata(cluster_id, config, view, channel, self._creation)
        self._incarnation_id = random_id(rng)
        self.groups = Groups(
            config,
            self.replicas,
            view,
            clock=clock,
            rng=random.Random(rng.random()),
            on_fatal=partial(supervisor.fail, "group coordination"),
            add_partitions=questions.ask,
            access=self.access,
            connection=self._peers.connection,
        )
        self.transactions = Transactions(
            config,
            self.replicas,
            view,
            self._peers.connection,
            self.groups.coordinator,
            questions,
            self._producer_ids,
            clock=clock,
            on_fatal=partial(supervisor.fail, "transaction coordination"),
            newest_connection=lambda: self.kafka_traffic.accepted,
        )
        self.delays = Delays(
            config.node_id,
            self.replicas,
            view,
            self._peers.connection,
            {**self.groups.calls(), **self.transactions.calls()},
            lambda: self.settings,
            clock,
            partial(supervisor.fail, "delay topics"),
            group_partition=self.groups.coordinator.partition_for,
            transaction_partition=self.transactions.coordinator.partition_for,
            create=self._creation.create,
        )
        view.subscribe(self._on_metadata)

    # --- Life ---------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Bind the listeners. Requests are held until the broker is ready. Raises ``OSError``."""
        reserved = reserving(self._calls(), self._config.replication_listeners, lambda: self._view.image)
        creates = self._config.auto_create_topics_enable
        calls = guarded(reserved, self.access, lambda: self._view.image, creates_topics=creates)
        calls = held_until(self._ready, calls)
        elsewhere = (
            "controllers and followers belong at the addresses in controller.quorum.voters and "
            "the brokers' registrations"
        )
        kafka = self._config.kafka_listeners
        for listener in self._config.broker_listeners:
            if listener in kafka:
                continue
            follow = None
            if listener.name in self._config.replication_listeners:
                follow = self._nodes.streams(StreamKind.REPLICA_FETCH, self.replicas.replica_session)
            sessions = self._token_logins.sessions(listener.name)
            timed = metered(calls, self.client_quotas)
            service = broker_service(timed, self._produce_session, self._fetch_session, follow, elsewhere, sessions)
            address = Address(listener.host, listener.port)
            self._servers[listener.name] = await self._network.serve(listener.name, address, service)
        self.client_address = next(iter(self._servers.values())).address
        if self._serve_kafka is None or not kafka:
            return
        ports = {name: server.address.port for name, server in self._servers.items()}
        grpc = {found.name: Address(*self._config.grpc_listener_for(found, ports)[1:]) for found in kafka}
        services = self._kafka_services(calls, grpc)
        for listener in kafka:
            address = Address(listener.host, listener.port)
            self._servers[listener.name] = await self._serve_kafka(listener.name, address, services)
        self.kafka_address = self._servers[kafka[0].name].address

    async def register(self) -> None:
        """Contact the controller, and return once this broker is unfenced.

        Raises :class:`RegistrationRefused` if a controller refused it for good, or none admitted it within
        ``initial.broker.registration.timeout.ms``. A later refusal goes to the supervisor.
        """
        config = self._config
        identity = Identity(
            self._cluster_id,
            config.node_id,
            self._incarnation_id,
            self._endpoints(),
            config.broker_rack,
            supported_features(),
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
        if not await self._lifecycle.wait_for(BrokerStanding.RUNNING, BrokerStanding.FAILED, timeout_s=timeout_s):
            raise RegistrationRefused(
                f"no controller of {', '.join(map(str, config.voters))} admitted node {config.node_id} within "
                f"{timeout_s:g} s (initial.broker.registration.timeout.ms)"
            )
        if lifecycle.standing is BrokerStanding.FAILED:
            raise RegistrationRefused(lifecycle.failure)
        self._lifecycle.started = True
        self._supervisor.run("directory assignments", self._assignments.run())
        self._supervisor.run("log end reports", self._log_ends.run())
        if self._sends_audit:
            self._supervisor.run("audit topic", self.audit_topic.run())
        upkeep = LogUpkeep(config, self.logs, self.replicas, self._clock, self._run_blocking)
        self._log_chores.append(self._supervisor.run("log upkeep", upkeep.run()))
        self._log_chores.append(self._supervisor.run("log scrub", self.scrubbing.run()))
        self._log_chores.append(self._supervisor.run("log mending", self.mending.run()))
        self._log_chores.append(self._supervisor.run("log moving", self._moving.run()))
        self.filter_indexing = FilterIndexing(self.logs, self._run_blocking)
        self._log_chores.append(self._supervisor.run("log filter indexes", self.filter_indexing.run()))
        if config.log_cleaner_enable:
            self.cleaning = LogCleaning(
                self._reconciler.node_config, self.logs, upkeep.high_watermark_of, self._clock, self._run_blocking
            )
            self._log_chores.append(self._supervisor.run("log cleaner", self.cleaning.run()))

    async def stop(self, *, handed_over_s: float) -> None:
        """Hand over leaderships within the time limit, stop serving, and leave clean logs on disk."""
        epoch = self.broker_epoch()
        lifecycle = self._lifecycle
        if lifecycle is not None and handed_over_s > 0:
            let_go = await lifecycle.shut_down(handed_over_s, CONTROLLER_GONE_S)
            if not let_go:
                log.warning("no controller confirmed the shutdown in time: stopping anyway")
        self.replicas.fence()  # tells remaining waiters to look for another leader
        await self.delays.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self._close_network(CLOSE_GRACE_S)
        # Nothing uses the logs from here on, so a thread may close them.
        self._view.close()
        for chore in self._log_chores:
            chore.cancel()
        if self._log_chores:
            await asyncio.wait(self._log_chores)
        await self.replicas.stop()
        self.logs.checkpoint(self.replicas.high_watermarks())
        self.logs.store_scrub_offsets()
        if epoch >= 0:
            await self._run_blocking(lambda: self.logs.write_clean_shutdown(epoch))
        self.logs.close()

    def kill(self) -> None:
        """Stop all activity of this broker."""
        self.delays.kill()
        self.transactions.kill()
        self.groups.kill()
        self.replicas.kill()

    async def drop(self) -> None:
        """Release, after a kill, everything that the operating system would have released."""
        self.kill()
        await self._close_network(0)

    async def _close_network(self, grace_s: float) -> None:
        self._backup_reading.close()
        self._producer_ids.close()
        self._creation.close()
        self._logins.close()
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.close(grace_s) for server in servers.values()))
        await self._peers.close()

    # --- BrokerStanding -----------------------------------------------------------------------------------

    @property
    def standing(self) -> BrokerStanding:
        return BrokerStanding.REGISTERING if self._lifecycle is None else self._lifecycle.standing

    @property
    def settings(self) -> Settings:
        """The dynamic and static settings in force."""
        return self._reconciler.settings

    def broker_epoch(self) -> BrokerEpoch:
        """Return this broker's epoch, -1 if it has none."""
        return BrokerEpoch(-1) if self._lifecycle is None else self._lifecycle.epoch

    def directory_failed(self, directory_id: DirectoryId) -> None:
        """Take a log directory out of service: its replicas go offline, and the controller hears immediately.

        Called in the middle of the failing operation, so it only records the failure.
        """
        asyncio.get_running_loop().call_soon(self._take_offline, directory_id)

    def _take_offline(self, directory_id: DirectoryId) -> None:
        for found in self.logs.describe():
            if found.directory_id == directory_id:
                self.replicas.directory_failed(found.path)
        if self._lifecycle is not None:
            self._lifecycle.dir_failed([directory_id])

    def _mended(self, log: Log) -> None:
        if self.cleaning is not None:
            self.cleaning.cleaner.mended(log)

    def sending(self) -> None:
        """Send a heartbeat that is nearly due, because this node's controller has just sent to others."""
        if self._lifecycle is not None:
            self._lifecycle.sending()

    def _caught_up(self) -> None:
        """Act on the metadata, which now contains this broker's registration, then be ready."""
        self._supervisor.once("acting on metadata", self._act_on_metadata())

    async def _act_on_metadata(self) -> None:
        self._view.open()
        await self._view.wait_until(lambda image: True, timeout_s=None)
        for key in strays(self._config.node_id, self._view.image, self.logs.partitions()):
            found = self.logs.get(key.topic_id, key.partition)
            if found is None:
                self.logs.moves.drop(key)
            else:
                log.info("removing %s, which the metadata no longer assigns to this broker", found)
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
        known = self._live_brokers
        changed = []
        for node_id in delta.brokers:
            found = image.broker(node_id)
            now = (self._broker_epoch_of(node_id), () if found is None else found.log_dirs)
            if known.get(node_id) != now:
                changed.append(node_id)
            known[node_id] = now
        if changed:
            self.replicas.brokers_changed(changed)

    def _standing_changed(self, standing: BrokerStanding) -> None:
        if standing is BrokerStanding.REGISTERING:
            self.replicas.fence()
        self.replicas.serve_nearby(standing in (BrokerStanding.RUNNING, BrokerStanding.SHUTTING_DOWN))

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

    def _rack_of(self, node_id: NodeId) -> str:
        found = self._view.image.broker(node_id)
        return "" if found is None else found.rack or ""

    def _has_directory(self, key: TopicIdPartition, node_id: NodeId) -> bool:
        partition = self._view.image.partition(*key)
        return partition is None or self._view.image.has_online_directory(node_id, partition)

    def _states_applied(self, states: Sequence[PartitionState]) -> None:
        self._assignments.applied(states)
        self._log_ends.applied(states)
        self.delays.applied(states)

    def _is_gone(self, directory_id: DirectoryId) -> bool:
        """Return whether a directory's disk was replaced: it is none of ours, and all of ours are identified."""
        live = self.logs.directory_ids
        return directory_id not in live and len(live) == len(self._config.directories)

    def _live_dirs(self) -> list[DirectoryId]:
        return list(self.logs.directory_ids)

    def _endpoints(self) -> tuple[Endpoint, ...]:
        ports = {name: server.address.port for name, server in self._servers.items()}
        return tuple(Endpoint(found.name, found.host, found.port) for found in self._config.advertised(ports))

    # --- Serving ------------------------------------------------------------------------------------

    def _produce_session(self, context: CallContext) -> ProduceSession:
        replicas, usage = self._replicas_of(context), StreamUsage(self.client_quotas, context)
        return ProduceSession(replicas, self.produce_budget, self.traffic, STREAM_BYTES_MAX, self._ready, usage)

    def _fetch_session(self, context: CallContext) -> FetchSession:
        replicas, usage = self._replicas_of(context), StreamUsage(self.client_quotas, context)
        bytes_max = self._config.fetch_max_bytes
        return FetchSession(replicas, self.fetch_budget, self.traffic, bytes_max, self._ready, usage)

    def _replicas_of(self, context: CallContext) -> Replicas:
        """Return the replicas as the caller may use them."""
        access = self.access.of(context)
        if access is None:
            return self.replicas
        return GuardedReplicas(self.replicas, access, lambda: self._view.image)

    def _kafka_services(self, calls: Calls, grpc: Mapping[str, Address]) -> KafkaServices:
        return KafkaServices(
            calls,
            served(Surroundings(self._config, self._view, lambda: self.settings, self.telemetry)),
            self.replicas,
            self._view,
            self.produce_budget,
            self.fetch_budget,
            lambda: self.logs.files_crowded,
            self.traffic,
            self.kafka_traffic,
            self._connection_quotas,
            self._config,
            self._ready,
            self._tls,
            lambda error: self._supervisor.fail("a handler raised", error),
            grpc,
            self.access,
            self._logins.find,
            self.client_quotas,
            self.fetch_sessions,
        )

    def _calls(self) -> Calls:
        forwarding = Forwarding(self._channel, self._view)
        groups, transactions = self.groups.coordinator, self.transactions.coordinator
        topics = {
            GROUP_COORDINATOR: CoordinatorTopic(GROUP_OFFSETS_TOPIC, groups.partition_for),
            TRANSACTION_COORDINATOR: CoordinatorTopic(TRANSACTION_STATE_TOPIC, transactions.partition_for),
        }
        return {
            MetadataRequest: self._metadata.handle,
            DescribeClusterRequest: self._metadata.describe_cluster,
            CreateTopicsRequest: forwarding.create_topics,
            DeleteTopicsRequest: forwarding.delete_topics,
            CreatePartitionsRequest: forwarding.create_partitions,
            IncrementalAlterConfigsRequest: forwarding.alter_configs,
            UnregisterBrokerRequest: forwarding.unregister_broker,
            **Configs(self._config.node_id, self._view, lambda: self.settings).calls(),
            **Connections(self._servers.values, self._config.protocol_of, self._token_logins.forget).calls(),
            **LogDirs(self.logs, self._view, lambda: self.settings).calls(),
            FindCoordinatorRequest: FindCoordinator(self._view, self._creation, topics).handle,
            **Features(self._channel, self._view).calls(),
            **Acls(self.access.authorizer, self._channel, self._view).calls(),
            **Quotas(self._channel, self._view).calls(),
            **self._token_logins.calls(),
            **Users(self._channel, self._view).calls(),
            **DelegationTokens(self._config, self._channel, self._view).calls(),
            **Reassignments(self._channel, self._view).calls(),
            **Offsets(self.replicas, self._view).calls(),
            **self.groups.calls(),
            **self.transactions.calls(),
            **self.audit_topic.calls(),
            **Backups(self.replicas, self._backup_reading, self._channel, self._view).calls(),
        }
