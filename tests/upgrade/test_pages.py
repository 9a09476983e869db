"""The pages "Upgrade", "Roll back" and "Finalise": their steps run on a cluster that release 0.1 made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_operations import RECORDS, Operator, reader
from tests.docs.test_readme import Reader
from tests.upgrade.test_rolling_upgrade import release_0_1
from tidelog.cli.local.cluster import LocalCluster

__all__ = ["reader", "release_0_1"]


@pytest.mark.timeout(400)
def test_the_steps_upgrade_go_back_and_finalise(reader: Reader, tmp_path: Path, release_0_1: str) -> None:
    former = tmp_path / "former"
    former.write_text(f'#!/bin/sh\nexec {release_0_1} -P -m tidelog.cli.main "$@"\n')
    former.chmod(0o755)
    operator = Operator(reader, tmp_path)
    operator.run(f"{former} cluster start --free-ports --nodes 3")
    operator.run("tidelog topics create orders --partitions 4 --replicas 3")

    assert "metadata.version can be raised to 2" in operator.follow("Upgrade")
    operator.follow("Roll back", before=f"former={former}\n")
    for node in LocalCluster.open(reader.data).nodes.values():
        assert str(Path(release_0_1).parent) in Path(f"/proc/{node.pid}/environ").read_text(), "release 0.1 runs again"
    operator.follow("Upgrade")
    assert "metadata.version: 1 became 2" in operator.follow("Finalise")

    read = operator.run("tidelog consume orders --from-beginning --until-end")
    assert sorted(map(int, read.split())) == sorted([*range(1, RECORDS + 1)] * (operator.sent // RECORDS))
