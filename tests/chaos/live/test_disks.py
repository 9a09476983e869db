"""Disks and clocks of a real node: the shim reaches it, its errors, and how it recovers."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.chaos.disk.damage import damage_tail
from tidelog.chaos.disk.shim_build import COMPILERS, fault_shim
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.client.errors import CorruptRecordError, TidelogError
from tidelog.storage.disk.checkpoints import RECOVERY_POINTS

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler to make the shim")

VALUE = b"x" * 2_000


@pytest.fixture(scope="module")
def laboratory(toxiproxy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    directory = tmp_path_factory.mktemp("laboratory") / "it"
    with Laboratory.running(directory, toxiproxy, nodes=1, shim=fault_shim()) as made:
        yield made


@pytest.fixture(autouse=True)
def well(laboratory: Laboratory) -> None:
    """Each test meets a node that runs, on a disk that works."""
    laboratory.faults[1].mend()
    laboratory.faults[1].set_clock(0)
    start_again(laboratory)


def acknowledged(producer: Producer, topic: str, count: int) -> int:
    """Send records one after the other until one fails; how many were acknowledged."""
    for number in range(count):
        try:
            producer.send(topic, b"%d:%b" % (number, VALUE), partition=0).result(5)
        except (TidelogError, TimeoutError):
            return number
    return count


def read(laboratory: Laboratory, topic: str, count: int) -> list[bytes]:
    with Consumer(laboratory.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            found += [bytes(record.value or b"") for record in consumer.poll(0.5)]
    return found


def make_topic(laboratory: Laboratory, name: str, **settings: str) -> None:
    with Admin(laboratory.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, {key.replace("_", "."): value for key, value in settings.items()})])


def start_again(laboratory: Laboratory) -> None:
    laboratory.cluster.start([1])
    laboratory.cluster.wait_ready(timeout_s=60)


def test_a_node_whose_disk_is_full_ends_and_keeps_what_it_acknowledged(laboratory: Laboratory) -> None:
    make_topic(laboratory, "full")
    faults = laboratory.faults[1]
    with Producer(laboratory.bootstrap, acks="all", delivery_timeout_ms=2_000, request_timeout_ms=1_000) as producer:
        faults.full(room=60_000)
        count = acknowledged(producer, "full", 100)
    assert 5 <= count <= 29, "as many as there is room for beside what the node writes for itself"
    assert laboratory.cluster.node(1).wait_gone(20)
    assert faults.hits.refused >= 1
    assert "No space left on device" in laboratory.cluster.node(1).log_path.read_text()
    faults.mend()
    start_again(laboratory)
    assert [value.partition(b":")[0] for value in read(laboratory, "full", count)][:count] == [
        b"%d" % number for number in range(count)
    ]


def test_a_nodes_wall_clock_is_moved_and_its_log_tells_the_time(laboratory: Laboratory) -> None:
    make_topic(laboratory, "stamped", message_timestamp_type="LogAppendTime")
    node = laboratory.cluster.node(1)
    with Producer(laboratory.bootstrap) as producer:
        for ahead_s in (1800.0, -1800.0):
            laboratory.faults[1].set_clock(ahead_s)
            now = time.time()
            told = producer.send("stamped", b"v", partition=0).result(10)
            assert abs(told.timestamp / 1000 - now - ahead_s) < 60
    laboratory.cluster.kill(1)
    said = len(node.log_path.read_text().splitlines())
    begun = time.time()
    start_again(laboratory)
    stamps = [
        datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        for line in node.log_path.read_text().splitlines()[said:]
        if re.match(r"\d{4}-", line)
    ]
    assert stamps
    assert all(begun - 1 < stamp < time.time() + 1 for stamp in stamps)


def test_bytes_that_were_flipped_behind_the_recovery_point_end_the_log_there(laboratory: Laboratory) -> None:
    make_topic(laboratory, "torn")
    with Producer(laboratory.bootstrap) as producer:
        assert acknowledged(producer, "torn", 30) == 30
    node = laboratory.cluster.node(1)
    laboratory.cluster.kill(1)
    found = damage_tail(node.data_dir, {"torn"}, random.Random(5))
    assert found is not None
    assert 0 < found.offset < 30
    start_again(laboratory)
    assert [value.partition(b":")[0] for value in read(laboratory, "torn", found.offset)] == [
        b"%d" % number for number in range(found.offset)
    ]
    with Producer(laboratory.bootstrap) as producer:
        assert producer.send("torn", b"next", partition=0).result(10).offset == found.offset


def test_bytes_that_were_flipped_before_it_are_refused_by_who_reads_them(laboratory: Laboratory) -> None:
    make_topic(laboratory, "worn")
    with Producer(laboratory.bootstrap) as producer:
        assert acknowledged(producer, "worn", 10) == 10
    node = laboratory.cluster.node(1)
    laboratory.cluster.stop([1])
    assert "worn 0 10" in (node.data_dir / RECOVERY_POINTS).read_text()
    (segment,) = (node.data_dir / "worn-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"6:xxx") + 100] ^= 1
    segment.write_bytes(content)
    start_again(laboratory)
    with Consumer(laboratory.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("worn", 0)])
        seen: list[bytes] = []

        def read_on() -> None:
            while True:
                seen.extend(bytes(record.value or b"") for record in consumer.poll(1))

        with pytest.raises(CorruptRecordError, match=r"worn.*6"):
            read_on()
    assert [value.partition(b":")[0] for value in seen] == [b"%d" % number for number in range(6)]
