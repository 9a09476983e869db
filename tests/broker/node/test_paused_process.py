"""Real processes that are frozen (SIGSTOP) and go on later as zombies of an older epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.cli.local.cluster import LocalCluster

TOPIC = "t"
BOUND_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path / "cluster", nodes=3)
    try:
        made.start()
        made.wait_ready()
        yield made
    finally:
        for number in made.nodes:
            made.kill(number)


def described(admin: tidelog.Admin) -> Any:
    """The partition as some broker that answers describes it."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            return admin.describe_topics([TOPIC], timeout=1.0)[0].partitions[0]
        except tidelog.TidelogError:
            # The paused one was asked.
            assert time.monotonic() < deadline, "no broker answered"


def test_a_paused_leader_is_replaced_and_comes_back_as_a_follower(cluster: LocalCluster) -> None:
    with tidelog.Admin(cluster.bootstrap) as admin:
        admin.create_topics([tidelog.NewTopic(TOPIC, 1, 3, {"min.insync.replicas": "2"})])
        with tidelog.Producer(cluster.bootstrap, request_timeout_ms=2_000) as producer:
            sent = [producer.send(TOPIC, b"%d" % n) for n in range(500)]
            producer.flush()
            paused = described(admin).leader
            sent += [producer.send(TOPIC, b"%d" % n) for n in range(500, 1000)]
            cluster.pause(paused)
            begun = time.monotonic()
            sent += [producer.send(TOPIC, b"%d" % n) for n in range(1000, 1500)]
            producer.flush(BOUND_S)
            assert time.monotonic() - begun < BOUND_S
            assert described(admin).leader != paused
            cluster.resume(paused)
            deadline = time.monotonic() + BOUND_S
            while len(described(admin).isr) < 3:
                assert time.monotonic() < deadline, "the paused node did not come back into the ISR"
                time.sleep(0.05)
            sent += [producer.send(TOPIC, b"%d" % n) for n in range(1500, 2000)]
            producer.flush(BOUND_S)
            assert all(future.result(1).offset >= 0 for future in sent)
    with tidelog.Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        seen: list[int] = []
        while len(seen) < 2000:
            records = consumer.poll(10.0)
            assert records, f"only {len(seen)} of 2000 records came back"
            seen += [int(record.value or b"") for record in records]
    assert seen == list(range(2000)), "in order, none lost, none doubled"
