"""A node's metrics for Prometheus, under names that map to Kafka's.

A name is Kafka's MBean in lower case, joined by ``_``: ``kafka.server:type=ReplicaManager,name=LeaderCount``
becomes ``kafka_server_replicamanager_leadercount``; a meter ("…PerSec") becomes a counter that ends in
``_total``, since Prometheus takes rates itself. What Kafka has no name for begins with ``tidelog_``.
Nothing is counted here: the data path keeps plain integers, and they are read when somebody scrapes.
``docs/metrics.md`` lists every name; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.broker.traffic import LATENCY_BOUNDS_S, Latency

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetricName:
    """One metric: its name without the suffix of its kind, what it is in Kafka, and what it says."""

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
    """What one metric stands at. ``labels`` are values in the order of the metric's label names."""

    metric: MetricName
    value: float | Latency
    labels: tuple[str, ...] = ()


class MetricSource(Protocol):
    """Something that has metrics."""

    def readings(self) -> Iterable[Reading]: ...


def _topic(name: str, meaning: str) -> MetricName:
    return MetricName(
        f"kafka_server_brokertopicmetrics_{name.lower()}",
        COUNTER,
        f"kafka.server:type=BrokerTopicMetrics,name={name}PerSec",
        meaning,
    )


def _replicas(name: str, meaning: str) -> MetricName:
    return MetricName(
        f"kafka_server_replicamanager_{name.lower()}", GAUGE, f"kafka.server:type=ReplicaManager,name={name}", meaning
    )


def _replica_events(name: str, meaning: str) -> MetricName:
    return MetricName(
        f"kafka_server_replicamanager_{name.lower()}",
        COUNTER,
        f"kafka.server:type=ReplicaManager,name={name}PerSec",
        meaning,
    )


def _controller(name: str, meaning: str) -> MetricName:
    return MetricName(
        f"kafka_controller_kafkacontroller_{name.lower()}",
        GAUGE,
        f"kafka.controller:type=KafkaController,name={name}",
        meaning,
    )


def _groups(name: str, meaning: str) -> MetricName:
    return MetricName(
        f"kafka_coordinator_group_groupmetadatamanager_{name.lower()}",
        GAUGE,
        f"kafka.coordinator.group:type=GroupMetadataManager,name={name}",
        meaning,
    )


def _group_events(name: str, meaning: str, kind: str = COUNTER, kafka: str = "", *labels: str) -> MetricName:
    return MetricName(
        f"kafka_server_group_coordinator_metrics_{name.replace('-', '_')}",
        kind,
        f"kafka.server:type=group-coordinator-metrics,name={kafka or name + '-count'}",
        meaning,
        labels,
    )


def _cleaner(name: str, meaning: str, *labels: str, owner: str = "LogCleaner") -> MetricName:
    plain = name.lower().replace("-", "_")
    suffix = "".join(f",{label}=…" for label in labels)
    return MetricName(
        f"kafka_log_{owner.lower()}_{plain}",
        GAUGE,
        f"kafka.log:type={owner},name={name}{suffix}",
        meaning,
        tuple(label.lower() for label in labels),
    )


def _sockets(name: str, meaning: str, kind: str = COUNTER) -> MetricName:
    plain = name.replace("-", "_").removesuffix("_total")
    return MetricName(
        f"kafka_server_socket_server_metrics_{plain}",
        kind,
        f"kafka.server:type=socket-server-metrics,name={name}",
        meaning,
    )


def _own(name: str, kind: str, meaning: str, *labels: str) -> MetricName:
    return MetricName(f"tidelog_{name}", kind, "", meaning, labels)


