"""kill -9 of brokers while they move what is due."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.cli.local.cluster import LocalCluster

COUNT = 100
"""Records for each kill: a quarter of them has come when it strikes."""
KILLS = 2
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
        found: Counter[int] = Counter()
        until = time.monotonic() + BOUND_S
        with (
            Admin(cluster.bootstrap) as admin,
            Producer(cluster.bootstrap) as producer,
            Consumer(cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TopicPartition("bills", 0)])

            def read(count: int) -> None:
                while len(found) < count:
                    assert time.monotonic() < until, f"{len(found)} of {count} came"
                    found.update(int(record.value or b"") for record in consumer.poll(timeout=0.1))

            for first in range(0, KILLS * COUNT, COUNT):
                for number in range(COUNT):
                    headers = [("tidelog-delay-ms", b"%d" % (20 * number))]
                    producer.send("later", b"%d" % (first + number), headers=headers)
                producer.flush(60)
                read(first + COUNT // 4)
                while (leader := admin.describe_topics(["later"])[0].partitions[0].leader) < 0:
                    assert time.monotonic() < until, "later-0 has no leader"
                assert cluster.kill(leader)
                cluster.start([leader])
            read(KILLS * COUNT)
            found.update(int(record.value or b"") for record in consumer.poll(timeout=1.0))
        assert found == Counter(range(KILLS * COUNT))
    finally:
        cluster.stop(timeout_s=5)
