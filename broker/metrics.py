"""A node's metrics for Prometheus, under names that map to Kafka's.

A name is Kafka's MBean in lower case, joined by ``_``: ``kafka.server:type=ReplicaManager,name=LeaderCount`` becomes
``kafka_server_replicamanager_leadercount``; a meter ("…PerSec") becomes a counter that ends in ``_total``, because
Prometheus computes rates itself. Metrics without a counterpart in Kafka begin with ``tidelog_``. This module counts
nothing: the data path keeps plain integers, and a scrape reads them. ``docs/metrics.md`` lists every name; a test keeps
the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from tidelog.broker.traffic import Latency
from tidelog.model.classes.frozen import dataclass

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric: its name without its kind's suffix, its name in Kafka, and its meaning."""

    name: str
    kind: str
    kafka: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """The name as Prometheus shows it."""
        return self.name + "_total" if self.kind == COUNTER else self.name


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value. ``labels`` are values in the order of the metric's label names."""

    metric: MetricName
    value: float | Latency
    labels: tuple[str, ...] = ()


class MetricSource(Protocol):
    """A provider of metrics."""

    def readings(self) -> Iterable[Reading]: ...


def _kafka(bean: str, kind: str, name: str, meaning: str, *labels: str) -> MetricName:
    """Define one of Kafka's own metrics; ``labels`` as the MBean spells them."""
    joined = f"{bean.replace(':type=', '_')}_{name}".lower().replace(".", "_").replace("-", "_")
    return MetricName(
        joined.removesuffix("persec").removesuffix("_total"),
        kind,
        f"{bean},name={name}" + "".join(f",{label}=…" for label in labels),
        meaning,
        tuple(label.lower() for label in labels),
    )


_topics = partial(_kafka, "kafka.server:type=BrokerTopicMetrics", COUNTER)
_replicas = partial(_kafka, "kafka.server:type=ReplicaManager", GAUGE)
_replica_events = partial(_kafka, "kafka.server:type=ReplicaManager", COUNTER)
_controller = partial(_kafka, "kafka.controller:type=KafkaController", GAUGE)
_fetch_sessions = partial(_kafka, "kafka.server:type=FetchSessionCache")
_groups = partial(_kafka, "kafka.coordinator.group:type=GroupMetadataManager", GAUGE)
_cleaner = partial(_kafka, "kafka.log:type=LogCleaner", GAUGE)
_cleaner_manager = partial(_kafka, "kafka.log:type=LogCleanerManager", GAUGE)
_client_metrics = partial(_kafka, "kafka.server:type=ClientMetrics")
_sockets = partial(_kafka, "kafka.server:type=socket-server-metrics")


def _group_events(name: str, meaning: str, kind: str = COUNTER, kafka: str = "", *labels: str) -> MetricName:
    return MetricName(
        f"kafka_server_group_coordinator_metrics_{name.replace('-', '_')}",
        kind,
        f"kafka.server:type=group-coordinator-metrics,name={kafka or name + '-count'}",
        meaning,
        labels,
    )


def _quota(bean: str, kind: str, name: str, meaning: str) -> MetricName:
    """Define a metric about clients that share a quota."""
    return MetricName(
        f"kafka_server_{bean.lower()}_{name.replace('-', '_')}",
        kind,
        f"kafka.server:type={bean},user=…,client-id=…, attribute {name}",
        meaning,
        ("user", "client_id"),
    )


def _own(name: str, kind: str, meaning: str, *labels: str) -> MetricName:
    return MetricName(f"tidelog_{name}", kind, "", meaning, labels)


