"""Records what nodes export while a cluster of real processes has one trouble or another, and in a rolling restart.

``./dev run python -m tests.health.recording`` writes the files of ``recordings/`` anew, or those that are named. It
takes four hours, less if you run it several times at once, each with some names. The tests judge the alerts
by them (``test_recorded_drills.py``).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog import Consumer, Producer
from tidelog.broker import metrics
from tidelog.broker.health.rules import RULES
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.node import LocalNode

from .acts import (
    READY_S,
    SEGMENT_BYTES,
    Act,
    Stage,
    begin,
    commit,
    create_at_source,
    fail_disk,
    few_files,
    fill,
    flip,
    foreign_certificate,
    guess_passwords,
    kill,
    link_with_source,
    move,
    move_clock,
    prepare,
    restart,
    run_link,
    scrape_beside,
    second_directory,
    secured,
    shimmed,
    slow_follower,
    small_disk,
    stall,
    stallable,
    start,
    stop_link,
    storm,
    topic,
    write,
)  # fmt: skip

EVERY_S: Final = 15
NAMES: Final = {name for rule in RULES for alert in rule.alerts for name in re.findall(r"\b[a-z]+_\w+", alert.expr)}
Scrape = dict[int, dict[str, str] | None]
"""Of each node, the values by series; ``None`` if it did not answer. Clocks are less the recorder's own."""
BUCKETS: Final = {name for name in NAMES if name.endswith("_bucket")}
"""Only what is compared with the week before needs them."""
DISKS: Final = {metrics.DISK_FREE.exported, metrics.DISK_TOTAL.exported}
"""Of a node without a disk of its own they say what other programs do."""
CLOCK: Final = metrics.CLOCK.exported
WEEK: Final = 7 * 24 * 3600 // EVERY_S
"""In scrapes."""


