"""Nemeses: each plans episodes of one kind of fault, from a seeded source and nothing else.

An episode is a list of steps relative to its start, and ends with everything as before. To write one: a function that
draws from ``rng`` and returns an :class:`Episode`, and a row in :data:`NEMESES`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.chaos.laboratory.faults.schedule import ANY, CONTROLLER, FOLLOWER, GROUP, LEADER, TRANSACTIONS, Step

QUIET_S: Final = (2.0, 5.0)
"""How long nothing is wrong between two episodes: pending operations complete, and the next fault meets a whole
cluster."""
FIRST_S: Final = 2.0
"""The first fault waits until the clients are working."""
TRIES: Final = 10
"""How many episodes that are too long for the remaining time are discarded before the schedule counts as full."""
NOT_BESIDE: Final = frozenset({"roll", "elect", "reassign"})
"""Episodes that would wait for a whole cluster, or move replicas as well."""
NAMED_WEIGHT: Final = 6
"""The weight in the mix of a named nemesis that has none by itself."""
BESIDE_S: Final = (0.5, 2.0)
"""Pause between two faults that run beside another one."""
OVERLAP: Final = 0.25
"""How often a slow link overlaps another fault."""


class Part(NamedTuple):
    """A step of an episode, ``after_s`` from its start."""

    after_s: float
    act: str
    options: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Episode:
    """The acts on one target. ``target`` is empty if all are meant."""

    target: str
    parts: Sequence[Part]

    @property
    def length_s(self) -> float:
        return max(part.after_s for part in self.parts)


Plan = Callable[[random.Random], Episode]


class Nemesis(NamedTuple):
    """``weight``: how often it occurs in the mix, 0 for never by itself. ``soft``: everything keeps working, slower."""

    what: str
    plan: Plan
    weight: int
    soft: bool = False
    beside: bool = False
    """Whether other faults of the mix occur while it lasts."""


def _target(rng: random.Random) -> str:
    role = rng.choice((LEADER, LEADER, LEADER, CONTROLLER, CONTROLLER, GROUP, TRANSACTIONS, FOLLOWER, ANY))
    return role if role in (CONTROLLER, GROUP) else f"{role}:{rng.randrange(12)}"


def _span(rng: random.Random, low: float, high: float) -> float:
    """Draw a duration: short ones as often as long ones."""
    return round(low * math.pow(high / low, rng.random()), 2)


def _kill(rng: random.Random) -> Episode:
    return Episode(_target(rng), [Part(0, "kill"), Part(_span(rng, 0.3, 6.0), "start")])


def _pause(rng: random.Random) -> Episode:
    return Episode(_target(rng), [Part(0, "pause"), Part(_span(rng, 0.3, 10.0), "resume")])


def _restart(rng: random.Random) -> Episode:
    return Episode(_target(rng), [Part(0, "terminate"), Part(_span(rng, 0.5, 4.0), "start")])


def _roll(rng: random.Random) -> Episode:
    return Episode("", [Part(0, "roll")])


def _power(rng: random.Random) -> Episode:
    return Episode("", [Part(0, "kill-all"), Part(_span(rng, 0.2, 3.0), "start-all")])


def _impaired(target: str, seconds: float, **options: Any) -> Episode:
    return Episode(target, [Part(0, "impair", options), Part(seconds, "heal")])


def _cut(rng: random.Random) -> Episode:
    topology = rng.choice(("isolate", "isolate", "deaf", "mute", "around"))
    return _impaired(_target(rng), _span(rng, 0.5, 10.0), topology=topology, kind=rng.choice(("cut", "hold")))


def _bridge(rng: random.Random) -> Episode:
    return _impaired(_target(rng), _span(rng, 1.0, 10.0), topology="bridge", kind=rng.choice(("cut", "hold")))


def _ring(rng: random.Random) -> Episode:
    return _impaired("", _span(rng, 0.5, 6.0), topology="ring", kind=rng.choice(("cut", "hold")))


def _flap(rng: random.Random) -> Episode:
    options = {"topology": rng.choice(("isolate", "deaf", "mute")), "kind": rng.choice(("cut", "hold"))}
    parts, at = [], 0.0
    for _ in range(rng.randint(3, 6)):
        parts.append(Part(round(at, 2), "impair", options))
        at += _span(rng, 0.1, 1.5)
        parts.append(Part(round(at, 2), "heal"))
        at += _span(rng, 0.1, 1.0)
    return Episode(_target(rng), parts)


def _clients(rng: random.Random) -> Episode:
    topology = rng.choice(("clients", "clients", "to-clients", "from-clients"))
    return _impaired(_target(rng), _span(rng, 0.5, 8.0), topology=topology, kind=rng.choice(("cut", "hold", "refuse")))


def _refuse(rng: random.Random) -> Episode:
    return _impaired(_target(rng), _span(rng, 0.3, 6.0), topology="around", kind="refuse")


def _latency(rng: random.Random) -> Episode:
    ms = rng.choice((5, 20, 80, 200))
    jitter = rng.choice((0, ms // 2, ms))
    return _impaired(_target(rng), _span(rng, 2.0, 10.0), topology="around", kind="latency", ms=ms, jitter=jitter)


def _throttle(rng: random.Random) -> Episode:
    return _impaired(
        _target(rng), _span(rng, 2.0, 8.0), topology="around", kind="throttle", rate=rng.choice((8, 32, 128))
    )


def _loss(rng: random.Random) -> Episode:
    share = rng.choice((0.2, 0.5))
    return _impaired(_target(rng), _span(rng, 1.0, 6.0), topology="around", kind="loss", share=share)


def _reset(rng: random.Random) -> Episode:
    return _impaired(_target(rng), _span(rng, 0.2, 3.0), topology="around", kind="reset", ms=rng.choice((0, 50, 300)))


def _limit(rng: random.Random) -> Episode:
    size = rng.choice((2_000, 20_000, 200_000))
    return _impaired(_target(rng), _span(rng, 1.0, 5.0), topology="around", kind="limit", bytes=size)


def _slow_close(rng: random.Random) -> Episode:
    """Kill a node, and let the others notice only after a while."""
    options = {"topology": "around", "kind": "slow-close", "ms": rng.choice((500, 2_000, 5_000))}
    down_s = _span(rng, 0.5, 4.0)
    parts = [Part(0, "impair", options), Part(0.05, "kill"), Part(down_s, "start"), Part(down_s + 0.05, "heal")]
    return Episode(_target(rng), parts)


def _spoiled(target: str, seconds: float, act: str, **options: Any) -> Episode:
    return Episode(target, [Part(0, act, options), Part(seconds, "disk-mend")])


def _disk_full(rng: random.Random) -> Episode:
    """Fill a disk. Sometimes it is the same file system for all, and no node is left."""
    target = rng.choice((*[_target(rng) for _ in range(5)], ""))
    return _spoiled(target, _span(rng, 0.5, 8.0), "disk-full", room=rng.choice((0, 4_096, 16_384, 65_536)))


def _disk_slow(rng: random.Random) -> Episode:
    amounts = rng.choice(({"sync_ms": 50}, {"sync_ms": 500}, {"write_ms": 20}, {"read_ms": 20, "write_ms": 5}))
    return _spoiled(_target(rng), _span(rng, 2.0, 10.0), "disk-slow", **amounts)


def _disk_fails(rng: random.Random) -> Episode:
    return _spoiled(_target(rng), _span(rng, 0.5, 6.0), "disk-fails", call=rng.choice(("write", "sync", "read")))


def _disk_stall(rng: random.Random) -> Episode:
    return _spoiled(_target(rng), _span(rng, 0.3, 8.0), "disk-stall")


def _damage(rng: random.Random) -> Episode:
    down_s = _span(rng, 0.3, 4.0)
    parts = [Part(0, "kill"), Part(0.05, "damage", {"seed": rng.randrange(1_000_000)}), Part(down_s, "start")]
    return Episode(_target(rng), parts)


def _clock(rng: random.Random) -> Episode:
    """Make some clock jumps, each small or up to half an hour: no further, as topics refuse records by their time."""
    parts, at = [], 0.0
    for _ in range(rng.randint(1, 3)):
        parts.append(Part(round(at, 2), "clock", {"ahead_s": rng.choice((-1, 1)) * _span(rng, 0.05, 1800.0)}))
        at += _span(rng, 0.5, 5.0)
    return Episode(_target(rng), [*parts, Part(round(at, 2), "clock-mend")])


def _elect(rng: random.Random) -> Episode:
    """Move leaders repeatedly under load; at the end the order of replicas is restored."""
    parts, at, begin = [], 0.0, rng.randrange(2)
    for number in range(rng.randint(1, 4)):
        parts.append(Part(round(at, 2), "elect", {"turn": 1 + (begin + number) % 2}))
        at += _span(rng, 0.3, 3.0)
    return Episode("", [*parts, Part(round(at, 2), "assign-back")])


def _reassign(rng: random.Random) -> Episode:
    """Remove a replica of a partition and add it again, throttled or not."""
    number = rng.randrange(12)
    more_s, back_s = _span(rng, 0.3, 4.0), _span(rng, 0.5, 6.0)
    move = {"number": number, "turn": rng.randint(0, 2), "copies": 2, "throttle": 0}
    again = {**move, "turn": rng.randint(0, 2), "copies": 3, "throttle": rng.choice((0, 10_000, 100_000))}
    parts = [Part(0, "reassign", move), Part(more_s, "reassign", again), Part(round(more_s + back_s, 2), "assign-back")]
    return Episode(f"{LEADER}:{number}", parts)


def _reassign_kill(rng: random.Random) -> Episode:
    """The same, but the leader dies when the replica returns: until one of them is back nobody may write."""
    episode = _reassign(rng)
    first, more, back = episode.parts
    hit_s = round(more.after_s + 0.1, 2)
    up_s = round(hit_s + _span(rng, 0.3, 3.0), 2)
    parts = [first, more, Part(hit_s, "kill"), Part(up_s, "start"), back]
    return Episode(episode.target, sorted(parts, key=lambda part: part.after_s))


def _drain(rng: random.Random) -> Episode:
    """Run the operator's command, throttled, so that the faults beside it occur during moves."""
    throttle = rng.choice((20_000, 60_000, 200_000))
    return Episode(
        f"{ANY}:{rng.randrange(12)}", [Part(0, "drain", {"throttle": throttle}), Part(_span(rng, 8.0, 25.0), "undrain")]
    )


