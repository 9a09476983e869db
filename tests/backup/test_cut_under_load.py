"""Backups of a cluster at work: two stages of exactly-once copying, a node that is killed, and a cut in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tidelog import ConsumerRecord, ProducerRecord, TopicPartition, Transform
from tidelog.chaos.checkers.transactions import exactly_once
from tidelog.cli.root import run
from tidelog.client.errors import TidelogError
from tidelog.proto.backups.copying import Examination
from tidelog.proto.backups.manifest import Manifest
from tidelog.proto.backups.place import Directory, key_of
from tidelog.proto.backups.verifying import verify
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.decoder import decode_records
from tidelog.testing import Cluster

PARTITIONS: Final = 3
STAGES: Final = (("in", "mid"), ("mid", "out"))
CONFIG: Final = {"transaction.state.log.num.partitions": "5", "offsets.topic.num.partitions": "5"}


class Pipeline:
    """Copiers from ``in`` to ``mid`` to ``out``, each record to a partition of its own, until stopped."""

    def __init__(self, cluster: Cluster, writes: bool) -> None:
        self._cluster = cluster
        self._stopping = threading.Event()
        self.sent = 0
        self.commits = 0
        self.errors: list[BaseException] = []
        work: list[Callable[[], None]] = [self._copier(number, *stage) for stage in STAGES for number in range(2)]
        self._threads = [threading.Thread(target=each) for each in (*work, *([self._write] if writes else []))]

    def __enter__(self) -> Pipeline:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _write(self) -> None:
        with self._cluster.producer(linger_ms=2) as producer:
            while not self._stopping.is_set():
                producer.send("in", f"{self.sent}".encode(), partition=self.sent % PARTITIONS)
                self.sent += 1
                time.sleep(0.002)

    def _copier(self, number: int, source: str, target: str) -> Callable[[], None]:
        def copied(record: ConsumerRecord) -> ProducerRecord:
            value = record.value or b""
            return ProducerRecord(target, value, partition=int(value) * 7 % PARTITIONS)

        def work() -> None:
            while not self._stopping.is_set():
                transform = Transform(
                    copied,
                    self._cluster.bootstrap,
                    topics=source,
                    group_id=f"{source}-{target}",
                    transactional_id=f"{source}-{target}-{number}",
                    consumer_settings={"max_poll_records": 20, "session_timeout_ms": 6_000},
                    producer_settings={"transaction_timeout_ms": 10_000},
                )
                stopper = threading.Thread(target=lambda one: (self._stopping.wait(), one.stop()), args=(transform,))
                stopper.daemon = True
                stopper.start()
                try:
                    transform.run()
                except TidelogError:
                    time.sleep(0.2)  # a node was killed; go on with a new one
                except BaseException as error:
                    self.errors.append(error)
                    return
                self.commits += transform.counts.commits

        return work


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def committed_in(directory: Path, manifest: Manifest, topic: str) -> dict[tuple[int, int], bytes]:
    """The committed records of a topic in a backup, by partition and offset."""
    (found,) = (each for each in manifest.topics if each.name == topic)
    records: dict[tuple[int, int], bytes] = {}
    for part in found.partitions:
        waiting: dict[int, list[Batch]] = {}
        for piece in Examination(Directory(directory), key_of(topic, part.partition)).pieces():
            for batch in split_batches(piece.batches):
                ended: list[Batch] = []
                if batch.is_control:
                    ended = waiting.pop(batch.producer_id, [])
                    if decode_control(batch).kind is not ControlKind.COMMIT:
                        continue
                elif batch.is_transactional:
                    waiting.setdefault(batch.producer_id, []).append(batch)
                elif batch.record_count:
                    ended = [batch]
                for one in ended:
                    records |= {
                        (part.partition, offset): value or b"" for offset, _, _, value, _ in decode_records(one)
                    }
        assert not waiting, "every transaction in a backup is decided"
    return records


def judge(directory: Path, manifest: Manifest) -> int:
    """Each stage's output is exactly what its group has committed of its input. Returns how many records came out."""
    count = 0
    for source, target in STAGES:
        read = {
            one.partition: one.offset for one in manifest.groups.get(f"{source}-{target}", ()) if one.topic == source
        }
        inputs = [
            value
            for (partition, offset), value in committed_in(directory, manifest, source).items()
            if offset < read.get(partition, 0)
        ]
        outputs = list(committed_in(directory, manifest, target).values())
        assert exactly_once(inputs, outputs) == []
        count += len(outputs)
    return count


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc", config=CONFIG) as found:
        for topic in ("in", "mid", "out"):
            found.create_topic(topic, PARTITIONS, 3)
        yield found


@pytest.mark.timeout(600)
def test_a_cut_has_each_transaction_whole_and_a_restored_one_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    counts = []
    with Pipeline(cluster, writes=True) as pipeline:
        until(lambda: _committed(cluster, "mid-out"), "the pipeline works")
        for number in range(4):
            directory = tmp_path / f"{number}"
            killed = None
            if number == 2:
                killed = cluster.leader_of("mid", 0)
                assert killed is not None
                threading.Timer(0.3, cluster.kill, (killed,)).start()
            assert run(["backup", "create", str(directory), "--bootstrap", cluster.bootstrap]) == 0
            counts.append(judge(directory, verify(Directory(directory))))
            if killed is not None:
                until(lambda gone=killed: gone not in cluster.running, "it is killed")  # type: ignore[misc]
                cluster.restart(killed)
        assert pipeline.sent
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] > 0, "work went on while backups were made"
    with Cluster(nodes=3, transport="grpc", config=CONFIG) as restored:
        assert run(["restore", str(directory), "--bootstrap", restored.bootstrap]) == 0
        inputs = set(committed_in(directory, verify(Directory(directory)), "in").values())
        with Pipeline(restored, writes=False):
            until(lambda: _values(restored, "out") >= inputs, "the copy is worked off")
        assert run(["backup", "create", str(tmp_path / "after"), "--bootstrap", restored.bootstrap]) == 0
        after = verify(Directory(tmp_path / "after"))
        for topic in ("mid", "out"):
            assert exactly_once(list(inputs), list(committed_in(tmp_path / "after", after, topic).values())) == []


def _committed(cluster: Cluster, group: str) -> bool:
    with cluster.admin() as admin:
        return sum(one.offset for one in admin.list_consumer_group_offsets(group).values()) > 100


def _values(cluster: Cluster, topic: str) -> set[bytes]:
    found = set()
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        while records := consumer.poll(2):
            found |= {one.value or b"" for one in records}
    return found