class Drill(NamedTuple):
    """How many seconds are recorded, and what is done when: ``before`` the start, and afterwards. What comes from the
    second ``week_later_s`` on is judged as if it had come a week after the start."""

    seconds: int
    acts: Sequence[tuple[int, Act]]
    settings: Mapping[str, str] = MappingProxyType({})
    nodes: int = 3
    before: Sequence[Act] = ()
    week_later_s: int | None = None


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
    "undecided": Drill(3_720, [(5, prepare("prepared"))], {"transaction.two.phase.commit.enable": "true"}, nodes=1),
    "rotten-disk": Drill(
        480,
        [
            (5, topic("rotten", 1, segment_bytes=str(SEGMENT_BYTES))),
            (10, write("rotten", 3 * SEGMENT_BYTES // 1_000)),
            (60, flip("rotten", 1)),
        ],
        {"log.scrub.interval.ms": "20000"},
    ),
    "sick-nodes": Drill(
        480,
        [
            (
                5,
                topic(
                    "compact",
                    1,
                    cleanup_policy="compact",
                    segment_bytes=str(SEGMENT_BYTES),
                    min_compaction_lag_ms="60000",
                    min_cleanable_dirty_ratio="0.01",
                ),
            ),
            *((6, topic(f"spread-{number}", 1, 2, min_insync_replicas="1")) for number in range(4)),
            (10, write("compact", 3 * SEGMENT_BYTES // 1_000)),
            (30, flip("compact", 1)),
            (60, move_clock(3, 30)),
            (61, fail_disk(2)),
            *((62, write(f"spread-{number}", 10)) for number in range(4)),
        ],
        before=[second_directory(2), shimmed(3)],
    ),
    "stuck-cleaner": Drill(
        510,
        [
            (
                5,
                topic(
                    "compact",
                    1,
                    cleanup_policy="compact",
                    segment_bytes=str(SEGMENT_BYTES),
                    min_cleanable_dirty_ratio="0.01",
                ),
            ),
            (6, write("compact", 3 * SEGMENT_BYTES // 1_000)),
            (60, stall(1)),
        ],
        {"log.cleaner.io.max.bytes.per.second": "20000"},
        nodes=1,
        before=[stallable(1, "compact")],
    ),
    "busy-loop": Drill(1_320, [(60, storm(1))], nodes=1),
    "few-files": Drill(390, [(60, few_files(1, 0.83))], nodes=1),
    "full-disk": Drill(
        1_170,
        [(5, topic("filling", 1)), (60, fill("filling", 1, 0.13)), (1_020, fill("filling", 1, 0.03))],
        nodes=1,
        before=[small_disk(1, 256)],
    ),
    "slow-follower": Drill(1_620, [(810, slow_follower("recorded", 100))], before=[shimmed(1, 2, 3)], week_later_s=810),
    "certificates-and-logins": Drill(
        600,
        [(60, foreign_certificate(3)), (61, guess_passwords(1, 25))],
        before=[secured({1: 10, 2: 2, 3: 100}, ssl_files_check_interval_ms="5000", audit_events_max="5")],
    ),
    "link": Drill(
        540,
        [
            (5, link_with_source("linked", "anew")),
            (60, stop_link),
            (450, create_at_source("anew")),
            (451, run_link),
        ],
        nodes=1,
    ),
    "two-clusters": Drill(180, [(60, scrape_beside)], nodes=1),
}


def record(directory: Path, drill: Drill) -> list[Scrape]:
    """A cluster with a producer and a group, from the start of which the seconds count."""
    stage = Stage(LocalCluster.create(directory, nodes=drill.nodes, settings=drill.settings))
    cluster = stage.cluster
    stage.scraped.update(cluster.nodes)
    found: list[Scrape] = []
    failures: list[BaseException] = []
    left_out = set(BUCKETS if drill.week_later_s is None else ())
    try:
        for act in drill.before:
            act(stage)
        cluster.start()
        cluster.wait_ready(timeout_s=READY_S)
        began_s = time.monotonic()
        stage.run(lambda: _produce(stage))
        stage.run(lambda: _consume(stage))
        stage.run(lambda: _act(stage, began_s, drill.acts, failures))
        for number in range(drill.seconds // EVERY_S + 1):
            time.sleep(max(0.0, began_s + number * EVERY_S - time.monotonic()))
            if failures:
                raise failures[0]
            found.append(
                {
                    at: _scrape(directory, node, left_out if node in stage.own_disks else left_out | DISKS)
                    for at, node in [*stage.scraped.items()]
                }
            )
    finally:
        stage.end()
    return found


def _produce(stage: Stage) -> None:
    with Producer(
        stage.cluster.bootstrap, delivery_timeout_ms=20_000, request_timeout_ms=5_000, **stage.client
    ) as producer:
        while not stage.over.wait(0.05):
            producer.send("recorded", b"x")


def _consume(stage: Stage) -> None:
    with Consumer(
        stage.cluster.bootstrap, group_id="readers", auto_offset_reset="earliest", **stage.client
    ) as consumer:
        consumer.subscribe(["recorded"])
        while not (stage.over.is_set() or stage.unread.is_set()):
            consumer.poll(0.5)


def _act(stage: Stage, began_s: float, acts: Sequence[tuple[int, Act]], failures: list[BaseException]) -> None:
    try:
        for at_s, act in acts:
            if stage.over.wait(max(0.0, began_s + at_s - time.monotonic())):
                return
            act(stage)
    except BaseException as error:
        failures.append(error)


def _scrape(directory: Path, node: LocalNode, left_out: Collection[str]) -> dict[str, str] | None:
    try:
        _, body = node.get("/metrics", 5.0)
    except OSError:
        return None
    text = body.decode().replace(str(directory), "/data")
    names = NAMES.difference(left_out)
    lines = [line for line in text.splitlines() if re.split(r"[{ ]", line)[0] in names and "FetchConsumer" not in line]
    found = dict(line.rsplit(" ", 1) for line in lines)
    if CLOCK in found:
        found[CLOCK] = str(round(float(found[CLOCK]) - time.time(), 3))
    return found


def as_series(scrapes: Sequence[Scrape], week_later_s: int | None = None) -> dict[str, str]:
    """The values of each series as promtool writes them: ``1+0x3`` for four times 1, ``_`` for none. A node that does
    not answer makes its series stale. Clocks go with promtool's, which begins at 0."""
    series: dict[str, str] = {}
    part = len(scrapes) if week_later_s is None else week_later_s // EVERY_S
    for node in sorted({node for scrape in scrapes for node in scrape}):
        for name in sorted({name for scrape in scrapes for name in scrape.get(node) or ()}):
            values = [(scrape.get(node) or {}).get(name) for scrape in scrapes]
            if name == CLOCK:
                times = [number if number < part else number + WEEK - part for number in range(len(values))]
                values = [one and str(float(one) + EVERY_S * at) for at, one in zip(times, values, strict=True)]
            labels = f'instance="{node}"' + (", " + name.partition("{")[2][:-1] if "{" in name else "")
            parts = [_spelled(values[:part])]
            if values[part:]:
                parts += [f"_x{WEEK - part}", _spelled(values[part:])]
            series[f"{name.partition('{')[0]}{{{labels}}}"] = " ".join(parts)
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
            series = as_series(record(Path(place) / "cluster", DRILLS[name]), DRILLS[name].week_later_s)
        path = Path(__file__).with_name("recordings") / f"{name}.json"
        path.write_text(json.dumps(series, indent=0) + "\n")
