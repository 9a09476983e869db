"""One run: a laboratory, a workload, a schedule, a history; then everything is repaired, read to its end, and judged.

Bounded in time and in operations. None of its processes survives it, whatever happens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tidelog.aio import Admin
from tidelog.chaos.disk.shim_build import fault_shim
from tidelog.chaos.laboratory.faults.injector import FaultInjector
from tidelog.chaos.laboratory.faults.observer import ClusterStanding, Observer
from tidelog.chaos.laboratory.faults.schedule import SHIMMED, Step, length_s
from tidelog.chaos.laboratory.history.history_file import FORMAT_VERSION, LINES_MAX, HistoryFile
from tidelog.chaos.laboratory.history.keyed_lines import write_kept
from tidelog.chaos.laboratory.history.machine import MachineWatch, made_by
from tidelog.chaos.laboratory.history.recording import Budget, read_final
from tidelog.chaos.laboratory.links.proxy_server import ProxyTrouble
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.chaos.laboratory.processes.post_mortem import contents, copies, elections
from tidelog.chaos.laboratory.processes.secured import let_in
from tidelog.chaos.laboratory.workloads.client_loop import ClientLoop
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.workload import Workload
from tidelog.chaos.laboratory.workloads.workloads import workload, workloads_named
from tidelog.chaos.workloads.world import partitions_of
from tidelog.cli.failure import CommandFailed
from tidelog.client.admin.types import NewTopic
from tidelog.client.config.security import SecuritySettings
from tidelog.client.errors import TidelogError

SETTLE_S: Final = 60.0
"""Bound of each wait after the last fault: every client has an acknowledgement again, every replica is in sync, every
outcome is known."""
READ_S: Final = 120.0
"""Bound of the final read."""
WHOLE_S: Final = 20.0
"""How long an episode waits for a cluster that is not whole again after the previous one."""
OVERRUN_S: Final = 120.0
"""A run that is this much behind its schedule, because of such waits and rolling restarts, leaves out the rest."""
SECONDS_MAX: Final = 24 * 3600.0
WATCH_S: Final = 0.2
"""How often the cluster's state is polled."""
PROGRESS_S: Final = 5.0
PER_S: Final = 200.0
OPERATIONS_MAX: Final = 1_000_000
_START_S: Final = 90.0
_BEGIN_S: Final = 450.0
"""Long enough for clients that are separate programs."""
_POLL_S: Final = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for a run. ``schedule`` has the faults; the run lasts ``seconds`` in any case."""

    seed: int
    seconds: float
    workload: str
    """One or several, separated by commas."""
    schedule: Sequence[Step]
    nodes: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    per_s: float = PER_S
    operations_max: int = OPERATIONS_MAX
    mutant: str = ""
    """A rule of the nodes to break (:mod:`tidelog.chaos.simulated.mutants`): what such a run finds shows that the
    judges can find it."""
    security: str = ""
    """How the cluster is secured (:mod:`tidelog.testing.secured`); empty: not at all."""
    racks: int = 0
    """Number of racks over which the nodes are spread; 0: no racks."""
    again: str = ""
    """The command for such a run, for its history."""


class Run:
    """One run in ``directory``, with its history in ``history``. ``program`` is a toxiproxy server."""

    def __init__(self, asked: Asked, directory: Path, history: HistoryFile, program: Path, say: Say) -> None:
        self.faults = 0
        self._asked = asked
        self._directory = directory
        self._history = history
        self._program = program
        self._say = say
        self._standing = ClusterStanding()

    def run(self) -> None:
        """Do everything but the judging. Raises :class:`CommandFailed`, :class:`ProxyTrouble`, ``ConfigError``."""
        asked = self._asked
        shim = fault_shim() if any(step.act in SHIMMED for step in asked.schedule) else None
        with Laboratory.running(
            self._directory,
            self._program,
            nodes=asked.nodes,
            settings=asked.settings,
            seed=asked.seed,
            mutant=asked.mutant,
            shim=shim,
            security=asked.security,
            racks=asked.racks,
        ) as laboratory:
            self.run_in(laboratory)

    def run_in(self, laboratory: Laboratory) -> None:
        """Do the run in a running laboratory, which ends with it. Raises as :meth:`run`."""
        asked = self._asked
        with ClientLoop() as clients:
            work = self._work(laboratory)
            self._write_head(work)
            addresses = {node: laboratory.direct(node) for node in laboratory.node_ids}
            observer = clients.run(_observer(addresses, laboratory.admin), _START_S)
            try:
                clients.run(self._make_topics(laboratory, work), _START_S)
                clients.run(self._begin(observer, work), _BEGIN_S)
                self._say(f"{asked.nodes} nodes, {len(laboratory.links.routes)} proxies; {asked.workload} begins")
                with MachineWatch(self._history):
                    self._faults(laboratory, observer, clients, work)
                    self._end(clients, laboratory, work)
            finally:
                clients.run(_close(work, observer), READ_S)
            laboratory.end()
            self._examine(laboratory, work)

    def _work(self, laboratory: Laboratory) -> Workload:
        return workload(workloads_named(self._asked.workload), self._surroundings(laboratory))

    def _surroundings(self, laboratory: Laboratory) -> Surroundings:
        asked, clients = self._asked, self._directory / "clients"
        clients.mkdir()
        return Surroundings(
            laboratory.bootstrap,
            laboratory.kafka_bootstrap,
            clients,
            self._history,
            asked.seed,
            asked.per_s,
            Budget(asked.operations_max),
            laboratory.clients,
        )

    # --- Steps -------------------------------------------------------------------------------------------

    def _write_head(self, work: Workload) -> None:
        asked = self._asked
        self._history.write(
            "run",
            version=FORMAT_VERSION,
            seed=asked.seed,
            workload=asked.workload,
            nodes=asked.nodes,
            seconds=asked.seconds,
            settings=dict(asked.settings),
            topics=dict(work.topics),
            configs={topic: dict(config) for topic, config in work.configs.items()},
            derived=dict(work.derived),
            mutant=asked.mutant,
            security=asked.security,
            racks=asked.racks,
            began=datetime.fromtimestamp(self._history.began_wall_s, UTC).isoformat(timespec="seconds"),
            again=asked.again,
            made_by=dict(made_by()),
            schedule=[step.as_json() for step in asked.schedule],
        )
        self._history.flush()

    async def _make_topics(self, laboratory: Laboratory, work: Workload) -> None:
        asked, copies = self._asked, min(3, self._asked.nodes)
        if asked.security:
            nodes = [laboratory.direct(node) for node in laboratory.node_ids]
            await let_in(laboratory.bootstrap, nodes, laboratory.admin, _START_S)
        async with Admin(laboratory.bootstrap, **laboratory.admin) as admin:
            await admin.create_topics(
                [NewTopic(name, count, copies, work.configs.get(name, {})) for name, count in work.topics.items()]
            )

    async def _begin(self, observer: Observer, work: Workload) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(observer, work))
        await work.begin()
        if not await self._wait(lambda: all(work.heard().values()) and self._standing.whole):
            silent = ", ".join(name for name, count in work.heard().items() if not count) or "copies out of sync"
            raise CommandFailed(f"{SETTLE_S:g} s after the start, before any fault: nothing is heard of {silent}")

    def _faults(self, laboratory: Laboratory, observer: Observer, clients: ClientLoop, work: Workload) -> None:
        injector = FaultInjector(
            laboratory, observer, lambda asking: clients.run(asking, _START_S), work.targets, self._history, self._say
        )
        began = time.monotonic()
        self._history.phase("faults")
        said = began
        ends_s = max(self._asked.seconds, length_s(self._asked.schedule))

        def wait_until(at_s: float) -> None:
            """Wait until a time of the schedule's clock."""
            nonlocal said
            while (left := began + at_s - time.monotonic()) > 0:
                time.sleep(min(left, 0.25))
                if time.monotonic() - said > PROGRESS_S:
                    said = time.monotonic()
                    heard = sum(work.heard().values())
                    self._say(f"{self._history.now():7.2f}  {heard} acknowledged, {injector.faults} faults")

        steps_left = Counter(step.episode for step in self._asked.schedule)
        under_way: set[int] = set()
        begun = began
        try:
            for step in self._asked.schedule:
                wait_until(step.at_s)
                if time.monotonic() > begun + ends_s + OVERRUN_S:
                    self._history.note(f"{OVERRUN_S:g} s late: the rest of the schedule is left out")
                    break
                if not under_way:
                    self._wait_until_whole()
                under_way.add(step.episode)
                # Steps after one that comes late, or after a restart of any length, keep their distance.
                began = max(began, time.monotonic() - step.at_s)
                before = time.monotonic()
                injector.perform(step)
                if step.act == "roll":
                    began += time.monotonic() - before
                steps_left[step.episode] -= 1
                if not steps_left[step.episode]:
                    under_way.discard(step.episode)
            wait_until(ends_s)
        finally:
            self.faults = injector.faults
        self._mend(injector)

    def _wait_until_whole(self) -> None:
        """Wait for a whole cluster before a fault, even on a slow machine; if it does not recover in time, the fault
        comes anyway."""
        deadline = time.monotonic() + WHOLE_S
        while not self._standing.whole and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _mend(self, injector: FaultInjector) -> None:
        self._history.phase("mending")
        self._say(f"{self._history.now():7.2f}  everything is mended")
        try:
            injector.mend()
        except CommandFailed as error:
            self._history.wrong(f"after everything was mended: {error}")
            raise

    def _end(self, clients: ClientLoop, laboratory: Laboratory, work: Workload) -> None:
        clients.run(self._settle(work), 8 * SETTLE_S)
        try:
            ends = clients.run(
                read_final(laboratory.bootstrap, partitions_of(work.topics), self._history, READ_S, laboratory.clients),
                READ_S + 5,
            )
        except (TimeoutError, TidelogError) as error:
            self._history.wrong(f"the last reading: {type(error).__name__}: {error}")
            return
        clients.run(self._read_to(work, ends), SETTLE_S + 5)

    def _examine(self, laboratory: Laboratory, work: Workload) -> None:
        nodes = laboratory.cluster.nodes
        for at, found in copies(nodes, partitions_of(work.topics)).items():
            self._history.write("replicas", topic=at.topic, partition=at.partition, copies=[list(one) for one in found])
        compacted = {topic: count for topic, count in work.topics.items() if topic in work.configs}
        for at in partitions_of(compacted):
            for node, batches, records in contents(nodes, at):
                write_kept(self._history, at, node, batches, records, int(time.time() * 1000))
        for each in elections(nodes):
            at_s = round(each.at_s - self._history.began_wall_s, 3)
            self._history.write("elected", at=at_s, node=each.node, epoch=each.epoch)

    async def _settle(self, work: Workload) -> None:
        work.calm()
        before = work.heard()
        mended = self._history.now()

        def again() -> bool:
            return all(count > before[name] for name, count in work.heard().items())

        def silent() -> str:
            return ", ".join(name for name, count in work.heard().items() if count <= before[name])

        if await self._wait(again):
            self._history.write(
                "note", at=self._history.now(), text=f"every client heard again, mended at {mended:.3f}"
            )
        else:
            self._history.wrong(f"{SETTLE_S:g} s after everything was mended nothing is acknowledged to {silent()}")
        if not await self._wait(lambda: self._standing.whole):
            self._history.wrong(f"{SETTLE_S:g} s later still not every copy is in sync: {self._standing.partitions}")
        await work.finish(SETTLE_S)

    async def _read_to(self, work: Workload, ends: Mapping[Any, int]) -> None:
        if not await self._wait(lambda: not work.behind(ends)):
            self._history.wrong(f"{', '.join(work.behind(ends))} did not come to the end within {SETTLE_S:g} s")

    async def _wait(self, condition: Callable[[], bool]) -> bool:
        deadline = self._history.now() + SETTLE_S
        while self._history.now() < deadline:
            if condition():
                return True
            await asyncio.sleep(_POLL_S)
        return condition()

    async def _watch(self, observer: Observer, work: Workload) -> None:
        """Record the state of the cluster when it changes."""
        while True:
            standing = await observer.standing(tuple(work.topics))
            if (standing.controller, standing.partitions) != (self._standing.controller, self._standing.partitions):
                self._history.write(
                    "standing",
                    at=round(self._history.now(), 6),
                    controller=standing.controller,
                    partitions=[
                        [at.topic, at.partition, held.leader, list(held.isr)]
                        for at, held in sorted(standing.partitions.items())
                    ],
                )
            self._standing = standing
            self._history.flush()
            await asyncio.sleep(WATCH_S)


async def _observer(addresses: Mapping[int, Any], security: SecuritySettings) -> Observer:
    return Observer(addresses, security)


async def _close(work: Workload, observer: Observer) -> None:
    await work.close()
    await observer.close()


def perform(asked: Asked, directory: Path, history_path: Path, program: Path, say: Say) -> None:
    """Do a run; its history at ``history_path`` is whole however the run ends. Raises as :meth:`Run.run`."""
    if not 0 < asked.seconds <= SECONDS_MAX:
        raise CommandFailed(f"expected more than 0 seconds and at most {SECONDS_MAX:g}, found {asked.seconds:g}")
    history = HistoryFile(history_path)
    try:
        Run(asked, directory, history, program, say).run()
        if history.dropped:
            raise CommandFailed(f"expected at most {LINES_MAX} lines of history, and {history.dropped} more came")
        history.close()
    except ProxyTrouble as trouble:
        raise CommandFailed(f"the laboratory itself failed: {trouble}") from None
    finally:
        history.abandon()
