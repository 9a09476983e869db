"""Producers and consumers on a real cluster whose nodes are killed and whose links are cut all the while."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tidelog import RecordMetadata, TopicPartition
from tidelog.client.delivery import Callback
from tidelog.testing import Cluster

SECONDS = 8.0


def worry(cluster: Cluster, rng: random.Random, until: float) -> None:
    """One fault after the other, each healed again."""
    while time.monotonic() < until:
        node = rng.choice(cluster.node_ids)
        how = rng.random()
        if how < 0.4:
            cluster.kill(node)
            time.sleep(rng.uniform(0.1, 0.8))
            cluster.restart(node)
        elif how < 0.65:
            cluster.partition("client", node)
        elif how < 0.8:
            cluster.partition(node, "client")
        else:
            cluster.isolate(node)
        time.sleep(rng.uniform(0.2, 1.2))
        cluster.heal()


@pytest.mark.parametrize("seed", [1])
def test_each_record_once_and_in_order_and_a_consumer_that_follows_sees_just_that(seed: int) -> None:
    acknowledged: dict[int, tuple[int, int]] = {}
    failed: dict[int, BaseException] = {}

    def settle(number: int) -> Callback:
        def settled(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if metadata is None:
                assert error is not None
                failed[number] = error
            else:
                acknowledged[number] = (metadata.partition, metadata.offset)

        return settled

    seen: list[tuple[int, int, int]] = []
    done = threading.Event()
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("t", 3, 3, {"min.insync.replicas": "2"})
        parts = [TopicPartition("t", number) for number in range(3)]
        consumer = cluster.consumer(auto_offset_reset="none", retry_backoff_ms=20)
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, 0)

        def follow() -> None:
            while not done.is_set() or any(consumer.position(part) < ends[part] for part in parts):
                seen.extend((r.partition, r.offset, int(r.value or b"")) for r in consumer.poll(0.2))

        ends = dict.fromkeys(parts, 0)
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        until = time.monotonic() + SECONDS
        faults = threading.Thread(target=worry, args=(cluster, random.Random(seed), until))
        faults.start()
        sent = 0
        with cluster.producer(batch_size=2_000, retry_backoff_ms=20, buffer_memory=500_000) as producer:
            while time.monotonic() < until:
                for _ in range(20):
                    producer.send("t", b"%d" % sent, key=b"k%d" % (sent % 20), on_delivery=settle(sent))
                    sent += 1
                time.sleep(0.002)
            faults.join()
            producer.flush(60)
            retried = producer.metrics()["record-retry-total"]
        ends = consumer.end_offsets(parts, timeout=30)
        done.set()
        follower.join(60)
        assert not follower.is_alive()
        consumer.close()

    assert not failed
    assert len(acknowledged) == sent
    assert retried > 0, "no fault hit the producer: the test tested nothing"
    numbers = [number for _, _, number in seen]
    assert sorted(numbers) == list(range(sent))
    for at in range(3):
        mine = [(offset, number) for partition, offset, number in seen if partition == at]
        assert [offset for offset, _ in mine] == list(range(len(mine)))
        assert [number for _, number in mine] == sorted(number for _, number in mine)
        for offset, number in mine:
            assert acknowledged[number] in ((at, offset), (at, -1))
