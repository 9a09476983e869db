"""One drill from start to end: examine, announce, make the topic, act, restore everything, read back, judge."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tidelog.chaos.drill.drills import Drill
from tidelog.chaos.drill.evidence import Evidence, ReadBack, compare
from tidelog.chaos.drill.objectives import Judgement, Limits, Objective, Value, judged
from tidelog.chaos.drill.reach import Reach
from tidelog.chaos.drill.stage import STEP, Moment, Stage
from tidelog.chaos.drill.target import TOPIC_PREFIX, Found, ailments, check_size, look
from tidelog.chaos.drill.traffic import Load, Traffic
from tidelog.chaos.laboratory.history.recording import read_through
from tidelog.chaos.laboratory.workloads.client_loop import ClientLoop
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.client.admin.types import NewTopic
from tidelog.client.config.security import SecuritySettings
from tidelog.client.errors import TidelogError

PARTITIONS: Final = 6
START_S: Final = 30.0
"""For the clients: the topic is created, every replica is in sync, every partition has accepted records."""
READ_S: Final = 120.0
END_S: Final = 30.0
HEALTHY_S: Final = 15.0
"""How long the whole cluster may take after a drill to return to its former state."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class HeldDrill:
    """A completed drill."""

    drill: str
    cluster_id: str
    topic: str
    steps: tuple[str, ...]
    measures: dict[str, Value]
    judgements: list[Judgement]
    moments: list[Moment]
    evidence: Evidence
    length_s: float
    after: list[str] = field(default_factory=list)
    """Problems of the cluster that are new since before the drill."""

    @property
    def met(self) -> bool:
        return all(one.met for one in self.judgements)


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for a drill on a cluster. ``local`` is the cluster's directory if it is one of this machine's."""

    drill: Drill
    bootstrap: str
    reach: Reach
    limits: Limits
    load: Load
    away_s: float
    local: LocalCluster | None = None
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """How its clients connect and log in."""


def survey(bootstrap: str, security: SecuritySettings, patience_s: float = 0.0) -> Found:
    """Return the state of the cluster; a cluster that has just started gets some time to become healthy. Raises
    :class:`CommandFailed` if nobody answers."""
    deadline = time.monotonic() + patience_s
    with ClientLoop() as clients:
        while True:
            found = clients.run(look(bootstrap, security), END_S)
            if not ailments(found) or time.monotonic() >= deadline:
                return found
            time.sleep(_POLL_S)


def check_healthy(found: Found, local: LocalCluster | None) -> None:
    """Raise :class:`CommandFailed` for a cluster that is not healthy or not large enough for a drill."""
    if wrong := ailments(found, local):
        raise CommandFailed(f"the cluster is not healthy, so a drill would prove nothing: {'; '.join(wrong)}")
    check_size(found)


def hold(asked: Asked, found: Found, tell: Callable[[Moment], None]) -> HeldDrill:
    """Run a drill on a healthy cluster; ``tell`` receives each moment of it. All acts are undone however it ends.
    Raises :class:`CommandFailed` if it cannot be completed, errors of the SDK, and ``KeyboardInterrupt``."""
    drill = asked.drill
    copies = min(3, len(found.brokers))
    name = f"{TOPIC_PREFIX}{drill.name}-{random.Random().randrange(16**6):06x}"
    topic = NewTopic(name, PARTITIONS, copies, configs={"min.insync.replicas": str(copies - 1)})
    with ClientLoop() as clients:
        traffic = Traffic(asked.bootstrap, found.brokers, topic, asked.load, asked.security)
        stage = Stage(found, asked.reach, traffic, tell, asked.away_s)
        with _undone(asked, stage, clients):
            _begin(stage, clients)
            stage.rest(drill.warm_up_s)
            drill.perform(stage)
            stage.rest(1.0)
            back = _count(stage, clients, asked)
        after = _healthy(clients, asked)
    stage.measures |= {"read": back.read, "lost": back.lost, "duplicated": back.duplicated, "unhealthy": len(after)}
    objectives = drill.objectives(found, asked.limits)
    return HeldDrill(
        drill=drill.name,
        cluster_id=found.cluster_id,
        topic=name,
        steps=tuple(drill.steps(found, asked.away_s)),
        measures=stage.measures,
        judgements=judged(objectives, stage.measures),
        moments=sorted(stage.moments, key=lambda moment: moment.at_s),
        evidence=traffic.evidence,
        length_s=traffic.now(),
        after=after,
    )


def planned(drill: Drill, found: Found, limits: Limits, away_s: float) -> tuple[tuple[str, ...], tuple[Objective, ...]]:
    """Return a drill's plan and its objectives."""
    return tuple(drill.steps(found, away_s)), tuple(drill.objectives(found, limits))