BATCHES_IN: Final = _own("batches_in", COUNTER, "Record batches that clients appended here.")
BYTES_IN: Final = _topics(
    "BytesInPerSec",
    "Bytes of record batches that clients appended here, by topic; without a topic: of all together.",
    "topic",
)
BYTES_OUT: Final = _topics("BytesOutPerSec", "Bytes of record batches sent to consumers, likewise.", "topic")
MESSAGES_IN: Final = _topics("MessagesInPerSec", "Records that clients appended here, likewise.", "topic")
PRODUCES: Final = _topics("TotalProduceRequestsPerSec", "Produce requests from clients.")
FETCHES: Final = _topics("TotalFetchRequestsPerSec", "Fetch requests from consumers.")
FAILED_PRODUCES: Final = _topics("FailedProduceRequestsPerSec", "Partitions refused in produce requests.")
FETCH_SESSIONS: Final = _fetch_sessions(GAUGE, "NumIncrementalFetchSessions", "Fetch sessions of Kafka's clients.")
FETCH_SESSION_PARTITIONS: Final = _fetch_sessions(
    GAUGE, "NumIncrementalFetchPartitionsCached", "Partitions that these sessions remember."
)
FETCH_SESSION_EVICTIONS: Final = _fetch_sessions(
    COUNTER, "IncrementalFetchSessionEvictionsPerSec", "Fetch sessions that were ended to make room for others."
)
FAILED_FETCHES: Final = _topics("FailedFetchRequestsPerSec", "Partitions refused in fetch requests.")
REPLICATION_BYTES_IN: Final = _topics("ReplicationBytesInPerSec", "Bytes that this node's followers fetched.")
REPLICATION_BYTES_OUT: Final = _topics(
    "ReplicationBytesOutPerSec", "Bytes that this node sent to followers on other nodes."
)
TOTAL_TIME: Final = MetricName(
    "kafka_network_requestmetrics_totaltime_seconds",
    HISTOGRAM,
    "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce / FetchConsumer",
    "Time from the arrival of a produce or a consumer's fetch to its answer; a fetch may wait for data.",
    ("request",),
)
REQUEST_QUEUE: Final = _kafka(
    "kafka.network:type=RequestChannel",
    GAUGE,
    "RequestQueueSize",
    "Requests and produce streams in line for memory (queued.max.request.bytes); nothing else makes one wait its turn.",
)

KAFKA_REQUESTS: Final = _kafka(
    "kafka.network:type=RequestMetrics", COUNTER, "RequestsPerSec", "Requests over Kafka's protocol.", "request"
)
KAFKA_ERRORS: Final = _kafka(
    "kafka.network:type=RequestMetrics",
    COUNTER,
    "ErrorsPerSec",
    "Error codes in answers over Kafka's protocol.",
    "request",
    "error",
)
KAFKA_CONNECTIONS: Final = _sockets(GAUGE, "connection-count", "Open connections that speak Kafka's protocol.")
KAFKA_CONNECTIONS_MADE: Final = _sockets(
    COUNTER, "connection-creation-total", "Accepted connections that speak Kafka's protocol."
)
KAFKA_CONNECTIONS_CLOSED: Final = _sockets(COUNTER, "connection-close-total", "Such connections that have ended.")
KAFKA_IDLE_CLOSED: Final = _sockets(
    COUNTER, "expired-connections-killed-count", "Such connections closed because they stood still for too long."
)
KAFKA_BYTES_IN: Final = _sockets(COUNTER, "incoming-byte-total", "Bytes received on such connections.")
KAFKA_BYTES_OUT: Final = _sockets(COUNTER, "outgoing-byte-total", "Bytes sent on such connections.")
KAFKA_BYTES_FROM_FILES: Final = _own(
    "kafka_bytes_from_files", COUNTER, "Bytes sent straight from log files to clients of Kafka's protocol."
)
KAFKA_REFUSED: Final = _own(
    "kafka_connections_refused",
    COUNTER,
    "Connections to Kafka listeners beyond max.connections, max.connections.per.ip or connection_creation_rate, "
    "closed unserved.",
)
KAFKA_MALFORMED: Final = _own(
    "kafka_connections_malformed", COUNTER, "Connections to Kafka listeners closed because of malformed input."
)
FAILED_AUTHENTICATIONS: Final = _sockets(
    COUNTER,
    "failed-authentication-total",
    "Refused logins, at Kafka's and at gRPC listeners, and TLS handshakes that failed at Kafka's.",
)
AUTHENTICATIONS_REFUSED: Final = _own(
    "authentications_refused",
    COUNTER,
    "The same, by mechanism (SSL for handshakes) and cause.",
    "mechanism",
    "cause",
)
AUTHORIZATIONS_DENIED: Final = MetricName(
    "kafka_server_authorizer_metrics_authorization_denied",
    COUNTER,
    "kafka.server:type=authorizer-metrics,name=authorization-denied-rate-per-minute",
    "What the authorizer denied; names that were left out of lists are among it.",
)
ACLS: Final = MetricName(
    "kafka_server_authorizer_metrics_acls",
    GAUGE,
    "kafka.server:type=authorizer-metrics,name=acls-total-count",
    "Access control entries that the authorizer knows.",
)

