"""The settings of a node, whatever its roles.

Names, types and defaults: Kafka 4's ``KafkaConfig`` and the classes that it combines
(``ServerConfigs``, ``ReplicationConfigs``, ``KRaftConfigs``, ``QuorumConfig``, ``SocketServerConfigs``; the bases
of :class:`NodeConfig` name theirs). Where a default differs on purpose,
:data:`DEVIATIONS` says why. :data:`OWN_SETTINGS` lists the settings that Kafka does not have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from tidelog.model.ids import NodeId
from tidelog.model.settings.config_def import (
    ConfigDef,
    ConfigError,
    Setting,
    boolean,
    integer,
    listing,
    long,
    structured,
    text,
    unknown_setting,
)
from tidelog.model.settings.http_auth import check_http_auth
from tidelog.model.settings.listener_security import (
    LISTENER_PREFIX,
    LISTENER_SECURITY_DEF,
    ListenerSecurity,
    split_listener_setting,
)
from tidelog.model.settings.listeners import (
    HTTP,
    HTTPS,
    Listener,
    Voter,
    bracketed,
    format_items,
    format_optional_listener,
    format_protocol_map,
    parse_listeners,
    parse_optional_listener,
    parse_protocol_map,
    parse_voters,
)
from tidelog.model.settings.node.access_settings import AccessSettings, AuditSettings
from tidelog.model.settings.node.controller_settings import ControllerSettings
from tidelog.model.settings.node.coordinator_settings import GroupSettings, TransactionSettings
from tidelog.model.settings.node.delegation_token_settings import DelegationTokenSettings
from tidelog.model.settings.node.kafka_only_settings import NOT_YET, WITHOUT_COUNTERPART
from tidelog.model.settings.node.log_settings import LogSettings
from tidelog.model.settings.node.quota_settings import QuotaSettings
from tidelog.model.settings.node.replication_settings import CORDONED, CORDONED_IN_FILE, ReplicationSettings
from tidelog.model.settings.node.request_settings import RequestSettings
from tidelog.model.settings.properties import parse_properties
from tidelog.model.settings.security_protocol import SecurityProtocol

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
_HTTP_DEFAULT: Final = Listener("HTTP", "127.0.0.1", 9095)


@dataclass(frozen=True)
class NodeConfig(
    AccessSettings,
    AuditSettings,
    DelegationTokenSettings,
    QuotaSettings,
    ListenerSecurity,
    LogSettings,
    GroupSettings,
    TransactionSettings,
    ControllerSettings,
    ReplicationSettings,
    RequestSettings,
):
    """Every setting of a node, typed. The constructor checks the settings against each other (``ConfigError``);
    :meth:`parse` and :meth:`from_properties` also check each by itself."""

    # --- Node identity and listeners -----------------
    node_id: NodeId = integer(-1, "This node's id, unique in the cluster.", at_least=0, required=True)
    process_roles: tuple[str, ...] = listing(
        (BROKER, CONTROLLER), "What this node is: broker, controller or both.", choices=(BROKER, CONTROLLER)
    )
    listeners: tuple[Listener, ...] = structured(
        (),
        "Where this node listens, NAME://host:port,…; by default those of KAFKA, CLIENT, REPLICATION and CONTROLLER "
        "that its roles need, on ports 9092, 9096, 9093 and 9094 of the loopback address.",
        read=parse_listeners,
        write=format_items,
    )
    advertised_listeners: tuple[Listener, ...] = structured(
        (),
        "Addresses at which others reach these listeners, if they differ from the bound ones.",
        read=parse_listeners,
        write=format_items,
    )
    listener_security_protocol_map: tuple[tuple[str, SecurityProtocol], ...] = structured(
        (),
        "NAME:PROTOCOL,…: PLAINTEXT, the default, or SSL (TLS); for clients also SASL_SSL or SASL_PLAINTEXT (a "
        "login). Also for listeners that only other nodes have.",
        read=parse_protocol_map,
        write=format_protocol_map,
    )
    inter_broker_listener_name: str | None = text(
        None, "The listener on which brokers replicate; by default REPLICATION if there is one, else the first."
    )
    replication_listener_names: tuple[str, ...] = listing(
        (),
        "Additional listeners on which brokers may replicate from this one, during a move between listeners; "
        "inter.broker.listener.name is always one.",
    )
    controller_listener_names: tuple[str, ...] = listing(
        ("CONTROLLER",), "The controllers' listeners; set it on nodes without the controller role too."
    )
    kafka_listener_names: tuple[str, ...] = listing(
        ("KAFKA",), "The client listeners that speak Kafka's wire protocol."
    )
    controller_quorum_voters: tuple[Voter, ...] = structured(
        (),
        "The controllers, id@host:port,…; a node with both roles may leave it out and is then the only controller.",
        read=parse_voters,
        write=format_items,
    )
    http_listener: Listener | None = structured(  # noqa: RUF009 - a field, like the others
        _HTTP_DEFAULT,
        "The listener for metrics and health, HTTP://host:port, or HTTPS://host:port for TLS; empty for none.",
        read=parse_optional_listener,
        write=format_optional_listener,
    )
    ssl_files_check_interval_ms: int = long(
        10_000,
        "Time between checks of the key and certificate files; a changed file applies to new connections.",
        at_least=1,
    )
    broker_rack: str | None = text(None, "This broker's rack; the controller spreads replicas over racks.")

    # --- Directories ---
    log_dir: str = text("data", "The log directory if log.dirs is not set.")
    log_dirs: tuple[str, ...] = listing((), "The log directories; if one fails, the others stay in service.")
    metadata_log_dir: str | None = text(None, "The directory of the metadata log; by default the first log directory.")

    backup_dirs: tuple[str, ...] = listing(
        (),
        "Directories with backups that this broker may read itself, so that a restore need not send it the records. "
        "It follows no symbolic links in them.",
    )

    # --- Stopping ---
    controlled_shutdown_enable: bool = boolean(True, "Whether a stopping broker hands over its leaderships first.")
    controlled_shutdown_timeout_ms: int = integer(
        10_000, "Longest time to hand over leaderships; then the broker stops anyway.", at_least=0
    )

    # --- New topics ---
    auto_create_topics_enable: bool = boolean(True, "Whether first use creates a topic.")
    num_partitions: int = integer(1, "Partitions of a new topic if the request names no number.", at_least=1)
    default_replication_factor: int = integer(
        1, "Replicas of a new topic if the request names no number.", at_least=1, at_most=32767
    )
    delete_topic_enable: bool = boolean(True, "Whether topics may be deleted.")

    listener_overrides: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = dataclasses.field(default=(), repr=False)
    """Each listener's own settings (``listener.name.NAME.setting``) as text."""

    DEFINITION: ClassVar[ConfigDef]

    def __post_init__(self) -> None:
        for setting in ("replication_listener_names", "controller_listener_names", "kafka_listener_names"):
            object.__setattr__(self, setting, tuple(name.upper() for name in getattr(self, setting)))
        if not self.listeners:
            object.__setattr__(self, "listeners", self._default_listeners())
        self._check_roles()
        self._check_listeners()
        self._check_logins()
        self._check_security()
        self._check_voters()
        self.check_access()
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise ConfigError(
                "broker.heartbeat.interval.ms: expected less than broker.session.timeout.ms "
                f"({self.broker_session_timeout_ms}), found {self.broker_heartbeat_interval_ms}"
            )
        # Source: KafkaConfig.validateValues
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ConfigError(
                "replica.fetch.wait.max.ms: expected at most replica.lag.time.max.ms "
                f"({self.replica_lag_time_max_ms}), found {self.replica_fetch_wait_max_ms}"
            )
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            raise ConfigError(
                "max.connections.per.ip: expected 0 only with max.connections.per.ip.overrides, found none of these"
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms: expected at most group.max.session.timeout.ms "
                f"({self.group_max_session_timeout_ms}), found {self.group_min_session_timeout_ms}"
            )

    # --- Reading ---

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read settings by their Kafka names. Raises :class:`ConfigError`."""
        overrides: dict[str, dict[str, str]] = {}
        general: dict[str, str] = {}
        for name, value in values.items():
            _setting_called(name).parse(value)
            if (own := split_listener_setting(name)) is None:
                general[name] = value
            else:
                overrides.setdefault(own[0], {})[own[1]] = value
        parsed = NODE_CONFIG_DEF.parse(general)
        for setting in NODE_CONFIG_DEF.settings.values():
            if setting.required and setting.name not in values:
                raise ConfigError(f"{setting.name}: expected {setting.expectation()}, found nothing")
        if values.get(CORDONED):
            raise ConfigError(f"{CORDONED}: {CORDONED_IN_FILE}")
        return cls(**parsed, listener_overrides=tuple((name, tuple(own.items())) for name, own in overrides.items()))

    @classmethod
    def from_properties(cls, source: str | Path, overrides: Mapping[str, str] | None = None) -> Self:
        """Read a ``.properties`` file (a ``Path``) or its text. ``overrides`` win. Raises :class:`ConfigError` naming
        the file and the line, and ``OSError`` if the file cannot be read."""
        where = f"{source}: " if isinstance(source, Path) else ""
        try:
            content = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}expected UTF-8 text, found byte {error.object[error.start]:#x}") from None
        try:
            found = parse_properties(content)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        for name, (value, line) in found.items():
            try:
                _setting_called(name).parse(value)
            except ConfigError as error:
                raise ConfigError(f"{where}line {line}: {error}") from None
        merged = {name: value for name, (value, _) in found.items()} | dict(overrides or {})
        try:
            return cls.parse(merged)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None

    def describe(self) -> dict[str, str | None]:
        """Return every setting as text, by its Kafka name."""
        own = {
            f"{LISTENER_PREFIX}{listener.lower()}.{name}": value
            for listener, settings in self.listener_overrides
            for name, value in settings
        }
        return NODE_CONFIG_DEF.describe(self) | own

    # --- Derived from the settings ---

    @property
    def is_broker(self) -> bool:
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.process_roles

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """This node's listeners as a controller; empty without that role."""
        return tuple(found for found in self.listeners if found.name in self.controller_listener_names)

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """This node's listeners as a broker, for clients and for other brokers."""
        return tuple(found for found in self.listeners if found.name not in self.controller_listener_names)

    @property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """The broker's listeners that speak Kafka's wire protocol."""
        return tuple(found for found in self.broker_listeners if found.name in self.kafka_listener_names)

    @property
    def replication_listener(self) -> str:
        """Name of the listener by which this broker reaches the others."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        names = [found.name for found in self.broker_listeners if found.name not in self.kafka_listener_names]
        return "REPLICATION" if "REPLICATION" in names or not names else names[0]

    @property
    def replication_listeners(self) -> frozenset[str]:
        """Names of the listeners at which other brokers may reach this one."""
        return frozenset({self.replication_listener, *self.replication_listener_names})

    def protocol_of(self, listener: str) -> SecurityProtocol:
        """Return how the listener of this name is secured, on this node and on the others."""
        unmapped = SecurityProtocol.SSL if listener.upper() == HTTPS else SecurityProtocol.PLAINTEXT
        return dict(self.listener_security_protocol_map).get(listener.upper(), unmapped)

    def security_of(self, listener: str) -> ListenerSecurity:
        """Return the listener's settings: its own and, for the rest, the node's."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(ListenerSecurity)}
        own = dict(self.listener_overrides).get(listener.upper(), ())
        return ListenerSecurity(**fields | LISTENER_SECURITY_DEF.parse(dict(own)))

    @property
    def directories(self) -> tuple[str, ...]:
        """The log directories."""
        return self.log_dirs or (self.log_dir,)

    @property
    def metadata_directory(self) -> str:
        return self.metadata_log_dir or self.directories[0]

    @property
    def audit_path(self) -> str | None:
        """The audit log's file; ``None`` if there is none."""
        if not self.audit_kinds:
            return None
        by_default = None if self.authorizer_class_name is None else f"{self.metadata_directory}/audit.log"
        return self.audit_log_path or by_default

    @property
    def audits_to_topic(self) -> bool:
        """Whether this node writes the audit log to a topic."""
        return self.audit_topic_enable and self.is_broker and bool(self.audit_kinds)

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The controllers; a node of both roles without ``controller.quorum.voters`` is the only one."""
        if self.controller_quorum_voters:
            return self.controller_quorum_voters
        own = self.controller_listeners[0]
        return (Voter(self.node_id, own.host, own.port),)

    def advertised(self, bound_ports: Mapping[str, int]) -> tuple[Listener, ...]:
        """Return where others reach this broker's listeners. ``bound_ports``: the real ports of bound listeners, by
        name."""
        by_name = {found.name: found for found in self.advertised_listeners}
        made = [by_name.get(own.name, own) for own in self.broker_listeners if own.name in bound_ports]
        return tuple(found if found.port else found._replace(port=bound_ports[found.name]) for found in made)

    @property
    def where_clients_belong(self) -> str:
        """A hint for clients that connected to a listener that is not for clients."""
        if not self.is_broker:
            return f"node {self.node_id} is not a broker: clients belong at a broker"
        others = [found for found in self.broker_listeners if found.name not in self.replication_listeners]
        first = next(iter((*self.kafka_listeners, *others, *self.broker_listeners)))
        named = next((found for found in self.advertised_listeners if found.name == first.name), first)
        return f"clients belong at {bracketed(named.host)}:{named.port}"

    def grpc_listener_for(self, kafka: Listener, bound_ports: Mapping[str, int]) -> Listener:
        """Return the listener to suggest to a gRPC client that connected to the Kafka listener ``kafka``: a client
        listener of the same security protocol if there is one, advertised at the same host if possible, else the first.
        The brokers' own listeners are the last resort."""
        host = next((found.host for found in self.advertised_listeners if found.name == kafka.name), kafka.host)
        names = self.kafka_listener_names
        found = [one for one in self.advertised(bound_ports) if one.name not in names]
        wanted = self.protocol_of(kafka.name)

        def distance(one: Listener) -> tuple[bool, bool, bool]:
            return (one.name in self.replication_listeners, self.protocol_of(one.name) != wanted, one.host != host)

        return min(found, key=distance)

    # --- Checks across settings ---

    def _default_listeners(self) -> tuple[Listener, ...]:
        own: list[Listener] = []
        if BROKER in self.process_roles:
            own += [Listener(name, "127.0.0.1", 9092) for name in self.kafka_listener_names[:1]]
            own += [Listener("CLIENT", "127.0.0.1", 9096), Listener("REPLICATION", "127.0.0.1", 9093)]
        if CONTROLLER in self.process_roles and self.controller_listener_names:
            own.append(Listener(self.controller_listener_names[0], "127.0.0.1", 9094))
        return tuple(own)

    def _check_roles(self) -> None:
        if self.node_id < 0:
            raise ConfigError(f"node.id: expected a whole number of at least 0, found {self.node_id}")
        if not self.process_roles:
            raise ConfigError("process.roles: expected broker, controller or both, found none")
        if not self.controller_listener_names:
            raise ConfigError("controller.listener.names: expected at least one name, found none")

    def _check_listeners(self) -> None:
        names = [found.name for found in self.listeners]
        shown = format_items(self.listeners)
        if self.is_controller and not self.controller_listeners:
            wanted = self.controller_listener_names[0]
            raise ConfigError(f"listeners: expected one named {wanted} (controller.listener.names), found {shown}")
        if not self.is_controller and self.controller_listeners:
            wanted = self.controller_listeners[0].name
            raise ConfigError(
                f"listeners: expected none named {wanted}, as this node is not a controller, found {shown}"
            )
        if self.is_broker and not self.broker_listeners:
            raise ConfigError(f"listeners: expected one for clients and brokers, found {shown}")
        if not self.is_broker and self.broker_listeners:
            raise ConfigError(f"listeners: expected only those in controller.listener.names, found {shown}")
        kafka = [found.name for found in self.kafka_listeners]
        brokers = [found.name for found in self.broker_listeners if found.name not in kafka]
        if self.is_broker and not brokers:
            raise ConfigError(
                f"listeners: expected one beside {', '.join(kafka)} (kafka.listener.names): brokers replicate by "
                f"another protocol, found {shown}"
            )
        if self.is_broker and self.replication_listener not in brokers:
            raise ConfigError(
                f"inter.broker.listener.name: expected one of {', '.join(brokers)}, found {self.replication_listener}"
            )
        if self.is_broker and (unknown := sorted(self.replication_listeners.difference(brokers))):
            raise ConfigError(f"replication.listener.names: expected some of {', '.join(brokers)}, found {unknown[0]}")
        advertised = {found.name: found for found in self.advertised_listeners}
        for found in self.advertised_listeners:
            if found.name not in names:
                raise ConfigError(f"advertised.listeners: expected one of {', '.join(names)}, found {found.name}")
            if found.wildcard:
                raise ConfigError(f"advertised.listeners: expected an address that others can reach, found {found}")
        for found in self.broker_listeners:
            if found.wildcard and found.name not in advertised:
                raise ConfigError(
                    f"advertised.listeners: expected an entry for {found}, which binds everywhere, found none"
                )

    def _check_security(self) -> None:
        http = () if self.http_listener is None else (self.http_listener.name,)
        if http and http[0] not in (HTTP, HTTPS):
            raise ConfigError(f"http.listener: expected {HTTP}://… or {HTTPS}://…, found {self.http_listener}")
        known = {*(found.name for found in self.listeners), *self.controller_listener_names, *http}
        for setting, named in (
            ("listener.security.protocol.map", [name for name, _ in self.listener_security_protocol_map]),
            (LISTENER_PREFIX + "…", [name for name, _ in self.listener_overrides]),
        ):
            if HTTP in named and not self._says_only_that_http_is_open(setting):
                raise ConfigError(f"{setting}: expected no {HTTP}; http.listener={HTTPS}://… makes that listener TLS")
            if setting.startswith(LISTENER_PREFIX) and (unknown := sorted(set(named) - known)):
                raise ConfigError(f"{setting}: expected one of {', '.join(sorted(known))}, found {unknown[0]}")
        for name in (*(found.name for found in self.listeners), *http):
            if self.protocol_of(name).tls:
                self.security_of(name).check_tls(name, grpc=name not in self.kafka_listener_names and name != HTTPS)

    def _check_logins(self) -> None:
        http = () if self.http_listener is None else (self.http_listener.name,)
        for name in sorted({*(found.name for found in self.listeners), *self.controller_listener_names, *http}):
            if not (protocol := self.protocol_of(name)).sasl:
                continue
            if name in {*self.controller_listener_names, *self.replication_listeners, *http}:
                wanted = f"{name}:SSL" if name in http else f"{name}:SSL or {name}:PLAINTEXT"
                raise ConfigError(
                    f"listener.security.protocol.map: expected {wanted}, found {name}:{protocol}: clients log in, "
                    "nodes prove who they are by certificates"
                )
            self.security_of(name).check_sasl(name)
        if (listener := self.http_listener) is not None:
            own = self.security_of(listener.name)
            check_http_auth(self.http_auth, listener, own, tls=self.protocol_of(listener.name).tls)

    def _says_only_that_http_is_open(self, setting: str) -> bool:
        own = dict(self.listener_overrides).get(HTTP, ())
        return setting.startswith(LISTENER_PREFIX) and {name for name, _ in own} == {"allow.anonymous"}

    def _check_voters(self) -> None:
        if not self.controller_quorum_voters:
            if not self.is_controller:
                raise ConfigError("controller.quorum.voters: expected id@host:port,…, found none")
            return
        ids = [voter.node_id for voter in self.controller_quorum_voters]
        shown = format_items(self.controller_quorum_voters)
        if self.is_controller and self.node_id not in ids:
            raise ConfigError(f"controller.quorum.voters: expected node.id {self.node_id} among them, found {shown}")
        if not self.is_controller and self.node_id in ids:
            raise ConfigError(
                f"controller.quorum.voters: expected them without {self.node_id}, which is not a controller, "
                f"found {shown}"
            )
        if any(voter.port == 0 for voter in self.controller_quorum_voters):
            raise ConfigError(f"controller.quorum.voters: expected ports other than 0, found {shown}")


