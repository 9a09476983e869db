"""Plots: sequences of faults in which one prepares the ground for the next, as in real incidents.

Chance alone would rarely (once in thousands of runs) separate a leader and its follower in turns, or pause a controller
at the very moment when a replica is to join. A plot is a handful of faults with times of their own; targets are named
by role, and later faults refer to the same node by a name. It is part of a schedule like any other fault: each of its
faults stays harmless when others are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tidelog.chaos.simulated.world.scenario import Fault

Act = tuple[float, str, tuple[str | int | float | bool, ...]]
"""Delay in seconds, kind, arguments."""
Plot = Callable[[random.Random, int, str, int], list[Act]]
"""Makes the faults of one round of a plot, from: randomness, a partition, a suffix for names, the node that loses
data."""

STEPS: Final = (
    "InitProducerIdRequest",
    "AddPartitionsToTxnRequest",
    "TxnOffsetCommitRequest",
    "AddOffsetsToTxnRequest",
    "PrepareTransactionRequest",
    "EndTxnRequest",
    "EndTxnRequest",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersRequest",
)
"""Requests to coordinators, and from them to leaders, in the course of a transaction."""
SINK_STEPS: Final = (
    "BeginSinkTransactionRequest",
    "AddPartitionsToTxnRequest",
    "PrepareTransactionRequest",
    *["CommitBatchRequest"] * 5,
    "AbortJobRequest",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersRequest",
)
"""The same for a sink's batch."""
DRIVER_POINTS: Final = ("planned", "logged", "begun", "written", "deciding", "deciding", "decided", "decided", "noted")
"""Where a driver of a streaming query may die, freeze or be stopped: before and after a batch's range is in its offset
log, when tasks run, when all of them have reported, in the middle of the commit, when the commit is done, when it is in
its commit log."""
PAUSE_S: Final = (2.0, 6.0)
"""Pause between two rounds of a plot."""


def plotted(
    name: str, rng: random.Random, begin_s: float, end_s: float, *, partitions: int, victim: int
) -> list[Fault]:
    """Return two or three rounds of a plot between two times."""
    made: list[Fault] = []
    at = rng.uniform(begin_s + 1.0, begin_s + 6.0)
    for number in range(rng.choice((2, 3))):
        acts = PLOTS[name](rng, rng.randrange(partitions), str(number), victim)
        length = max(act[0] for act in acts)
        if at + length > end_s:
            break
        made += [Fault(round(at + after, 3), kind, arguments) for after, kind, arguments in acts]
        at += length + rng.uniform(*PAUSE_S)
    return made


def kinds_of(name: str) -> frozenset[str]:
    """Return the kinds of fault that a plot uses."""
    return frozenset(kind for seed in range(8) for _, kind, _ in PLOTS[name](random.Random(seed), 0, "", 1))


def _about(rng: random.Random, seconds: float, share: float = 0.15) -> float:
    return round(seconds * rng.uniform(1 - share, 1 + share), 3)