BATCHES_IN: Final = _own("batches_in", COUNTER, "Record batches that clients appended here.")
BYTES_IN: Final = _topic("BytesIn", "Bytes of record batches that clients appended here.")
BYTES_OUT: Final = _topic("BytesOut", "Bytes of record batches that consumers were sent.")
MESSAGES_IN: Final = _topic("MessagesIn", "Records that clients appended here.")
PRODUCES: Final = _topic("TotalProduceRequests", "Produce requests of clients.")
FETCHES: Final = _topic("TotalFetchRequests", "Fetch requests of consumers.")
FAILED_PRODUCES: Final = _topic("FailedProduceRequests", "Partitions of produce requests that were refused.")
FAILED_FETCHES: Final = _topic("FailedFetchRequests", "Partitions of fetch requests that were refused.")
REPLICATION_BYTES_IN: Final = _topic("ReplicationBytesIn", "Bytes that this node's followers fetched.")
REPLICATION_BYTES_OUT: Final = _topic("ReplicationBytesOut", "Bytes that this node sent to other nodes' followers.")
PRODUCE_TIME: Final = MetricName(
    "kafka_network_requestmetrics_totaltime_seconds",
    HISTOGRAM,
    "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce",
    "Time from a produce request's arrival to its answer.",
    ("request",),
)

KAFKA_REQUESTS: Final = MetricName(
    "kafka_network_requestmetrics_requests",
    COUNTER,
    "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=…",
    "Requests of Kafka's protocol.",
    ("request",),
)
KAFKA_ERRORS: Final = MetricName(
    "kafka_network_requestmetrics_errors",
    COUNTER,
    "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=…,error=…",
    "Error codes in answers of Kafka's protocol.",
    ("request", "error"),
)
KAFKA_CONNECTIONS: Final = _sockets("connection-count", "Open connections of Kafka's protocol.", GAUGE)
KAFKA_CONNECTIONS_MADE: Final = _sockets("connection-creation-total", "Connections of Kafka's protocol accepted.")
KAFKA_CONNECTIONS_CLOSED: Final = _sockets("connection-close-total", "Those that have ended.")
KAFKA_IDLE_CLOSED: Final = _sockets("expired-connections-killed-count", "Those that stood still for too long.")
KAFKA_BYTES_IN: Final = _sockets("incoming-byte-total", "Bytes that came on connections of Kafka's protocol.")
KAFKA_BYTES_OUT: Final = _sockets("outgoing-byte-total", "Bytes that went out on them.")
KAFKA_BYTES_FROM_FILES: Final = _own(
    "kafka_bytes_from_files", COUNTER, "Of the bytes to clients of Kafka's protocol, those sent from log files."
)
KAFKA_REFUSED: Final = _own(
    "kafka_connections_refused", COUNTER, "Connections of Kafka's protocol beyond max.connections, closed at once."
)
KAFKA_MALFORMED: Final = _own(
    "kafka_connections_malformed", COUNTER, "Connections of Kafka's protocol that were closed for what they sent."
)

PARTITION_COUNT: Final = _replicas("PartitionCount", "Replicas on this node.")
LEADER_COUNT: Final = _replicas("LeaderCount", "Partitions that this node leads.")
UNDER_REPLICATED: Final = _replicas("UnderReplicatedPartitions", "Led partitions whose ISR lacks a replica.")
REASSIGNING: Final = _replicas("ReassigningPartitions", "Led partitions whose replicas are being moved.")
UNDER_MIN_ISR: Final = _replicas("UnderMinIsrPartitionCount", "Led partitions with fewer than min.insync.replicas.")
AT_MIN_ISR: Final = _replicas("AtMinIsrPartitionCount", "Led partitions with just min.insync.replicas.")
THROTTLED_BYTES: Final = MetricName(
    "kafka_server_replication_byte",
    COUNTER,
    "kafka.server:type=LeaderReplication / FollowerReplication,name=byte-rate",
    "Bytes that throttled replicas were sent, or fetched, while they were not in sync.",
    ("side",),
)
THROTTLE_HOLDS: Final = _own("replication_throttle_holds", COUNTER, "How often one was held back.", "side")
THROTTLE_RATE: Final = _own("replication_throttle_rate", GAUGE, "Bytes a second that they may cost.", "side")
OFFLINE_REPLICAS: Final = _replicas("OfflineReplicaCount", "Replicas whose log directory has failed.")
ISR_SHRINKS: Final = _replica_events("IsrShrinks", "ISR shrinks that leaders here asked for.")
ISR_EXPANDS: Final = _replica_events("IsrExpands", "ISR expansions that leaders here asked for.")
ISR_UPDATES_FAILED: Final = _replica_events("FailedIsrUpdates", "ISR changes that had to be tried again.")
REQUESTS_WAITING: Final = MetricName(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    GAUGE,
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Produce|Fetch",
    "Requests that wait for replicas, for a disk or for data.",
    ("delayedoperation",),
)
OFFLINE_DIRS: Final = MetricName(
    "kafka_log_logmanager_offlinelogdirectorycount",
    GAUGE,
    "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
    "Log directories that have failed.",
)
LOG_SIZE: Final = MetricName(
    "kafka_log_log_size",
    GAUGE,
    "kafka.log:type=Log,name=Size,topic=…",
    "Bytes of a topic's logs on this node, over its partitions here.",
    ("topic",),
)

