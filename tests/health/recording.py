"""Records what nodes export while a cluster of real processes has one trouble or another, and in a rolling restart.

``./dev run python -m tests.health.recording`` writes the files of ``recordings/`` anew, or those that are named. It
takes 45 minutes. The tests judge the alerts by them (``test_recorded_drills.py``).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog import Admin, Consumer, NewTopic, Producer, TidelogError, TopicPartition
from tidelog.broker import metrics
from tidelog.broker.health.rules import RULES
from tidelog.cli.local.cluster import LocalCluster

EVERY_S: Final = 15
NAMES: Final = {name for rule in RULES for alert in rule.alerts for name in re.findall(r"\b[a-z]+_\w+", alert.expr)}
Scrape = dict[int, dict[str, str] | None]
"""Of each node, the values by series; ``None`` if it did not answer. Clocks are less the recorder's own."""
CLOCK: Final = metrics.CLOCK.exported
SEGMENT_BYTES: Final = 2**20


@dataclass
class Stage:
    """A cluster with its programs: a producer and a group run until they are told to stop."""

    cluster: LocalCluster
    over: threading.Event = field(default_factory=threading.Event)
    unread: threading.Event = field(default_factory=threading.Event)
    """Set: the group's consumer stops."""
    transaction: Producer | None = None

    def admin(self) -> Admin:
        return Admin(self.cluster.bootstrap)


Act = Callable[[Stage], object]


class Drill(NamedTuple):
    """How many seconds are recorded, and what is done when."""

    seconds: int
    acts: Sequence[tuple[int, Act]]
    settings: Mapping[str, str] = MappingProxyType({})


def kill(node: int) -> Act:
    return lambda stage: stage.cluster.kill(node)


def start(node: int) -> Act:
    return lambda stage: stage.cluster.start([node])


def restart(node: int) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.stop([node])
        stage.cluster.start([node])
        stage.cluster.wait_ready([node], timeout_s=120)

    return act


def topic(name: str, *replicas: int, **settings: str) -> Act:
    """Create a topic of one partition on these nodes."""
    configs = {key.replace("_", "."): value for key, value in settings.items()}

    def act(stage: Stage) -> None:
        with stage.admin() as admin:
            admin.create_topics([NewTopic(name, assignments={0: replicas}, configs=configs)])

    return act


def write(name: str, records: int) -> Act:
    def act(stage: Stage) -> None:
        with Producer(stage.cluster.bootstrap) as producer:
            for _ in range(records):
                producer.send(name, b"x" * 1_000)
            producer.flush()

    return act


def move(name: str, *replicas: int) -> Act:
    def act(stage: Stage) -> None:
        with stage.admin() as admin:
            admin.alter_partition_reassignments({TopicPartition(name, 0): replicas})

    return act


def begin(name: str) -> Act:
    """Leave a transaction open in a topic."""

    def act(stage: Stage) -> None:
        stage.transaction = producer = Producer(stage.cluster.bootstrap, transactional_id="recorded")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"x").result(60)

    return act


def commit(stage: Stage) -> None:
    assert stage.transaction is not None
    try:
        stage.transaction.commit_transaction(timeout=20)
    except (TidelogError, TimeoutError):
        pass  # it is decided, and the markers wait
    stage.transaction.close(timeout=5)


