"""The flights through consume-transform-produce while workers and nodes are killed: is each one there exactly once?

Runs ``examples/flight_delays.py`` on its own three nodes: one process loads, several work. Throughout, random workers
get kill -9 and are restarted; so does the node that coordinates a worker's transactions, then the one that leads most
of the output. The example's own ``check`` judges the result, in a process that has seen none of this.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.watch import WatchFailed, leads_most, wait_until
from tidelog.demo.examples.processes import ExampleProcess, killed_at_the_end
from tidelog.demo.log.half import topic_state
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.transaction_records import (
    TransactionLogKey,
    decode_transaction_key,
    decode_transaction_value,
)

if TYPE_CHECKING:
    from tidelog import Admin

SCRIPT: Final = "flight_delays.py"
FLIGHTS_TOPIC: Final = "flights"
DELAYS_TOPIC: Final = "flight-delays"
GROUP: Final = "flight-delays"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
TOPICS: Final = (FLIGHTS_TOPIC, DELAYS_TOPIC, "__consumer_offsets", TRANSACTIONS_TOPIC)
NODES: Final = 3
WORKERS: Final = ("a", "b", "c")
NODE_KILLS_AT: Final = (0.2, 0.5)
WORKER_KILLS_UNTIL: Final = 0.9
WORKER_KILLS_S: Final = 30.0
"""Workers are killed for at most this long, and at most until this share is done."""
BETWEEN_KILLS_S: Final = (1.0, 3.0)
TIMEOUT_S: Final = 240.0
START_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.03
_COMMITTED: Final = 4
_ABORTED: Final = 5

Committed = Mapping[TopicPartition, int]


@dataclass(slots=True)
class Kill:
    """One kill -9 of a worker or a node, and when the affected workers continued."""

    what: str
    at_share: float
    """Share of the flights done by then."""
    waiting: list[frozenset[TopicPartition]]
    """Input partitions of each worker that has not committed a transaction since the kill."""
    killed: float
    begun: Callable[[], bool]
    """Whether commits from here on come from successors: the restarted worker, the partitions' new leaders."""
    base: dict[TopicPartition, int] = field(default_factory=dict)
    went_on_s: float | None = None
    """Time until each of those workers had committed again; ``None`` if it was killed again first, or had nothing left
    to do."""

    def observe(self, committed: Committed, ends: Committed, now: float) -> None:
        if not self.waiting:
            return
        if not self.begun():
            self.base = dict(committed)
            return
        left = [parts for parts in self.waiting if not any(self._moved(at, committed) for at in parts)]
        self.waiting = [parts for parts in left if any(committed.get(at, 0) < ends.get(at, math.inf) for at in parts)]
        if not left:
            self.went_on_s = now - self.killed

    def _moved(self, at: TopicPartition, committed: Committed) -> bool:
        return committed.get(at, 0) > self.base.get(at, 0)


@dataclass(slots=True)
class DrillResult:
    rows: int
    kills: list[Kill]
    commits: int
    """Committed and aborted transactions, from the coordinators' log."""
    aborts: int
    unseen: int
    """Records of aborted transactions: in the log, invisible to read_committed readers."""
    work_s: float
    """Time from the workers' first start until the last flight was committed."""
    total_s: float
    verdict: list[str]
    """The output of the example's ``check``."""
    passed: bool