def _setting_called(name: str) -> Setting:
    """Return a setting's definition, also of a listener's own. Raises :class:`ConfigError` for an unknown name."""
    own = split_listener_setting(name)
    if own is not None:
        if own[1] in LISTENER_SECURITY_DEF.settings:
            return dataclasses.replace(LISTENER_SECURITY_DEF.settings[own[1]], name=name)
        raise ConfigError(f"{name[:80]!r}: {unknown_setting(own[1], LISTENER_SECURITY_DEF.settings)}")
    if name in NODE_CONFIG_DEF.settings:
        return NODE_CONFIG_DEF.settings[name]
    if (why := WITHOUT_COUNTERPART.get(name)) is not None:
        raise ConfigError(f"unknown setting {name!r}: Kafka's has no counterpart here, as {why}")
    if name == "broker.id":
        raise ConfigError("unknown setting 'broker.id'; did you mean node.id?")
    for prefix, why in NOT_YET.items():
        if name.startswith(prefix):
            raise ConfigError(f"unknown setting {name[:80]!r}: {why}")
    raise ConfigError(unknown_setting(name, NODE_CONFIG_DEF.settings))


NODE_CONFIG_DEF: Final = ConfigDef(NodeConfig)
NodeConfig.DEFINITION = NODE_CONFIG_DEF

