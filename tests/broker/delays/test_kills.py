"""kill -9 of brokers while they move what is due."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.cli.local.cluster import LocalCluster

COUNT = 400
KILLS = 4
BOUND_S = 120.0


def test_kill_9_of_leaders_loses_and_doubles_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", nodes=3)
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=60)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic("bills", 1, 3, {"delay.sources": "later", "min.insync.replicas": "2"}),
                    NewTopic("dlq.later", 1, 3, {"delay.sources": "later"}),
                    NewTopic(
                        "later",
                        1,
                        3,
                        {
                            "delay.enable": "true",
                            "delay.target": "bills",
                            "delay.dead.letter.topic": "dlq.later",
                            "message.timestamp.type": "LogAppendTime",
                            "min.insync.replicas": "2",
                        },
                    ),
                ]
            )
        with Producer(cluster.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("later", b"%d" % number, headers=[("tidelog-delay-ms", b"%d" % (15 * number))])
            producer.flush(60)
        found: Counter[int] = Counter()
        kills = 0
        with Consumer(cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("bills", 0)])
            until = time.monotonic() + BOUND_S
            while len(found) < COUNT:
                assert time.monotonic() < until, f"{len(found)} of {COUNT} came"
                found.update(int(record.value or b"") for record in consumer.poll(timeout=0.3))
                if kills < KILLS and len(found) > (kills + 1) * COUNT // (KILLS + 2):
                    victim = kills % 3 + 1
                    assert cluster.kill(victim)
                    cluster.start([victim])
                    kills += 1
            found.update(int(record.value or b"") for record in consumer.poll(timeout=1.0))
        assert kills == KILLS
        assert found == Counter(range(COUNT))
    finally:
        cluster.stop(timeout_s=5)
