"""Queries for drills and benchmarks: leaders, in-sync replicas, and when they changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.cli.failure import CommandFailed

POLL_S: Final = 0.02


class WatchFailed(CommandFailed):
    """A condition did not hold in time. The text names the condition and the last state seen."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's leader (-1: none), the in-sync replicas, all replicas."""

    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether every replica is in sync and one of them leads."""
        return self.leader in self.isr and set(self.isr) == set(self.replicas)


TopicState = Mapping[int, PartitionState]


def leads_most(state: TopicState) -> tuple[int, int]:
    """Return the node that leads most partitions (the lowest id on a tie) and how many. Raises
    :class:`WatchFailed` if no node leads any."""
    counts: dict[int, int] = {}
    for partition in state.values():
        if partition.leader >= 0:
            counts[partition.leader] = counts.get(partition.leader, 0) + 1
    if not counts:
        raise WatchFailed("expected a node that leads partitions, found none")
    node = min(counts, key=lambda found: (-counts[found], found))
    return node, counts[node]


def describe(state: TopicState) -> str:
    return ", ".join(
        f"{number}: leader {found.leader}, in sync {list(found.isr)}" for number, found in sorted(state.items())
    )


def wait_until(
    what: str, condition: Callable[[], bool], timeout_s: float, now: Callable[[], str] = lambda: ""
) -> float:
    """Wait for ``condition``; return how long it took, in seconds. Raises :class:`WatchFailed`."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            found = now()
            raise WatchFailed(f"waited {timeout_s:g} s for {what}" + (f"; found {found}" if found else ""))
        time.sleep(POLL_S)
    return time.monotonic() - started