DEVIATIONS: Final[dict[str, str]] = {
    "process.roles": "Kafka has no default; here, a node that names no roles has both",
    "listeners": "Kafka listens everywhere on 9092; here only on the loopback address",
    "ssl.keystore.type": "JKS in Kafka; PEM is the only format here",
    "ssl.truststore.type": "JKS in Kafka; PEM is the only format here",
    "sasl.enabled.mechanisms": "GSSAPI in Kafka, which is not offered here",
    "log.dir": "Kafka's is /tmp/kafka-logs, which a reboot empties",
    "broker.heartbeat.interval.ms": "2000 in Kafka; leader failover within a second needs it shorter",
    "broker.session.timeout.ms": "9000 in Kafka; leader failover within a second needs it shorter",
    "controller.quorum.election.timeout.ms": "1000 in Kafka; controller failover within a second needs it shorter",
    "replica.fetch.response.max.bytes": "10 MiB in Kafka; 4 MiB is what one frame of a stream carries",
    "fetch.max.bytes": "55 MiB in Kafka; beyond 8 MiB an answer costs memory and brings no speed",
    "queued.max.requests": "500 for all clients together in Kafka; here each stream has its own",
    "queued.max.request.bytes": "no limit in Kafka; nothing is unbounded here",
    "max.connections": "no limit in Kafka; nothing is unbounded here",
    "group.consumer.max.size": "no limit in Kafka; nothing is unbounded here",
    "group.max.size": "no limit in Kafka; nothing is unbounded here",
}
"""Settings whose default differs from Kafka's, and why."""

