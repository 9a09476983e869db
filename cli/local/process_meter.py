"""Measures the memory and processor time of a cluster's nodes across kills and restarts."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process import ProcessMark, use_of

INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node's resource use during the measurement. ``cpu_s`` covers all its processes."""

    memory_peak_bytes: int
    cpu_s: float
    cpu_percent: float
    """Share of one processor."""


class ProcessMeter:
    """Samples the nodes in a thread: ``with ProcessMeter(cluster) as meter: …; meter.use()``.

    It misses what a process uses between its last sample and its death.
    """

    def __init__(self, cluster: LocalCluster, interval_s: float = INTERVAL_S) -> None:
        self._cluster = cluster
        self._interval_s = interval_s
        self._first: dict[ProcessMark, float] = {}
        self._last: dict[ProcessMark, float] = {}
        self._node_of: dict[ProcessMark, int] = {}
        self._peak: dict[int, int] = {}
        self._started = self._ended = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-meter", daemon=True)

    def __enter__(self) -> ProcessMeter:
        self._started = time.monotonic()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        self._ended = time.monotonic()

    def use(self) -> dict[int, NodeUse]:
        """Return the use by node id, up to now or to the end of the ``with`` block."""
        ended = self._ended if self._stop.is_set() else time.monotonic()
        found = {}
        for node_id in self._cluster.nodes:
            marks = [mark for mark, node in self._node_of.items() if node == node_id]
            cpu_s = sum(self._last[mark] - self._first[mark] for mark in marks)
            found[node_id] = NodeUse(self._peak.get(node_id, 0), cpu_s, 100 * cpu_s / max(ended - self._started, 1e-9))
        return found

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        late = bool(self._node_of) or time.monotonic() - self._started > self._interval_s
        for node_id, node in self._cluster.nodes.items():
            mark = node.mark
            use = None if mark is None else use_of(mark)
            if mark is None or use is None:
                continue
            # A process that appeared while we watched used all of its time within the measurement.
            self._first.setdefault(mark, 0.0 if late and mark not in self._node_of else use.cpu_s)
            self._node_of[mark] = node_id
            self._last[mark] = use.cpu_s
            self._peak[node_id] = max(self._peak.get(node_id, 0), use.memory_bytes)