PARTITION_COUNT: Final = _replicas("PartitionCount", "Replicas on this node.")
LEADER_COUNT: Final = _replicas("LeaderCount", "Partitions that this node leads.")
UNDER_REPLICATED: Final = _replicas("UnderReplicatedPartitions", "Led partitions with a replica outside the ISR.")
REASSIGNING: Final = _replicas("ReassigningPartitions", "Led partitions with replicas on the move.")
REASSIGNMENTS_WAITING: Final = _own(
    "reassignments_waiting", GAUGE, "Those whose new replicas are on a broker that is fenced or gone."
)
UNDER_MIN_ISR: Final = _replicas(
    "UnderMinIsrPartitionCount", "Led partitions with fewer in-sync replicas than min.insync.replicas."
)
AT_MIN_ISR: Final = _replicas("AtMinIsrPartitionCount", "Led partitions with exactly min.insync.replicas in sync.")
THROTTLED_BYTES: Final = MetricName(
    "kafka_server_replication_byte",
    COUNTER,
    "kafka.server:type=LeaderReplication / FollowerReplication,name=byte-rate",
    "Bytes sent to, or fetched by, throttled replicas while they were not in sync.",
    ("side",),
)
THROTTLE_HOLDS: Final = _own(
    "replication_throttle_holds", COUNTER, "How often the throttle held a replica back.", "side"
)
THROTTLE_RATE: Final = _own(
    "replication_throttle_rate", GAUGE, "Bytes a second that throttled replicas may use.", "side"
)
CLIENT_METRICS_INSTANCES: Final = _client_metrics(
    GAUGE, "ClientMetricsInstanceCount", "Client instances that asked for their subscription or pushed of late."
)
CLIENT_METRICS_PUSHES: Final = _client_metrics(COUNTER, "ClientMetricsPluginExportCount", "Pushes taken.")
CLIENT_METRICS_FAILED: Final = _client_metrics(
    COUNTER, "ClientMetricsPluginErrorCount", "Pushes that could not be read."
)
CLIENT_METRICS_THROTTLED: Final = _client_metrics(
    COUNTER, "ClientMetricsThrottleCount", "Requests that came before their interval was over."
)
CLIENT_METRICS_UNKNOWN: Final = _client_metrics(
    COUNTER,
    "ClientMetricsUnknownSubscriptionRequestCount",
    "Pushes for a subscription that is not the client's; it asks for the one that is.",
)
CLIENT_METRICS_VALUES: Final = _own("client_metrics_values", GAUGE, "Figures kept of what clients pushed.")
CLIENT_METRICS_DROPPED: Final = _own(
    "client_metrics_dropped",
    COUNTER,
    "Pushed figures that were dropped, as there were too many, or two kinds of one name.",
)
QUOTA_PRODUCE_RATE: Final = _quota(
    "Produce",
    GAUGE,
    "byte-rate",
    "Bytes a second from producers with a quota; an empty label: all together.",
)
QUOTA_PRODUCE_WAITS: Final = _quota(
    "Produce", COUNTER, "throttle-time", "Milliseconds for which they were told to wait."
)
QUOTA_FETCH_RATE: Final = _quota("Fetch", GAUGE, "byte-rate", "Bytes a second to consumers with a quota.")
QUOTA_FETCH_WAITS: Final = _quota("Fetch", COUNTER, "throttle-time", "Milliseconds for which they were told to wait.")
QUOTA_REQUEST_RATE: Final = _quota(
    "Request", GAUGE, "request-time", "Per cent of the event loop's time for clients with a quota on it."
)
QUOTA_REQUEST_WAITS: Final = _quota(
    "Request", COUNTER, "throttle-time", "Milliseconds for which they were told to wait."
)
MAX_LAG: Final = MetricName(
    "kafka_server_replicafetchermanager_maxlag",
    GAUGE,
    "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
    "Most committed records that a follower here lacks, by its leader's last answer.",
)
OFFLINE_REPLICAS: Final = _replicas("OfflineReplicaCount", "Replicas whose log directory has failed.")
ISR_SHRINKS: Final = _replica_events("IsrShrinksPerSec", "ISR shrinks requested by leaders here.")
ISR_EXPANDS: Final = _replica_events("IsrExpandsPerSec", "ISR expansions requested by leaders here.")
ISR_UPDATES_FAILED: Final = _replica_events("FailedIsrUpdatesPerSec", "ISR changes that failed and were retried.")
REQUESTS_WAITING: Final = MetricName(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    GAUGE,
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Produce|Fetch",
    "Requests waiting for replicas, a disk or data.",
    ("delayedoperation",),
)
OFFLINE_DIRS: Final = _kafka(
    "kafka.log:type=LogManager", GAUGE, "OfflineLogDirectoryCount", "Log directories that have failed."
)
DISK_FREE: Final = _own("disk_free_bytes", GAUGE, "Bytes that a log directory's disk has left.", "logdirectory")
DISK_TOTAL: Final = _own("disk_total_bytes", GAUGE, "Bytes of that disk.", "logdirectory")
LOG_SIZE: Final = _kafka(
    "kafka.log:type=Log", GAUGE, "Size", "Bytes of a topic's logs on this node, summed over its partitions.", "topic"
)
SCRUB_BYTES: Final = _own("log_scrub_bytes", COUNTER, "Segment bytes that the scrub has read.")
SCRUB_PASSES: Final = _own("log_scrub_passes", COUNTER, "Full passes of the scrub since the node's start.")
DAMAGE_FOUND: Final = _own("log_damage_found", COUNTER, "Damaged ranges found in segments.")
DAMAGE_MENDED: Final = _own("log_damage_mended", COUNTER, "Damaged ranges replaced with another replica's bytes.")
DAMAGED: Final = _own(
    "log_damaged_ranges",
    GAUGE,
    "Damaged, unmended ranges in a topic's segments here; /health names each.",
    "topic",
)
DAMAGED_ANSWERS: Final = _own(
    "replication_damaged_answers",
    COUNTER,
    "Leaders' answers that a follower here refused because they held damaged batches.",
)

