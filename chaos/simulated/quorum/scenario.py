"""The quorum alone: proposals and every kind of fault, over real engines in virtual time.

A seed belongs to one of the :data:`PROFILES`, which gives the number of voters and the possible faults; so each kind of
trouble has runs in which it is frequent, and runs in which it is mixed with others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.chaos.simulated.quorum.faults import OPERATIONS, QuorumTrouble
from tidelog.chaos.simulated.quorum.watch import Violation
from tidelog.chaos.simulated.quorum.world import QuorumWorld
from tidelog.chaos.simulated.world.scenario import Fault, Outcome, Trace
from tidelog.metadata_quorum.raft.types import QuorumLimits

PROPOSALS_MIN: Final = 100
SETTLE_S: Final = 20.0
_STILL_S: Final = 2.8
_ANSWERED_WITHIN_S: Final = 1.0
"""Bound of a proposal under a leader that nothing may depose."""

Arguments = tuple[str | int | float | bool, ...]
Draw = Callable[[random.Random], Arguments]


def _role(rng: random.Random) -> str:
    return rng.choice(("leader", "leader", "follower", "any"))


def _number(rng: random.Random) -> int:
    return rng.randrange(60)


def _seconds(rng: random.Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 3)


def _down(rng: random.Random) -> float:
    return rng.choice((0.002, 0.05, _seconds(rng, 0.1, 0.4), _seconds(rng, 0.3, 1.5)))


def _soon(rng: random.Random) -> float:
    return rng.choice((0.002, 0.05, _seconds(rng, 0.1, 0.4)))


def _burst(rng: random.Random) -> int:
    return rng.choice((0, 1, 4, 12))


def _cut(rng: random.Random) -> float:
    return rng.choice((_seconds(rng, 0.01, 0.1), _seconds(rng, 0.1, 0.6), _seconds(rng, 0.5, 2.0)))


_CALLS: Final = (
    *(("any", calls) for calls in (1, 2, 2, 3, 4, 7, 20)),
    *((kind, calls) for kind in ("pwritev", "fdatasync", "rename", "fsync_dir", "fsync_dir") for calls in (1, 2, 3)),
)
"""Kind and number of the disk call in which a process ends."""
_INSTALL_CALLS: Final = (
    *((kind, calls) for kind in ("fdatasync", "rename", "fsync_dir") for calls in (1, 2)),
    ("pwritev", 1),
    ("fsync_dir", 1),
    ("fsync_dir", 1),
    ("fsync_dir", 3),
)
"""The same, for a process that installs a snapshot."""


def _crash(rng: random.Random, among: Sequence[tuple[str, int]] = _CALLS) -> Arguments:
    """Draw the call in which a process ends, whether its machine fails too, and when both are back.

    A machine loses names if it fails after the process that did not sync them was replaced by another.
    """
    kind, calls = rng.choice(among)
    power_loss = rng.random() < 0.5
    again_s = rng.choice((0.1, 0.2, 0.4)) if kind == "fsync_dir" else rng.choice((0.0, 0.0, 0.2, 0.5))
    return (kind, calls, power_loss, rng.choice((0.01, 0.05, 0.2, 0.4)), again_s)


KINDS: Final[dict[str, Draw]] = {
    "kill": lambda rng: (_role(rng), _number(rng), _burst(rng), _down(rng)),
    "power-loss": lambda rng: (_role(rng), _number(rng), _burst(rng), _down(rng)),
    "kill-all": lambda rng: (_soon(rng), rng.choice((0.0, 0.01, 0.3))),
    "power-loss-all": lambda rng: (_soon(rng), rng.choice((0.0, 0.01, 0.3))),
    "crash-in-disk-call": lambda rng: (_role(rng), _number(rng), *_crash(rng)),
    "crash-in-catch-up": lambda rng: (
        rng.choice(("follower", "follower", "any")),
        _number(rng),
        _seconds(rng, 0.2, 0.8),
        *_crash(rng, _INSTALL_CALLS),
    ),
    "lose-new-leader": lambda rng: (
        rng.choice((0.0, 0.001, 0.003, 0.01, 0.04)),
        rng.choice(("kill", "isolate", "pause")),
        _cut(rng),
    ),
    "lose-leader-of-change": lambda rng: (rng.choice(("kill", "isolate")), rng.choice((0.4, 1.0, 2.0))),
    "stall": lambda rng: (_role(rng), _number(rng), rng.random() < 0.5, _number(rng), _cut(rng)),
    "disconnect": lambda rng: (_role(rng), _number(rng), _number(rng), rng.choice((0.0, _cut(rng)))),
    "miss-commit": lambda rng: (_number(rng), rng.choice((3, 8)), rng.choice((0.001, 0.002, 0.004))),
    "disconnect-in-burst": lambda rng: (
        _number(rng),
        rng.choice((1, 2, 3)),
        rng.choice((0.0005, 0.003, 0.01)),
        _seconds(rng, 0.0, 0.06),
        _seconds(rng, 0.05, 0.3),
    ),
    "isolate": lambda rng: (_role(rng), _number(rng), rng.random() < 0.6, _burst(rng), _cut(rng)),
    "partition": lambda rng: (
        rng.choice(("ring", "star", "halves", "chain")),
        _number(rng),
        rng.random() < 0.5,
        _seconds(rng, 0.3, 2.0),
    ),
    "delay": lambda rng: (_role(rng), _number(rng), _number(rng), _seconds(rng, 0.02, 0.4), _cut(rng)),
    "duplicate": lambda rng: (rng.choice(("all", _role(rng))), _number(rng), _number(rng), _seconds(rng, 0.1, 1.0)),
    "pause": lambda rng: (_role(rng), _number(rng), rng.choice((0.05, 0.3, 0.6, _seconds(rng, 0.5, 2.5)))),
    "clock-jump": lambda rng: (_role(rng), _number(rng), rng.choice((0.1, 0.5, 1.0, 30.0))),
    "slow-disk": lambda rng: (_role(rng), _number(rng), rng.choice((0.005, 0.05, 0.3)), _cut(rng)),
    "fsync-fails": lambda rng: (
        _role(rng),
        _number(rng),
        rng.random() < 0.4,
        _seconds(rng, 0.02, 0.5),
        rng.choice((0.0, 0.02, 0.2, 0.5)),
    ),
    "disk-full": lambda rng: (_role(rng), _number(rng), _seconds(rng, 0.1, 0.8)),
    "wipe": lambda rng: (_role(rng), _number(rng), _soon(rng)),
    "bit-flip": lambda rng: (
        _role(rng),
        _number(rng),
        rng.random() < 0.3,
        rng.randrange(10_000) / 10_000,
        rng.randrange(8),
        _seconds(rng, 0.05, 0.4),
    ),
}
"""Kind of fault → how its arguments are drawn."""

_MINORITY: Final[dict[str, Draw]] = {
    "kill": lambda rng: ("minority", _number(rng), 0, _down(rng)),
    "power-loss": lambda rng: ("minority", _number(rng), 0, _down(rng)),
    "stall": lambda rng: ("minority", _number(rng), rng.random() < 0.3, _number(rng), _cut(rng)),
    "disconnect": lambda rng: ("minority", _number(rng), _number(rng), _cut(rng)),
    "isolate": lambda rng: ("minority", _number(rng), rng.random() < 0.6, 0, _cut(rng)),
    "pause": lambda rng: ("minority", _number(rng), _seconds(rng, 0.2, 1.5)),
    "clock-jump": lambda rng: ("minority", _number(rng), rng.choice((0.5, 1.0, 30.0))),
    "slow-disk": lambda rng: ("minority", _number(rng), rng.choice((0.05, 0.3)), _cut(rng)),
    "crash-in-disk-call": lambda rng: ("minority", *KINDS["crash-in-disk-call"](rng)[1:]),
    "bit-flip": lambda rng: ("minority", *KINDS["bit-flip"](rng)[1:]),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """The shape of some seeds' runs."""

    name: str
    voters: tuple[int, ...]
    weights: dict[str, int]
    """Kind of fault → how often it is drawn."""
    faults: tuple[int, int] = (11, 15)
    trouble_s: float = 3.0
    calm_s: float = 0.0
    """How long nothing happens at first."""
    draws: dict[str, Draw] | None = None
    drift: float = 0.0
    compact_every: tuple[int, ...] = (0, 20, 60)
    batch_bytes: tuple[int, ...] = (300, 2_000, 20_000)
    retained_entries: tuple[int, ...] = (1, 5, 50)
    padding: tuple[int, ...] = (0, 500)
    bursts: tuple[int, ...] = (1, 1, 3, 8, 20)
    """How many proposals are made together."""
    doubled: float = 0.0
    """Share of runs in which every message arrives twice."""
    still_flips: int = 0
    """How many bits flip at the end, each after a pause that is long enough for the journals to be sealed."""
    latency_s: tuple[tuple[float, float], ...] = ((0.0002, 0.003),)
    payload_bytes: tuple[tuple[int, ...], ...] = ((0,), (0, 10, 200), (5, 40, 1_200))

    @property
    def length_s(self) -> float:
        """Return how long the faults last, from the start."""
        return self.calm_s + self.trouble_s + self.still_flips * _STILL_S