class FlightsDrill:
    """One run. Loading is spread over ``seconds``; ``say`` gets a line for each event. With
    ``at_least_once`` the workers use no transactions, and no node is killed."""

    def __init__(
        self,
        directory: Path,
        *,
        rows: int,
        seconds: float,
        seed: int,
        node_kills: int = len(NODE_KILLS_AT),
        at_least_once: bool = False,
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._rows = rows
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._node_kills = [] if at_least_once else list(NODE_KILLS_AT[:node_kills])
        self._at_least_once = at_least_once
        self._say = say
        self._kills: list[Kill] = []
        self._committed: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._next_worker_kill = 0.0
        self._node_down: int | None = None
        self._node_back: int | None = None

    def run(self) -> DrillResult:
        """Do everything. Raises :class:`WatchFailed` if an expected event does not happen; leaves no process behind."""
        from tidelog import Admin

        started = time.monotonic()
        self._directory.mkdir(parents=True, exist_ok=True)
        cluster = LocalCluster.create(self._directory / "cluster", nodes=NODES)
        processes: list[ExampleProcess] = []
        try:
            cluster.start()
            cluster.wait_ready()
            with killed_at_the_end(processes), Admin(cluster.bootstrap, retry_backoff_ms=20) as admin:
                at = ("--bootstrap", cluster.bootstrap)
                rows = ("--rows", str(self._rows))
                pace = ("--seconds", str(self._seconds))
                loader = ExampleProcess(self._directory, "load", SCRIPT, *at, "load", *rows, *pace)
                option = ("--at-least-once",) if self._at_least_once else ()
                workers = {
                    name: ExampleProcess(self._directory, f"worker-{name}", SCRIPT, *at, "work", name, *option)
                    for name in WORKERS
                }
                processes += [loader, *workers.values()]
                loader.start()
                wait_until(
                    "the topics",
                    lambda: all(topic_state(admin, t) for t in (FLIGHTS_TOPIC, DELAYS_TOPIC)),
                    START_TIMEOUT_S,
                )
                begun = time.monotonic()
                for worker in workers.values():
                    worker.start()
                self._say(f"{NODES} nodes, {len(workers)} workers, {self._rows:,} flights on their way")
                self._work(cluster, admin, loader, workers)
                work_s = time.monotonic() - begun
                wait_until("the workers to begin", lambda: all(one.said() for one in workers.values()), START_TIMEOUT_S)
                for worker in workers.values():
                    worker.end()
                self._say(f"all flights committed after {work_s:.1f} s of work")
                commits, aborts = (0, 0) if self._at_least_once else count_transactions(cluster.bootstrap)
                unseen = count_records(cluster.bootstrap, "read_uncommitted")
                unseen -= count_records(cluster.bootstrap, "read_committed")
                check = ExampleProcess(self._directory, "check", SCRIPT, *at, "check", *rows)
                processes.append(check)
                check.start()
                wait_until("the check", lambda: check.code() is not None, TIMEOUT_S)
        finally:
            cluster.stop(timeout_s=10.0)
        verdict, passed = check.said(), check.code() == 0
        took = time.monotonic() - started
        return DrillResult(self._rows, self._kills, commits, aborts, unseen, work_s, took, verdict, passed)

    # --- The work, and what happens meanwhile ---

    def _work(
        self, cluster: LocalCluster, admin: Admin, loader: ExampleProcess, workers: dict[str, ExampleProcess]
    ) -> None:
        node_kills = self._node_kills.copy()
        deadline = time.monotonic() + TIMEOUT_S
        killing_until = time.monotonic() + WORKER_KILLS_S
        while not self._done(admin, loader):
            if time.monotonic() > deadline:
                raise WatchFailed(f"waited {TIMEOUT_S:g} s for all flights to be committed, found {self._committed}")
            for worker in workers.values():
                worker.check_runs()
            share = sum(self._committed.values()) / self._rows
            if 0 < share < WORKER_KILLS_UNTIL and time.monotonic() < killing_until:
                self._kill_worker(admin, workers, share)
            if self._node_down is not None or self._node_back is not None:
                self._bring_back(cluster, admin)
            elif self._kills and node_kills and share >= node_kills[0]:
                share_at = node_kills.pop(0)
                self._kill_node(cluster, admin, share, coordinator=share_at == NODE_KILLS_AT[0])
            time.sleep(_POLL_S)
        workers_killed = sum(kill.what.startswith("worker") for kill in self._kills)
        if not workers_killed or node_kills:
            raise WatchFailed(
                f"expected a worker and {len(self._node_kills)} nodes to be killed before all was done, found "
                f"{workers_killed} and {len(self._kills) - workers_killed}"
            )

    def _done(self, admin: Admin, loader: ExampleProcess) -> bool:
        """Check the group's progress; return whether it has everything."""
        from tidelog import OffsetSpec

        if loader.code() is not None and not self._ends:
            loader.wait(0)
            partitions = [TopicPartition(FLIGHTS_TOPIC, number) for number in topic_state(admin, FLIGHTS_TOPIC)]
            found = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
            self._ends = {at: int(one.offset) for at, one in found.items()}
        offsets = admin.list_consumer_group_offsets(GROUP)
        self._committed = {at: one.offset for at, one in offsets.items() if at.topic == FLIGHTS_TOPIC}
        now = time.monotonic()
        for kill in self._kills:
            if kill.waiting:
                kill.observe(self._committed, self._ends, now)
                if kill.went_on_s is not None:
                    self._say(f"  {kill.what}: went on after {kill.went_on_s:.2f} s")
        return bool(self._ends) and self._committed == {at: end for at, end in self._ends.items() if end}

    def _kill_worker(self, admin: Admin, workers: dict[str, ExampleProcess], share: float) -> None:
        now = time.monotonic()
        if not self._next_worker_kill:
            self._next_worker_kill = now
        recovering = sum(bool(kill.waiting) for kill in self._kills if kill.what.startswith("worker"))
        if now < self._next_worker_kill or recovering > 1:  # a slow machine would never get any work done
            return
        self._next_worker_kill = now + self._rng.uniform(*BETWEEN_KILLS_S)
        name = self._rng.choice(sorted(workers))
        theirs = partitions_of(admin).get(name, frozenset())
        worker = workers[name]
        for kill in self._kills:
            if kill.what.startswith(f"worker {name}"):
                kill.waiting = []
        killed = time.monotonic()
        worker.kill()
        worker.start()
        what = f"worker {name}, start {worker.starts}"
        self._kills.append(Kill(what, share, [theirs] if theirs else [], killed, lambda: bool(worker.said())))
        self._say(f"worker {name}: kill -9 and a new start, {share:.0%} of the flights done")

    def _kill_node(self, cluster: LocalCluster, admin: Admin, share: float, *, coordinator: bool) -> None:
        owned = partitions_of(admin)
        coordinators = {one.transactional_id: one.coordinator for one in admin.list_transactions()}
        first = coordinators.get(f"{GROUP}-{WORKERS[0]}")
        if coordinator and first is not None:
            node_id, what = int(first), f"coordinates transactions of worker {WORKERS[0]}"
        else:
            node_id, led = leads_most(topic_state(admin, DELAYS_TOPIC))
            what = f"leads {led} of 4 output partitions"
        killed = time.monotonic()
        cluster.kill(node_id)
        self._node_down = node_id
        what = f"node {node_id}, {what}"
        base = dict(self._committed)
        waiting = [*filter(None, owned.values())]
        self._kills.append(Kill(what, share, waiting, killed, lambda: not leads(admin, node_id), base))
        self._say(f"{what}: kill -9, {share:.0%} of the flights done")

    def _bring_back(self, cluster: LocalCluster, admin: Admin) -> None:
        """Start the dead node once the others have continued without it; the next kill waits until it is in sync."""
        if (down := self._node_down) is not None:
            kill = next(kill for kill in reversed(self._kills) if kill.what.startswith("node"))
            if not kill.waiting:
                cluster.start([down])
                self._node_down, self._node_back = None, down
            return
        assert self._node_back is not None
        if all(partition.whole for topic in TOPICS for partition in topic_state(admin, topic).values()):
            self._say(f"node {self._node_back} is back and in sync")
            self._node_back = None


def leads(admin: Admin, node_id: int) -> bool:
    """Return whether the cluster still lists this node as a leader, because it has not noticed its death yet."""
    return any(partition.leader == node_id for topic in TOPICS for partition in topic_state(admin, topic).values())


def partitions_of(admin: Admin) -> dict[str, frozenset[TopicPartition]]:
    """Return each worker's current input partitions."""
    from tidelog.client.errors import GroupIdNotFoundError

    try:
        members = admin.describe_consumer_groups([GROUP])[GROUP].members
    except GroupIdNotFoundError:
        return {}
    return {one.group_instance_id: frozenset(one.assignment or ()) for one in members if one.group_instance_id}


def count_transactions(bootstrap: str) -> tuple[int, int]:
    """Return the numbers of committed and aborted transactions, from the coordinators' own log."""
    ended = [0, 0]
    for key, value in _read(bootstrap, TRANSACTIONS_TOPIC, "read_uncommitted"):
        if key is None or value is None or not isinstance(decode_transaction_key(key), TransactionLogKey):
            continue
        status = decode_transaction_value(value).status
        if status in (_COMMITTED, _ABORTED):
            ended[status - _COMMITTED] += 1
    return ended[0], ended[1]


def count_records(bootstrap: str, isolation_level: str) -> int:
    return sum(1 for _ in _read(bootstrap, DELAYS_TOPIC, isolation_level))


def _read(bootstrap: str, topic: str, isolation_level: str) -> Iterable[tuple[bytes | None, bytes | None]]:
    """Return key and value of all records of a topic."""
    from tidelog import Consumer

    with Consumer(bootstrap, isolation_level=isolation_level) as consumer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + TIMEOUT_S
        while any(consumer.position(at) < end for at, end in ends.items()):
            if time.monotonic() > deadline:
                raise WatchFailed(f"could not read {topic} to its end within {TIMEOUT_S:g} s")
            for batch in consumer.poll_batches(0.5):
                for record in batch:
                    yield record.key, record.value