CLEANER_SINCE_RUN: Final = _cleaner_manager(
    "time-since-last-run-ms",
    "Time since the cleaner last looked for logs to compact, or compacted a piece of one.",
)
CLEANER_DIRTY: Final = _cleaner_manager("max-dirty-percent", "Uncompacted share of the dirtiest compacted log.")
CLEANER_UNCLEANABLE: Final = _cleaner_manager(
    "uncleanable-partitions-count",
    "Logs that the cleaner leaves alone after a failure.",
    "logDirectory",
)
CLEANER_UNCLEANABLE_BYTES: Final = _cleaner_manager(
    "uncleanable-bytes", "Uncompacted bytes in those logs.", "logDirectory"
)
CLEANER_DEAD: Final = _cleaner(
    "DeadThreadCount",
    "1 if the cleaner's task has ended, or has done nothing for five minutes beyond its backoff; else 0.",
)
CLEANER_RECOPY: Final = _cleaner("cleaner-recopy-percent", "Share of the bytes read that the last pass wrote back.")
CLEANER_TIME: Final = _cleaner("max-clean-time-secs", "How long the last pass took.")
CLEANER_DELAY: Final = _cleaner("max-compaction-delay-secs", "Most by which any log exceeds max.compaction.lag.ms.")
CLEANER_BUFFER: Final = _cleaner(
    "max-buffer-utilization-percent", "How full the last pass's key map was (log.cleaner.dedupe.buffer.size)."
)

ACTIVE_CONTROLLERS: Final = _controller("ActiveControllerCount", "1 on the active controller, else 0.")
TOPICS: Final = _controller("GlobalTopicCount", "Topics in the cluster.")
PARTITIONS: Final = _controller("GlobalPartitionCount", "Partitions in the cluster.")
OFFLINE_PARTITIONS: Final = _controller("OfflinePartitionsCount", "Partitions without a leader.")
ACTIVE_BROKERS: Final = _controller("ActiveBrokerCount", "Registered brokers that are not fenced.")
FENCED_BROKERS: Final = _controller("FencedBrokerCount", "Registered brokers that are fenced.")
UNCLEAN_ELECTIONS: Final = _kafka(
    "kafka.controller:type=ControllerStats",
    COUNTER,
    "UncleanLeaderElectionsPerSec",
    "Elections of leaders that may lack committed records, while this controller was active.",
)
METADATA_OFFSET: Final = _kafka(
    "kafka.server:type=broker-metadata-metrics",
    GAUGE,
    "last-applied-record-offset",
    "Offset of the newest metadata that this node has applied.",
)
RAFT_EPOCH: Final = MetricName(
    "kafka_server_raft_metrics_current_epoch",
    GAUGE,
    "kafka.server:type=raft-metrics",
    "The quorum's epoch, as known here.",
)
RAFT_LEADER: Final = MetricName(
    "kafka_server_raft_metrics_current_leader",
    GAUGE,
    "kafka.server:type=raft-metrics",
    "Node id of the active controller, as known here; -1 for none.",
)
RAFT_VOTERS: Final = _kafka(
    "kafka.server:type=raft-metrics",
    GAUGE,
    "number-of-voters",
    "Voting controllers, as known here; fewer than configured while one that lost its directory waits for admission.",
)
CONTROLLERS_UNREACHED: Final = _own(
    "controllers_unreached",
    GAUGE,
    "Other controllers to which this one has no stream: down, or cut off from it.",
)

