"""Scenarios of a few lines that fail on purpose, to test the machinery around scenarios."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from tidelog.chaos.simulated.world.scenario import Fault, Outcome, Trace

BAD, ENDLESS, RAISING, DYING, GREEDY = 1000, 2000, 3000, 4000, 5000


class Counting:
    """Counts its faults; one seed breaks if the faults 3 and 7 both happen.

    This line is not shown in the list.
    """

    name = "counting"
    faults_expected = frozenset({"tick"})
    events_expected = frozenset({"odd", "thousandth"})

    def schedule(self, seed: int) -> tuple[Fault, ...]:
        return tuple(Fault(float(index), "tick", (index,)) for index in range(20))

    def run(self, seed: int, schedule: Sequence[Fault] | None = None, *, trace: Trace | None = None) -> Outcome:
        faults = self.schedule(seed) if schedule is None else schedule
        outcome = Outcome(self.name, seed, virtual_s=20.0)
        digest = hashlib.sha256()
        for line in self.lines(seed, faults):
            digest.update(line.encode())
            if trace is not None:
                trace(line)
        outcome.digest = digest.hexdigest()
        outcome.operations = len(faults)
        outcome.faults["tick"] = len(faults)
        outcome.events["odd"] = seed % 2
        outcome.events["thousandth"] = int(seed % 1000 == 0)
        if seed == BAD and {3, 7} <= {fault.arguments[0] for fault in faults}:
            outcome.violations.append("3 and 7 both happened")
        while seed == ENDLESS:
            pass
        if seed == RAISING:
            raise KeyError("lost")
        if seed == DYING:
            os.write(2, b"these are its last words\n")
            os._exit(7)
        if seed == GREEDY:
            outcome.operations = len(bytearray(1 << 40))
        return outcome

    def lines(self, seed: int, faults: Sequence[Fault]) -> list[str]:
        return [f"seed {seed}", *map(str, faults)]


class HashOrder(Counting):
    """Goes through a set of strings, whose order is another in each process."""

    name = "hash-order"

    def lines(self, seed: int, faults: Sequence[Fault]) -> list[str]:
        return [f"seed {seed}", *{f"name {number}" for number in range(50)}]


class LeavesBehind(Counting):
    """Counts on from the run before."""

    name = "leaves-behind"
    runs = 0

    def lines(self, seed: int, faults: Sequence[Fault]) -> list[str]:
        LeavesBehind.runs += 1
        return [f"run {LeavesBehind.runs}"]


counting = Counting()
hash_order = HashOrder()
leaves_behind = LeavesBehind()