_ALONE: Final[dict[str, Draw]] = {
    **KINDS,
    "kill": lambda rng: ("any", 0, _burst(rng), _soon(rng)),
    "power-loss": lambda rng: ("any", 0, _burst(rng), _soon(rng)),
    "fsync-fails": lambda rng: ("any", 0, rng.random() < 0.4, _soon(rng), rng.choice((0.0, 0.02, 0.2))),
}
_ALL: Final = dict.fromkeys(KINDS, 2)

PROFILES: Final[tuple[Profile, ...]] = (
    Profile("mixed", (3,), _ALL, drift=0.02),
    Profile(
        "processes", (3,), {"kill": 4, "kill-all": 3, "crash-in-disk-call": 3, "pause": 2, "disconnect": 2, "stall": 3}
    ),
    Profile(
        "links",
        (3, 5),
        {"stall": 6, "disconnect": 4, "isolate": 4, "partition": 4, "delay": 3, "duplicate": 3, "kill": 2},
    ),
    Profile(
        "disks",
        (3,),
        {
            "crash-in-disk-call": 8,
            "power-loss": 4,
            "power-loss-all": 4,
            "fsync-fails": 4,
            "disk-full": 1,
            "slow-disk": 2,
        },
        faults=(12, 17),
        compact_every=(4, 10, 20),
        payload_bytes=((5, 40, 1_200), (500, 900, 2_000)),
    ),
    Profile(
        "elections",
        (3, 5, 5),
        {
            "lose-new-leader": 8,
            "isolate": 6,
            "partition": 3,
            "kill": 4,
            "stall": 4,
            "delay": 4,
            "pause": 2,
            "kill-all": 1,
            "duplicate": 4,
        },
        batch_bytes=(1, 1, 300),
        compact_every=(0,),
        faults=(10, 16),
        doubled=0.4,
        latency_s=((0.0002, 0.003), (0.001, 0.05), (0.05, 0.25)),
    ),
    Profile(
        "snapshots",
        (3,),
        {
            "isolate": 6,
            "stall": 6,
            "disconnect": 3,
            "disconnect-in-burst": 3,
            "miss-commit": 4,
            "kill": 3,
            "crash-in-disk-call": 4,
            "crash-in-catch-up": 10,
            "duplicate": 4,
            "delay": 3,
            "lose-new-leader": 2,
        },
        compact_every=(2, 4, 10),
        retained_entries=(1, 2),
        padding=(0, 500, 2_000),
        batch_bytes=(100, 300),
        faults=(10, 16),
        bursts=(1, 2, 3, 8),
        latency_s=((0.0002, 0.003), (0.001, 0.05)),
    ),
    Profile(
        "catch-up",
        (3,),
        {"miss-commit": 6, "crash-in-catch-up": 10, "crash-in-disk-call": 6, "disconnect-in-burst": 2, "kill": 2},
        compact_every=(2, 4, 10),
        retained_entries=(1,),
        padding=(0, 500, 2_000),
        faults=(15, 19),
        batch_bytes=(100, 300),
        bursts=(1, 2, 3),
    ),
    Profile("minority", (3, 5), dict.fromkeys(_MINORITY, 1), draws=_MINORITY, calm_s=1.6, drift=0.01, faults=(12, 16)),
    Profile(
        "damage",
        (3,),
        {"bit-flip": 8, "power-loss": 2, "kill": 2, "crash-in-disk-call": 2},
        compact_every=(10, 30),
        trouble_s=2.0,
        still_flips=1,
    ),
    Profile(
        "clocks",
        (3, 5),
        {"clock-jump": 6, "pause": 6, "slow-disk": 3, "stall": 2, "isolate": 2},
        drift=0.2,
    ),
    Profile(
        "directories",
        (3, 5, 5),
        {
            "wipe": 12,
            "lose-leader-of-change": 4,
            "kill": 6,
            "crash-in-disk-call": 3,
            "crash-in-catch-up": 8,
            "power-loss": 2,
            "isolate": 4,
            "stall": 3,
            "lose-new-leader": 5,
            "disconnect": 2,
            "pause": 2,
            "duplicate": 1,
        },
        faults=(12, 18),
        trouble_s=5.0,
        compact_every=(0, 4, 20),
        retained_entries=(1, 5),
        latency_s=((0.0002, 0.003), (0.001, 0.05)),
    ),
    Profile(
        "alone",
        (1,),
        {
            "kill": 4,
            "power-loss": 4,
            "crash-in-disk-call": 6,
            "fsync-fails": 3,
            "bit-flip": 2,
            "pause": 1,
            "clock-jump": 1,
            "disk-full": 1,
        },
        draws=_ALONE,
        compact_every=(4, 10, 20),
        faults=(14, 20),
    ),
)
"""A seed's profile is the one at its number modulo their count."""


