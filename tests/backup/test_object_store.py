"""Backups in an object store: a server that speaks S3's protocol, on loopback, of another project (moto)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog import TopicPartition
from tidelog.cli.root import run
from tidelog.proto.backups import place as places
from tidelog.proto.backups.manifest import NAME, BackupError
from tidelog.proto.backups.place import Directory, ObjectStore, place_of
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports

Command = Callable[..., tuple[int, str, str]]
SERVER = """
import sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
print("ready", flush=True)
sys.stdin.read()
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"http://127.0.0.1:{port}"
        assert process.stdin is not None
        process.stdin.close()
        process.kill()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, as another project's client sees it."""
    import boto3

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(places, "RETRIES", 0)
    found = boto3.resource("s3").Bucket("backups")
    found.create()
    found.objects.all().delete()
    return found


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(each) for each in arguments])
        return code, *capfd.readouterr()

    return call


def test_a_cluster_goes_to_a_bucket_and_comes_back(bucket: Any, tidelog: Command) -> None:
    at = "s3://backups/monday"
    with Cluster(nodes=1, transport="grpc") as source:
        source.create_topic("t", 2, 1)
        source.create_topic("empty", 1, 1)
        with source.producer() as producer:
            for number in range(500):
                producer.send("t", f"v{number}".encode(), partition=number % 2)
        with source.admin() as admin:
            admin.alter_consumer_group_offsets("readers", {TopicPartition("t", 0): 20})
        code, _, err = tidelog("backup", "create", at, "--bootstrap", source.bootstrap)
        assert code == 0, err
        code, _, err = tidelog("backup", "create", at, "--bootstrap", source.bootstrap)
        assert (code, "expected a new or empty place, found objects in it" in err) == (1, True)
    keys = {each.key for each in bucket.objects.all()}
    assert f"monday/{NAME}" in keys
    assert "monday/topics/t/0.batches/0000000000" in keys
    assert tidelog("backup", "verify", at)[0] == 0
    assert json.loads(tidelog("backup", "show", at, "--json")[1])["groups"]["readers"][0]["offset"] == 20
    with Cluster(nodes=1, transport="grpc") as empty:
        code, _, err = tidelog("restore", at, "--bootstrap", empty.bootstrap)
        assert code == 0, err
        with empty.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(2)])
            found: list[bytes | None] = []
            while len(found) < 500 and (records := consumer.poll(10)):
                found += [one.value for one in records]
        assert sorted(map(bytes, filter(None, found))) == sorted(f"v{number}".encode() for number in range(500))

    damaged = bucket.Object("monday/topics/t/1.batches/0000000000")
    sound = damaged.get()["Body"].read()
    damaged.put(Body=sound[:80] + bytes([sound[80] ^ 1]) + sound[81:])
    assert "the backup is damaged" in tidelog("backup", "verify", at)[2]
    damaged.delete()
    assert tidelog("backup", "verify", at)[0] == 1
    bucket.Object(f"monday/{NAME}").delete()
    assert "an unfinished one" in tidelog("backup", "verify", at)[2]


def test_a_file_is_a_row_of_objects_that_begins_anew(bucket: Any) -> None:
    store = ObjectStore("s3://backups/one/")
    store.make()
    store.begin("topics/t/0.batches")
    for number in range(12):
        store.append("topics/t/0.batches", [b"a%d " % number, b"b "])
    store.append("topics/t/0.batches", [])
    assert b"".join(store.read("topics/t/0.batches")).split()[::2] == [b"a%d" % number for number in range(12)]
    store.begin("topics/t/0.batches")
    store.append("topics/t/0.batches", [b"new"])
    assert list(store.read("topics/t/0.batches")) == [b"new"]
    store.begin("topics/t/00.batches")
    store.append("topics/t/00.batches", [b"other"])
    store.remove("topics/t/0.batches")
    assert [each.key for each in bucket.objects.all()] == ["one/topics/t/00.batches/0000000000"]
    assert list(store.read("topics/t/0.batches")) == []
    with pytest.raises(FileNotFoundError):
        store.read_manifest()


def test_a_place_that_cannot_be_used_says_why(
    bucket: object, server: str, monkeypatch: pytest.MonkeyPatch, tidelog: Command, tmp_path: Path
) -> None:
    assert isinstance(place_of(str(tmp_path)), Directory)
    for address, text in (
        ("ftp://host/path", "expected a directory or a URL that begins with s3, gs, az"),
        ("s3://backups", "expected a path after the bucket's name, such as s3://backups/monday"),
    ):
        with pytest.raises(BackupError, match=text):
            place_of(address)
    store = place_of("s3://nowhere/x")
    store.begin("f")
    with pytest.raises(BackupError, match="expected an existing bucket, found none: create it first"):
        store.append("f", [b"x"])
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert tidelog("backup", "verify", "s3://backups/x")[0] == 1
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
    code, _, err = tidelog("backup", "verify", "s3://backups/x")
    assert code == 1
    assert "AWS_ACCESS_KEY_ID" in err, err
    monkeypatch.setitem(sys.modules, "obstore", None)
    code, _, err = tidelog("backup", "verify", "s3://backups/x")
    assert (code, "pip install 'tidelog[object-store]'" in err) == (1, True)