REQUEST_BYTES_HELD: Final = _own(
    "request_bytes_held", GAUGE, "Bytes held for clients in requests and answers; queued.max.request.bytes bounds them."
)
REQUEST_BYTES_PEAK: Final = _own(
    "request_bytes_held_peak", GAUGE, "Peak of these bytes for producers since the start, plus the peak for consumers."
)
REQUEST_WAITS: Final = _own("request_waits", COUNTER, "How often the broker stopped reading a stream at that bound.")
STREAMS: Final = _own("streams", GAUGE, "Clients' open data streams.", "kind")
BROKER_STATE: Final = _kafka(
    "kafka.server:type=KafkaServer",
    GAUGE,
    "BrokerState",
    "1 starting, 2 fenced, 3 running, 6 shutting down, 7 stopped (Kafka's numbers).",
)
TLS_EXPIRY: Final = _own(
    "tls_certificate_expiry_seconds",
    GAUGE,
    "Time until the certificate of a listener expires.",
    "listener",
)
TLS_RELOADS: Final = _own("tls_reloads", COUNTER, "How often a listener took a new key or certificates.")
TLS_RELOADS_REFUSED: Final = _own(
    "tls_reloads_refused", COUNTER, "How often a listener refused new ones, and kept the old."
)
AUDIT_EVENTS: Final = _own("audit_events", COUNTER, "Events for the audit log, by kind.", "kind")
AUDIT_DROPPED: Final = _own(
    "audit_dropped",
    COUNTER,
    "Those of them that it does not tell of: more than audit.events.max, or the file could not be written.",
)
AUDIT_REFUSED: Final = _own(
    "audit_refused",
    COUNTER,
    "Changes of the cluster that were refused because the audit log had no room for them (audit.on.full).",
)
AUDIT_TOPIC_DROPPED: Final = _own(
    "audit_topic_dropped",
    COUNTER,
    "Those of them that the topic lacks: more than audit.topic.queue.bytes waited, or the node ended.",
)
AUDIT_TOPIC_WAITING: Final = _own(
    "audit_topic_waiting_bytes", GAUGE, "Bytes of the audit log that wait for the leader of its topic."
)
UPTIME: Final = _own("uptime_seconds", GAUGE, "Time since the node's start.")
CLOCK: Final = _own("clock_seconds", GAUGE, "The node's clock, since 1970; nodes' clocks should agree within a second.")
LOOP_BUSY: Final = _own(
    "loop_busy_seconds",
    COUNTER,
    "Time that the event loop's thread has run, or waited for a processor; its rate is the busy share.",
)
LOOP_BUSY_RATIO: Final = _own(
    "loop_busy_ratio",
    GAUGE,
    "Busy share of this thread since the last scrape, 0 to 1; near 1, add nodes.",
)

