"""A link between two clusters of real processes: leaders at its source and the link itself are killed under load, and
it is promoted meanwhile. Every record that the source acknowledged below the promised position must then be at the
target, once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import TidelogError

TOPIC: Final = "t"
PLACES: Final = [TopicPartition(TOPIC, number) for number in range(2)]
LINK: Final = "dr"
PER_ROUND: Final = 10
ROUND_S: Final = 0.02
WAIT_S: Final = 120.0
READY_S: Final = 120.0
BETWEEN_S: Final = (0.0, 2.0)
_POLL_S: Final = 0.1
_TIED: Final = (sys.executable, "-P", "-m", "tidelog.chaos.laboratory.processes.parent_death", str(os.getpid()))

Place = tuple[int, int]


@dataclass(slots=True)
class LinkedRun:
    """The result of a run. ``promoted``: where the target's own records begin, by partition."""

    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    kills: list[str] = field(default_factory=list)
    promised: dict[int, int] = field(default_factory=dict)
    promoted: dict[int, int] = field(default_factory=dict)
    target: list[tuple[Place, bytes]] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Return the violations; empty if all held. Pure."""
        found = [
            f"partition {number}: position {offset} was promised, and the log was promoted at {self.promoted[number]}"
            for number, offset in self.promised.items()
            if offset > self.promoted[number]
        ]
        there = dict(self.target)
        found += [
            f"{value!r} was acknowledged at {place}, below the promotion, and the target has {there.get(place)!r} there"
            for place, value in sorted(self.acknowledged.items())
            if place[1] < self.promoted[place[0]] and there.get(place) != value
        ]
        counts = Counter(value for _, value in self.target)
        found += [f"{value!r} stands {count} times at the target" for value, count in counts.items() if count > 1]
        known = self.unknown.union(self.acknowledged.values())
        found += [f"the target has {value!r}, which nobody sent" for value in counts if value not in known]
        found += [
            f"{place} is at the target, beyond its promotion" for place in there if place[1] >= self.promoted[place[0]]
        ]
        return found


def linked_run(directory: Path, seed: int) -> LinkedRun:
    """Execute the run. Raises :class:`CommandFailed` if a step is not done in time."""
    rng, run = random.Random(f"linked-{seed}"), LinkedRun()
    with _cluster(directory / "source", 3) as source, _cluster(directory / "target", 1) as target:
        with Admin(source.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, len(PLACES), 3, {"min.insync.replicas": "2"})])
        at = ("--bootstrap", target.bootstrap)
        _tidelog("links", "create", LINK, "--source", source.bootstrap, "--topics", TOPIC, *at)
        with _Link(target.bootstrap, directory / "link.log") as link, _written(source.bootstrap, run):
            _until(lambda: min(_ends(target).values()) > 0, "records come over")
            acts: list[Callable[[], None]] = [
                lambda: _kill_leader(source, rng.choice(PLACES), run),
                lambda: _kill_leader(source, rng.choice(PLACES), run),
                lambda: link.restart(run),
            ]
            if rng.random() < 0.5:
                acts.append(lambda: _restart(target, 1, "the target's node", run))
            rng.shuffle(acts)
            for act in acts:
                time.sleep(rng.uniform(*BETWEEN_S))
                act()
            before = len(run.acknowledged)
            _until(lambda: len(run.acknowledged) > before + 100, "producers go on")
            reached = max(dict(run.acknowledged))
            _until(
                lambda: link.kept() and _ends(target)[reached[0]] > reached[1], "the link goes on from the new leader"
            )
            _kill_leader(source, rng.choice(PLACES), run, restart=False)
            time.sleep(rng.uniform(*BETWEEN_S))
            run.promised = {row["partition"]: row["offset"] or 0 for row in _status(*at)}
            promotion = _tidelog("links", "promote", LINK, *at)
            run.promoted = {row["partition"]: row["end"] for row in promotion["partitions"]}
            before = len(run.acknowledged)
            _until(lambda: len(run.acknowledged) > before + 50, "the source goes on")
        run.target = list(_records(target))
    return run


@contextmanager
def _cluster(directory: Path, nodes: int) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(directory, nodes=nodes)
    for node in cluster.nodes.values():
        node.launcher = _TIED
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=READY_S)
        yield cluster
    finally:
        for number in cluster.nodes:
            cluster.kill(number)


class _Link:
    """``tidelog links run`` as a process."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        self._bootstrap, self._log = bootstrap, log
        self._process = self._started()

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def restart(self, run: LinkedRun) -> None:
        self._kill()
        run.kills.append("the link")
        self._process = self._started()

    def kept(self) -> bool:
        """Restart it if it has ended by itself, as a service manager does: it ends if the target is unreachable at
        start."""
        if self._process.poll() is not None:
            self._process = self._started()
        return True

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [*_TIED, sys.executable, "-P", "-m", "tidelog.cli.main", "links", "run", LINK]
        with self._log.open("ab") as log:
            return subprocess.Popen([*command, "--bootstrap", self._bootstrap], stdout=log, stderr=log)


