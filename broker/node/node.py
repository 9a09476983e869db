"""A node: the controller role, the broker role or both, in one process on one event loop.

Start-up order: directories and their locks, logs, controller quorum and its listener, metadata, the broker's listeners,
registration; :meth:`Node.start` returns once the broker is unfenced. A background task that ends unexpectedly takes the
node down: ``on_fatal`` is called, once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.forwarded import judged
from tidelog.broker.access.http_login import HttpLogin
from tidelog.broker.access.nodes import NodeGuard
from tidelog.broker.kafka.calls.services import ServeKafka
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.controller_registration import register_controller
from tidelog.broker.metadata.lifecycle import RegistrationRefused
from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.broker.metadata.metadata_view import MetadataView, RemoteFeed
from tidelog.broker.metrics_page import CONTENT_TYPE, MetricsPage
from tidelog.broker.node.audit_file import AuditFile, AuditWriter
from tidelog.broker.node.audit_topic import AuditQueue
from tidelog.broker.node.broker_role import BrokerRole
from tidelog.broker.node.http import HttpServer, Page, text_page
from tidelog.broker.node.identity import settle_identity
from tidelog.broker.node.metric_sources import NodeSource
from tidelog.broker.node.supervisor import OnFatal, Supervisor
from tidelog.metadata_quorum.controller_node import ControllerNode
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumDamaged, QuorumFailure
from tidelog.model.clock import Clock
from tidelog.model.ids import NO_NODE, DirectoryId, NodeId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.http_auth import NO_AUTH
from tidelog.model.settings.node.access_settings import REFUSE
from tidelog.proto.logs.metadata_records import MetadataRecord
from tidelog.proto.transport.network import Address, Network, Server, Service
from tidelog.replication.flushing import RunBlocking, run_inline
from tidelog.security.audit import Audit, AuditKind
from tidelog.security.tls_store import NodeTls
from tidelog.storage.disk.files import FileLayer
from tidelog.storage.disk.log_errors import DirectoryRefused, LogDirFailed
from tidelog.storage.log.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.broker.node.own_health import OwnHealth

log = logging.getLogger(__name__)

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
"""Kafka's name for the metadata log's directory."""
DISK_THREADS: Final = 4
CLOSE_GRACE_S: Final = 0.1
LINGER_S: Final = 3.0
AUDIT_DRAIN_S: Final = 1.0
"""How long a stopping broker waits for the leader of the audit topic."""
DAMAGE_SHOWN_MAX: Final = 100
"""Maximum damaged places that ``/health`` lists."""


class NodeRefused(Exception):
    """The node cannot start; the text (one line) says what was expected, what was found and what to do."""


class NodeNetwork(Network, Protocol):
    """A transport that reports bugs in handlers, and listeners that are gone."""

    on_bug: Callable[[BaseException], None]

    async def refuses(self, address: Address) -> bool:
        """Return whether the host at an address says that nobody listens there. False if it says nothing."""


class Node:
    """One node. Create it, start it, stop it, all on the event loop. It can be started once.

    ``threaded``: whether disk waits and the Raft engine may use threads (not in a simulation, where ``run_blocking``
    decides how a disk wait passes).
    ``serve_kafka``: binds the Kafka listeners; without it, the node has none, whatever its configuration says.
    ``cluster_id``, ``formats``: see :func:`tidelog.broker.node.identity.settle_identity`; ``formats`` also lets an
    empty metadata log join a quorum that already has voters.
    ``tls``: the keys and certificates of its listeners, which the network's listeners share.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        network: NodeNetwork,
        files: FileLayer,
        clock: Clock,
        rng: random.Random,
        cluster_id: str | None = None,
        formats: bool = False,
        on_fatal: OnFatal | None = None,
        threaded: bool = True,
        run_blocking: RunBlocking = run_inline,
        serve_kafka: ServeKafka | None = None,
        tls: NodeTls | None = None,
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        self.config = config
        self.tls = NodeTls(config) if tls is None else tls
        self.view = MetadataView()
        self.controller: ControllerNode | None = None
        self.broker: BrokerRole | None = None
        self.cluster_id = cluster_id or ""
        self.http_address: Address | None = None
        self.started_s = 0.0
        self._network = network
        self._files = files
        self._clock = clock
        self._rng = rng
        self._wanted_cluster = cluster_id
        self._formats = formats
        self._first_records = first_records
        self._threaded = threaded
        self._serve_kafka = serve_kafka
        self._on_fatal = on_fatal
        self.failure = ""
        self._supervisor = Supervisor(self._failed)
        self._servers: list[Server] = []
        self._channel: ControllerChannel | None = None
        self._own_controller: Service | None = None
        self._controllers_access: AccessControl | None = None
        self._logs: LogManager | None = None
        self._http: HttpServer | None = None
        self._metrics_page: MetricsPage | None = None
        self._own_health: OwnHealth | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._run_blocking = run_blocking
        self.audit: Audit | None = None
        self.audit_writer: AuditWriter | None = None
        self.audit_queue: AuditQueue | None = None
        if config.audit_path is not None or config.audits_to_topic:
            kinds = [AuditKind(name) for name in config.audit_kinds]
            refuses = config.audit_on_full == REFUSE
            self.audit = Audit(kinds, config.audit_events_max, clock, config.node_id, refuses=refuses)
            if config.audits_to_topic:
                self.audit_queue = AuditQueue(self.audit, config.audit_topic_queue_bytes)
        network.on_bug = lambda error: self._supervisor.fail("a handler raised", error)

    # --- Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every role. Returns once the node is ready.

        Raises :class:`NodeRefused` or ``OSError`` for problems that the user can fix; then :meth:`kill` it.
        """
        self.started_s = asyncio.get_running_loop().time()
        try:
            await self._start()
        except (
            DirectoryRefused,
            LogDirFailed,
            RegistrationRefused,
            QuorumConfigurationError,
            QuorumDamaged,
            QuorumFailure,
        ) as error:
            raise NodeRefused(str(error)) from error

    async def _start(self) -> None:
        config = self.config
        if self._threaded:
            self._run_blocking = self._threads()
        self.cluster_id = settle_identity(self._files, config, self._wanted_cluster, self._rng, formats=self._formats)
        if config.is_broker:
            self._logs = self._open_logs()
            if (failure := self._last_directory_failed(self._logs)) is not None:
                raise failure
        self._start_audit()
        await self._start_http()
        if config.is_controller:
            await self._start_controller()
        self._supervisor.run("metadata view", self.view.run())
        if self.tls.stores:
            self._supervisor.run("key and certificate files", self._watch_tls())
        self._channel = self._make_channel()
        if self.controller is None:
            feed = RemoteFeed(config.node_id, self.view, self._channel, random.Random(self._rng.random()))
            self._supervisor.run("metadata", feed.run())
        else:
            registered = register_controller(self._channel, self.cluster_id, config.node_id, lambda: self.view.image)
            self._supervisor.once("controller registration", registered)
        if self._logs is not None:
            self.broker = self._make_broker(self._logs, self._channel)
            await self.broker.listen()
            await self.broker.register()
        else:
            self.view.open()
        log.info("node %d of cluster %s is ready", config.node_id, self.cluster_id)

    async def stop(self) -> None:
        """Shut down in a controlled way: leaderships move away, logs are left clean. Bounded by
        ``controlled.shutdown.timeout.ms`` and some seconds."""
        config = self.config
        if self.broker is not None:
            if self.audit_queue is not None and self.audit_writer is not None:
                await self.audit_writer.flush()
                await self.broker.audit_topic.drain(AUDIT_DRAIN_S)
            bound_s = config.controlled_shutdown_timeout_ms / 1000 if config.controlled_shutdown_enable else 0.0
            await self.broker.stop(handed_over_s=bound_s)
            await self._let_others_go()
        await self._supervisor.stop()
        await self._close_network(CLOSE_GRACE_S)
        if self.controller is not None:
            await self.controller.stop()
        if self.audit_writer is not None:
            await self.audit_writer.flush()
        if self.audit_queue is not None and (left := self.audit_queue.close()):
            log.warning("audit topic: %d events of this node's shutdown are missing", left)
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    async def _let_others_go(self) -> None:
        """Remain a controller, if several nodes stop at once, until the other brokers may go too."""
        controller = self.controller
        if controller is None or len(self.config.voters) == 1:
            return

        def alone(image: MetadataImage) -> bool:
            return not any(
                broker.in_controlled_shutdown and not broker.fenced
                for node_id, broker in image.brokers.items()
                if node_id != self.config.node_id
            )

        await self.view.wait_until(alone, timeout_s=LINGER_S)

    def drop(self) -> None:
        """Do the first half of a kill: this node no longer acts, and problems are not reported."""
        self._supervisor.kill()
        self.view.close()
        if self.audit_writer is not None:
            self.audit_writer.drop()
        if self._logs is not None:
            self._logs.on_directory_failure = lambda directory_id: None
        if self.broker is not None:
            self.broker.kill()

    async def kill(self) -> None:
        """End as kill -9 does, without a flush and without telling anybody. Closes what the system would close."""
        self.drop()
        if self.broker is not None:
            await self.broker.drop()
        if self.controller is not None:
            await self.controller.kill()
        await self._supervisor.stop()
        await self._close_network(0)
        if self._logs is not None:
            self._logs.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- How it stands ------------------------------------------------------------------------------

    @property
    def client_address(self) -> Address | None:
        """The address for clients, ``None`` without the broker role."""
        return None if self.broker is None else self.broker.client_address

    @property
    def kafka_address(self) -> Address | None:
        """The address for Kafka clients, ``None`` without a listener for them."""
        return None if self.broker is None else self.broker.kafka_address

    @property
    def standing(self) -> BrokerStanding | None:
        """The broker's standing with the controller, ``None`` without the broker role."""
        return None if self.broker is None else self.broker.standing

    @property
    def is_active_controller(self) -> bool:
        return self.controller is not None and self.controller.active

    @property
    def active_controller(self) -> int:
        """Node id of the active controller as known here, -1 for none."""
        return NO_NODE if self._channel is None else self._channel.leader

    @property
    def known_leader(self) -> tuple[NodeId | None, int]:
        """The active controller and the quorum's epoch as known here; epoch -1 if nothing is known yet."""
        return (None, -1) if self._channel is None else self._channel.known_leader

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self.started_s

    # --- Steps --------------------------------------------------------------------------------------

    def _open_logs(self) -> LogManager:
        config = self.config
        logs = LogManager(
            self._files,
            self._clock,
            random.Random(self._rng.random()),
            config.directories,
            cluster_id=self.cluster_id,
            node_id=config.node_id,
            defaults=config.topic_defaults(),
            producers_max=config.producer_ids_max,
        )
        logs.on_directory_failure = self._directory_failed
        logs.start()
        return logs

    async def _start_controller(self) -> None:
        config = self.config
        controller = self.controller = ControllerNode(
            config,
            cluster_id=self.cluster_id,
            network=self._network,
            files=self._files,
            directory=Path(config.metadata_directory) / METADATA_DIRECTORY,
            clock=self._clock,
            rng=random.Random(self._rng.random()),
            on_fatal=lambda error: self._supervisor.fail("the controller", error),
            may_join=self._formats,
            threaded=self._threaded,
            first_records=self._first_records,
            refuses=self._network.refuses,
        )
        await self.controller.start()
        access = self._controllers_access = AccessControl(config, self.audit)
        self.controller.subscribe(access.take_over)
        service = controller.service()
        judges = partial(judged, service.calls, access, lambda: controller.image, lambda: controller.active)
        self._own_controller = replace(service, calls=judges(local=True))
        service = replace(service, calls=judges(local=False), elsewhere=config.where_clients_belong)
        service = NodeGuard(access, config.node_principal_pattern).service(service)
        for listener in config.controller_listeners:
            address = Address(listener.host, listener.port)
            self._servers.append(await self._network.serve(listener.name, address, service))
        await self.controller.quorum.placed()

    def _make_channel(self) -> ControllerChannel:
        controller = self.controller
        channel = ControllerChannel(
            self.config.node_id,
            {voter.node_id: Address(voter.host, voter.port) for voter in self.config.voters},
            partial(self._network.connect, listener=self.config.controller_listener_names[0]),
            random.Random(self._rng.random()),
            self._own_controller,
            self.config.controller_quorum_request_timeout_ms / 1000,
            self.config.controller_quorum_retry_backoff_ms / 1000,
        )
        if controller is not None:
            controller.subscribe(self.view.publish)
            controller.subscribe_leader(channel.leader_is)
        return channel

    def _make_broker(self, logs: LogManager, channel: ControllerChannel) -> BrokerRole:
        broker = BrokerRole(
            self.config,
            self.cluster_id,
            logs,
            network=self._network,
            clock=self._clock,
            rng=random.Random(self._rng.random()),
            supervisor=self._supervisor,
            channel=channel,
            view=self.view,
            run_blocking=self._run_blocking,
            tls=self.tls.find,
            audit=self.audit,
            audit_queue=self.audit_queue,
            serve_kafka=self._serve_kafka,
        )
        if self.controller is not None:
            self.controller.subscribe_sending(broker.sending)
        return broker

    def _start_audit(self) -> None:
        config, queue = self.config, self.audit_queue
        if self.audit is None:
            return
        file = None
        if config.audit_path is not None:
            file = AuditFile(self._files, config.audit_path, config.audit_log_file_bytes, config.audit_log_files)
        also = (lambda lines: None) if queue is None else queue.put
        self.audit_writer = AuditWriter(self.audit, file, self._run_blocking, also)
        self._supervisor.run("audit log", self.audit_writer.run())

    def _threads(self) -> RunBlocking:
        """Return a function that runs disk waits on a few threads."""
        executor = self._executor = ThreadPoolExecutor(DISK_THREADS, "disk")
        loop = asyncio.get_running_loop()

        async def run(work: Callable[[], None]) -> None:
            await loop.run_in_executor(executor, work)

        return run

    async def _watch_tls(self) -> None:
        while True:
            await asyncio.sleep(self.config.ssl_files_check_interval_ms / 1000)
            self.tls.refresh()

    async def _start_http(self) -> None:
        listener = self.config.http_listener
        if listener is None:
            return
        tls = self.tls.find(listener.name)
        login = None
        if self.config.http_auth != NO_AUTH:
            login = HttpLogin(self.config, listener.name, tls, self._access, lambda: self.view.image, self._clock)
        pages: dict[str, Callable[[], Page | Awaitable[Page]]] = {
            "/health": self._health,
            "/cluster/health": self._cluster_health,
            "/ready": self._readiness,
            "/metrics": self.metrics,
        }
        if self.config.is_broker:
            pages["/client-metrics"] = self._client_metrics
        self._http = HttpServer(pages, self.config.where_clients_belong, login)
        self.http_address = await self._http.start(Address(listener.host, listener.port), tls)

    def _access(self) -> AccessControl | None:
        """Return the access control, once there is metadata."""
        return self._controllers_access if self.broker is None else self.broker.access

    async def _close_network(self, grace_s: float) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.close(grace_s)
        if self._channel is not None:
            await self._channel.close()
        if self._http is not None:
            await self._http.close()

    # --- What happens to it -------------------------------------------------------------------------

    def fail(self, what: str, error: BaseException) -> None:
        """Report a problem from outside of the node's own parts: the node stops."""
        self._supervisor.fail(what, error)

    def _failed(self, what: str, error: BaseException) -> None:
        self.failure = what
        if self._on_fatal is not None:
            self._on_fatal(what, error)

    def _directory_failed(self, directory_id: DirectoryId) -> None:
        log.error("log directory %s is out of service", directory_id.hex())
        if self.broker is not None:
            self.broker.directory_failed(directory_id)
        if self._logs is not None and (failure := self._last_directory_failed(self._logs)) is not None:
            self._supervisor.fail(str(failure), failure)

    def _last_directory_failed(self, logs: LogManager) -> LogDirFailed | None:
        """Return why this node cannot continue: the directory of the metadata log, or every log directory, has failed.

        Source: Kafka's ``LogManager.handleLogDirFailure`` and ``ReplicaManager.handleLogDirFailure``, which then end
        the process.
        """
        failures = logs.failures
        if self.config.is_controller and (failure := failures.get(self.config.metadata_directory.rstrip("/"))):
            return failure
        return next(iter(failures.values())) if len(failures) == len(self.config.directories) else None

    # --- Pages --------------------------------------------------------------------------------------

    @property
    def _waits_for(self) -> str:
        """What the controller's directory lacks to take part in the quorum."""
        return "" if self.controller is None else self.controller.quorum.waits_for

    def _health(self) -> Page:
        if self.failure:
            return text_page(503, f"failed: {self.failure}\n", "failed")
        if waits := self._waits_for:
            return text_page(503, f"waiting: {waits}\n", "waiting")
        damaged = {} if self.broker is None else self.broker.scrubbing.damaged
        lines = [f"damaged: {log.name} on disk: {each}" for log, damage in damaged.items() for each in damage]
        found = [f"{one.severity.value}: {one.what}: {one.do}" for one in self._findings().findings()]
        return text_page(200, "\n".join(("alive", *found, *lines[:DAMAGE_SHOWN_MAX], "")), "alive")

    def _findings(self) -> OwnHealth:
        if self._own_health is None:
            from tidelog.broker.node.own_health import OwnHealth  # here, so that a node pays for it only on demand

            self._own_health = OwnHealth(self.config, self)
        return self._own_health

    def _cluster_health(self) -> Page:
        return self._findings().cluster_page()

    def add_page(self, path: str, make: Callable[[], Page | Awaitable[Page]]) -> None:
        """Serve one more page at ``http.listener``, if there is one."""
        if self._http is not None:
            self._http.add(path, make)

    async def metrics(self) -> Page:
        if self.broker is not None:
            await self.broker.groups.lags.look()
        if self._metrics_page is None:
            self._metrics_page = MetricsPage(NodeSource(self))
        return Page(200, CONTENT_TYPE, self._metrics_page.render())

    async def _client_metrics(self) -> Page:
        found = []
        for piece in () if self.broker is None else self.broker.telemetry.page():
            found.append(piece)
            await asyncio.sleep(0)
        return Page(200, CONTENT_TYPE, b"".join(found))

    def _readiness(self) -> Page:
        if waits := self._waits_for:
            return text_page(503, f"waiting: {waits}\n", "waiting")
        if self.config.is_broker and self.standing is not BrokerStanding.RUNNING:
            return text_page(503, f"the broker is {(self.standing or BrokerStanding.REGISTERING).value}\n", "starting")
        if self.active_controller == NO_NODE:
            return text_page(503, "no active controller is known\n", "waiting")
        return text_page(200, "ready\n", "ready")
