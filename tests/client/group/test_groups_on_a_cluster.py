"""Consumer groups of both forms on a real cluster in this process: kills, joins, leaves, slow polls, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tidelog import Consumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition, aio
from tidelog.client.errors import ClientClosedError, CommitFailedError, IllegalStateError, RebalanceCallbackError
from tidelog.client.group.consumer_group import ConsumerGroup
from tidelog.testing import Cluster

FAST: dict[str, Any] = {"heartbeat_interval_ms": 100, "session_timeout_ms": 1_000, "auto_offset_reset": "earliest"}
CONFIG = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, config=CONFIG) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, 4)
    return str(name)


def fill(cluster: Cluster, topic: str, count: int) -> set[bytes]:
    """Write ``count`` numbered records over the four partitions."""
    values = [b"%d-%d" % (i, random.getrandbits(60)) for i in range(count)]
    with cluster.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % 4)
        producer.flush()
    return set(values)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


class Worker:
    """A consumer that polls in a thread of its own, as a program would."""

    def __init__(self, cluster: Cluster, topic: str, group: str, **settings: Any) -> None:
        self.values: list[bytes | None] = []
        self.error: BaseException | None = None
        self.consumer = cluster.consumer(group_id=group, **(FAST | settings))
        self.consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.values += [record.value for record in self.consumer.poll(0.2)]
        except BaseException as error:
            self.error = error

    @property
    def count(self) -> int:
        return len(self.consumer.assignment())

    def stop(self) -> None:
        """Leave in good order."""
        self._stop.set()
        self._thread.join(WAIT_S)
        self.consumer.close()
        assert self.error is None

    def kill(self) -> None:
        """End as a killed process does: no word to anybody."""
        self._stop.set()
        self._thread.join(WAIT_S)
        self.consumer._background.run(self.consumer._core.close())


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "roundrobin", "sticky"])
def test_three_share_one_is_killed_and_one_leaves(cluster: Cluster, topic: str, strategy: str) -> None:
    sent = fill(cluster, topic, 400)
    workers = [
        Worker(cluster, topic, topic, partition_assignment_strategy=strategy, auto_commit_interval_ms=100)
        for _ in range(3)
    ]
    try:
        until(lambda: sorted(w.count for w in workers) == [1, 1, 2], "three share four partitions")
        until(lambda: sum(len(w.values) for w in workers) >= 400, "all is read")
        owned = [at for w in workers for at in w.consumer.assignment()]
        assert len(set(owned)) == len(owned) == 4
        workers[0].kill()
        sent |= fill(cluster, topic, 400)
        until(lambda: workers[1].count == workers[2].count == 2, "two take over")
        workers[1].stop()
        sent |= fill(cluster, topic, 400)
        until(lambda: workers[2].count == 4, "the last one has all")
        until(lambda: sent <= {v for w in workers for v in w.values}, "every record was handed out")
    finally:
        for worker in workers:
            worker.stop()
    with cluster.consumer(group_id=topic) as again:
        where = [TopicPartition(topic, p) for p in range(4)]
        assert sum(o.offset for o in again.committed(where).values() if o) == 1_200


def test_the_coordinator_is_killed(topic: str) -> None:
    with Cluster(nodes=3, config=CONFIG) as cluster:
        cluster.create_topic(topic, 4)
        sent = fill(cluster, topic, 400)
        workers = [Worker(cluster, topic, topic, auto_commit_interval_ms=100) for _ in range(2)]
        try:
            until(lambda: workers[0].count == workers[1].count == 2, "two share")
            where = [TopicPartition(topic, p) for p in range(4)]
            until(lambda: sum(len(w.values) for w in workers) >= 400, "all is read")
            workers[0].consumer.commit({where[0]: 99} if where[0] in workers[0].consumer.assignment() else None)
            group = workers[0].consumer._core.group
            assert isinstance(group, ConsumerGroup)
            node = group.coordinator._node
            assert node is not None
            cluster.kill(node)
            sent |= fill(cluster, topic, 400)
            until(lambda: sent <= {v for w in workers for v in w.values}, "all is read through the kill")
            until(lambda: group.coordinator._node not in (None, node), "another coordinator is found")
            until(lambda: workers[0].count == workers[1].count == 2, "both are still members")
            cluster.restart(node)
        finally:
            for worker in workers:
                worker.stop()
        with cluster.consumer(group_id=topic) as again:
            found = again.committed(where)
            assert sum(o.offset for o in found.values() if o) == 800


def test_cooperative_members_read_on_while_others_join(cluster: Cluster, topic: str) -> None:
    """One record each millisecond; what stays is never interrupted for longer than a poll."""
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    one = Worker(cluster, topic, topic, **cooperative)
    stop = threading.Event()

    def feed() -> None:
        with cluster.producer(linger_ms=0) as producer:
            while not stop.is_set():
                for p in range(4):
                    producer.send(topic, b"x", partition=p)
                time.sleep(0.004)

    feeding = threading.Thread(target=feed)
    feeding.start()
    two = None
    try:
        until(lambda: one.count == 4 and len(one.values) > 100, "the first reads")
        two = Worker(cluster, topic, topic, **cooperative)
        before = len(one.values)
        until(lambda: two.count == 2, "the second has its part")
        assert len(one.values) > before
        assert one.consumer.metrics()["rebalance-total"] >= 2
    finally:
        stop.set()
        feeding.join(WAIT_S)
        one.stop()
        if two is not None:
            two.stop()


def test_everything_of_a_listener_in_blocking_form(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 40)
    told: list[tuple[str, int]] = []
    threads = set()

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            threads.add(threading.get_ident())
            told.append(("assigned", len(partitions)))
            for p in partitions:
                assert consumer.position(p) == (0 if len(told) == 1 else 10)
                consumer.seek(p, 5)
            with pytest.raises(IllegalStateError, match="within a rebalance listener"):
                consumer.poll()
            with pytest.raises(IllegalStateError, match="within a rebalance listener"):
                consumer.close()

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            told.append(("revoked", len(partitions)))
            consumer.commit()
            raise ZeroDivisionError("mine")

    consumer = cluster.consumer(group_id=topic, **FAST)
    consumer.subscribe([topic], listener=Listener())
    count = 0
    while count < 20:
        count += len(consumer.poll(1))
    assert threads == {threading.get_ident()}
    consumer.enforce_rebalance()
    with pytest.raises(RebalanceCallbackError, match="on_partitions_revoked raised ZeroDivisionError"):
        consumer.poll(5)
    assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(10, 0)
    until(lambda: consumer.poll(0.1) is not None and len(consumer.assignment()) == 4, "it has joined again")
    assert [what for what, _ in told] == ["assigned", "revoked", "assigned"]
    with pytest.raises(RebalanceCallbackError):
        consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_a_slow_poll_loses_the_place(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 40)
    lost: list[int] = []

    class Listener(ConsumerRebalanceListener):
        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            lost.append(len(partitions))

    with cluster.consumer(group_id=topic, max_poll_interval_ms=600, enable_auto_commit=False, **FAST) as consumer:
        consumer.subscribe([topic], listener=Listener())
        while not consumer.poll(0.1):
            pass
        member_id = consumer.group_metadata().member_id
        until(lambda: not consumer.group_metadata().member_id, "it leaves by itself")
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            consumer.commit()
        while not consumer.poll(0.1):
            pass
        assert lost == [4]
        assert consumer.group_metadata().member_id != member_id
        consumer.commit()


def test_a_pattern_and_a_topic_that_comes(cluster: Cluster, topic: str) -> None:
    with cluster.consumer(group_id=topic, metadata_max_age_ms=200, **FAST) as consumer:
        consumer.subscribe(pattern=f"{topic}.*")
        until(lambda: consumer.poll(0.05) is not None and len(consumer.assignment()) == 4, "the topic that is there")
        cluster.create_topic(f"{topic}-more", 2)
        until(lambda: consumer.poll(0.05) is not None and len(consumer.assignment()) == 6, "the one that comes")
        consumer.subscribe(pattern=".*")
        assert consumer.poll(1) is not None
        assert not any(name.startswith("__") for name in consumer.subscription())


def test_static_members_restart_without_a_rebalance(cluster: Cluster, topic: str) -> None:
    settings: dict[str, Any] = FAST | {"session_timeout_ms": 10_000}
    first = cluster.consumer(group_id=topic, group_instance_id="a", **settings)
    other = Worker(cluster, topic, topic, group_instance_id="b", session_timeout_ms=10_000)
    try:
        first.subscribe([topic])
        until(lambda: first.poll(0.05) is not None and len(first.assignment()) == other.count == 2, "two share")
        mine, generation = first.assignment(), other.consumer.group_metadata().generation_id
        first.close()
        with cluster.consumer(group_id=topic, group_instance_id="a", **settings) as again:
            again.subscribe([topic])
            until(lambda: again.poll(0.05) is not None and again.assignment() == mine, "its old part")
            assert other.consumer.group_metadata().generation_id == generation
    finally:
        other.stop()


def test_a_static_leader_finds_what_was_added_while_it_was_away(cluster: Cluster, topic: str) -> None:
    settings: dict[str, Any] = FAST | {"session_timeout_ms": 10_000, "metadata_max_age_ms": 500}
    first = cluster.consumer(group_id=topic, group_instance_id="a", **settings)
    first.subscribe([topic])
    until(lambda: first.poll(0.05) is not None and len(first.assignment()) == 4, "the first one, who leads")
    other = Worker(cluster, topic, topic, group_instance_id="b", session_timeout_ms=10_000, metadata_max_age_ms=500)
    try:
        until(lambda: first.poll(0.05) is not None and len(first.assignment()) == other.count == 2, "two share")
        first.close()
        with cluster.admin() as admin:
            admin.create_partitions({topic: 6})
        cluster.wait_for_leader(topic, 5)
        with cluster.consumer() as onlooker:
            until(lambda: {len(onlooker.partitions_for(topic)) for _ in range(3)} == {6}, "everybody to know of six")
        with cluster.consumer(group_id=topic, group_instance_id="a", **settings) as again:
            again.subscribe([topic])
            until(lambda: again.poll(0.05) is not None and len(again.assignment()) == other.count == 3, "six shared")
    finally:
        other.stop()


def test_close_in_another_thread_ends_a_poll(cluster: Cluster, topic: str) -> None:
    consumer = cluster.consumer(group_id=topic, **FAST)
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) is not None and len(consumer.assignment()) == 4, "joined")
    ended: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(60)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.1)
    consumer.close()
    thread.join(WAIT_S)
    assert isinstance(ended[0], ClientClosedError)


def test_metrics(cluster: Cluster, topic: str) -> None:
    with cluster.consumer(group_id=topic, auto_commit_interval_ms=50, **FAST) as consumer:
        consumer.subscribe([topic])
        until(
            lambda: (
                consumer.poll(0.05) is not None
                and consumer.metrics()["heartbeat-total"] > 1
                and consumer.metrics()["commit-total"] > 0
            ),
            "heartbeats and commits",
        )
        found = consumer.metrics()
        assert found["assigned-partitions"] == 4
        assert found["rebalance-total"] == found["sync-total"] == 1
        assert found["rebalance-latency-max"] == found["rebalance-latency-total"] < 5_000
        assert 0 <= found["last-heartbeat-seconds-ago"] < 5
        assert 0 < found["poll-idle-ratio-avg"] <= 1


# --- asyncio ------------------------------------------------------------------------------------------


def test_heartbeats_of_the_asyncio_form_go_on_while_its_loop_is_blocked() -> None:
    with Cluster(nodes=1, transport="grpc", config=CONFIG) as cluster:
        cluster.create_topic("t", 4)
        fill(cluster, "t", 40)

        async def main() -> None:
            async with aio.Consumer(cluster.bootstrap, group_id="g", **FAST) as consumer:
                consumer.subscribe(["t"])
                count = 0
                async with asyncio.timeout(WAIT_S):
                    while count < 40:
                        count += len(await consumer.poll(1))
                generation = consumer.group_metadata()
                heartbeats = consumer.metrics()["heartbeat-total"]
                time.sleep(2.5)  # noqa: ASYNC251 - it is what this test is about: longer than the session timeout
                assert consumer.metrics()["heartbeat-total"] >= heartbeats + 10
                await consumer.commit()
                assert consumer.group_metadata() == generation
                assert len(await consumer.partitions_for("t")) == 4
                ends = await consumer.end_offsets(consumer.assignment())
                assert set(ends.values()) == {10}
                async with asyncio.timeout(WAIT_S):
                    fill_later = asyncio.get_running_loop().run_in_executor(None, fill, cluster, "t", 4)
                    async for record in consumer:
                        assert record.offset == 10
                        break
                    await fill_later

        asyncio.run(main())


def test_both_forms_in_one_group(cluster: Cluster, topic: str) -> None:
    sent = fill(cluster, topic, 200)
    worker = Worker(cluster, topic, topic)
    found: list[bytes | None] = []

    async def main() -> None:
        async with aio.Consumer(
            cluster.bootstrap, _network=cluster.client_network(), group_id=topic, **FAST
        ) as consumer:
            consumer.subscribe([topic])
            async with asyncio.timeout(WAIT_S):
                while len(consumer.assignment()) != 2:
                    found.extend(r.value for r in await consumer.poll(0.05))
            sent.update(await asyncio.get_running_loop().run_in_executor(None, fill, cluster, topic, 200))
            async with asyncio.timeout(WAIT_S):
                while not sent <= {*found, *worker.values}:
                    found.extend(r.value for r in await consumer.poll(0.05))
            assert worker.count == 2

    try:
        cluster._run(main())
    finally:
        worker.stop()
    assert found


# --- Ctrl-C -------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from tidelog import Consumer
with Consumer(sys.argv[1], group_id="ctrl-c", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["t"])
    try:
        while True:
            if consumer.poll(60.0 if consumer.assignment() else 0.05) or consumer.assignment():
                print("joined", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("closed", flush=True)
"""


def test_ctrl_c_ends_a_poll_at_once_and_leaves_the_group(
    interruptible: Callable[[Sequence[str]], list[str]],
) -> None:
    with Cluster(nodes=1, transport="grpc", config=CONFIG) as cluster:
        cluster.create_topic("t", 1)
        command = interruptible([sys.executable, "-c", PROGRAM, cluster.bootstrap])
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            assert program.stdout is not None
            assert program.stdout.readline().strip() == "joined"
            time.sleep(0.5)
            started = time.monotonic()
            program.send_signal(signal.SIGINT)
            out, _ = program.communicate(timeout=WAIT_S)
            assert out.split()[-2:] == ["interrupted", "closed"]
            assert time.monotonic() - started < 5
        finally:
            program.kill()
            program.wait()
        with Consumer(cluster.bootstrap, group_id="ctrl-c", **FAST) as consumer:
            started = time.monotonic()
            consumer.subscribe(["t"])
            until(lambda: consumer.poll(0.05) is not None and len(consumer.assignment()) == 1, "the place is free")
            assert time.monotonic() - started < 5