def ping_pong(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """Two replicas lead in turn, each with a tail that the other lacks when it takes over."""
    leader, follower = f"l{n}", f"f{n}"
    return [
        (0.0, "cut-one-way", (f"follower:{partition}>{follower}", f"leader:{partition}>{leader}", _about(rng, 1.7))),
        (_about(rng, 0.45), "pause", (leader, _about(rng, 1.4))),
        (_about(rng, 1.75, 0.05), "isolate", (follower, _about(rng, 2.4))),
    ]


def lone_leader(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A leader is left alone, and is itself away when the other returns."""
    return [
        (0.0, rng.choice(("isolate", "pause")), (f"follower:{partition}", _about(rng, 2.2))),
        (_about(rng, 1.9), rng.choice(("kill", "isolate")), (f"leader:{partition}", _about(rng, 2.0))),
    ]


def late_changes(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """Requests arrive twice, the second time much later, while a follower leaves the ISR and rejoins it."""
    made: list[Act] = [(0.0, "double-requests", (0.6, _about(rng, 7.0), 3.0))]
    at = 0.3
    for _ in range(3):
        made.append(
            (_about(rng, at, 0.02), rng.choice(("pause", "isolate")), (f"follower:{partition}", _about(rng, 1.1)))
        )
        at += 2.0
    return made


def late_incarnations(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A process's requests arrive again after its node restarted, and once more."""
    node = f"x{n}"
    first = rng.choice((f"node:{victim}", f"leader:{partition}", f"follower:{partition}"))
    return [
        (0.0, "double-requests", (0.7, _about(rng, 6.0), 4.0)),
        (0.3, rng.choice(("kill", "stop")), (f"{first}>{node}", 0.05)),
        (_about(rng, 2.0), rng.choice(("kill", "stop")), (node, 0.05)),
        (_about(rng, 4.0), "kill", (node, 0.05)),
    ]


def stuck_join(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The controller is paused when a replica is to join; by the time it resumes, the replica is another process."""
    acts = ("kill", "j", 0.05, "pause", "c", _about(rng, 2.5))
    return [
        (0.0, "kill", (f"follower:{partition}", _about(rng, 0.4))),
        (0.1, "at-isr-change", (partition, "join", 7.0, *acts)),
    ]


def stuck_leave(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The controller is paused when a replica is to leave; another replica leaves meanwhile."""
    leader, follower = f"l{n}", f"f{n}"
    acts = ("pause", "c", _about(rng, 2.5), "pause", f"last:{partition}", _about(rng, 1.2))
    return [
        (0.0, "cut-one-way", (f"follower:{partition}>{follower}", f"leader:{partition}>{leader}", _about(rng, 3.0))),
        (0.1, "at-isr-change", (partition, "leave", 5.0, *acts)),
    ]


def slow_join(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A replica is paused while the change that lets it join is in progress."""
    acts = ("pause", "j", _about(rng, 0.6), "pause", "c", _about(rng, 0.35))
    return [
        (0.0, "kill", (f"follower:{partition}", _about(rng, 0.5))),
        (0.1, "at-isr-change", (partition, "join", 8.0, *acts)),
    ]


def uneven(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A leader dies when one follower has records that the other lacks, and the two cannot talk."""
    leader, ahead, behind = f"l{n}", f"f{n}", f"g{n}"
    return [
        (0.0, "cut-one-way", (f"leader:{partition}>{leader}", f"last:{partition}>{behind}", _about(rng, 1.5))),
        (0.01, "cut", (f"follower:{partition}>{ahead}", behind, _about(rng, 1.8))),
        (_about(rng, 0.5), "kill", (leader, _about(rng, 1.5))),
    ]


def hush(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A new leader does not hear from its follower at first, so it cannot know what its predecessor committed."""
    acts = ("cut-one-way", f"last:{partition}+l", _about(rng, 1.2))
    return [
        (0.0, "at-leader-change", (partition, 4.0, *acts)),
        (_about(rng, 0.1), "kill", (f"leader:{partition}", _about(rng, 1.5))),
    ]


def flip(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """Leadership goes to a follower that lacks records of the other one, and returns before much is written."""
    leader, ahead, behind = f"l{n}", f"g{n}", f"f{n}"
    acts = ("cut-one-way", f"{ahead}+l", _about(rng, 1.5))
    return [
        (0.0, "cut-one-way", (f"follower:{partition}>{behind}", f"leader:{partition}>{leader}", _about(rng, 1.8, 0.1))),
        (0.01, "cut-one-way", (f"last:{partition}>{ahead}", behind, 0.05)),
        (_about(rng, 1.0, 0.1), "isolate", (leader, _about(rng, 0.95, 0.1))),
        (_about(rng, 1.0, 0.1), "cut-one-way", ("clients", behind, _about(rng, 3.0))),
        (_about(rng, 2.6, 0.05), "pause", (behind, _about(rng, 1.6, 0.1))),
        (_about(rng, 2.6, 0.05), "at-leader-change", (partition, 3.0, *acts)),
    ]


def silent_pair(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A leader and its follower are cut off from the controllers; messages from one to the other are held meanwhile."""
    leader, follower = f"l{n}", f"f{n}"
    at = _about(rng, 0.5)
    return [
        (0.0, "cut-one-way", (f"leader:{partition}>{leader}", f"follower:{partition}>{follower}", _about(rng, 3.0))),
        (at, "cut", (leader, "controllers:", _about(rng, 1.1, 0.1))),
        (at, "cut", (follower, "controllers:", _about(rng, 1.5, 0.1))),
    ]


def lost_tail(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The node that loses data stops gracefully, and later loses power, while others are away."""
    made: list[Act] = []
    if rng.random() < 0.5:
        made.append((0.0, "stop", (f"node:{victim}", 0.05)))
    made += [
        (_about(rng, 3.0), rng.choice(("isolate", "pause", "kill")), (f"follower:{partition}", _about(rng, 3.0))),
        (_about(rng, 4.3), "power-loss", (f"node:{victim}", rng.choice((0.05, 0.3, 1.5)))),
    ]
    return made


def wiped_last(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The last replica left in the ISR loses its disk."""
    leader, follower = f"l{n}", f"f{n}"
    return [
        (0.0, "cut", (f"follower:{partition}>{follower}", f"leader:{partition}>{leader}", _about(rng, 6.0))),
        (0.05, "kill", (follower, 0.1)),
        (_about(rng, 3.5), "wipe-logs", (f"node:{victim}", _about(rng, 0.4))),
    ]


def dead_in_rebalance(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A group's coordinator dies, is stopped or is isolated in the middle of a rebalance."""
    member = rng.randrange(8)
    change = rng.choice(
        (("join", ()), ("leave", (member, _about(rng, 3.0))), ("kill-member", (member, 0.05)), ("grow-topic", ()))
    )
    end = rng.choice(("kill", "kill", "stop", "isolate", "power-loss"))
    after = rng.choice((0.02, 0.1, 0.3, 0.8, 3.2))
    return [(0.0, *change), (_about(rng, after), end, ("coordinator", _about(rng, 1.5)))]


def coordinators_in_turns(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A group's coordinator dies, and the next one when it has just loaded, or while it loads."""
    after = rng.choice((0.4, 0.7, 1.0, 1.5))
    return [
        (0.0, rng.choice(("kill", "isolate", "pause")), ("coordinator", _about(rng, 2.5))),
        (_about(rng, after), rng.choice(("kill", "isolate")), ("coordinator", _about(rng, 1.0))),
        (_about(rng, after + 1.2), "kill", ("coordinator", _about(rng, 1.0))),
    ]


def zombie(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A member is paused for longer than its session, and resumes when others have its partitions."""
    member, other = rng.sample(range(8), 2)
    change = rng.choice((("join", ()), ("kill-member", (other, 0.05)), ("leave", (other, _about(rng, 2.0)))))
    return [(0.0, "pause-member", (member, _about(rng, 5.0))), (_about(rng, 1.0), *change)]


def unheard_coordinator(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A group's coordinator writes what its followers do not get, and is then replaced."""
    name = f"c{n}"
    return [
        (0.0, "cut", (f"coordinator>{name}", f"others:{name}", _about(rng, 2.5))),
        (_about(rng, 0.2), rng.choice(("join", "grow-topic")), ()),
        (_about(rng, 2.0), rng.choice(("kill", "pause")), (name, _about(rng, 1.0))),
    ]


def uneven_coordinators(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A group's coordinator dies when one follower has records that the other lacks; its successor cannot reach the
    other, and is alone with clients as soon as it serves."""
    first, second, last = f"c{n}", f"d{n}", f"e{n}"
    return [
        (0.0, "cut-one-way", (f"coordinator>{first}", f"coordinator-last>{last}", _about(rng, 2.2, 0.05))),
        (0.01, "cut", (f"coordinator-next>{second}", last, _about(rng, 4.2, 0.05))),
        (1.3, "at-coordinator-loaded", (4.0, "isolate", "n", _about(rng, 2.0))),
        # It returns soon, as a voter: two controllers that are cut off from each other elect nobody.
        (_about(rng, 1.6, 0.1), "kill", (first, _about(rng, 0.3))),
    ]


def unheard_decision(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """When a commit is requested, the coordinator still reaches the other nodes, but none reaches it, and the request
    is held until no fetch waits there; then the coordinator decides and dies, and so does the producer, which would
    retry."""
    number = rng.randrange(3)
    seconds = rng.choice((0.02, 0.08, 0.3))
    held = 0.7
    acts = ("cut-one-way", "others:u+u", 1.9, "cut-one-way", "clients+u", held)
    return [(0.0, "at-commit", (number, 8.0, *acts, "kill-both", f"{number}+u", round(held + seconds, 3)))]


def between_two_steps(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The node that has just been asked for a step of a transaction dies, is stopped, paused or cut off, a few messages
    later: another one coordinates, or leads, from any point in the step. Or this happens to a producer, or to both."""
    step, messages = rng.choice(STEPS), rng.choice((0, 1, 2, 4, 8, 16, 40))
    end = rng.choice(("kill", "kill", "stop", "pause", "isolate", "kill-both", "kill-producer", "kill-producer"))
    number = rng.choice((3, 4)) if "Offset" in step else rng.randrange(3)
    target: str | int = "u"
    if end.startswith("kill-"):
        target = number if end == "kill-producer" else f"{number}+u"
    seconds = _about(rng, rng.choice((0.05, 0.5, 2.5)))
    return [(0.0, "at-step", (step, messages, 6.0, end, target, 0.001 if end == "kill-both" else seconds))]


def between_sink_steps(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The same for the steps of a sink; or its driver, or one of its tasks, dies."""
    step, messages = rng.choice(SINK_STEPS), rng.choice((0, 1, 2, 4, 8, 16, 40))
    end = rng.choice(("kill", "kill", "stop", "pause", "isolate", "kill-producer", "pause-producer"))
    target: str | int = rng.randrange(4) if end == "kill-producer" else "u"
    seconds = _about(rng, rng.choice((0.05, 0.5, 2.5)))
    if end == "pause-producer":
        return [(0.0, end, (rng.randrange(4), _about(rng, 9.0)))]
    return [(0.0, "at-step", (step, messages, 6.0, end, target, seconds))]


def unheard_batch(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """When a batch is to be decided, the coordinator is cut off from all other nodes, not from clients; then it
    dies."""
    acts = ("cut", "others:u+u", 1.5, "kill-later", "u", rng.choice((0.05, 0.2, 0.6)))
    return [(0.0, "at-commit", (rng.randrange(2), 8.0, *acts))]


def half_told(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The coordinator of a transaction is gone when it has decided to commit and has not told every partition."""
    end = rng.choice(("kill", "kill", "isolate", "pause"))
    return [(0.0, "at-commit", (6.0, end, "u", _about(rng, rng.choice((0.5, 2.5)))))]


def half_written(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The leader of a partition that a transaction has just begun to write to is gone, and nobody else."""
    end = rng.choice(("kill", "kill", "isolate"))
    return [(0.0, "at-step", (6.0, end, "t", _about(rng, rng.choice((0.5, 2.5)))))]


def driver_at_point(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A query's driver dies at a certain point of a batch, is stopped there, or freezes and resumes when another has
    started."""
    what = rng.choice(("driver-dies-at", "driver-dies-at", "driver-freezes-at", "driver-stops-at"))
    seconds = _about(rng, rng.choice((0.5, 2.0, 5.0) if what == "driver-freezes-at" else (0.05, 0.5)))
    return [(0.0, what, (rng.randrange(2), rng.choice(DRIVER_POINTS), seconds))]


def deposed_source(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A leader of a topic that queries read is cut off from the others, not from clients, and does not know that it was
    replaced; drivers restart meanwhile, and may get the log end from it first."""
    return [
        (0.0, "isolate", ("source", _about(rng, 9.0))),
        *((_about(rng, at), "driver-dies-at", (rng.randrange(2), "noted", 0.1)) for at in (3.0, 4.2, 5.5)),
    ]


def late_loser(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """Task attempts freeze one after the other, until others have done their work and its batch is decided."""
    return [
        (_about(rng, at), "pause-producer", (rng.choice((1, 3, 5, 7)), _about(rng, rng.choice((2.0, 5.0)))))
        for at in (0.0, 0.6, 1.2)
    ]


def hasty_promotion(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A link is promoted while its target's leaders accept records that their followers get late."""
    return [
        (0.0, "late-fetches", (1.0, 0.9, _about(rng, 2.5))),
        (rng.choice((0.5, 1.0, 1.5)), "promote-link", ()),
    ]


def unheard_promotion(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A link is promoted while one of the target's leaders receives no word of it."""
    return [
        (0.0, "target-cut-one-way", ("controller", f"leader:{partition}", _about(rng, 1.6))),
        (rng.choice((0.05, 0.2, 0.4)), "promote-link", ()),
    ]


def deposed_target(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """One of the target's leaders is cut off from the others, not from the link, until it is replaced."""
    return [(0.0, "target-isolate", (f"leader:{partition}", _about(rng, 3.0)))]


def zombie_copier(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The copier from inputs to outputs freezes in the middle of its work, until another one has taken over."""
    return [(0.0, "pause-producer", (rng.choice((3, 4)), _about(rng, 4.5, 0.25)))]


def zombie_worker(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A program freezes in the middle of a transaction's steps, until others have its partitions and it has timed
    out."""
    step = rng.choice(("TxnOffsetCommitRequest", "AddOffsetsToTxnRequest", "EndTxnRequest", "WriteTxnMarkersRequest"))
    acts = ("pause-producer", rng.randrange(2), _about(rng, rng.choice((4.5, 8.0))))
    return [(0.0, "at-step", (step, rng.choice((0, 1, 2, 4)), 6.0, *acts))]


def deposed_is_asked(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """A leader of inputs is cut off from the others, not from clients, and does not know that it was replaced; the
    copiers of inputs restart meanwhile, and by chance ask this leader first."""
    return [
        (0.0, "isolate", (f"leader:{partition}", _about(rng, 9.0))),
        *((_about(rng, at), "second-producer", (rng.choice((3, 4)), 0.1)) for at in (2.5, 3.7, 5.0, 6.3)),
    ]


def leaders_in_turns(rng: random.Random, partition: int, n: str, victim: int) -> list[Act]:
    """The leaders of partitions with open transactions leave and return, one after the other."""
    made: list[Act] = []
    at = 0.0
    for number in range(3):
        made.append((at, rng.choice(("stop", "kill")), (f"partition-leader>s{n}{number}", _about(rng, 0.3))))
        at += _about(rng, 2.0)
    return made


PLOTS: Final[Mapping[str, Plot]] = MappingProxyType(
    {
        "ping-pong": ping_pong,
        "lone-leader": lone_leader,
        "late-changes": late_changes,
        "late-incarnations": late_incarnations,
        "stuck-join": stuck_join,
        "stuck-leave": stuck_leave,
        "slow-join": slow_join,
        "uneven": uneven,
        "hush": hush,
        "flip": flip,
        "silent-pair": silent_pair,
        "lost-tail": lost_tail,
        "wiped-last": wiped_last,
        "dead-in-rebalance": dead_in_rebalance,
        "coordinators-in-turns": coordinators_in_turns,
        "zombie": zombie,
        "unheard-coordinator": unheard_coordinator,
        "uneven-coordinators": uneven_coordinators,
        "unheard-decision": unheard_decision,
        "between-two-steps": between_two_steps,
        "between-sink-steps": between_sink_steps,
        "unheard-batch": unheard_batch,
        "half-told": half_told,
        "half-written": half_written,
        "driver-at-point": driver_at_point,
        "deposed-source": deposed_source,
        "late-loser": late_loser,
        "hasty-promotion": hasty_promotion,
        "unheard-promotion": unheard_promotion,
        "deposed-target": deposed_target,
        "zombie-copier": zombie_copier,
        "zombie-worker": zombie_worker,
        "leaders-in-turns": leaders_in_turns,
        "deposed-is-asked": deposed_is_asked,
    }
)
