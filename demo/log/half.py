"""The demo's first half: real flights through three real nodes while two nodes die.

Steps, in order: create the topic, send at a pace; kill -9 the node that leads most partitions while rows are in flight,
restart it, wait until every replica is in sync; kill -9 the active controller in the same way; send the rest; read
everything back; judge; read it again through a group of three processes, one of which is killed halfway; judge that;
send once more without a pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process_meter import NodeUse, ProcessMeter
from tidelog.cli.local.watch import PartitionState, TopicState, WatchFailed, describe, leads_most, wait_until
from tidelog.demo.log.flights import FLIGHTS, Flight, read_flights, row_digest
from tidelog.demo.log.group_reader import row_of
from tidelog.demo.log.group_reading import GroupReadResult, read_in_group
from tidelog.demo.log.paced_sending import Account, Failover, Pace, send_paced
from tidelog.demo.log.row_judge import LogRecord, Source, Verdict, judge
from tidelog.proto.calls.api import ConfigResource

if TYPE_CHECKING:
    from tidelog import Admin, Producer, RecordMetadata

TOPIC: Final = "flights"
UNPACED_TOPIC: Final = "flights-unpaced"
PARTITIONS: Final = 6
NODES: Final = 3
FIRST_KILL_AT: Final = 0.15
SECOND_KILL_AT: Final = 0.5
RECOVERY_TIMEOUT_S: Final = 30.0
PENDING_TIMEOUT_S: Final = 5.0
PRODUCER: Final[dict[str, Any]] = {
    "acks": "all",
    "enable_idempotence": True,
    "compression_type": "lz4",
    "linger_ms": 20,
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill -9 and its effects. Times in seconds after the kill."""

    what: str
    node_id: int
    at_row: int
    pending: int
    """Unacknowledged rows at that moment."""
    pending_there: int
    """Those in partitions that the dead node led."""
    partitions_led: int
    first_acknowledged_s: float | None
    """Until a row sent after the kill was acknowledged in one of the partitions that it had led."""
    last_acknowledged_s: float | None
    """Until such a row was acknowledged in all of them."""
    controller_s: float | None
    """Until the next metadata change was committed, if the node was the active controller."""
    whole_s: float
    """From its restart until every replica was in sync again."""


@dataclass(slots=True)
class LogResult:
    verdict: Verdict
    group: GroupReadResult
    kills: list[Kill]
    paced_s: float
    read_s: float
    unpaced_records: int
    unpaced_bytes: int
    unpaced_s: float
    use: dict[int, NodeUse]
    total_s: float
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.verdict.passed and self.group.passed and not self.failures