CLEANER_SINCE_RUN: Final = _cleaner(
    "time-since-last-run-ms",
    "Time since somebody last looked for logs to compact; nobody does if it is far over log.cleaner.backoff.ms.",
    owner="LogCleanerManager",
)
CLEANER_DIRTY: Final = _cleaner(
    "max-dirty-percent", "Share of the dirtiest compacted log that was not compacted yet.", owner="LogCleanerManager"
)
CLEANER_UNCLEANABLE: Final = _cleaner(
    "uncleanable-partitions-count",
    "Logs that compaction failed on and leaves alone.",
    "logDirectory",
    owner="LogCleanerManager",
)
CLEANER_UNCLEANABLE_BYTES: Final = _cleaner(
    "uncleanable-bytes", "What is not compacted in them.", "logDirectory", owner="LogCleanerManager"
)
CLEANER_DEAD: Final = _cleaner("DeadThreadCount", "1 if the task that compacts has ended, else 0.")
CLEANER_RECOPY: Final = _cleaner("cleaner-recopy-percent", "Share of the bytes read that the last pass wrote again.")
CLEANER_TIME: Final = _cleaner("max-clean-time-secs", "How long the last pass took.")
CLEANER_DELAY: Final = _cleaner(
    "max-compaction-delay-secs", "By how much max.compaction.lag.ms is exceeded, at most over all logs."
)
CLEANER_BUFFER: Final = _cleaner(
    "max-buffer-utilization-percent", "How full the last pass's map of keys was (log.cleaner.dedupe.buffer.size)."
)

ACTIVE_CONTROLLERS: Final = _controller("ActiveControllerCount", "1 on the active controller, else 0.")
TOPICS: Final = _controller("GlobalTopicCount", "Topics of the cluster.")
PARTITIONS: Final = _controller("GlobalPartitionCount", "Partitions of the cluster.")
OFFLINE_PARTITIONS: Final = _controller("OfflinePartitionsCount", "Partitions without a leader.")
ACTIVE_BROKERS: Final = _controller("ActiveBrokerCount", "Brokers that are registered and not fenced.")
FENCED_BROKERS: Final = _controller("FencedBrokerCount", "Brokers that are registered and fenced.")
METADATA_OFFSET: Final = MetricName(
    "kafka_server_broker_metadata_metrics_last_applied_record_offset",
    GAUGE,
    "kafka.server:type=broker-metadata-metrics,name=last-applied-record-offset",
    "Offset of the newest metadata that this node has applied.",
)
RAFT_EPOCH: Final = MetricName(
    "kafka_server_raft_metrics_current_epoch",
    GAUGE,
    "kafka.server:type=raft-metrics",
    "The quorum's epoch as known here.",
)
RAFT_LEADER: Final = MetricName(
    "kafka_server_raft_metrics_current_leader",
    GAUGE,
    "kafka.server:type=raft-metrics",
    "Node id of the active controller as known here, -1 for none.",
)

REQUEST_BYTES_HELD: Final = _own(
    "request_bytes_held", GAUGE, "Bytes of requests and answers held for clients; bounded by queued.max.request.bytes."
)
REQUEST_BYTES_PEAK: Final = _own(
    "request_bytes_held_peak", GAUGE, "The most for producers at one time since the start, plus the most for consumers."
)
REQUEST_WAITS: Final = _own("request_waits", COUNTER, "How often a stream was not read because that bound was reached.")
STREAMS: Final = _own("streams", GAUGE, "Open data streams of clients.", "kind")
BROKER_STATE: Final = MetricName(
    "kafka_server_kafkaserver_brokerstate",
    GAUGE,
    "kafka.server:type=KafkaServer,name=BrokerState",
    "1 starting, 2 fenced, 3 running, 6 shutting down, 7 stopped (Kafka's numbers).",
)
UPTIME: Final = _own("uptime_seconds", GAUGE, "Time since the node's start.")