class QuorumScenario:
    """One quorum of 1, 3 or 5 voters: at least 100 proposals, at least 5 faults, and it must come to rest."""

    name = "quorum"
    faults_expected = frozenset(KINDS)
    events_expected = frozenset(
        {
            "compaction",
            "snapshot-install-keeps-suffix",
            "connect",
            "crash-in-disk-call",
            "damage-refused",
            "duplicate",
            "election",
            "late-proposal",
            "proposal-committed",
            "proposal-not-leading",
            "proposal-unknown",
            "restart",
            "snapshot-install",
            "snapshot-load",
            "snapshot-write",
            "step-down",
            "stopped-by-disk",
            "term-change",
            "torn-tail-recovered",
            "truncation",
            "vote-restored",
            "voter-admitted",
            "voter-left",
            "voters-written",
        }
    )

    def schedule(self, seed: int) -> tuple[Fault, ...]:
        """Make the bursts of proposals and the faults of a seed, in order of time."""
        profile = PROFILES[seed % len(PROFILES)]
        rng = random.Random(f"quorum-schedule-{seed}")
        end = profile.calm_s + profile.trouble_s
        entries: list[Fault] = []
        draws = profile.draws or KINDS
        kinds, weights = list(profile.weights), list(profile.weights.values())
        entries.extend(
            Fault(_seconds(rng, profile.calm_s + 0.2, end), kind, draws[kind](rng))
            for kind in rng.choices(kinds, weights, k=rng.randint(*profile.faults))
        )
        if rng.random() < profile.doubled:
            entries.append(Fault(0.0, "duplicate", ("all", 0, 0, end)))
        for flip in range(profile.still_flips):
            at_s = end + (flip + 1) * _STILL_S
            entries.append(Fault(at_s, "bit-flip", ("any", _number(rng), False, 0.9999, 3, 0.1)))
        count = 0
        while count < PROPOSALS_MIN + 20:
            burst = rng.choice(profile.bursts)
            count += burst
            entries.append(Fault(_seconds(rng, 0.1, end), "propose", (burst, _number(rng))))
        entries.extend(Fault(_seconds(rng, 0.5, end), "propose-late", (_number(rng),)) for _ in range(3))
        entries.append(Fault(_seconds(rng, 0.5, end), "compact", ("any", _number(rng))))
        entries.sort(key=lambda entry: entry.at_s)
        return tuple(entries)

    def run(self, seed: int, schedule: Sequence[Fault] | None = None, *, trace: Trace | None = None) -> Outcome:
        """Run a seed with its own schedule or the given one."""
        profile = PROFILES[seed % len(PROFILES)]
        outcome = Outcome(self.name, seed)
        rng = random.Random(f"quorum-run-{seed}")
        batch_bytes = rng.choice(profile.batch_bytes)
        world = QuorumWorld(
            seed,
            rng.choice(profile.voters),
            limits=QuorumLimits(
                batch_bytes=batch_bytes,
                window_bytes=batch_bytes * rng.choice((3, 30)),
                retained_entries=rng.choice(profile.retained_entries),
                snapshot_part_bytes=rng.choice((60, 300, 4_000)),
            ),
            latency_s=rng.choice(profile.latency_s),
            drift=profile.drift,
            compact_every=rng.choice(profile.compact_every),
            as_bytes=seed % 4 == 0,
            trace=trace,
        )
        world.state_padding = rng.choice(profile.padding)
        trouble = QuorumTrouble(world, rng.choice(profile.payload_bytes))
        began = world.now
        try:
            world.start()
            for entry in self.schedule(seed) if schedule is None else schedule:
                world.run(began + entry.at_s - world.now)
                if trace:
                    trace(f"{world.now:.6f} {entry}")
                trouble.act(entry)
            world.run(max(0.0, began + profile.length_s - world.now))
            if world.watch.calm is not None:
                self._check_minority(world)
            world.settle(SETTLE_S, trouble.propose_waiting)
        except Violation as violation:
            outcome.violations.append(
                f"{profile.name}, {len(world.ids)} voters, at {world.now - began:.3f} s: {violation}"
            )
        outcome.faults.update(trouble.faults)
        outcome.events.update(world.events)
        outcome.operations = trouble.proposed
        outcome.virtual_s = world.now - began
        outcome.digest = world.digest
        return outcome

    @staticmethod
    def _check_minority(world: QuorumWorld) -> None:
        """Check that while only a minority is in trouble, the leader stays and everything is answered soon."""
        world.run(_ANSWERED_WITHIN_S)
        leader, term = world.watch.calm or (None, 0)
        world.watch.calm = None
        unanswered = [payload for voter in world.voters.values() for payload in voter.tickets.values()]
        if unanswered:
            raise Violation(
                f"progress: {len(unanswered)} proposals to node {leader}, leader of term {term}, are not answered "
                f"{_ANSWERED_WITHIN_S} s after they were made, though only a minority is in trouble"
            )


__all__ = ["KINDS", "OPERATIONS", "PROFILES", "Profile", "QuorumScenario"]
