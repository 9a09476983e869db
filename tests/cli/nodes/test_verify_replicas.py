"""``tidelog topics verify``: replicas that are the same, differ, or do not answer, over the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog.cli.work.segment_files import PlacedBatch, read_batches
from tidelog.client.links.comparing import compare
from tidelog.proto.records.batches import Batch, patch_batch
from tidelog.testing import Cluster

from .test_log_verify import batch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("nodes")
    with Cluster(nodes=3, transport="grpc", directory=directory) as found:
        found.create_topic("orders", 2, 3)
        found.create_topic("keys", 1, 3, config={"cleanup.policy": "compact"})
        with found.producer(linger_ms=0) as producer:
            for number in range(300):
                producer.send("orders", b"%d" % number, b"k", partition=number % 2).result()
                if number < 20:
                    producer.send("keys", b"%d" % number, b"k%d" % (number % 3))
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_whole_replicas_are_the_same(tidelog: Tidelog) -> None:
    def all_compared() -> bool:
        found = as_json(tidelog("topics", "verify", "orders", "keys", "--json"))
        assert not any(row["fault"] for row in found), found
        assert len(found) == 6
        offsets: int = sum(row["end"] - row["start"] for row in found)
        return offsets == 2 * 320 and min(row["size"] for row in found) > 100

    until(all_compared, "followers know the last high watermark")
    code, out, _ = tidelog("topics", "verify", "orders")
    assert (code, out.splitlines()[-1].endswith("no difference")) == (0, True)
    assert tidelog("topics", "verify", "nothing")[0] == 1


def _change(path: Path) -> None:
    """Another value in a record, and the CRC of that."""
    data = bytearray(path.read_bytes())
    found = next(read_batches(path))
    assert isinstance(found, PlacedBatch)
    assert found.batch.record_count == 1
    data[found.batch.size - 2] ^= 1  # the last byte of the value; the count of headers follows
    data[17:21] = crc32c(bytes(data[21 : found.batch.size])).to_bytes(4, "big")
    path.write_bytes(data)
    changed = next(read_batches(path))
    assert isinstance(changed, PlacedBatch)
    assert changed.crc_ok


def test_a_replica_that_has_another_record_or_does_not_answer_is_named(cluster: Cluster, tidelog: Tidelog) -> None:
    """What differs has a right CRC, so no checksum shows it."""
    with cluster.admin() as admin:
        first, second = (int(node) for node in admin.describe_topics(["orders"])[0].partitions[0].replicas[:2])
    cluster.kill(second)
    try:
        code, out, _ = tidelog("topics", "verify", "orders")
        assert code == 1
        assert f"broker {second} does not answer" in out
        _change(next(cluster.node_directory(second).glob("**/orders-0/*.log")))
    finally:
        cluster.restart(second)
    told: list[dict[str, Any]] = []

    def noticed() -> bool:
        told[:] = json.loads(tidelog("topics", "verify", "orders", "--json")[1])
        return all(row["end"] == 150 for row in told)

    until(noticed, "the broker is back, and knows the high watermark")
    faults = [row for row in told if row["fault"]]
    assert [(row["partition"], row["brokers"]) for row in faults] == [(0, [first, second])]
    assert "have different records" in faults[0]["fault"]


async def test_leader_epochs_are_compared_too() -> None:
    one, other = batch(0, 3), batch(0, 3)
    patch_batch(other, 0, base_offset=0, leader_epoch=7)

    async def read(offset: int, data: bytearray) -> list[Batch]:
        return [] if offset else [Batch(memoryview(data))]

    for epochs, fault in ((True, "leader epoch"), (False, "")):
        found = await compare(
            lambda at: read(at, one), lambda at: read(at, other), 0, 3, 0, compacts=False, epochs=epochs
        )
        assert fault in found.fault
        assert bool(found.fault) == epochs