GROUPS: Final = _groups("NumGroups", "Groups that this node coordinates.")
GROUP_OFFSETS: Final = _groups("NumOffsets", "Committed offsets of these groups.")
GROUPS_BY_STATE: Final[Mapping[str, MetricName]] = {
    "Empty": _groups("NumGroupsEmpty", "Groups without members."),
    "PreparingRebalance": _groups("NumGroupsPreparingRebalance", "Groups whose members are awaited."),
    "CompletingRebalance": _groups("NumGroupsCompletingRebalance", "Groups whose leader's assignment is awaited."),
    "Stable": _groups("NumGroupsStable", "Groups whose members have their assignment."),
    "Dead": _groups("NumGroupsDead", "Groups that are about to be gone."),
}
OFFSET_COMMITS: Final = _group_events("offset-commit", "Partitions whose offset was to be committed, and let through.")
OFFSET_EXPIRATIONS: Final = _group_events("offset-expiration", "Committed offsets that expired.")
OFFSET_DELETIONS: Final = _group_events("offset-deletion", "Committed offsets that were deleted.")
REBALANCES: Final = _group_events("group-completed-rebalance", "Generations whose assignment was stored.")
GROUP_PARTITIONS: Final = _group_events(
    "num-partitions", "Partitions of __consumer_offsets led here, by state.", GAUGE, "num-partitions,state=…", "state"
)
GROUP_LOAD_TIME: Final = _group_events(
    "partition-load-time-seconds", "Time that loading them took, summed.", kafka="partition-load-time-avg"
)
GROUP_LOADS: Final = _own("group_partition_loads", COUNTER, "How many of them were loaded.")
GROUP_LOADS_FAILED: Final = _own("group_partition_loads_failed", COUNTER, "How often one could not be loaded.")
GROUP_RECORDS_PASSED_OVER: Final = _own(
    "group_records_passed_over", COUNTER, "Records in them that could not be used when they were loaded."
)
GROUP_MEMBERS: Final = _own("group_members", GAUGE, "Members of the groups that this node coordinates.")
REBALANCES_BEGUN: Final = _own("group_rebalances_begun", COUNTER, "How often members were called to join anew.")
SESSIONS_EXPIRED: Final = _own("group_sessions_expired", COUNTER, "Members that were not heard of in time.")
GROUP_APPENDS: Final = _own("group_appends", COUNTER, "Batches that groups wrote.")
GROUP_APPENDS_FAILED: Final = _own("group_appends_failed", COUNTER, "Those that were refused, or ended unknown.")