GROUPS: Final = _groups("NumGroups", "Groups that this node coordinates.")
GROUP_OFFSETS: Final = _groups("NumOffsets", "Committed offsets of these groups.")
GROUPS_BY_STATE: Final[Mapping[str, MetricName]] = {
    "Empty": _groups("NumGroupsEmpty", "Groups without members."),
    "PreparingRebalance": _groups("NumGroupsPreparingRebalance", "Groups waiting for their members."),
    "CompletingRebalance": _groups("NumGroupsCompletingRebalance", "Groups waiting for their leader's assignment."),
    "Stable": _groups("NumGroupsStable", "Groups whose members have their assignment."),
    "Dead": _groups("NumGroupsDead", "Groups about to be removed."),
}
OFFSET_COMMITS: Final = _group_events("offset-commit", "Partitions in accepted offset commits.")
OFFSET_EXPIRATIONS: Final = _group_events("offset-expiration", "Committed offsets that expired.")
OFFSET_DELETIONS: Final = _group_events("offset-deletion", "Committed offsets that were deleted.")
REBALANCES: Final = _group_events("group-completed-rebalance", "Generations with a stored assignment.")
GROUP_PARTITIONS: Final = _group_events(
    "num-partitions", "Partitions of __consumer_offsets led here, by state.", GAUGE, "num-partitions,state=…", "state"
)
GROUP_LOAD_TIME: Final = _group_events(
    "partition-load-time-seconds", "Total time spent loading these partitions.", kafka="partition-load-time-avg"
)
GROUP_LOADS: Final = _own("group_partition_loads", COUNTER, "Partitions of __consumer_offsets loaded.")
GROUP_LOADS_FAILED: Final = _own("group_partition_loads_failed", COUNTER, "How often one could not be loaded.")
GROUP_RECORDS_PASSED_OVER: Final = _own(
    "group_records_passed_over", COUNTER, "Records in them that could not be used when they were loaded."
)
GROUP_MEMBERS: Final = _own("group_members", GAUGE, "Members of the groups that this node coordinates.")
REBALANCES_BEGUN: Final = _own("group_rebalances_begun", COUNTER, "Rebalances begun.")
SESSIONS_EXPIRED: Final = _own("group_sessions_expired", COUNTER, "Members removed because their session expired.")
GROUP_APPENDS: Final = _own("group_appends", COUNTER, "Batches written for groups.")
GROUP_APPENDS_FAILED: Final = _own(
    "group_appends_failed", COUNTER, "Those batches that were refused, or whose outcome stayed unknown."
)

GROUP_LAG: Final = _own(
    "group_lag_records",
    GAUGE,
    "Records of a topic that a group has yet to read, by its committed offsets.",
    "group",
    "topic",
)
GROUP_LAG_SECONDS: Final = _own(
    "group_lag_seconds",
    GAUGE,
    "The age of the oldest of them, or less, if the group's coordinator has not been scraped for that long.",
    "group",
    "topic",
)
GROUP_PARTITIONS_BEHIND: Final = _own(
    "group_partitions_behind",
    GAUGE,
    "Partitions in which a group is slow, stalled, stopped or rewound, by its progress over ten looks.",
    "group",
    "state",
)
GROUPS_UNWATCHED: Final = _own(
    "groups_unwatched", GAUGE, "Groups whose lag is not watched, because others have 5,000 committed offsets."
)

LINK_LAG: Final = _own(
    "link_lag_records", GAUGE, "Records that a link's source had more when it was last heard of, by offsets.", "link"
)
LINK_LAG_SECONDS: Final = _own(
    "link_lag_seconds",
    GAUGE,
    "For how long a link has left something to fetch in one of its partitions, or nobody has looked.",
    "link",
)
LINK_HEARD_SECONDS: Final = _own("link_heard_seconds", GAUGE, "How long ago a link last said how far it is.", "link")
LINK_PARTITIONS: Final = _own("link_partitions", GAUGE, "Partitions that a link fills.", "link")
LINK_PARTITIONS_STOPPED: Final = _own(
    "link_partitions_stopped", GAUGE, "Those in which it has stopped; `tidelog links status` says why.", "link"
)