OWN_SETTINGS: Final = frozenset(
    {
        "kafka.listener.names",
        "replication.listener.names",
        "replication.transport",
        "replication.transport.port",
        "http.listener",
        "http.auth",
        "allow.anonymous",
        "node.principal.pattern",
        "delegation.token.max.per.owner",
        "audit.log.path",
        "audit.kinds",
        "audit.log.file.bytes",
        "audit.log.files",
        "audit.events.max",
        "audit.on.full",
        "audit.topic.enable",
        "audit.topic.replication.factor",
        "audit.topic.queue.bytes",
        "ssl.files.check.interval.ms",
        "controlled.shutdown.timeout.ms",
        "controller.partitions.max",
        "controller.brokers.max",
        "controller.requests.max",
        "max.requests.under.way",
        "producer.ids.max",
        "links",
        "backup.dirs",
        "group.coordinator.groups.max",
        "group.coordinator.members.max",
        "group.coordinator.offsets.max",
        "group.coordinator.appends.max",
        "group.coordinator.work.max",
        "transaction.coordinator.ids.max",
        "transaction.coordinator.appends.max",
        "transaction.coordinator.waiting.adds.max",
        "transaction.coordinator.add.wait.max.ms",
        "transaction.partitions.max",
        "transaction.coordinator.sinks.max",
        "transaction.sink.timeout.ms",
        "transaction.sink.prepared.timeout.ms",
        "transaction.sink.transactions.max",
        "transaction.sink.fenced.jobs.max",
    }
)
"""Settings that Kafka does not have."""
