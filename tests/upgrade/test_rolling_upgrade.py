"""Three nodes of release 0.1 go to the present state under load, and back before the features are finalised."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tidelog import Admin
from tidelog.chaos.laboratory.judge.judgement import shown
from tidelog.chaos.laboratory.upgrade.kills import Kills
from tidelog.chaos.laboratory.upgrade.newer import use_what_is_new
from tidelog.chaos.laboratory.upgrade.release import python_of
from tidelog.chaos.laboratory.upgrade.rolling import LEVELS, Roll, rolled
from tidelog.model.ids import TopicPartition
from tidelog.spark_connector.cluster_offsets import ClusterOffsets
from tidelog.spark_connector.options import OptionError, SourceOptions

WHEEL = Path(__file__).parent / "tidelog-0.1.0-py3-none-any.whl"
COMMIT = "bc815e8"
"""Release 0.1."""


@pytest.fixture(scope="session")
def release_0_1(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose ``tidelog`` is release 0.1."""
    return python_of(WHEEL, tmp_path_factory.mktemp("release-0.1"))


@pytest.mark.timeout(240)
def test_a_rolling_upgrade_loses_nothing_and_is_finalised(tmp_path: Path, release_0_1: str) -> None:
    """A drill on the running cluster restarts the nodes. Once the levels are raised, what is new can be used."""

    def steps(roll: Roll) -> None:
        with Admin(roll.bootstrap) as admin:
            assert admin.describe_cluster().cluster_id
            with pytest.raises(OptionError, match="maxBytesPerTrigger: expected brokers that look up offsets by bytes"):
                _after_a_byte(admin, roll.bootstrap)
            _upgraded_by_a_drill(roll, tmp_path)
            found = admin.describe_features()
            assert found.finalized_features == {"metadata.version": 1}
            roll.finalise(LEVELS, Kills(1))
            roll.add_disk(2)
            roll.to(sys.executable, (2,))
            assert admin.describe_features().finalized_features == LEVELS
            use_what_is_new(roll.bootstrap, 2)
            assert _after_a_byte(admin, roll.bootstrap) > 0

    verdict = rolled(tmp_path, release_0_1, steps)
    assert verdict.held, shown(verdict, {"seed": 1, "workload": ""})


def _after_a_byte(admin: Admin, bootstrap: str) -> int:
    """Return where a batch of Spark's that may have one byte ends, which is after a whole stored batch."""
    at = TopicPartition(min(one.name for one in admin.list_topics() if not one.name.startswith("__")), 0)
    given = {"tidelog.bootstrap.servers": bootstrap, "subscribe": at.topic, "maxBytesPerTrigger": "1"}
    with ClusterOffsets(SourceOptions.of(given, streaming=True)) as cluster:
        return cluster.after_bytes({at: (0, 1)})[at]


def _upgraded_by_a_drill(roll: Roll, directory: Path) -> None:
    """``directory`` gets a Python that notes its starts, so that it shows whether the drill used the one that ``--to``
    names."""
    python, starts = directory / "present", directory / "starts"
    python.write_text(f'#!/bin/sh\necho $$ >> {starts}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = _drilled("-b", roll.bootstrap, "--confirm", roll.cluster.cluster_id, "--to", str(python))
    assert len(starts.read_text().split()) == 3
    assert found["unhealthy"] == []
    for node in roll.nodes.values():
        node.interpreter = sys.executable


def _drilled(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "drill", "rolling-upgrade", *arguments]
    bounds = ["--leader-within", "30", "--whole-within", "60", "--json"]  # a machine may be busy
    done = subprocess.run([*command, *bounds], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "metadata.version" not in done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["measures"]["lost"], found["measures"]["duplicated"], found["measures"]["errors"]) == (0, 0, 0)
    assert found["measures"]["leaderless_s"] <= 1.0
    return found


@pytest.mark.timeout(240)
def test_before_it_is_finalised_every_node_can_go_back(tmp_path: Path, release_0_1: str) -> None:
    def steps(roll: Roll) -> None:
        kills = Kills(1)
        roll.to(sys.executable, (1, 2), kills)
        roll.to(sys.executable, (3,))
        roll.to(release_0_1, (3, 1), kills)
        roll.to(release_0_1, (2,))
        assert kills.count == 8

    verdict = rolled(tmp_path, release_0_1, steps)
    assert verdict.held, shown(verdict, {"seed": 1, "workload": ""})


@pytest.mark.timeout(240)
def test_a_drill_upgrades_a_cluster_that_is_made_for_it(release_0_1: str) -> None:
    assert _drilled("--from", release_0_1)["measures"]["acknowledged"] > 300


def test_the_wheel_is_that_commit(tmp_path: Path) -> None:
    """Where the history is there."""
    found = subprocess.run(["git", "archive", COMMIT], cwd=WHEEL.parents[2], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"this clone does not have commit {COMMIT}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as tree, zipfile.ZipFile(WHEEL) as wheel:
        for name in wheel.namelist():
            if ".dist-info/" in name:
                continue
            inside = name.removeprefix("tidelog/")
            member = tree.extractfile(inside if "/" in inside else f"src/{name}")
            assert member is not None
            assert member.read() == wheel.read(name), name
