"""Makes schedules of faults from a seed: kinds by weight, and plots in which one fault leads to another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.chaos.simulated.faults.fault_plots import DRIVER_POINTS, plotted
from tidelog.chaos.simulated.world.scenario import Fault

CLIENTS: Final = "clients"
TARGET: Final = "target-"
"""Kinds with this prefix affect the target of a link."""
LENGTHS_S: Final = (0.05, 0.3, 1.0, 3.0, 8.0)
CLOCK_JUMPS_MS: Final = (-3_600_000, -60_000, -500, 500, 60_000, 86_400_000)
PLOTTED: Final = 0.7
"""The share of schedules that have a plot, if the scenario has any."""


class FaultMix:
    """Makes schedules: kinds with their weights, over some seconds."""

    def __init__(
        self,
        kinds: Mapping[str, int],
        *,
        nodes: int,
        partitions: int,
        victim_only: Sequence[str] = (),
        plots: Sequence[str] = (),
        targets: Sequence[str] = (),
        clock_jumps_ms: Sequence[int] = CLOCK_JUMPS_MS,
    ) -> None:
        self._clock_jumps_ms = tuple(clock_jumps_ms)
        self.kinds = dict(kinds)
        self._nodes = nodes
        self._partitions = partitions
        self._victim_only = frozenset(victim_only)
        """Kinds that affect one and the same node in a run."""
        self._plots = tuple(plots)
        """Names of :data:`~tidelog.chaos.simulated.faults.fault_plots.PLOTS`; every other schedule has some of one."""
        self._targets = tuple(targets)
        """Targets by role besides those that every cluster has."""

    def schedule(self, rng: random.Random, count: int, begin_s: float, end_s: float) -> tuple[Fault, ...]:
        """Return ``count`` faults between two times, in bursts: trouble seldom comes alone."""
        victim = rng.randrange(self._nodes) + 1
        plot = rng.choice(self._plots) if self._plots and rng.random() < PLOTTED else ""
        made: list[Fault] = []
        if plot:
            made = plotted(plot, rng, begin_s, end_s, partitions=self._partitions, victim=victim)
            count = max(count - len(made), count // 3)
        at = rng.uniform(begin_s, begin_s + 3.0)
        pause = (end_s - begin_s) / max(count, 1)
        kinds = rng.choices(list(self.kinds), list(self.kinds.values()), k=count) if count else []
        for kind in kinds:
            made.append(Fault(round(min(at, end_s), 3), kind, self._arguments(rng, kind, f"node:{victim}")))
            at += rng.choice((0.01, 0.1, 0.5, 1.0, 2.0)) * pause * rng.random() * 2
        return tuple(sorted(made, key=lambda fault: fault.at_s))

    def _target(self, rng: random.Random) -> str:
        partition = rng.randrange(self._partitions)
        node = f"node:{rng.randrange(self._nodes) + 1}"
        return rng.choice(
            (
                node,
                node,
                f"leader:{partition}",
                f"leader:{partition}",
                f"follower:{partition}",
                "controller",
                *self._targets,
            )
        )

    def _arguments(self, rng: random.Random, kind: str, victim: str) -> tuple[str | int | float | bool, ...]:
        target = victim if kind in self._victim_only else self._target(rng)
        length = round(rng.choice(LENGTHS_S) * (0.5 + rng.random()), 3)
        match kind.removeprefix(TARGET):
            case "kill" | "stop" | "power-loss" | "pause" | "isolate" | "wipe-logs":
                return (target, length)
            case "rot":
                return (f"node:{rng.randrange(self._nodes) + 1}", rng.randrange(1 << 16))
            case "rot-stopped":
                return (f"node:{rng.randrange(self._nodes) + 1}", rng.randrange(1 << 16), length)
            case "bit-flip":
                return (target, rng.randrange(1 << 16), length)
            case "kill-in-disk-call" | "power-loss-in-disk-call":
                return (target, rng.choice((1, 2, 3, 5, 10, 30)), length)
            case "power-loss-in-rename" | "power-loss-in-swap":
                return (target, rng.randrange(1, 16), round(max(length, 2.0), 3))
            case "ring" | "halves":
                return (rng.randrange(1 << 16), length)
            case "kill-all" | "power-loss-all" | "pause-all":
                return (round(min(length, 3.0), 3),)
            case "kill-two" | "power-loss-two":
                return (*(f"node:{n + 1}" for n in rng.sample(range(self._nodes), 2)), length)
            case "cut" | "cut-one-way" | "break":
                sides = [*(f"node:{n + 1}" for n in range(self._nodes)), CLIENTS]
                a, b = rng.sample(sides, 2)
                return (a, b, length)
            case "delay":
                return (target, round(rng.choice((0.005, 0.05, 0.3)), 3), length)
            case "slow-disk":
                return (target, rng.choice((0.02, 0.2, 1.0)), length)
            case "clock-jump":
                return (target, rng.choice(self._clock_jumps_ms))
            case "disk-error" | "disk-full":
                return (target, rng.randrange(2), length)
            case "double-requests":
                return (rng.choice((0.1, 0.5)), length)
            case "late-verdicts":
                return (rng.choice((0.2, 0.7)), rng.choice((0.05, 0.5)), max(length, 1.0))
            case "garble-records":
                return (rng.choice((0.2, 0.6)), rng.randrange(1 << 16), length)
            case "kill-client":
                return (rng.randrange(4),)
            case "pause-client":
                return (rng.randrange(4), length)
            case "kill-member":
                return (rng.randrange(8), rng.choice((length, length, 0.0)))
            case "pause-member":
                return (rng.randrange(8), round(rng.choice((0.3, 2.0, 5.0, 9.0)) * (0.5 + rng.random()), 3))
            case "leave":
                return (rng.randrange(8), length)
            case "kill-producer" | "kill-link":
                return (rng.randrange(8), round(rng.choice((0.05, 0.5, 3.0)) * (0.5 + rng.random()), 3))
            case "pause-producer" | "second-producer" | "pause-link" | "second-link":
                return (rng.randrange(8), round(rng.choice((0.0, 0.3, 2.0, 6.0)) * (0.5 + rng.random()), 3))
            case "driver-dies-at" | "driver-freezes-at" | "driver-stops-at":
                return (rng.randrange(2), rng.choice(DRIVER_POINTS), length)
            case "reassign":
                return (rng.randrange(self._partitions), rng.randrange(1 << 16))
            case "drain":
                return (rng.randrange(self._nodes) + 1, round(rng.choice((0.0, 0.5, 3.0)) * (0.5 + rng.random()), 3))
            case "remove":
                way = rng.choice(("stop", "stop", "kill", "kill", "pause", "isolate"))
                return (rng.randrange(self._nodes) + 1, way, rng.random() < 0.6, length)
            case "unregister":
                return (rng.randrange(self._nodes) + 1,)
            case "cancel-reassignment":
                return (rng.randrange(self._partitions),)
            case "throttle":
                return (rng.choice((200, 2_000, 20_000)), round(max(length, 1.0), 3))
            case "move-log":
                return (target, rng.randrange(self._partitions))
            case "move-logs" | "end-moves":
                return (target,)
            case "upgrade" | "roll-back":
                return (rng.randrange(self._nodes), rng.random() < 0.4)
            case "make-topic":
                return (rng.choice((2, 3)),)
            case "ask-for-more":
                return (rng.randrange(self._nodes) + 1, rng.randrange(self._partitions))
            case "replace-member":
                return (rng.randrange(8),)
            case "alter-config" | "finalise" | "join" | "grow-topic" | "new-topic" | "elect" | "kill-operator":
                return ()
            case "promote-link" | "drain-link" | "reverse-link":
                return ()
            case _:
                raise ValueError(f"no such kind of fault: {kind}")
