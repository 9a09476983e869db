"""A cluster whose nodes move from one release to another under load, and the judgement of the answers to its clients.

The load, the judges and the final disk check are the laboratory's; there are no proxies.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tidelog import Admin
from tidelog.chaos.laboratory.faults.observer import Observer
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.judge.judgement import Verdict, judge
from tidelog.chaos.laboratory.links.links import Links
from tidelog.chaos.laboratory.links.proxy_server import ProxyServer
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.chaos.laboratory.run import Asked, Run
from tidelog.chaos.laboratory.upgrade.kills import (
    BEFORE,
    BESIDE,
    FINALISING_S,
    STARTING,
    STARTING_S,
    STOPPING,
    STOPPING_S,
    Kills,
)
from tidelog.chaos.laboratory.upgrade.newer import use_what_is_new
from tidelog.chaos.laboratory.upgrade.release import begin_with
from tidelog.chaos.laboratory.workloads.client_loop import ClientLoop
from tidelog.chaos.laboratory.workloads.group_work import COOPERATIVE, EAGER, GroupWork
from tidelog.chaos.laboratory.workloads.sink_work import SinkWork
from tidelog.chaos.laboratory.workloads.transaction_work import TransactionWork
from tidelog.chaos.laboratory.workloads.workload import AppendWork, Workload
from tidelog.chaos.laboratory.workloads.workloads import SideBySide
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.client.errors import TidelogError

WORKLOAD: Final = "append,transactions,groups,sinks"
PER_S: Final = 120.0
SETTINGS: Final = {
    "controlled.shutdown.timeout.ms": "5000",
    "auto.create.topics.enable": "false",
    "metadata.log.max.record.bytes.between.snapshots": "5000",  # so that each release reads snapshots of the other
}

LEVELS: Final = {"metadata.version": 2, "transaction.version": 2, "group.version": 1}
"""All features of the present release, each at its highest level."""

READY_S: Final = 120.0
LEVELS_S: Final = 120.0
_AGAIN_S: Final = 0.2


class ClassicGroups(GroupWork):
    """Groups for release 0.1, which knows no other protocol."""

    names = (EAGER, COOPERATIVE)


class DirectLaboratory(Laboratory):
    """A laboratory whose clients and nodes reach the nodes without proxies."""

    @classmethod
    def of(cls, directory: Path, python: str) -> DirectLaboratory:
        """Make a laboratory. ``python``: the release that the nodes begin with."""
        cluster = LocalCluster.create(directory / "cluster", nodes=3, settings=SETTINGS, rng=random.Random())
        begin_with(cluster.nodes.values(), python)
        for node in cluster.nodes.values():
            node.launcher = (
                sys.executable, "-P", "-m", "tidelog.chaos.laboratory.processes.parent_death", str(os.getpid())
            )  # fmt: skip
        server = ProxyServer(Path("unused"), directory / "unused.log", random.Random(1))
        return cls(directory, cluster, server, Links(server, ()))

    def _bootstrap(self, listener: str) -> str:
        return ",".join(str(self.direct(node)) for node in self.node_ids)


class Roll:
    """The arguments for the steps of a run."""

    def __init__(self, laboratory: Laboratory, wait_until_whole: Callable[[], None], history: HistoryFile) -> None:
        self.nodes = laboratory.cluster.nodes
        self.bootstrap = laboratory.bootstrap
        self.cluster = laboratory.cluster
        self.wait_until_whole = wait_until_whole
        self._history = history

    def to(self, python: str, order: Sequence[int], kills: Kills | None = None) -> None:
        """Restart nodes with another release, one after the other."""
        for number in order:
            self.wait_until_whole()
            moments = () if kills is None else kills.moments()
            if kills is None or (BEFORE not in moments and STOPPING not in moments):
                self.cluster.stop([number])
            else:
                if STOPPING in moments:
                    self.nodes[number].send_signal(signal.SIGTERM)
                    time.sleep(kills.rng.uniform(0, STOPPING_S))
                self._kill(kills, number, STOPPING if STOPPING in moments else BEFORE)
            self.nodes[number].interpreter = python
            self.cluster.start([number])
            if kills is not None and STARTING in moments:
                time.sleep(kills.rng.uniform(0, STARTING_S))
                self._kill(kills, number, STARTING)
                self.cluster.start([number])
            self.cluster.wait_ready([number], timeout_s=READY_S)
            if kills is not None and BESIDE in moments:
                self._kill_and_start(kills, kills.rng.choice([one for one in self.nodes if one != number]), BESIDE)
        self.wait_until_whole()

    def add_disk(self, number: int) -> None:
        """Give a node a second log directory, which it uses from its next start on."""
        node = self.nodes[number]
        node.configure({**node.settings, "log.dirs": f"{node.data_dir},{node.directory / 'data-2'}"})

    def finalise(self, levels: Mapping[str, int], kills: Kills | None = None) -> None:
        """Raise feature levels, and check that they are in force, whichever node is killed meanwhile and right
        after."""
        self.wait_until_whole()
        found: list[Mapping[str, int]] = []
        asking = threading.Thread(target=lambda: found.append(self._raised(levels)))
        if kills is not None:
            with Admin(self.bootstrap) as admin:
                controller = admin.describe_cluster().controller_id
        asking.start()
        if kills is not None:
            time.sleep(kills.rng.uniform(0, FINALISING_S))
            self._kill_and_start(kills, controller, "the active controller, while the levels are raised")
        asking.join()
        if found != [dict(levels)]:
            raise CommandFailed(f"expected levels {dict(levels)} after they were raised, found {found}")
        if kills is not None:
            self.wait_until_whole()
            self._kill_and_start(kills, kills.rng.choice([*self.nodes]), "after the levels were raised")
        self.wait_until_whole()

    def _raised(self, levels: Mapping[str, int]) -> Mapping[str, int]:
        deadline = time.monotonic() + LEVELS_S
        with Admin(self.bootstrap) as admin:
            while True:
                try:
                    if (found := dict(admin.describe_features().finalized_features)) == levels:
                        return found
                    admin.update_features(levels)
                except TidelogError as error:  # the answer may be lost with the controller
                    self._history.note(f"raising the levels: {type(error).__name__}: {error}")
                    if time.monotonic() > deadline:
                        return {}
                time.sleep(_AGAIN_S)

    def _kill_and_start(self, kills: Kills, number: int, when: str) -> None:
        self._kill(kills, number, when)
        self.cluster.start([number])
        self.cluster.wait_ready([number], timeout_s=READY_S)

    def _kill(self, kills: Kills, number: int, when: str) -> None:
        kills.count += 1
        self._history.note(f"kill -9 of node {number}: {when}")
        self.cluster.kill(number)


def there_and_back(old: str, new: str, kills: Kills) -> Callable[[Roll], None]:
    """Return the steps of a whole upgrade with kills at each: all nodes to the other release, back, there again,
    finalised; then every node once more, and what is new is used. Levels that a node of the former release does not
    support are refused meanwhile."""

    def steps(roll: Roll) -> None:
        order = list(roll.nodes)
        for python in (new, old, new):
            kills.rng.shuffle(order)
            roll.to(python, order[:-1], kills)
            if python == new:
                _refused(roll)
            roll.to(python, order[-1:], kills)
        roll.finalise(LEVELS, kills)
        roll.add_disk(order[0])
        roll.to(new, order, kills)
        use_what_is_new(roll.bootstrap, order[0])

    return steps


def _refused(roll: Roll) -> None:
    with Admin(roll.bootstrap) as admin:
        try:
            admin.update_features({"metadata.version": 2})
        except TidelogError:
            return
    raise CommandFailed("expected levels to be refused while a node is of the former release, found them raised")


class RollingRun(Run):
    """A run in which a function causes the faults."""

    def __init__(self, directory: Path, history: HistoryFile, steps: Callable[[Roll], None], seed: int) -> None:
        asked = Asked(seed=seed, seconds=1.0, workload=WORKLOAD, schedule=(), per_s=PER_S)
        super().__init__(asked, directory, history, Path(sys.executable), lambda text: None)
        self._steps = steps

    def _work(self, laboratory: Laboratory) -> Workload:
        surroundings = self._surroundings(laboratory)
        shared = replace(surroundings, per_s=surroundings.per_s / 4)
        return SideBySide([AppendWork(shared), TransactionWork(shared), ClassicGroups(shared), SinkWork(shared)])

    def _faults(self, laboratory: Laboratory, observer: Observer, clients: ClientLoop, work: Workload) -> None:
        self._history.phase("faults")
        self._steps(Roll(laboratory, self._wait_until_whole, self._history))
        self._history.phase("mending")


def rolled(directory: Path, python: str, steps: Callable[[Roll], None], seed: int = 1) -> Verdict:
    """Start a cluster of the release of ``python``, do the steps under load, and judge all of it."""
    laboratory = DirectLaboratory.of(directory, python)
    path = directory / "history.jsonl"
    history = HistoryFile(path)
    try:
        laboratory.cluster.start()
        laboratory.cluster.wait_ready(timeout_s=READY_S)
        RollingRun(directory, history, steps, seed).run_in(laboratory)
        history.close()
    finally:
        history.abandon()
        laboratory.end()
    return judge(read_history(path))
