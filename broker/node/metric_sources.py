"""Reads a running node's values for :mod:`tidelog.broker.metrics`. Called only at a scrape."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from tidelog.broker import metrics as m
from tidelog.broker.access.access import AccessControl
from tidelog.broker.client_metrics.telemetry import Telemetry
from tidelog.broker.coordinators.delays.delays import Delays
from tidelog.broker.coordinators.group_lag import GroupLags
from tidelog.broker.coordinators.link_positions import links_known
from tidelog.broker.coordinators.transactions import Transactions
from tidelog.broker.health.facts import Link
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic, error_name
from tidelog.broker.logs.log_cleaning import LogCleaning
from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.metrics import Reading
from tidelog.broker.node.audit_file import AuditWriter
from tidelog.broker.node.audit_topic import AuditQueue
from tidelog.broker.node.broker_role import BrokerRole
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.metadata_quorum.controller_node import ControllerNode
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.kafka.schemas import api_name
from tidelog.security.audit import Audit, AuditKind
from tidelog.security.tls_store import NodeTls, TlsStore
from tidelog.transactions.transitions import TransactionState

_STATES = {
    BrokerStanding.REGISTERING: 1,
    BrokerStanding.FENCED: 2,
    BrokerStanding.RUNNING: 3,
    BrokerStanding.SHUTTING_DOWN: 6,
    BrokerStanding.STOPPED: 7,
    BrokerStanding.FAILED: 7,
}


ALL_TOPICS: Final = ("",)
SCHEDULED: Final = "/proc/thread-self/schedstat"
"""The label for all topics together: an empty one, which Prometheus treats as absent."""
QUOTAS_SHOWN_MAX: Final = 50
"""Maximum users and client ids that a page shows per quota: those that use the most."""


class Measured(Protocol):
    """What is read from a node."""

    view: MetadataView
    controller: ControllerNode | None
    broker: BrokerRole | None
    tls: NodeTls
    audit: Audit | None
    audit_writer: AuditWriter | None
    audit_queue: AuditQueue | None
    started_s: float

    @property
    def uptime_s(self) -> float: ...

    @property
    def known_leader(self) -> tuple[NodeId | None, int]: ...

    @property
    def active_controller(self) -> int: ...


class NodeSource:
    """The metrics that every node has, and those of its roles."""

    def __init__(self, node: Measured) -> None:
        self._node = node
        self._looked_s = node.started_s
        self._busy_s = 0.0

    def readings(self) -> Iterator[Reading]:
        node = self._node
        leader, epoch = node.known_leader
        yield Reading(m.METADATA_OFFSET, node.view.image.offset)
        yield Reading(m.RAFT_EPOCH, epoch)
        yield Reading(m.RAFT_LEADER, NO_NODE if leader is None else leader)
        yield Reading(m.UPTIME, node.uptime_s)
        yield Reading(m.CLOCK, time.time())
        yield from self._loop()
        yield from _tls(node.tls.stores)
        yield from _audit(node.audit, node.audit_writer, node.audit_queue)
        if node.controller is not None:
            yield from _controller(node.controller)
        if node.broker is not None:
            yield from _traffic(node.broker)
            yield from _kafka(node.broker.kafka_traffic)
            yield from _access(node.broker.access)
            yield from _quotas(node.broker.client_quotas)
            yield from _client_metrics(node.broker.telemetry)
            yield from _replicas(node.broker, node.view.image)
            yield from _logs(node.broker)
            if node.broker.cleaning is not None:
                yield from _cleaning(node.broker.cleaning)
            yield from _groups(node.broker.groups.coordinator)
            yield from _lags(node.broker.groups.lags)
            now_ms = time.time_ns() // 1_000_000
            yield from _links(links_known(node.broker.groups.coordinator, node.view.image, now_ms))
            yield from _transactions(node.broker.transactions)
            yield from _delays(node.broker.delays)

    def _loop(self) -> Iterator[Reading]:
        # Pages are made on the loop, so this is its thread.
        now_s, busy_s = self._node.started_s + self._node.uptime_s, busy_time_s()
        passed_s = max(now_s - self._looked_s, 1e-3)
        yield Reading(m.LOOP_BUSY, busy_s)
        yield Reading(m.LOOP_BUSY_RATIO, min((busy_s - self._busy_s) / passed_s, 1.0))
        self._looked_s, self._busy_s = now_s, busy_s


def busy_time_s() -> float:
    """Return how long this thread has run, or was ready to run and waited for a processor. A thread with a tenth of a
    processor is busy all the time when it uses a tenth. macOS does not tell the waiting."""
    try:
        with open(SCHEDULED, encoding="ascii") as file:
            _, waited_ns, _ = file.read().split()
    except OSError:
        waited_ns = "0"
    return time.thread_time() + int(waited_ns) / 1e9


def _controller(controller: ControllerNode) -> Iterator[Reading]:
    image = controller.image
    yield Reading(m.ACTIVE_CONTROLLERS, int(controller.active))
    yield Reading(m.TOPICS, len(image.topics))
    yield Reading(m.PARTITIONS, image.partition_count)
    yield Reading(m.OFFLINE_PARTITIONS, len(image.leaderless))
    fenced = sum(broker.fenced for broker in image.brokers.values())
    yield Reading(m.ACTIVE_BROKERS, len(image.brokers) - fenced)
    yield Reading(m.FENCED_BROKERS, fenced)
    yield Reading(m.UNCLEAN_ELECTIONS, controller.controller.unclean_elections)
    voters = controller.quorum.voters
    yield Reading(m.RAFT_VOTERS, 0 if voters is None else len(voters.voters))
    yield Reading(m.CONTROLLERS_UNREACHED, len(controller.quorum.unreached))


def _traffic(broker: BrokerRole) -> Iterator[Reading]:
    traffic, replicas, budgets = broker.traffic, broker.replicas, (broker.produce_budget, broker.fetch_budget)
    yield Reading(m.BATCHES_IN, replicas.producing.batches)
    yield Reading(m.MESSAGES_IN, replicas.producing.records, ALL_TOPICS)
    yield Reading(m.BYTES_IN, replicas.producing.bytes, ALL_TOPICS)
    yield Reading(m.BYTES_OUT, traffic.bytes_out, ALL_TOPICS)
    for topic in sorted(replicas.topics.values(), key=attrgetter("name")):
        if topic.bytes_in or topic.bytes_out:
            yield Reading(m.MESSAGES_IN, topic.records_in, (topic.name,))
            yield Reading(m.BYTES_IN, topic.bytes_in, (topic.name,))
            yield Reading(m.BYTES_OUT, topic.bytes_out, (topic.name,))
    yield Reading(m.PRODUCES, traffic.produce_requests)
    yield Reading(m.FETCHES, traffic.fetch_requests)
    yield Reading(m.FAILED_PRODUCES, traffic.failed_produces)
    yield Reading(m.FAILED_FETCHES, traffic.failed_fetches)
    yield Reading(m.FETCH_SESSIONS, len(broker.fetch_sessions))
    yield Reading(m.FETCH_SESSION_PARTITIONS, broker.fetch_sessions.partitions)
    yield Reading(m.FETCH_SESSION_EVICTIONS, broker.fetch_sessions.evictions)
    yield Reading(m.TOTAL_TIME, traffic.produce_latency, ("Produce",))
    yield Reading(m.TOTAL_TIME, traffic.fetch_latency, ("FetchConsumer",))
    yield Reading(m.REQUEST_QUEUE, sum(budget.waiting for budget in budgets))
    yield Reading(m.REPLICATION_BYTES_IN, replicas.bytes_fetched)
    yield Reading(m.REPLICATION_BYTES_OUT, replicas.bytes_sent)
    yield Reading(m.REQUESTS_WAITING, replicas.producing.budget.waiting, ("Produce",))
    yield Reading(m.REQUESTS_WAITING, replicas.consuming.waiting, ("Fetch",))
    yield Reading(m.REQUEST_BYTES_HELD, sum(budget.bytes_used for budget in budgets))
    yield Reading(m.REQUEST_BYTES_PEAK, sum(budget.bytes_used_peak for budget in budgets))
    yield Reading(m.REQUEST_WAITS, sum(budget.waits for budget in budgets))
    yield Reading(m.STREAMS, traffic.produce_streams, ("Produce",))
    yield Reading(m.STREAMS, traffic.fetch_streams, ("Fetch",))
    yield Reading(m.BROKER_STATE, _STATES[broker.standing])


def _tls(stores: Mapping[str, TlsStore]) -> Iterator[Reading]:
    for listener, store in stores.items():
        if store.identity is not None:
            yield Reading(m.TLS_EXPIRY, store.identity.expires_s - time.time(), (listener,))
    yield Reading(m.TLS_RELOADS, sum(store.reloads for store in stores.values()))
    yield Reading(m.TLS_RELOADS_REFUSED, sum(store.refused for store in stores.values()))


def _access(access: AccessControl) -> Iterator[Reading]:
    yield Reading(m.FAILED_AUTHENTICATIONS, access.failed_logins.total())
    for (mechanism, cause), count in sorted(access.failed_logins.items()):
        yield Reading(m.AUTHENTICATIONS_REFUSED, count, (mechanism, cause))
    authorizer = access.authorizer
    yield Reading(m.AUTHORIZATIONS_DENIED, 0 if authorizer is None else authorizer.denials)
    yield Reading(m.ACLS, 0 if authorizer is None else len(authorizer))


def _audit(audit: Audit | None, writer: AuditWriter | None, queue: AuditQueue | None) -> Iterator[Reading]:
    for kind in AuditKind:
        yield Reading(m.AUDIT_EVENTS, 0 if audit is None else audit.noted[kind], (kind.value,))
    unwritten = 0 if writer is None else writer.dropped
    yield Reading(m.AUDIT_DROPPED, (0 if audit is None else audit.dropped) + unwritten)
    yield Reading(m.AUDIT_REFUSED, 0 if audit is None else audit.refused)
    yield Reading(m.AUDIT_TOPIC_DROPPED, 0 if queue is None else queue.dropped)
    yield Reading(m.AUDIT_TOPIC_WAITING, 0 if queue is None else queue.bytes)


def _kafka(traffic: KafkaTraffic) -> Iterator[Reading]:
    for key, count in sorted(traffic.requests.items()):
        yield Reading(m.KAFKA_REQUESTS, count, (api_name(key),))
    for (key, error), count in sorted(traffic.errors.items()):
        yield Reading(m.KAFKA_ERRORS, count, (api_name(key), error_name(error)))
    yield Reading(m.KAFKA_CONNECTIONS, traffic.connections)
    yield Reading(m.KAFKA_CONNECTIONS_MADE, traffic.accepted)
    yield Reading(m.KAFKA_CONNECTIONS_CLOSED, traffic.closed)
    yield Reading(m.KAFKA_IDLE_CLOSED, traffic.idle_closed)
    yield Reading(m.KAFKA_BYTES_IN, traffic.bytes_in)
    yield Reading(m.KAFKA_BYTES_OUT, traffic.bytes_out)
    yield Reading(m.KAFKA_BYTES_FROM_FILES, traffic.bytes_from_files)
    yield Reading(m.KAFKA_REFUSED, traffic.refused)
    yield Reading(m.KAFKA_MALFORMED, traffic.malformed)


def _replicas(broker: BrokerRole, image: MetadataImage) -> Iterator[Reading]:
    leaders = under = below_min = at_min = moving = waiting = lag = 0
    live = {node_id for node_id, one in image.brokers.items() if not one.fenced}
    for replica in broker.replicas.replicas.values():
        partition = replica.partition
        if partition.leading is None:
            lag = max(lag, partition.lag)
            continue
        leaders += 1
        in_sync = len(partition.leading.isr.committed)
        state = partition.state
        under += in_sync < len(state.replicas) - len(state.adding)
        moving += bool(state.adding or state.removing)
        waiting += not live.issuperset(state.adding)
        below_min += in_sync < partition.min_isr
        at_min += in_sync == partition.min_isr
    yield Reading(m.PARTITION_COUNT, len(broker.replicas.replicas))
    yield Reading(m.LEADER_COUNT, leaders)
    yield Reading(m.UNDER_REPLICATED, under)
    yield Reading(m.REASSIGNING, moving)
    yield Reading(m.REASSIGNMENTS_WAITING, waiting)
    yield Reading(m.UNDER_MIN_ISR, below_min)
    yield Reading(m.AT_MIN_ISR, at_min)
    for name, throttle in (
        ("leader", broker.replicas.leader_throttle),
        ("follower", broker.replicas.follower_throttle),
    ):
        yield Reading(m.THROTTLED_BYTES, throttle.bytes, (name,))
        yield Reading(m.THROTTLE_HOLDS, throttle.holds, (name,))
        yield Reading(m.THROTTLE_RATE, throttle.rate, (name,))
    yield Reading(m.MAX_LAG, lag)
    yield Reading(m.OFFLINE_REPLICAS, len(broker.replicas.offline_partitions()))
    yield Reading(m.ISR_SHRINKS, broker.replicas.isr_shrinks)
    yield Reading(m.ISR_EXPANDS, broker.replicas.isr_expands)
    yield Reading(m.ISR_UPDATES_FAILED, broker.replicas.isr_changes.failures)


def _quotas(quotas: ClientQuotas) -> Iterator[Reading]:
    now_ms = quotas.now_ms()
    for kind, rate, waits in (
        (quotas.produce, m.QUOTA_PRODUCE_RATE, m.QUOTA_PRODUCE_WAITS),
        (quotas.fetch, m.QUOTA_FETCH_RATE, m.QUOTA_FETCH_WAITS),
        (quotas.request, m.QUOTA_REQUEST_RATE, m.QUOTA_REQUEST_WAITS),
    ):
        found = [(sensor.rate(now_ms), shared, sensor) for shared, sensor in kind.sensors.items()]
        for value, shared, sensor in sorted(found, key=itemgetter(0), reverse=True)[:QUOTAS_SHOWN_MAX]:
            yield Reading(rate, value, shared)
            yield Reading(waits, sensor.throttle_ms, shared)


def _client_metrics(telemetry: Telemetry) -> Iterator[Reading]:
    yield Reading(m.CLIENT_METRICS_INSTANCES, telemetry.clients)
    yield Reading(m.CLIENT_METRICS_PUSHES, telemetry.pushes)
    yield Reading(m.CLIENT_METRICS_FAILED, telemetry.failed_pushes)
    yield Reading(m.CLIENT_METRICS_THROTTLED, telemetry.throttled)
    yield Reading(m.CLIENT_METRICS_UNKNOWN, telemetry.unknown_subscriptions)
    yield Reading(m.CLIENT_METRICS_VALUES, telemetry.figures.values)
    yield Reading(m.CLIENT_METRICS_DROPPED, telemetry.figures.dropped)


def _logs(broker: BrokerRole) -> Iterator[Reading]:
    yield Reading(m.OFFLINE_DIRS, len(broker.logs.offline_directory_ids))
    for info in broker.logs.describe():
        if info.failure is None:
            yield Reading(m.DISK_FREE, info.free_bytes, (info.path,))
            yield Reading(m.DISK_TOTAL, info.total_bytes, (info.path,))
    sizes: Counter[str] = Counter()
    for found in broker.logs.logs():
        sizes[found.topic] += found.size_bytes
    damaged: Counter[str] = Counter()
    for log, damage in broker.scrubbing.damaged.items():
        damaged[log.topic] += len(damage)
    for topic, size in sorted(sizes.items()):
        yield Reading(m.LOG_SIZE, size, (topic,))
        yield Reading(m.DAMAGED, damaged[topic], (topic,))
    scrubbing = broker.scrubbing
    yield Reading(m.SCRUB_BYTES, scrubbing.bytes_read)
    yield Reading(m.SCRUB_PASSES, scrubbing.passes)
    yield Reading(m.DAMAGE_FOUND, scrubbing.damage_found)
    yield Reading(m.DAMAGE_MENDED, broker.mending.ranges_mended)
    yield Reading(m.DAMAGED_ANSWERS, broker.replicas.damaged_answers)


def _groups(coordinator: GroupCoordinator) -> Iterator[Reading]:
    gauges, counters = coordinator.gauges(), coordinator.counters
    yield Reading(m.GROUPS, sum(gauges.groups.values()))
    for state, metric in m.GROUPS_BY_STATE.items():
        yield Reading(metric, gauges.groups.get(state, 0))
    yield Reading(m.GROUP_OFFSETS, gauges.offsets)
    yield Reading(m.GROUP_MEMBERS, gauges.members)
    yield Reading(m.GROUP_PARTITIONS, gauges.partitions_loaded, ("active",))
    yield Reading(m.GROUP_PARTITIONS, gauges.partitions_loading, ("loading",))
    yield Reading(m.OFFSET_COMMITS, counters.offset_commits)
    yield Reading(m.OFFSET_EXPIRATIONS, counters.offset_expirations)
    yield Reading(m.OFFSET_DELETIONS, counters.offset_deletions)
    yield Reading(m.REBALANCES, counters.completed_rebalances)
    yield Reading(m.REBALANCES_BEGUN, counters.begun_rebalances)
    yield Reading(m.SESSIONS_EXPIRED, counters.expired_sessions)
    yield Reading(m.GROUP_LOADS, counters.loads)
    yield Reading(m.GROUP_LOAD_TIME, counters.load_ms / 1000)
    yield Reading(m.GROUP_LOADS_FAILED, counters.failed_loads)
    yield Reading(m.GROUP_RECORDS_PASSED_OVER, counters.passed_over_records)
    yield Reading(m.GROUP_APPENDS, counters.appends)
    yield Reading(m.GROUP_APPENDS_FAILED, counters.failed_appends)


def _lags(lags: GroupLags) -> Iterator[Reading]:
    for group in lags.groups:
        for topic, records in group.records.items():
            yield Reading(m.GROUP_LAG, records, (group.name, topic))
            yield Reading(m.GROUP_LAG_SECONDS, group.age_ms[topic] / 1000, (group.name, topic))
        for state, count in group.states.items():
            yield Reading(m.GROUP_PARTITIONS_BEHIND, count, (group.name, state.value))
    yield Reading(m.GROUPS_UNWATCHED, lags.unwatched)


def _links(links: Iterable[Link]) -> Iterator[Reading]:
    for link in links:
        label, places = (link.name,), link.partitions
        yield Reading(m.LINK_LAG, sum(one.lag for one in places), label)
        yield Reading(m.LINK_LAG_SECONDS, max(one.lag_ms for one in places) / 1000, label)
        yield Reading(m.LINK_HEARD_SECONDS, min(one.heard_ms for one in places) / 1000, label)
        yield Reading(m.LINK_PARTITIONS, len(places), label)
        yield Reading(m.LINK_PARTITIONS_STOPPED, sum(bool(one.reason) for one in places), label)


def _delays(delays: Delays) -> Iterator[Reading]:
    counts, movers = delays.counts, delays.movers
    yield Reading(m.DELAY_DELIVERED, counts.delivered)
    yield Reading(m.DELAY_LATE, counts.late_ms / 1_000)
    yield Reading(m.DELAY_CANCELLED, counts.cancelled)
    yield Reading(m.DELAY_DEAD, counts.dead)
    yield Reading(m.DELAY_AGAIN, counts.again)
    yield Reading(m.DELAY_TRANSACTIONS, counts.transactions)
    yield Reading(m.DELAY_FAILED, counts.failed)
    yield Reading(m.DELAY_PENDING, sum(mover.pending for mover in movers))
    yield Reading(m.DELAY_OVERDUE, max((mover.overdue_ms for mover in movers), default=0) / 1_000)


def _transactions(transactions: Transactions) -> Iterator[Reading]:
    coordinator, markers, partitions = transactions.coordinator, transactions.markers, transactions.partitions
    gauges, counters = coordinator.gauges(), coordinator.counters
    for state in TransactionState:
        yield Reading(m.TRANSACTIONS, gauges.transactions.get(state.value, 0), (state.value,))
    yield Reading(m.TRANSACTION_PARTITIONS, gauges.partitions_loaded, ("active",))
    yield Reading(m.TRANSACTION_PARTITIONS, gauges.partitions_loading, ("loading",))
    yield Reading(m.MARKERS_AWAITED, gauges.waiting_for_markers)
    yield Reading(m.MARKERS_WAITING, markers.waiting)
    yield Reading(m.MARKERS_LEADERLESS, markers.leaderless)
    yield Reading(m.MARKERS_RETRIED, markers.retries)
    yield Reading(m.MARKERS_REFUSED, counters.refused_markers)
    yield Reading(m.TRANSACTION_CALLS_LATE, counters.late_connections)
    yield Reading(m.VERIFICATIONS, partitions.asked)
    yield Reading(m.VERIFICATION_FAILURES, partitions.failures)
    yield Reading(m.TRANSACTIONS_BEGUN, counters.begun)
    yield Reading(m.TRANSACTIONS_PREPARED, counters.prepared)
    yield Reading(m.TRANSACTIONS_COMMITTED, counters.committed)
    yield Reading(m.TRANSACTIONS_ABORTED, counters.aborted)
    yield Reading(m.TRANSACTIONS_TIMED_OUT, counters.timed_out)
    yield Reading(m.TRANSACTIONS_FENCED, counters.fenced)
    yield Reading(m.TRANSACTIONS_COMPLETED, counters.completed)
    yield Reading(m.TRANSACTIONAL_IDS_EXPIRED, counters.expired_ids)
    yield Reading(m.SINKS, gauges.sinks)
    yield Reading(m.SINK_BATCHES, counters.sink_batches)
    yield Reading(m.SINK_TAKEOVERS, counters.sink_takeovers)
    yield Reading(m.TRANSACTION_LOADS, counters.loads)
    yield Reading(m.TRANSACTION_LOAD_TIME, counters.load_ms / 1000)
    yield Reading(m.TRANSACTION_LOADS_FAILED, counters.failed_loads)
    yield Reading(m.TRANSACTION_RECORDS_PASSED_OVER, counters.passed_over_records)
    yield Reading(m.TRANSACTION_APPENDS, counters.appends)
    yield Reading(m.TRANSACTION_APPENDS_FAILED, counters.failed_appends)


def _cleaning(cleaning: LogCleaning) -> Iterator[Reading]:
    cleaner, last = cleaning.cleaner, cleaning.last
    yield Reading(m.CLEANER_SINCE_RUN, cleaning.since_moved_ms)
    yield Reading(m.CLEANER_DIRTY, int(100 * cleaner.dirty_ratio_max))
    for directory, logs, size in cleaning.uncleanable():
        yield Reading(m.CLEANER_UNCLEANABLE, logs, (directory,))
        yield Reading(m.CLEANER_UNCLEANABLE_BYTES, size, (directory,))
    yield Reading(m.CLEANER_DEAD, int(cleaning.dead))
    yield Reading(m.CLEANER_RECOPY, 100 * last.bytes_written // max(last.bytes_read, 1))
    yield Reading(m.CLEANER_TIME, last.seconds)
    yield Reading(m.CLEANER_DELAY, cleaner.delay_ms_max / 1000)
    yield Reading(m.CLEANER_BUFFER, int(100 * last.buffer_use))