MARKERS_LEADERLESS: Final = MetricName(
    "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
    GAUGE,
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize",
    "Markers of ended transactions whose partition has no leader.",
)
VERIFICATION_FAILURES: Final = MetricName(
    "kafka_server_addpartitionstotxnmanager_verificationfailures",
    COUNTER,
    "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    "Partitions led here that a transaction's coordinator did not take in, or could not be asked for.",
)
VERIFICATIONS: Final = _own("transaction_partition_questions", COUNTER, "Questions to coordinators about partitions.")
TRANSACTION_LOAD_TIME: Final = MetricName(
    "kafka_server_transaction_coordinator_metrics_partition_load_time_seconds",
    COUNTER,
    "kafka.server:type=transaction-coordinator-metrics,name=partition-load-time-avg",
    "Time that loading partitions of __transaction_state took, summed.",
)
TRANSACTIONS: Final = _own(
    "transactional_ids", GAUGE, "Transactional ids that this node coordinates, by their transaction's state.", "state"
)
TRANSACTION_PARTITIONS: Final = _own(
    "transaction_partitions", GAUGE, "Partitions of __transaction_state led here, by state.", "state"
)
MARKERS_AWAITED: Final = _own(
    "transaction_markers_awaited", GAUGE, "Partitions that do not have the marker of their ended transaction yet."
)
MARKERS_WAITING: Final = _own(
    "transaction_markers_waiting", GAUGE, "Those of them whose marker waits for its turn, or to be sent again."
)
MARKERS_RETRIED: Final = _own("transaction_markers_retried", COUNTER, "Markers that were to be sent again.")
MARKERS_REFUSED: Final = _own(
    "transaction_markers_refused", COUNTER, "Markers that a leader refused, as somebody newer has spoken."
)
TRANSACTION_CALLS_LATE: Final = _own(
    "transaction_calls_late", COUNTER, "Requests refused, as the same producer has spoken on a newer connection."
)
TRANSACTIONS_BEGUN: Final = _own("transactions_begun", COUNTER, "Transactions that took in their first partition.")
TRANSACTIONS_PREPARED: Final = _own("transactions_prepared", COUNTER, "Transactions that wait for an outside decision.")
TRANSACTIONS_COMMITTED: Final = _own("transactions_committed", COUNTER, "Decisions to commit that are durable.")
TRANSACTIONS_ABORTED: Final = _own("transactions_aborted", COUNTER, "Decisions to abort that are durable.")
TRANSACTIONS_TIMED_OUT: Final = _own("transactions_timed_out", COUNTER, "Those of them for the timeout.")
TRANSACTIONS_FENCED: Final = _own("transactions_fenced", COUNTER, "Those of them for a new producer of the same id.")
TRANSACTIONS_COMPLETED: Final = _own(
    "transactions_completed", COUNTER, "Transactions all of whose markers are written."
)
TRANSACTIONAL_IDS_EXPIRED: Final = _own("transactional_ids_expired", COUNTER, "Transactional ids that were forgotten.")
SINKS: Final = _own("sinks", GAUGE, "Ledgers of sinks that this node keeps.")
SINK_BATCHES: Final = _own("sink_batches_decided", COUNTER, "Batches of sinks that were decided.")
SINK_TAKEOVERS: Final = _own("sink_takeovers", COUNTER, "Jobs that began to write a sink's batch.")
TRANSACTION_LOADS: Final = _own("transaction_partition_loads", COUNTER, "Partitions of __transaction_state loaded.")
TRANSACTION_LOADS_FAILED: Final = _own(
    "transaction_partition_loads_failed", COUNTER, "How often one could not be loaded."
)
TRANSACTION_RECORDS_PASSED_OVER: Final = _own(
    "transaction_records_passed_over", COUNTER, "Records in them that could not be used when they were loaded."
)
TRANSACTION_APPENDS: Final = _own("transaction_appends", COUNTER, "Batches that coordinators of transactions wrote.")
TRANSACTION_APPENDS_FAILED: Final = _own(
    "transaction_appends_failed", COUNTER, "Those that were refused, or ended unknown."
)