def _rack(rng: random.Random) -> Episode:
    return Episode(_target(rng), [Part(0, "kill-rack"), Part(_span(rng, 0.5, 8.0), "start-all")])


def _rotate(rng: random.Random) -> Episode:
    """Renew the certificate of one node, or of all, again and again: clients and nodes connect meanwhile, and nobody
    loses a connection."""
    parts, at = [], 0.0
    for _ in range(rng.randint(1, 3)):
        parts.append(Part(round(at, 2), "rotate"))
        at += _span(rng, 0.3, 2.0)
    return Episode(rng.choice(("", _target(rng))), parts)


NEMESES: Final[Mapping[str, Nemesis]] = {
    "kill": Nemesis("kill -9, restarted after a while", _kill, 6),
    "pause": Nemesis("a process freezes, and resumes", _pause, 4),
    "restart": Nemesis("a controlled shutdown, then a start", _restart, 2),
    "roll": Nemesis("a rolling restart of all nodes", _roll, 1),
    "power": Nemesis("all nodes are killed at the same time", _power, 1),
    "cut": Nemesis("a node is cut off, both ways or one way", _cut, 5),
    "bridge": Nemesis("two halves that only one node connects", _bridge, 2),
    "ring": Nemesis("each node is heard only by the next", _ring, 1),
    "flap": Nemesis("a link comes and goes", _flap, 2),
    "clients": Nemesis("a node is cut off from clients alone, both ways or one way", _clients, 2),
    "refuse": Nemesis("a node's connections are broken and refused", _refuse, 1),
    "latency": Nemesis("a node's links are slow, evenly or not", _latency, 2, soft=True),
    "throttle": Nemesis("a node's links have little bandwidth", _throttle, 1, soft=True),
    "loss": Nemesis("a share of a node's connections goes silent", _loss, 1, soft=True),
    "reset": Nemesis("a node's connections are reset", _reset, 1),
    "limit": Nemesis("a node's connections end after a number of bytes", _limit, 1),
    "slow-close": Nemesis("a node dies and its connections close late", _slow_close, 1),
    "disk-full": Nemesis("a node's disk is full, immediately or soon; or all disks are", _disk_full, 2),
    "disk-slow": Nemesis("a node's disk is slow to write, to sync or to read", _disk_slow, 1, soft=True),
    "disk-fails": Nemesis("a node's disk fails to write, to sync or to read", _disk_fails, 1),
    "disk-stall": Nemesis("a node's disk hangs, and resumes", _disk_stall, 1),
    "damage": Nemesis("a node is killed, and returns with flipped bytes in what it had not synced", _damage, 1),
    "elect": Nemesis("elections make other replicas leaders, one order after the other", _elect, 2),
    "reassign": Nemesis("a partition's replicas are moved, throttled or not", _reassign, 2),
    "reassign-kill": Nemesis("a partition's replicas are moved, and its leader dies meanwhile", _reassign_kill, 0),
    "drain": Nemesis("all replicas are moved off a node, during other faults (4 nodes)", _drain, 0, beside=True),
    "rack": Nemesis("all nodes of a rack are killed at the same time (--racks)", _rack, 0),
    "clock": Nemesis("a node's wall clock jumps, ahead or back", _clock, 1, soft=True),
    "rotate": Nemesis("nodes get other keys and certificates (--security)", _rotate, 0),
}
MIXED: Final = "mixed"