def flip(name: str, node: int) -> Act:
    """Change a byte in the middle of the topic's first segment."""

    def act(stage: Stage) -> None:
        (place,) = stage.cluster.node(node).data_dir.glob(f"**/{name}-0")
        segment = min(place.glob("*.log"))
        with segment.open("r+b") as file:
            file.seek(SEGMENT_BYTES // 2)
            byte = file.read(1)
            file.seek(SEGMENT_BYTES // 2)
            file.write(bytes([byte[0] ^ 1]))

    return act


DRILLS: Final[dict[str, Drill]] = {
    "node-loss": Drill(660, [(60, kill(2)), (480, kill(3))]),
    "rolling-restart": Drill(480, [(60, restart(1)), (130, restart(2)), (200, restart(3))]),
    "reader-loss": Drill(900, [(60, lambda stage: stage.unread.set())]),
    "weak-topics": Drill(
        480,
        [
            (5, topic("strict", 1, 2, 3, min_insync_replicas="3")),
            (6, topic("single", 3)),
            (7, topic("moved", 1, 2)),
            (45, begin("single")),
            (60, kill(3)),
            (75, move("moved", 1, 3)),
            (85, commit),
        ],
    ),
    "unclean-election": Drill(
        330,
        [
            (5, topic("risky", 1, 2, min_insync_replicas="1", unclean_leader_election_enable="true")),
            (30, write("risky", 10)),
            (60, kill(2)),
            (90, write("risky", 10)),
            (100, kill(1)),
            (104, start(2)),
            (135, start(1)),
        ],
    ),
    "rotten-disk": Drill(
        480,
        [
            (5, topic("rotten", 1, segment_bytes=str(SEGMENT_BYTES))),
            (10, write("rotten", 3 * SEGMENT_BYTES // 1_000)),
            (60, flip("rotten", 1)),
        ],
        {"log.scrub.interval.ms": "20000"},
    ),
}


def record(directory: Path, drill: Drill) -> list[Scrape]:
    """Three nodes with a producer and a group, from the start of which the seconds count."""
    stage = Stage(LocalCluster.create(directory, nodes=3, settings=drill.settings))
    cluster = stage.cluster
    found: list[Scrape] = []
    threads = []
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=120)
        began_s = time.monotonic()
        threads = [
            threading.Thread(target=_produce, args=(stage,)),
            threading.Thread(target=_consume, args=(stage,)),
            threading.Thread(target=_act, args=(stage, began_s, drill.acts)),
        ]
        for thread in threads:
            thread.start()
        for number in range(drill.seconds // EVERY_S + 1):
            time.sleep(max(0.0, began_s + number * EVERY_S - time.monotonic()))
            found.append({node: _scrape(cluster, node) for node in cluster.nodes})
    finally:
        stage.over.set()
        for thread in threads:
            thread.join()
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.remove()
    return found


def _produce(stage: Stage) -> None:
    with Producer(stage.cluster.bootstrap, delivery_timeout_ms=20_000, request_timeout_ms=5_000) as producer:
        while not stage.over.wait(0.05):
            producer.send("recorded", b"x")


def _consume(stage: Stage) -> None:
    with Consumer(stage.cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["recorded"])
        while not (stage.over.is_set() or stage.unread.is_set()):
            consumer.poll(0.5)


def _act(stage: Stage, began_s: float, acts: Sequence[tuple[int, Act]]) -> None:
    for at_s, act in acts:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        act(stage)


def _scrape(cluster: LocalCluster, node: int) -> dict[str, str] | None:
    try:
        _, body = cluster.node(node).get("/metrics", 5.0)
    except OSError:
        return None
    text = body.decode().replace(str(cluster.directory), "/data")
    lines = [line for line in text.splitlines() if re.split(r"[{ ]", line)[0] in NAMES]
    found = dict(line.rsplit(" ", 1) for line in lines if "_bucket" not in line)
    if CLOCK in found:
        found[CLOCK] = str(round(float(found[CLOCK]) - time.time(), 3))
    return found


def as_series(scrapes: Sequence[Scrape]) -> dict[str, str]:
    """The values of each series as promtool writes them: ``1+0x3`` for four times 1, ``_`` for none. A node that does
    not answer makes its series stale. Clocks go with promtool's, which begins at 0."""
    series: dict[str, str] = {}
    for node in sorted({node for scrape in scrapes for node in scrape}):
        for name in sorted({name for scrape in scrapes for name in scrape[node] or ()}):
            values = [(scrape[node] or {}).get(name) for scrape in scrapes]
            if name == CLOCK:
                values = [one and str(float(one) + EVERY_S * number) for number, one in enumerate(values)]
            labels = f'instance="{node}"' + (", " + name.partition("{")[2][:-1] if "{" in name else "")
            series[f"{name.partition('{')[0]}{{{labels}}}"] = _spelled(values)
    return series


def _spelled(values: Sequence[str | None]) -> str:
    parts: list[str] = []
    before: str | None = None
    for value in values:
        if value is None:
            parts.append("stale" if before is not None else "_")
        elif value == before and re.fullmatch(r".*x\d+", parts[-1]):
            head, _, times = parts[-1].rpartition("x")
            parts[-1] = f"{head}x{int(times) + 1}"
        else:
            parts.append(f"{value}+0x0")
        before = value
    return " ".join(parts)


if __name__ == "__main__":
    for name in sys.argv[1:] or DRILLS:
        with tempfile.TemporaryDirectory() as place:
            series = as_series(record(Path(place) / "cluster", DRILLS[name]))
        path = Path(__file__).with_name("recordings") / f"{name}.json"
        path.write_text(json.dumps(series, indent=0) + "\n")
