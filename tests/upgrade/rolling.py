"""A cluster whose nodes go from one release to another under load, and the judgement of what its clients were told.

The load, the judges and the last look at the disks are the laboratory's; there are no proxies.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from unittest import mock

from tidelog.chaos.drill.target import begin_with
from tidelog.chaos.laboratory.faults.observer import Observer
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.judge.judgement import Verdict, judge
from tidelog.chaos.laboratory.links.links import Links
from tidelog.chaos.laboratory.links.proxy_server import ProxyServer
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.chaos.laboratory.run import Asked, Run
from tidelog.chaos.laboratory.workloads.client_loop import ClientLoop
from tidelog.chaos.laboratory.workloads.group_work import COOPERATIVE, EAGER, GroupWork
from tidelog.chaos.laboratory.workloads.workload import Workload
from tidelog.cli.local.cluster import LocalCluster

WORKLOAD: Final = "append,transactions,groups"
PER_S: Final = 90.0
SETTINGS: Final = {
    "controlled.shutdown.timeout.ms": "5000",
    "auto.create.topics.enable": "false",
    "metadata.log.max.record.bytes.between.snapshots": "5000",  # so that snapshots of either release are met
}


class DirectLaboratory(Laboratory):
    """A laboratory whose clients and nodes reach the nodes without proxies."""

    @classmethod
    def of(cls, directory: Path, python: str) -> DirectLaboratory:
        """``python``: the release that the nodes begin with."""
        cluster = LocalCluster.create(directory / "cluster", nodes=3, settings=SETTINGS, rng=random.Random())
        begin_with(cluster.nodes.values(), python)
        server = ProxyServer(Path("unused"), directory / "unused.log", random.Random(1))
        return cls(directory, cluster, server, Links(server, ()))

    def _bootstrap(self, listener: str) -> str:
        return ",".join(str(self.direct(node)) for node in self.node_ids)


class Roll:
    """What the steps of a test are given."""

    def __init__(self, laboratory: Laboratory, wait_until_whole: Callable[[], None]) -> None:
        self.nodes = laboratory.cluster.nodes
        self.bootstrap = laboratory.bootstrap
        self._laboratory = laboratory
        self.wait_until_whole = wait_until_whole

    def to(self, python: str, order: Sequence[int]) -> None:
        """Restart nodes with another release, one after the other."""
        for number in order:
            self.wait_until_whole()
            self._laboratory.cluster.stop([number])
            self.nodes[number].interpreter = python
            self._laboratory.cluster.start([number])
            self._laboratory.cluster.wait_ready([number], timeout_s=60.0)
        self.wait_until_whole()


class RollingRun(Run):
    """A run whose faults are a function's deeds."""

    def __init__(self, directory: Path, history: HistoryFile, steps: Callable[[Roll], None]) -> None:
        asked = Asked(seed=1, seconds=1.0, workload=WORKLOAD, schedule=(), per_s=PER_S)
        super().__init__(asked, directory, history, Path(sys.executable), lambda text: None)
        self._steps = steps

    def _faults(self, laboratory: Laboratory, observer: Observer, clients: ClientLoop, work: Workload) -> None:
        self._history.phase("faults")
        self._steps(Roll(laboratory, self._wait_until_whole))
        self._history.phase("mending")


def rolled(directory: Path, python: str, steps: Callable[[Roll], None]) -> Verdict:
    """Start a cluster of the release of ``python``, do the steps under load, and judge all of it."""
    laboratory = DirectLaboratory.of(directory, python)
    classic = mock.patch.object(GroupWork, "names", (EAGER, COOPERATIVE))  # release 0.1 knows no other protocol
    path = directory / "history.jsonl"
    history = HistoryFile(path)
    try:
        laboratory.cluster.start()
        laboratory.cluster.wait_ready(timeout_s=60.0)
        with classic:
            RollingRun(directory, history, steps).run_in(laboratory)
        history.close()
    finally:
        history.abandon()
        laboratory.end()
    return judge(read_history(path))
