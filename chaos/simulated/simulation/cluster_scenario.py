"""Scenarios of a whole cluster: clients work while faults happen; then everything is repaired and judged.

A run has a minute of virtual time with faults. Then every fault is undone, every node is started, and the cluster must
recover within a bound: every ISR full, every producer acknowledged again, consumers at the end. Then the judges check
the logs of all replicas, the acknowledgements of producers and the records of consumers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.chaos.simulated.faults.fault_mix import FaultMix
from tidelog.chaos.simulated.faults.fault_plots import kinds_of
from tidelog.chaos.simulated.simulation.simulation import Body, Setting, Simulation
from tidelog.chaos.simulated.world.scenario import Fault, Outcome, Trace
from tidelog.chaos.simulated.world.world import World

MARGIN_S = 3.0
"""No fault starts within this time of the end."""


class ClusterScenario:
    """A scenario of a whole cluster."""

    def __init__(self, setting: Setting, body: Body | None = None) -> None:
        self.__doc__ = setting.about
        self.name = setting.name
        self.setting = setting
        self._body = body
        self.faults_expected = frozenset(setting.kinds).union(*map(kinds_of, setting.plots))
        self.events_expected = setting.events
        self._mix = FaultMix(
            setting.kinds,
            nodes=setting.nodes,
            partitions=setting.partitions,
            victim_only=setting.victim_only,
            plots=setting.plots,
            targets=setting.targets,
            clock_jumps_ms=setting.clock_jumps_ms,
        )

    def schedule(self, seed: int) -> tuple[Fault, ...]:
        """Make the schedule of a seed: renaming the scenario does not change it, other kinds of fault do."""
        setting = self.setting
        rng = random.Random(f"faults-{seed}")
        return self._mix.schedule(rng, setting.faults, 1.0, setting.seconds - MARGIN_S)

    def run(self, seed: int, schedule: Sequence[Fault] | None = None, *, trace: Trace | None = None) -> Outcome:
        """Run a seed with its own schedule or the given one."""
        setting = self.setting
        world = World(
            seed,
            nodes=setting.nodes,
            controllers=setting.controllers,
            config={"min.insync.replicas": "2", **setting.config},
            log_dirs=setting.log_dirs,
            drift=setting.drift,
            trace=trace,
        )
        run = Simulation(world, setting, self.schedule(seed) if schedule is None else schedule)
        outcome = Outcome(self.name, seed)
        try:
            world.run(lambda: run.run(self._body))
        finally:
            outcome.violations = world.violations
            outcome.faults = run.injector.count
            outcome.events = run.events + world.logged
            outcome.operations = run.operations
            outcome.virtual_s = run.ended_s
            outcome.digest = world.digest
            outcome.raised = run.raised
        return outcome


def scenario(
    *, name: str = "", faults: Mapping[str, int] | Sequence[str] = (), fault_count: int = 12, **setting: Any
) -> Callable[[Body], ClusterScenario]:
    """Make a scenario from a coroutine that acts while clients work; judgement follows by itself.

    ``name``: that of the function by default. ``faults``: kinds of fault that occur at random meanwhile,
    ``fault_count`` of them, with weights if it is a mapping. ``setting``: fields of
    :class:`~tidelog.chaos.simulated.simulation.simulation.Setting`, such as ``nodes``, ``partitions``, ``seconds``,
    ``config``.
    """
    kinds = dict(faults) if isinstance(faults, Mapping) else dict.fromkeys(faults, 1)

    def make(body: Body) -> ClusterScenario:
        about = (body.__doc__ or body.__name__).strip()
        own = {"seconds": 10.0, "events": frozenset[str](), **setting}
        count = fault_count if kinds else 0
        return ClusterScenario(
            Setting(name or body.__name__.replace("_", "-"), about, kinds, faults=count, **own), body
        )

    return make
