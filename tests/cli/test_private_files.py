"""Nobody but its owner reads what a node writes, and an operator hears of a directory that others can enter."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.terminal.connection import read_command_config


def wider_than_its_owner(place: Path) -> list[str]:
    """Every file and directory below ``place``, and itself, that others may read, write or enter. A running node may
    remove files meanwhile."""
    wide = []
    for path in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.stat().st_mode
            if mode & 0o077:
                wide.append(f"{path}: {mode & 0o777:o}")
    return wide


@pytest.mark.parametrize("umask", [0o022, 0o000], ids=lambda umask: f"{umask:03o}")
def test_what_a_node_writes_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    place = tmp_path / "cluster"
    settings = {"log.segment.bytes": str(1 << 20), "log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "0"}
    try:
        with LocalCluster.alone(place):
            cluster = LocalCluster.create(place, nodes=1, settings=settings)
        cluster.start()
        try:
            cluster.wait_ready()
            work(cluster)
            running = wider_than_its_owner(place)
            names = [path.name for path in place.rglob("*")]
            cluster.stop()
        finally:
            cluster.kill(1)
        assert running + wider_than_its_owner(place) == []
        # What must have been there for this to mean anything.
        assert {"cluster.json", "process.json", "server.err", "server.log", "meta.properties", ".lock"} <= set(names)
        assert {"__cluster_metadata-0", "compacted-0"} <= set(names)
        assert any(name.startswith("__consumer_offsets-") for name in names)
        assert sum(name.endswith((".log", ".index", ".snapshot")) for name in names) > 10
        assert list(place.rglob(".kafka_cleanshutdown"))
    finally:
        os.umask(before)


def work(cluster: LocalCluster) -> None:
    """Records in several segments, a group, a transaction, a compacted topic."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("compacted", 1, configs={"cleanup.policy": "compact"})])
    with Producer(cluster.bootstrap, transactional_id="private") as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            producer.send("compacted", b"x" * 100_000, key=b"%d" % (number % 3))
            producer.send("plain", b"x" * 100_000)
            producer.commit_transaction()
    with Consumer(cluster.bootstrap, group_id="private", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["plain"])
        while not consumer.poll(timeout=1.0):
            pass
        consumer.commit()


@pytest.mark.parametrize(("mode", "warned"), [(0o755, True), (0o770, True), (0o750, False), (0o700, False)])
def test_a_directory_that_others_reach_is_named_and_left_as_it_is(tmp_path: Path, mode: int, warned: bool) -> None:
    place = tmp_path / "data"
    place.mkdir()
    place.chmod(mode)
    (place / "stranger").touch()  # such a directory is refused: the command ends by itself
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "server", "--set", "node.id=1"]
    command += ["--set", f"log.dirs={place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert (f"{place}: expected mode 0700 or 0750, found {mode:04o}" in done.stderr) == warned, done.stderr
    assert stat.S_IMODE(place.stat().st_mode) == mode


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False)])
def test_secrets_that_others_can_read_are_named(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "data"
    place.mkdir(0o700)
    (place / "stranger").touch()  # such a directory is refused: the command ends by itself
    key, config, plain = tmp_path / "key.pem", tmp_path / "node.properties", tmp_path / "plain.properties"
    key.touch()
    plain.write_text("security.protocol=SSL\n")
    config.write_text(f"node.id=1\nlog.dirs={place}\ndelegation.token.secret.key=hush\nssl.keystore.location={key}\n")
    for path in (key, config, plain):
        path.chmod(mode)
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "server", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    for path in (key, config):
        assert (f"{path}: expected mode 0600 or 0640, found {mode:04o}" in done.stderr) == warned, done.stderr
    assert "hush" not in done.stderr
    read_command_config(plain)
    assert caplog.messages == []
    config.write_text("security.protocol=SASL_SSL\nsasl.username=alice\nsasl.password=hush\n")
    read_command_config(config)
    assert ("other users of this machine can read the secrets" in caplog.text) == warned
    assert "hush" not in caplog.text