@contextmanager
def _written(bootstrap: str, run: LinkedRun) -> Iterator[None]:
    """Send records to the source meanwhile, and keep every answer."""
    over = threading.Event()

    def write() -> None:
        number = 0
        with Producer(bootstrap, linger_ms=1, delivery_timeout_ms=120_000) as producer:
            while not over.wait(ROUND_S):
                values = [b"%d" % (number + n) for n in range(PER_ROUND)]
                sent = [producer.send(TOPIC, value, partition=n % len(PLACES)) for n, value in enumerate(values)]
                for value, one in zip(values, sent, strict=True):
                    try:
                        found = one.result()
                        run.acknowledged[found.partition, found.offset] = value
                    except TidelogError:
                        run.unknown.add(value)
                number += PER_ROUND

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _kill_leader(cluster: LocalCluster, at: TopicPartition, run: LinkedRun, *, restart: bool = True) -> None:
    def leader() -> int:
        with Admin(cluster.bootstrap) as admin:
            return int(admin.describe_topics([at.topic])[0].partitions[at.partition].leader)

    _until(lambda: leader() >= 0, f"{at} has a leader")
    number = leader()
    if restart:
        _restart(cluster, number, f"leader of {at}, node {number} of the source", run)
        return
    run.kills.append(f"leader of {at}, node {number} of the source, which stays away")
    cluster.kill(number)


def _restart(cluster: LocalCluster, number: int, what: str, run: LinkedRun) -> None:
    run.kills.append(what)
    cluster.kill(number)
    cluster.start([number])
    cluster.wait_ready([number], timeout_s=READY_S)

    def whole() -> bool:
        with Admin(cluster.bootstrap) as admin:
            (topic,) = admin.describe_topics([TOPIC])
        return all(len(each.isr) == len(each.replicas) for each in topic.partitions)

    _until(whole, "every replica is in sync")


def _ends(cluster: LocalCluster) -> dict[int, int]:
    with Admin(cluster.bootstrap) as admin:
        wanted = dict.fromkeys(PLACES, OffsetSpec.latest())
        return {at.partition: one.offset for at, one in admin.list_offsets(wanted).items()}


def _records(cluster: LocalCluster) -> Iterator[tuple[Place, bytes]]:
    """Yield all records in the order received; duplicates come twice."""
    ends = _ends(cluster)
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(PLACES)
        while any(consumer.position(at) < ends[at.partition] for at in PLACES):
            for one in consumer.poll(0.2):
                yield (one.partition, one.offset), one.value or b""


def _status(*at: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = _tidelog("links", "status", LINK, *at)["partitions"]
    return found


def _tidelog(*arguments: str) -> Any:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    if done.returncode:
        raise CommandFailed(f"tidelog {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise CommandFailed(f"expected within {WAIT_S:g} s: {what}")
        time.sleep(_POLL_S)