class LogHalf:
    """One run, on a cluster that has just started. ``readers`` is the directory for the group members' records; ``say``
    gets a line for each event, ``progress`` the number of rows sent so far."""

    def __init__(
        self,
        cluster: LocalCluster,
        readers: Path,
        *,
        rows: int = FLIGHTS,
        seconds: float = 22.0,
        say: Callable[[str], None],
        progress: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._readers = readers
        self._rows = rows
        self._seconds = seconds
        self._say = say
        self._progress = progress
        self._account = Account()
        self._rows_read: list[tuple[bytes, bytes]] = []
        self._kills: list[Kill] = []
        self._trouble: BaseException | None = None
        self._stop = threading.Event()

    def run(self, admin: Admin) -> LogResult:
        """Do everything. Raises :class:`WatchFailed`, or errors of the SDK or the machine."""
        from tidelog import NewTopic, Producer

        started = time.monotonic()
        cluster = self._cluster
        with ProcessMeter(cluster) as meter:
            settings = {"min.insync.replicas": "2"}
            for topic in (TOPIC, UNPACED_TOPIC):
                admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs=settings)])
            self._wait_whole(admin, "the new topic's replicas")
            self._say(f"topic {TOPIC}: {PARTITIONS} partitions, 3 replicas each, min.insync.replicas=2")
            sending = time.monotonic()
            with Producer(cluster.bootstrap, **PRODUCER) as producer:
                self._send(cluster, admin, producer)
            paced_s = time.monotonic() - sending
            reading = time.monotonic()
            log, ends = read_back(cluster.bootstrap)
            read_s = time.monotonic() - reading
            self._say(f"read {len(log):,} records back in {read_s:.1f} s")
            account = self._account
            source = Source(account.keys, account.digests)
            verdict = judge(source, account.sent, account.acknowledged, log, ends)
            group = read_in_group(admin, cluster.bootstrap, self._readers, TOPIC, log, ends, self._say)
            del log
            unpaced = self._send_unpaced(cluster.bootstrap)
            use = meter.use()
        return LogResult(
            verdict=verdict,
            group=group,
            kills=self._kills,
            paced_s=paced_s,
            read_s=read_s,
            unpaced_records=unpaced[0],
            unpaced_bytes=unpaced[1],
            unpaced_s=unpaced[2],
            use=use,
            total_s=time.monotonic() - started,
            failures=[f"row {row}: {type(error).__name__}: {error}" for row, error in account.failed[:5]],
        )

    # --- Sending, and what happens meanwhile ---

    def _send(self, cluster: LocalCluster, admin: Admin, producer: Producer) -> None:
        pace = Pace(self._rows, self._seconds, time.monotonic())
        pace.hold_at(SECOND_KILL_AT)
        director = threading.Thread(target=self._direct, args=(cluster, admin, pace), name="director", daemon=True)
        director.start()
        try:
            send_paced(producer, TOPIC, self._flights(), pace, self._account, self._stop.is_set, self._progress)
            if not self._stop.is_set():
                director.join(3 * RECOVERY_TIMEOUT_S)
                producer.flush(RECOVERY_TIMEOUT_S)
        finally:
            self._stop.set()
            director.join(PENDING_TIMEOUT_S)
        if self._trouble is not None:
            raise self._trouble
        if len(self._kills) < 2:
            raise WatchFailed(f"expected two kills while rows were sent, found {len(self._kills)}")

    def _flights(self) -> Iterator[Flight]:
        """Yield the source; remember it for the pass without a pace, which should not wait for a parser."""
        for flight in islice(read_flights(), self._rows):
            self._rows_read.append((flight.value, flight.key))
            yield flight

    def _direct(self, cluster: LocalCluster, admin: Admin, pace: Pace) -> None:
        """Run both kills, each at its time, in the director's thread."""
        try:
            self._wait_sent(FIRST_KILL_AT)
            node_id, led = leads_most(topic_state(admin))
            self._kill(cluster, admin, node_id, f"leads {led} of {PARTITIONS} partitions")
            pace.hold_at(0.97)
            self._wait_sent(SECOND_KILL_AT)
            self._kill(cluster, admin, controller_id(admin), "is the active controller")
            pace.hold_at(1.0)
        except BaseException as trouble:
            if not self._stop.is_set():
                self._trouble = trouble
            self._stop.set()

    def _kill(self, cluster: LocalCluster, admin: Admin, node_id: int, what: str) -> None:
        account = self._account
        led = frozenset(number for number, found in topic_state(admin).items() if found.leader == node_id)
        is_controller = controller_id(admin) == node_id
        wait_until("rows on their way", lambda: bool(account.pending), PENDING_TIMEOUT_S)
        pending = account.pending.copy()
        killed = time.monotonic()
        cluster.kill(node_id)
        account.failover = watch = Failover(account.sent, led, killed)  # a row sent earlier may have been answered
        if not pending:
            raise WatchFailed("expected rows sent and not yet acknowledged at the kill, found none")
        self._say(f"node {node_id} {what}: kill -9 at row {watch.row_from:,}, {len(pending):,} rows on their way")
        controller_s = self._next_commit(admin, killed) if is_controller else None
        if not watch.done.wait(RECOVERY_TIMEOUT_S):
            silent = sorted(led - watch.seconds.keys())
            raise WatchFailed(f"waited {RECOVERY_TIMEOUT_S:g} s for partitions {silent} to take rows again")
        restarted = time.monotonic()
        cluster.start([node_id])
        cluster.wait_ready([node_id], RECOVERY_TIMEOUT_S)
        self._wait_whole(admin, f"node {node_id} to be in sync again")
        whole_s = time.monotonic() - restarted
        times = sorted(watch.seconds.values())
        kill = Kill(
            what=what,
            node_id=node_id,
            at_row=watch.row_from,
            pending=len(pending),
            pending_there=sum(account.acknowledged.get(row, (-1, 0))[0] in led for row in pending),
            partitions_led=len(led),
            first_acknowledged_s=times[0] if times else None,
            last_acknowledged_s=times[-1] if times else None,
            controller_s=controller_s,
            whole_s=whole_s,
        )
        self._kills.append(kill)
        parts = [f"records acknowledged again after {times[-1]:.2f} s" if times else "it led no partition"]
        if controller_s is not None:
            parts.append(f"next metadata commit after {controller_s:.2f} s")
        self._say(f"{', '.join(parts)}; node {node_id} back and in sync {whole_s:.2f} s after its new start")

    def _next_commit(self, admin: Admin, killed: float) -> float:
        """Change something until a controller has committed it."""
        topic = ConfigResource("topic", TOPIC)
        deadline = killed + RECOVERY_TIMEOUT_S
        while True:
            try:
                admin.alter_configs({topic: {"retention.ms": str(604_800_000 + len(self._kills))}})
                return time.monotonic() - killed
            except Exception as trouble:
                if time.monotonic() > deadline:
                    raise WatchFailed(
                        f"no metadata commit {RECOVERY_TIMEOUT_S:g} s after the kill: {trouble}"
                    ) from trouble

    def _wait_sent(self, share: float) -> None:
        def reached() -> bool:
            if self._stop.is_set():
                raise WatchFailed("the sending ended early")
            return self._account.sent >= self._rows * share

        wait_until(f"{share:.0%} of the rows to be sent", reached, self._seconds * share + 2 * RECOVERY_TIMEOUT_S)

    def _wait_whole(self, admin: Admin, what: str) -> None:
        last: dict[str, TopicState] = {}

        def whole() -> bool:
            if self._stop.is_set():
                raise WatchFailed("the sending ended early")
            last["state"] = topic_state(admin)
            return len(last["state"]) == PARTITIONS and all(found.whole for found in last["state"].values())

        wait_until(what, whole, RECOVERY_TIMEOUT_S, lambda: describe(last["state"]))

    # --- The pass without a pace ---

    def _send_unpaced(self, bootstrap: str) -> tuple[int, int, float]:
        from tidelog import Producer

        rows = self._rows_read
        with Producer(bootstrap, **PRODUCER) as producer:
            producer.partitions_for(UNPACED_TOPIC)
            started = time.monotonic()
            for value, key in rows:
                producer.send(UNPACED_TOPIC, value, key)
            producer.flush(RECOVERY_TIMEOUT_S)
            took = time.monotonic() - started
        size = sum(len(value) for value, _ in rows)
        self._say(f"without a pace: {len(rows):,} records in {took:.1f} s")
        return len(rows), size, took