def plan(seed: int, seconds: float, names: Sequence[str] = (MIXED,)) -> list[Step]:
    """Return the schedule of a seed: episodes of the named nemeses (:data:`MIXED`: all by weight; beside it, also named
    ones of weight 0) with quiet between, all of it within ``seconds``; the length of a rolling restart is not known
    beforehand and may make the run longer.

    Raises ``ValueError`` for an unknown name.
    """
    if unknown := [name for name in names if name != MIXED and name not in NEMESES]:
        raise ValueError(f"expected nemeses of {', '.join((MIXED, *NEMESES))}, found {unknown[0]!r}")
    rng = random.Random(f"nemesis-{seed}-{','.join(names)}")
    if MIXED in names:
        choice = list(NEMESES)
        weights = [nemesis.weight or NAMED_WEIGHT * (name in names) for name, nemesis in NEMESES.items()]
    else:
        choice, weights = list(names), [1] * len(names)
    steps: list[Step] = []
    at, number = FIRST_S, 0
    tries = TRIES
    while tries:
        name = rng.choices(choice, weights)[0]
        episodes = [(0.0, NEMESES[name].plan(rng))]
        if NEMESES[name].beside:
            episodes += _beside(rng, episodes[0][1].length_s)
        if MIXED in names and rng.random() < OVERLAP and name not in ("roll", "power") and not NEMESES[name].soft:
            over = rng.choice([each for each, nemesis in NEMESES.items() if nemesis.soft])
            episodes.append((0.0, NEMESES[over].plan(rng)))
        end = at + max(after_s + episode.length_s for after_s, episode in episodes)
        if end > seconds:
            tries -= 1  # a shorter one may fit
            continue
        for after_s, episode in episodes:
            number += 1
            steps += [
                Step(round(at + after_s + part.after_s, 2), number, part.act, episode.target, dict(part.options))
                for part in episode.parts
            ]
        at = end + rng.uniform(*QUIET_S)
    return sorted(steps, key=lambda step: step.at_s)


def _beside(rng: random.Random, length_s: float) -> list[tuple[float, Episode]]:
    """Return episodes of the mix, one after the other, from a second after the start to a second before the end."""
    mix = {name: nemesis for name, nemesis in NEMESES.items() if name not in NOT_BESIDE}
    found: list[tuple[float, Episode]] = []
    at, tries = 1.0, TRIES
    while tries:
        (nemesis,) = rng.choices([*mix.values()], [nemesis.weight for nemesis in mix.values()])
        episode = nemesis.plan(rng)
        if at + episode.length_s > length_s - 1.0:
            tries -= 1
            continue
        found.append((at, episode))
        at = round(at + episode.length_s + rng.uniform(*BESIDE_S), 2)
    return found