def _begin(stage: Stage, clients: ClientLoop) -> None:
    traffic = stage.traffic
    clients.run(traffic.begin(), START_S)
    deadline = traffic.now() + START_S

    def ready() -> bool:
        heard = {one.partition for one in traffic.evidence.acknowledgements[:]}
        return heard >= set(stage.everywhere) and stage.is_whole(traffic.last_look[1])

    while not ready():
        if traffic.now() > deadline:
            raise CommandFailed(
                f"{START_S:g} s after topic {traffic.topic} was made not every partition of it is in sync and takes "
                f"records: {stage.evidence.standing.partitions}"
            )
        stage.rest(_POLL_S)
    stage.say(STEP, f"topic {traffic.topic}: {PARTITIONS} partitions, every replica in sync; records are sent and read")


def _count(stage: Stage, clients: ClientLoop, asked: Asked) -> ReadBack:
    """Stop sending, wait for every outcome, read everything back."""
    traffic, evidence = stage.traffic, stage.evidence
    clients.run(traffic.stop_sending(), 3 * END_S + READ_S)
    log, _, _ = clients.run(read_through(asked.bootstrap, traffic.partitions, READ_S, asked.security), READ_S + END_S)
    back = compare(
        evidence.places,
        (
            (int(value.partition(b":")[0]), at.partition, offset)
            for at, records in log.items()
            for offset, value in records
        ),
    )
    stage.measures |= {"errors": evidence.errors, "sent": evidence.sent, "acknowledged": len(evidence.places)}
    stage.say(
        STEP, f"{evidence.sent:,} records sent, {len(evidence.places):,} acknowledged, {back.read:,} read back: "
        f"{back.lost:,} lost, {back.duplicated:,} duplicated"
    )  # fmt: skip
    return back


@contextmanager
def _undone(asked: Asked, stage: Stage, clients: ClientLoop) -> Iterator[None]:
    """Restore everything on exit: stopped nodes run again, disks have space, the clients and the topic are gone.
    Interrupts are ignored meanwhile: they would ask for the same."""
    failed = True
    try:
        yield
        failed = False
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if failed:
                stage.say(STEP, "interrupted or failed: restoring everything")
            left = []
            try:
                asked.reach.restore()
            except (CommandFailed, OSError) as trouble:
                left.append(str(trouble))
            try:
                clients.run(stage.traffic.end(delete=True), END_S)
            except (TidelogError, TimeoutError) as trouble:
                left.append(
                    f"the topic is left ({trouble or type(trouble).__name__}): `tidelog topics delete "
                    f"{stage.traffic.topic}`"
                )
            if left:
                stage.say(STEP, f"left to do: {'; '.join(left)}")
            elif failed:
                stage.say(STEP, "every node runs, and the topic is deleted")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _healthy(clients: ClientLoop, asked: Asked) -> list[str]:
    """Return the whole cluster's problems after the drill, after some time to recover."""
    deadline = time.monotonic() + HEALTHY_S
    while True:
        try:
            wrong = ailments(clients.run(look(asked.bootstrap, asked.security), END_S), asked.local)
        except CommandFailed as trouble:
            wrong = [str(trouble)]
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(_POLL_S)