MARKERS_LEADERLESS: Final = _kafka(
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager",
    GAUGE,
    "UnknownDestinationQueueSize",
    "Markers that wait because their partition has no leader.",
)
VERIFICATION_FAILURES: Final = MetricName(
    "kafka_server_addpartitionstotxnmanager_verificationfailures",
    COUNTER,
    "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    "Partitions led here that a coordinator did not confirm for a transaction, or could not be asked about.",
)
VERIFICATIONS: Final = _own(
    "transaction_partition_questions", COUNTER, "Requests to coordinators to verify a partition."
)
TRANSACTION_LOAD_TIME: Final = MetricName(
    "kafka_server_transaction_coordinator_metrics_partition_load_time_seconds",
    COUNTER,
    "kafka.server:type=transaction-coordinator-metrics,name=partition-load-time-avg",
    "Total time spent loading partitions of __transaction_state.",
)
TRANSACTIONS: Final = _own(
    "transactional_ids", GAUGE, "Transactional ids that this node coordinates, by their transaction's state.", "state"
)
TRANSACTION_PARTITIONS: Final = _own(
    "transaction_partitions", GAUGE, "Partitions of __transaction_state led here, by state.", "state"
)
MARKERS_AWAITED: Final = _own(
    "transaction_markers_awaited", GAUGE, "Partitions that still lack the marker of an ended transaction."
)
MARKERS_WAITING: Final = _own(
    "transaction_markers_waiting", GAUGE, "Those partitions whose marker waits for its turn, or for a retry."
)
MARKERS_RETRIED: Final = _own("transaction_markers_retried", COUNTER, "Markers that had to be retried.")
MARKERS_REFUSED: Final = _own(
    "transaction_markers_refused",
    COUNTER,
    "Markers refused by leaders that a newer coordinator or producer had reached.",
)
TRANSACTION_CALLS_LATE: Final = _own(
    "transaction_calls_late", COUNTER, "Requests refused because the same producer had spoken on a newer connection."
)
TRANSACTIONS_BEGUN: Final = _own("transactions_begun", COUNTER, "Transactions that added their first partition.")
TRANSACTIONS_PREPARED: Final = _own("transactions_prepared", COUNTER, "Transactions that wait for an outside decision.")
TRANSACTIONS_COMMITTED: Final = _own("transactions_committed", COUNTER, "Durable decisions to commit.")
TRANSACTIONS_ABORTED: Final = _own("transactions_aborted", COUNTER, "Durable decisions to abort.")
TRANSACTIONS_TIMED_OUT: Final = _own("transactions_timed_out", COUNTER, "Aborts because of the timeout.")
TRANSACTIONS_FENCED: Final = _own("transactions_fenced", COUNTER, "Aborts because a new producer took over the id.")
TRANSACTIONS_COMPLETED: Final = _own("transactions_completed", COUNTER, "Transactions with every marker written.")
TRANSACTIONAL_IDS_EXPIRED: Final = _own("transactional_ids_expired", COUNTER, "Expired transactional ids.")
SINKS: Final = _own("sinks", GAUGE, "Sink ledgers that this node keeps.")
SINK_BATCHES: Final = _own("sink_batches_decided", COUNTER, "Decided sink batches.")
SINK_TAKEOVERS: Final = _own("sink_takeovers", COUNTER, "Jobs that began to write a sink's batch.")
TRANSACTION_LOADS: Final = _own("transaction_partition_loads", COUNTER, "Partitions of __transaction_state loaded.")
TRANSACTION_LOADS_FAILED: Final = _own(
    "transaction_partition_loads_failed", COUNTER, "How often one could not be loaded."
)
TRANSACTION_RECORDS_PASSED_OVER: Final = _own(
    "transaction_records_passed_over", COUNTER, "Records in them that could not be used when they were loaded."
)
TRANSACTION_APPENDS: Final = _own("transaction_appends", COUNTER, "Batches written by transaction coordinators.")
TRANSACTION_APPENDS_FAILED: Final = _own(
    "transaction_appends_failed", COUNTER, "Those batches that were refused, or whose outcome stayed unknown."
)
DELAY_DELIVERED: Final = _own("delay_records_delivered", COUNTER, "Records of delay topics moved to their targets.")
DELAY_LATE: Final = _own(
    "delay_lateness_seconds", COUNTER, "Sum over those records of the time from due to the beginning of the move."
)
DELAY_CANCELLED: Final = _own(
    "delay_records_cancelled",
    COUNTER,
    "Records of delay topics taken out by a cancel; those that the log still holds count again when it is read again.",
)
DELAY_DEAD: Final = _own("delay_records_dead", COUNTER, "Records of delay topics moved to dead letters.")
DELAY_AGAIN: Final = _own(
    "delay_records_put_off", COUNTER, "Due records appended to their delay topic again, since their target was away."
)
DELAY_TRANSACTIONS: Final = _own("delay_transactions", COUNTER, "Transactions that moved records of delay topics.")
DELAY_FAILED: Final = _own("delay_transactions_failed", COUNTER, "Failed moves, which begin anew from the last mark.")
DELAY_PENDING: Final = _own(
    "delay_pending", GAUGE, "Undelivered records that leaders of delay topics remember; those due later are left out."
)
DELAY_OVERDUE: Final = _own("delay_overdue_seconds", GAUGE, "For how long the oldest due record has waited.")

ALL_METRICS: Final[Mapping[str, MetricName]] = {
    metric.name: metric for metric in (*globals().values(), *GROUPS_BY_STATE.values()) if isinstance(metric, MetricName)
}
