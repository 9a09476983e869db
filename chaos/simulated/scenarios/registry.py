"""The available scenarios, and those from a user's own file.

A scenario is imported on first use: a worker that runs one scenario loads nothing of the others, and a mutant is
installed before the code that it changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tidelog.chaos.simulated.world.scenario import Scenario


class ScenarioError(Exception):
    """A scenario could not be loaded; the text says what was asked for and what is available."""


def _lazily(module: str, name: str) -> Callable[[], Scenario]:
    def make() -> Scenario:
        made: Scenario = getattr(importlib.import_module(module), name)()
        return made

    return make


def _cluster(setting: str, module: str = "tidelog.chaos.simulated.scenarios.clusters") -> Callable[[], Scenario]:
    def make() -> Scenario:
        from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario

        return ClusterScenario(getattr(importlib.import_module(module), setting))

    return make


SCENARIOS: Mapping[str, Callable[[], Scenario]] = MappingProxyType(
    {
        "quorum": _lazily("tidelog.chaos.simulated.quorum.scenario", "QuorumScenario"),
        "replication": _cluster("REPLICATION"),
        "replication-tcp": _cluster("REPLICATION_TCP"),
        "power-loss": _cluster("POWER_LOSS"),
        "unclean": _cluster("UNCLEAN"),
        "disk": _cluster("DISK"),
        "directories": _cluster("DIRECTORIES", "tidelog.chaos.simulated.scenarios.directories"),
        "producers": _cluster("PRODUCERS"),
        "five-nodes": _cluster("FIVE_NODES"),
        "racks": _cluster("RACKS"),
        "reassignment": _cluster("REASSIGNMENT", "tidelog.chaos.simulated.scenarios.moves"),
        "removal": _cluster("REMOVAL", "tidelog.chaos.simulated.scenarios.moves"),
        "compaction": _cluster("COMPACTION"),
        "filters": _cluster("FILTERS", "tidelog.chaos.simulated.scenarios.filters"),
        "groups": _cluster("GROUPS"),
        "consumer-groups": _cluster("CONSUMER_GROUPS", "tidelog.chaos.simulated.scenarios.consumer_groups"),
        "mixed-groups": _cluster("MIXED_GROUPS", "tidelog.chaos.simulated.scenarios.consumer_groups"),
        "transactions": _cluster("TRANSACTIONS"),
        "sinks": _cluster("SINKS"),
        "bit-rot": _cluster("BIT_ROT"),
        "access": _cluster("ACCESS"),
        "credentials": _cluster("CREDENTIALS"),
        "versions": _cluster("VERSIONS", "tidelog.chaos.simulated.scenarios.versions"),
        "links": _cluster("LINKS", "tidelog.chaos.simulated.scenarios.links"),
        "delay": _cluster("DELAY", "tidelog.chaos.simulated.scenarios.delays"),
        "outbox": _cluster("OUTBOX", "tidelog.chaos.simulated.scenarios.patterns"),
        "retries": _cluster("RETRIES", "tidelog.chaos.simulated.scenarios.patterns"),
        "replays": _cluster("REPLAYS", "tidelog.chaos.simulated.scenarios.replays"),
        "spark": _cluster("SPARK", "tidelog.chaos.simulated.scenarios.spark"),
    }
)
"""Name → factory. A line each: ``"quorum": _lazily("tidelog.chaos.simulated.quorum", "QuorumScenario")``."""


NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType({"spark": ("pyspark", "pyarrow")})
"""Imports of a scenario that not every machine has: what ``pip install 'tidelog[spark]'`` installs."""


def missing(name: str) -> str:
    """Say what a scenario needs that this machine lacks, and how to get it; "" if nothing is missing."""
    if name == "versions":
        from tidelog.chaos.simulated.former.release import WHEEL

        if not WHEEL.is_file():
            return f"{WHEEL}: run it in a clone of the repository"
    absent = [module for module in NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]
    return f"{' and '.join(absent)}: pip install 'tidelog[spark]'" if absent else ""


class Registry:
    """Scenarios by name: those of :data:`SCENARIOS`, and those of a file if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        """Load ``file``, if given; :class:`ScenarioError` if it cannot be loaded or defines none."""
        self._made: dict[str, Scenario] = {}
        self.of_file: tuple[str, ...] = ()
        if file is not None:
            found = load_file(file)
            self._made = {scenario.name: scenario for scenario in found}
            self.of_file = tuple(self._made)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that can be run here, with those from the file first."""
        return (*self.of_file, *(name for name in SCENARIOS if name not in self._made and not missing(name)))

    def get(self, name: str) -> Scenario:
        """Return the scenario of that name; raise :class:`ScenarioError` if there is none."""
        if name not in self._made:
            if name not in SCENARIOS:
                there_are = ", ".join(self.names) or "none"
                raise ScenarioError(f"no scenario {name!r}. There are: {there_are}")
            if absent := missing(name):
                raise ScenarioError(f"scenario {name!r} needs {absent}")
            scenario = SCENARIOS[name]()
            if scenario.name != name:
                raise ScenarioError(f"scenario {name!r} calls itself {scenario.name!r}: one of the two is wrong")
            self._made[name] = scenario
        return self._made[name]

    def choose(self, names: Iterable[str]) -> tuple[Scenario, ...]:
        """Return the scenarios of those names; without names, all of the file, or else all available."""
        wanted = tuple(dict.fromkeys(names)) or self.of_file or self.names
        if not wanted:
            raise ScenarioError("no scenario is there to run")
        return tuple(self.get(name) for name in wanted)


def is_scenario(thing: object) -> bool:
    """Tell whether an object has the attributes of :class:`Scenario` (instances count, classes do not)."""
    return (
        not isinstance(thing, type)
        and isinstance(getattr(thing, "name", None), str)
        and isinstance(getattr(thing, "faults_expected", None), frozenset)
        and isinstance(getattr(thing, "events_expected", None), frozenset)
        and callable(getattr(thing, "schedule", None))
        and callable(getattr(thing, "run", None))
    )


def load_file(file: Path) -> list[Scenario]:
    """Run a Python file and return the scenarios among its names, in the order of the file.

    Raises :class:`ScenarioError` for a file that does not exist, fails, defines none, or defines two of one name.
    """
    if not file.is_file():
        raise ScenarioError(f"no file {file}")
    module_name = f"tidelog_scenarios_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ScenarioError(f"{file} is no Python file: expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as trouble:
        last = "".join(traceback.format_exception(trouble, limit=-1)).strip()
        raise ScenarioError(f"{file} failed as it was loaded:\n{last}") from trouble
    found: dict[str, Scenario] = {}
    for thing in vars(module).values():
        if not is_scenario(thing):
            continue
        scenario: Scenario = thing
        if found.setdefault(scenario.name, scenario) is not scenario:
            raise ScenarioError(f"{file} defines two scenarios with the name {scenario.name!r}")
    if not found:
        raise ScenarioError(f"{file} defines no scenario: expected an object with {_WANTED} at its top level")
    return list(found.values())


_WANTED = "name, faults_expected, events_expected, schedule and run"


def summary(scenario: Scenario) -> str:
    """Return the first line of a scenario's docstring."""
    return (scenario.__doc__ or "").strip().partition("\n")[0]
