"""Measures how long requests hold a node's event loop.

A separate connection sends ApiVersions requests without pause. The answer costs the loop microseconds, so all other
processor time of the loop's thread between question and answer was spent on others: a hold. Processor time instead of
wall-clock time, since a busy machine would look like a slow node.
"""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidelog.chaos.fuzz.frames import API_VERSIONS

PERIOD_S: Final = 0.003
TIMEOUT_S: Final = 60.0
GREETING: Final = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)


class LoopProbe:
    """Measures holds: ``with LoopProbe(host, port, pid) as probe: …``; afterwards ``probe.longest_s``.

    ``pid`` is the node's; its event loop runs on the main thread. ``longest_s`` is the longest hold so far, 0.0 if the
    system does not report a thread's processor time (Linux does, in ``/proc``). An unanswered question is for others to
    judge: the probe ends then.
    """

    def __init__(self, host: str, port: int, pid: int) -> None:
        self.longest_s = 0.0
        self._schedule = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._socket = socket.create_connection((host, port), TIMEOUT_S)
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop probe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._asked.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with self._socket.makefile("rb") as answers:
            while not self._stop.is_set():
                try:
                    before_s = self._cpu_s()
                    self._socket.sendall(GREETING)
                    (size,) = struct.unpack(">i", answers.read(4))
                    answers.read(size)
                    self.longest_s = max(self.longest_s, self._cpu_s() - before_s)
                except (OSError, struct.error):
                    break
                self._asked.set()
                self._stop.wait(PERIOD_S)
        self._asked.set()

    def _cpu_s(self) -> float:
        return int(self._schedule.read_text().split()[0]) / 1e9 if self._schedule.exists() else 0.0
