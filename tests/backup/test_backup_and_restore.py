"""``tidelog backup`` and ``tidelog restore`` between clusters of real nodes: what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog import Admin, TopicPartition
from tidelog.cli.root import run
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.backup import restoring
from tidelog.client.sinks import SinkJob
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.proto.backups.manifest import NAME, Manifest
from tidelog.proto.backups.place import Directory, key_of, read_manifest
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster

Command = Callable[..., tuple[int, str, str]]
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
T = [TopicPartition("t", number) for number in range(2)]


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(each) for each in arguments])
        return code, *capfd.readouterr()

    return call


@pytest.fixture(scope="module")
def source() -> Iterator[Cluster]:
    """Two partitions with records of several kinds, one of them cut off at its start; a compacted topic with holes."""
    compacting = {"log.cleaner.backoff.ms": "100"}
    with Cluster(nodes=3, transport="grpc", config=compacting) as cluster, ExitStack() as stack:
        cluster.create_topic("t", 2, 3, config={"retention.ms": "-1"})
        cluster.create_topic("empty", 1, 3)
        cluster.create_topic("emptied", 1, 3)
        cluster.create_topic("log.of-keys", 1, 3, config=COMPACTED)
        with cluster.producer() as producer:
            for number in range(300):
                headers = [("n", str(number).encode())]
                producer.send("t", f"v{number}".encode(), f"k{number}".encode(), headers=headers, partition=number % 2)
                producer.send("emptied", b"x")
            for number in range(20):
                producer.send("log.of-keys", f"{number}".encode(), f"{number % 3}".encode()).result()
            producer.flush()
        deadline = time.monotonic() + 60
        while len(records(cluster, "log.of-keys")) == 20:
            assert time.monotonic() < deadline, "it is compacted"
        for outcome in (True, False, None):
            producer = stack.enter_context(cluster.producer(transactional_id=f"id-{outcome}"))
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(10):
                producer.send("t", f"{outcome} {number}".encode(), partition=number % 2)
            producer.flush()
            if outcome is not None:
                (producer.commit_transaction if outcome else producer.abort_transaction)()
        with cluster.admin() as admin:
            admin.delete_records({T[0]: 7, TopicPartition("emptied", 0): 300})
            admin.alter_consumer_group_offsets("readers", {T[0]: 20, T[1]: 30})
            admin.commit_sink_batch(SinkJob("lake", 7, "job"), ())
            admin.alter_client_quotas({ClientQuotaEntity(user="alice"): {"producer_byte_rate": 1000.0}})
        yield cluster


@pytest.fixture(scope="module")
def made(source: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backup") / "one"
    assert run(["backup", "create", str(directory), "--bootstrap", source.bootstrap]) == 0
    return directory


@pytest.fixture
def empty() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as cluster:
        yield cluster


def records(cluster: Cluster, topic: str, **settings: Any) -> dict[tuple[int, int], Any]:
    """Everything that a reader of all committed records sees, by partition and offset."""
    found = {}
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", **settings}
    with cluster.consumer(group_id=None, **settings) as consumer, cluster.admin() as admin:
        partitions = [TopicPartition(topic, each.partition) for each in admin.describe_topics([topic])[0].partitions]
        ends = admin.list_offsets({at: OffsetSpec.latest() for at in partitions}, read_committed=True)
        consumer.assign(partitions)
        while any(consumer.position(at) < ends[at].offset for at in partitions):
            for one in consumer.poll(0.2):
                found[one.partition, one.offset] = (one.key, one.value, one.timestamp, tuple(one.headers))
    return found


def latest(found: dict[tuple[int, int], Any]) -> dict[bytes, tuple[tuple[int, int], Any]]:
    return {each[0]: (at, each) for at, each in sorted(found.items())}


def test_everything_comes_back_at_its_offset(source: Cluster, made: Path, empty: Cluster, tidelog: Command) -> None:
    code, out, err = tidelog("restore", made, "--bootstrap", empty.bootstrap, "--json")
    assert code == 0, err
    assert json.loads(out)["partitions"] == 5
    before, after = records(source, "t"), records(empty, "t")
    assert {at: each for at, each in after.items() if at in before} == before
    # An open transaction holds readers back in the source. It is aborted in the copy.
    assert not any(value.startswith((b"False", b"None")) for _, value, _, _ in after.values())
    assert sum(value.startswith(b"True") for _, value, _, _ in after.values()) == 10
    assert latest(records(source, "log.of-keys")) == latest(records(empty, "log.of-keys"))
    with source.admin() as old, empty.admin() as new:
        ids = {one.name: one.topic_id for one in old.list_topics()}
        assert {one.name: one.topic_id for one in new.list_topics()} == ids
        earliest = {at: OffsetSpec.earliest() for at in (T[0], T[1], TopicPartition("emptied", 0))}
        found = new.list_offsets(earliest)
        assert [found[at].offset for at in earliest] == [7, 0, 300]
        assert {at: one.offset for at, one in new.list_consumer_group_offsets("readers").items()} == {
            T[0]: 20,
            T[1]: 30,
        }
        assert new.describe_sinks(["lake"])["lake"].last == SinkJob("lake", 7, "job")
        assert new.describe_client_quotas() == old.describe_client_quotas()
        resource = ConfigResource("topic", "log.of-keys")
        settings = new.describe_configs([resource])[resource]
        assert settings["cleanup.policy"].value == "compact"
        known = producer_ids(new)
    with empty.producer(transactional_id="id-None") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"new", partition=0)
    with empty.admin() as new:
        assert min(producer_ids(new) - known) > max(known), "nobody gets the id of a producer in the backup"
    assert b"new" in [value for _, value, _, _ in records(empty, "t").values()]
    leader = empty.leader_of("t", 0)
    assert leader is not None
    empty.kill(leader)
    assert records(empty, "t").keys() >= after.keys(), "the followers have it as well"


def producer_ids(admin: Admin) -> set[int]:
    return {one.producer_id for some in admin.describe_producers(T).values() for one in some}


class Died(Exception):
    """In place of a kill: an interrupt in a task would leave others behind, which the loop no longer ends."""


def test_an_interrupted_restore_goes_on(
    source: Cluster, made: Path, empty: Cluster, tidelog: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.proto.backups.place.READ_BYTES", 2_000)
    real = restoring.BackupRestorer._import
    begun = 0
    written = asyncio.Event()

    async def dies(*args: Any) -> None:
        nonlocal begun
        begun += 1
        if begun > 3:
            await written.wait()
            raise Died
        await real(*args)
        written.set()

    monkeypatch.setattr(restoring.BackupRestorer, "_import", dies)
    with pytest.raises(Died):
        asyncio.run(_restored(empty, made))
    assert len(records(empty, "t", isolation_level="read_uncommitted")) > 0
    with empty.admin() as admin:
        assert admin.list_groups() == []
    monkeypatch.setattr(restoring.BackupRestorer, "_import", real)
    for _ in range(2):  # once more does no harm
        code, _, err = tidelog("restore", made, "--bootstrap", empty.bootstrap)
        assert code == 0, err
    assert records(empty, "t").items() >= records(source, "t").items()


async def _restored(cluster: Cluster, directory: Path) -> Manifest:
    async with restoring.BackupRestorer(cluster.bootstrap) as restorer:
        return await restorer.restore(Directory(directory))


def test_what_cannot_be_restored_is_refused_and_nothing_changed(
    made: Path, empty: Cluster, tidelog: Command, tmp_path: Path
) -> None:
    def refused(directory: Path, text: str, *more: str) -> None:
        before = _state(empty)
        code, _, err = tidelog("restore", directory, "--bootstrap", empty.bootstrap, *more)
        assert code == 1
        assert text in err, err
        assert _state(empty) == before

    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    path = copy / key_of("t", 1)
    sound = path.read_bytes()
    path.write_bytes(sound[:500] + bytes([sound[500] ^ 1]) + sound[501:])
    refused(copy, "the backup is damaged")  # noticed while it is read
    damaged = path.read_bytes()
    assert tidelog("backup", "verify", copy)[0] == 1
    sound_manifest = read_manifest(Directory(copy))
    Directory(copy).write_manifest(replace(sound_manifest, producer_ids_below=10_000).to_json())
    refused(copy, "the backup is damaged")  # the producer ids of the other attempt were given back
    Directory(copy).write_manifest(sound_manifest.to_json())
    path.unlink()
    refused(copy, "found none")
    path.write_bytes(sound[:-1])
    refused(copy, f"found {len(sound) - 1} bytes")
    path.write_bytes(sound)
    assert tidelog("backup", "verify", copy)[0] == 0
    refused(made, "expected 4 live brokers", "--replicas", "4")
    refused(tmp_path, "an unfinished one")
    empty.create_topic("t", 2)
    refused(made, "expected a cluster without a topic 't', found one")
    with empty.admin() as admin:
        admin.delete_topics(["t"])
        empty.create_topic("other", 1)
        admin.alter_consumer_group_offsets("readers", {TopicPartition("other", 0): 0})
        refused(made, "expected a cluster without a group 'readers'")
        admin.delete_consumer_groups(["readers"])
        admin.alter_consumer_group_offsets("others", {TopicPartition("other", 0): 0})
        refused(made, "expected an empty cluster, found topics 'other', groups 'others': restore into a new cluster")
        path.write_bytes(damaged)
        refused(copy, "topics created from it were deleted again", "--beside-others")
        admin.alter_client_quotas({ClientQuotaEntity(user="alice"): {"producer_byte_rate": 7.0}})
        refused(made, "expected no other quotas of user alice", "--beside-others")
        admin.alter_client_quotas({ClientQuotaEntity(user="alice"): {"producer_byte_rate": None}})
    code, _, err = tidelog("restore", made, "--bootstrap", empty.bootstrap, "--beside-others")
    assert code == 0, err
    assert {topic.name for topic in _state(empty)[0]} > {"t", "other"}
    many = tmp_path / "many"
    shutil.copytree(made, many)
    Directory(many).write_manifest(replace(read_manifest(Directory(many)), producer_ids_below=10_000).to_json())
    with empty.producer() as producer:
        producer.send("other", b"x").result()
    refused(many, "expected a cluster that has given out no producer id below 10000", "--beside-others")
    refused(copy, "no topics were created or deleted", "--beside-others")  # they may be the only copy that is left


def _state(cluster: Cluster) -> Any:
    with cluster.admin() as admin:
        return admin.list_topics(), admin.list_groups(), admin.describe_client_quotas(), admin.list_sinks()


def test_a_backup_goes_into_an_empty_directory_alone(source: Cluster, made: Path, tidelog: Command) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    code, _, err = tidelog("backup", "create", made, "--bootstrap", source.bootstrap)
    assert (code, "expected a new or empty directory" in err) == (1, True)
    code, _, err = tidelog("backup", "create", made / NAME, "--bootstrap", source.bootstrap)
    assert (code, "expected a directory, found a file" in err) == (1, True)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_an_interrupted_backup_is_none(
    source: Cluster, tmp_path: Path, tidelog: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidelog.proto.backups.copying.PartitionFile.finish", full)
    code, _, err = tidelog("backup", "create", tmp_path / "one", "--bootstrap", source.bootstrap)
    assert (code, "No space left on device" in err) == (1, True)
    code, _, err = tidelog("backup", "verify", tmp_path / "one")
    assert (code, "an unfinished one" in err) == (1, True)
    with source.producer(transactional_id="after") as producer:  # and no hold is left behind
        producer.init_transactions()


def test_show_tells_what_is_in_it(made: Path, tidelog: Command) -> None:
    code, out, _ = tidelog("backup", "show", made, "--json")
    assert code == 0
    found = json.loads(out)
    assert [topic["name"] for topic in found["topics"]] == ["emptied", "empty", "log.of-keys", "t"]
    assert found["groups"]["readers"][0]["offset"] == 20
    assert found["ledgers"] == [{"sink": "lake", "batch": 7, "job": "job"}]
    code, out, _ = tidelog("backup", "show", made)
    assert "readers" in out


def test_a_throttle_is_kept(made: Path, source: Cluster, tmp_path: Path, tidelog: Command) -> None:
    size = read_manifest(Directory(made)).size
    began = time.monotonic()
    code, _, err = tidelog(
        "backup", "create", tmp_path / "slow", "--bootstrap", source.bootstrap, "--throttle", size // 2
    )
    assert code == 0, err
    assert time.monotonic() - began > 0.5, "no faster than asked"