@contextmanager
def three_nodes(directory: Path, say: Callable[[str], None]) -> Iterator[tuple[LocalCluster, Admin]]:
    """Yield a serving cluster; always stop its nodes, but keep their directory."""
    from tidelog import Admin

    started = time.monotonic()
    cluster = LocalCluster.create(directory, nodes=NODES)
    try:
        cluster.start()
        cluster.wait_ready()
        say(f"three nodes serve after {time.monotonic() - started:.2f} s")
        with Admin(cluster.bootstrap, retry_backoff_ms=20) as admin:
            yield cluster, admin
    finally:
        cluster.stop(timeout_s=10.0)


def load_flights(cluster: LocalCluster, admin: Admin, rows: int, say: Callable[[str], None]) -> None:
    """Fill the topic in one pass, for a second half without a first. Raises the error of a failed row."""
    from tidelog import NewTopic, Producer

    started = time.monotonic()
    failed: list[BaseException] = []

    def settled(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)

    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
    with Producer(cluster.bootstrap, **PRODUCER) as producer:
        for flight in islice(read_flights(), rows):
            producer.send(TOPIC, flight.value, flight.key, on_delivery=settled)
        producer.flush(RECOVERY_TIMEOUT_S)
    if failed:
        raise failed[0]
    say(f"{rows:,} flights sent to topic {TOPIC} in {time.monotonic() - started:.1f} s")


def topic_state(admin: Admin, topic: str = TOPIC) -> dict[int, PartitionState]:
    """Return the cluster's current leaders and ISRs; empty if the asked broker does not know the topic yet."""
    from tidelog.client.errors import UnknownTopicOrPartitionError

    try:
        (found,) = admin.describe_topics([topic])
    except UnknownTopicOrPartitionError:
        return {}
    return {
        partition.partition: PartitionState(partition.leader, tuple(partition.isr), tuple(partition.replicas))
        for partition in found.partitions
    }


def controller_id(admin: Admin) -> int:
    return int(admin.describe_cluster().controller_id)


def read_back(bootstrap: str, topic: str = TOPIC) -> tuple[list[LogRecord], dict[int, tuple[int, int]]]:
    """Read every record of the topic; return them with each partition's first offset and the one after its last."""
    from tidelog import Consumer, TopicPartition

    found: list[LogRecord] = []
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        ends = {tp.partition: (int(first[tp]), int(last[tp])) for tp in partitions}
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, first[tp])
        deadline = time.monotonic() + 2 * RECOVERY_TIMEOUT_S
        open_ends = {tp: last[tp] for tp in partitions if last[tp] > first[tp]}
        while open_ends:
            if time.monotonic() > deadline:
                raise WatchFailed(f"could not read to the end within {2 * RECOVERY_TIMEOUT_S:g} s; left {open_ends}")
            for batch in consumer.poll_batches(0.5):
                found += [_log_record(batch.partition, record) for record in batch]
                at = TopicPartition(topic, batch.partition)
                if batch.next_offset >= open_ends.get(at, batch.next_offset + 1):
                    del open_ends[at]
    return found, ends


def _log_record(partition: int, record: Any) -> LogRecord:
    digest = row_digest(record.key or b"", record.value or b"")
    return LogRecord(partition, record.offset, row_of(record), record.key, digest)