BROKER_METRICS: Final = (
    BATCHES_IN, BYTES_IN, BYTES_OUT, MESSAGES_IN, PRODUCES, FETCHES, FAILED_PRODUCES, FAILED_FETCHES,
    REPLICATION_BYTES_IN, REPLICATION_BYTES_OUT, PRODUCE_TIME, PARTITION_COUNT, LEADER_COUNT, UNDER_REPLICATED,
    REASSIGNING, UNDER_MIN_ISR, AT_MIN_ISR, THROTTLED_BYTES, THROTTLE_HOLDS, THROTTLE_RATE,
    OFFLINE_REPLICAS, ISR_SHRINKS, ISR_EXPANDS, ISR_UPDATES_FAILED, REQUESTS_WAITING,
    OFFLINE_DIRS, LOG_SIZE, CLEANER_SINCE_RUN, CLEANER_DIRTY, CLEANER_UNCLEANABLE, CLEANER_UNCLEANABLE_BYTES,
    CLEANER_DEAD, CLEANER_RECOPY, CLEANER_TIME, CLEANER_DELAY, CLEANER_BUFFER,
    REQUEST_BYTES_HELD, REQUEST_BYTES_PEAK, REQUEST_WAITS, STREAMS, BROKER_STATE,
)  # fmt: skip
GROUP_METRICS: Final = (
    GROUPS, GROUP_OFFSETS, *GROUPS_BY_STATE.values(), OFFSET_COMMITS, OFFSET_EXPIRATIONS, OFFSET_DELETIONS, REBALANCES,
    GROUP_PARTITIONS, GROUP_LOAD_TIME, GROUP_LOADS, GROUP_LOADS_FAILED, GROUP_RECORDS_PASSED_OVER, GROUP_MEMBERS,
    REBALANCES_BEGUN, SESSIONS_EXPIRED, GROUP_APPENDS, GROUP_APPENDS_FAILED,
)  # fmt: skip
TRANSACTION_METRICS: Final = (
    MARKERS_LEADERLESS, VERIFICATION_FAILURES, VERIFICATIONS, TRANSACTION_LOAD_TIME, TRANSACTIONS,
    TRANSACTION_PARTITIONS, MARKERS_AWAITED, MARKERS_WAITING, MARKERS_RETRIED, MARKERS_REFUSED, TRANSACTION_CALLS_LATE,
    TRANSACTIONS_BEGUN, TRANSACTIONS_PREPARED, TRANSACTIONS_COMMITTED, TRANSACTIONS_ABORTED, TRANSACTIONS_TIMED_OUT,
    TRANSACTIONS_FENCED, TRANSACTIONS_COMPLETED, TRANSACTIONAL_IDS_EXPIRED, TRANSACTION_LOADS, TRANSACTION_LOADS_FAILED,
    TRANSACTION_RECORDS_PASSED_OVER, TRANSACTION_APPENDS, TRANSACTION_APPENDS_FAILED, SINKS, SINK_BATCHES,
    SINK_TAKEOVERS,
)  # fmt: skip
KAFKA_METRICS: Final = (
    KAFKA_REQUESTS, KAFKA_ERRORS, KAFKA_CONNECTIONS, KAFKA_CONNECTIONS_MADE, KAFKA_CONNECTIONS_CLOSED,
    KAFKA_IDLE_CLOSED, KAFKA_BYTES_IN, KAFKA_BYTES_OUT, KAFKA_BYTES_FROM_FILES, KAFKA_REFUSED, KAFKA_MALFORMED,
)  # fmt: skip
CONTROLLER_METRICS: Final = (
    ACTIVE_CONTROLLERS, TOPICS, PARTITIONS, OFFLINE_PARTITIONS, ACTIVE_BROKERS, FENCED_BROKERS,
)  # fmt: skip
NODE_METRICS: Final = (METADATA_OFFSET, RAFT_EPOCH, RAFT_LEADER, UPTIME)
ALL_METRICS: Final[Mapping[str, MetricName]] = {
    metric.name: metric
    for group in (BROKER_METRICS, KAFKA_METRICS, GROUP_METRICS, TRANSACTION_METRICS, CONTROLLER_METRICS, NODE_METRICS)
    for metric in group
}


class MetricsPage:
    """Renders what the sources read, with the process's own figures, in Prometheus's text format."""

    def __init__(self, *sources: MetricSource) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Prometheus's side of a custom collector."""
        from prometheus_client import core

        families: dict[str, Any] = {}
        kinds: dict[str, Any] = {
            COUNTER: core.CounterMetricFamily,
            GAUGE: core.GaugeMetricFamily,
            HISTOGRAM: core.HistogramMetricFamily,
        }
        for source in self._sources:
            for reading in source.readings():
                metric = reading.metric
                family = families.get(metric.name)
                if family is None:
                    family = families[metric.name] = kinds[metric.kind](
                        metric.name, metric.meaning, labels=metric.labels
                    )
                if isinstance(reading.value, Latency):
                    family.add_metric(reading.labels, _buckets(reading.value), reading.value.total_s)
                else:
                    family.add_metric(reading.labels, reading.value)
        yield from families.values()

    def describe(self) -> Iterable[Family]:
        """Nothing: names need not be known before the first scrape."""
        return ()


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    counts = list(accumulate(latency.buckets))
    bounds = [str(bound) for bound in LATENCY_BOUNDS_S] + ["+Inf"]
    return list(zip(bounds, counts, strict=True))
